//! What an operator says about steering, in ethtool's words.
//!
//! | words | what |
//! |---|---|
//! | `flow-type …` | a rule, in place of the one at its place ([`Rule`]) |
//! | `delete LOC` | takes the rule at a place away |
//! | `equal N [start Q]` | the hash spreads evenly over N queues, from queue Q on |
//! | `weight W0 W1 …` | it spreads over the queues in these proportions |
//! | `hkey 6d:5a:…`, `hkey symmetric`, `hkey default` | its key: 40 bytes; one under which both directions of a flow go the same way; that of the published test vectors |
//! | `off` | no hash: packets that no rule is about stay where they came in |

use super::{KEY_LEN, KEY_PUBLISHED, KEY_SYMMETRIC, Rss, Rule, Steering};

/// Entries of a table that is made here, as cards have.
const ENTRIES: u32 = 128;

/// Why a change is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SteerError(String);

/// A change that makes sense by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A rule.
    Insert(Rule),
    /// Without the rule at this place.
    Delete(u32),
    /// Another hash. What is `None` stays as it is.
    Spread {
        /// Queues by hash.
        queues: Option<Vec<u32>>,
        /// Its key.
        key: Option<Box<[u8; KEY_LEN]>>,
    },
    /// No hash.
    Off,
}

impl Change {
    /// Reads the words.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Change, SteerError> {
        let wrong = |why: String| Err(SteerError(why));
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["flow-type", ..] => Rule::parse(text).map(Change::Insert).map_err(|e| SteerError(e.to_string())),
            ["delete", loc] => number("delete", loc).map(Change::Delete),
            ["off"] => Ok(Change::Off),
            ["equal" | "weight" | "hkey", ..] => spread(&words),
            _ => wrong(format!(
                "{text:?}: a change begins with flow-type, delete, equal, weight, hkey or off, as in: flow-type udp4 dst-port 53 action 2"
            )),
        }
    }
}

fn number(word: &str, text: &str) -> Result<u32, SteerError> {
    text.parse().map_err(|_| SteerError(format!("{word} {text}: no number")))
}

fn spread(words: &[&str]) -> Result<Change, SteerError> {
    let (mut queues, mut key, mut start) = (None::<Vec<u32>>, None, 0);
    let mut words = words.iter().copied().peekable();
    while let Some(word) = words.next() {
        match word {
            "equal" => {
                let count = number(word, words.next().unwrap_or_default())?;
                if count == 0 || count > ENTRIES {
                    return Err(SteerError(format!("equal {count}: 1 to {ENTRIES} queues")));
                }
                queues = Some((0..ENTRIES).map(|entry| entry % count).collect());
            }
            "weight" => {
                let mut weights = Vec::new();
                while let Some(weight) = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
                    weights.push(number("weight", weight)?);
                }
                queues = Some(weighted(&weights)?);
            }
            "start" => start = number(word, words.next().unwrap_or_default())?,
            "hkey" => key = Some(Box::new(read_key(words.next().unwrap_or_default())?)),
            _ => return Err(SteerError(format!("{word}: not one of equal, weight, start, hkey"))),
        }
    }
    if start > 0 && queues.is_none() {
        return Err(SteerError("start: belongs to equal or weight".into()));
    }
    let shifted = |queues: Vec<u32>| queues.into_iter().map(|queue| queue.saturating_add(start)).collect();
    Ok(Change::Spread { queues: queues.map(shifted), key })
}

/// A table in which queue n stands in proportion to the nth weight.
fn weighted(weights: &[u32]) -> Result<Vec<u32>, SteerError> {
    let sum: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    if sum == 0 {
        return Err(SteerError("weight: one number for each queue, not all of them 0".into()));
    }
    let mut table = Vec::with_capacity(ENTRIES as usize);
    let mut share = 0;
    for (queue, &weight) in (0u32..).zip(weights) {
        share += u64::from(weight);
        // Rounded where the next one begins, so that all entries are taken.
        let end = (share * u64::from(ENTRIES) + sum / 2) / sum;
        table.resize((end as usize).max(table.len()), queue);
    }
    Ok(table)
}

fn read_key(text: &str) -> Result<[u8; KEY_LEN], SteerError> {
    match text {
        "symmetric" => return Ok(KEY_SYMMETRIC),
        "default" => return Ok(KEY_PUBLISHED),
        _ => {}
    }
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes
        .and_then(|bytes| <[u8; KEY_LEN]>::try_from(bytes).ok())
        .ok_or_else(|| SteerError(format!("hkey {text}: {KEY_LEN} bytes as in 6d:5a:…, symmetric, or default")))
}

impl Steering {
    /// This steering with a change, for a port with so many queues; and the place of the rule, when it was one.
    ///
    /// # Errors
    /// No such queue, no such rule, no place left.
    pub fn changed(&self, change: Change, queues: u32) -> Result<(Steering, Option<u32>), SteerError> {
        let mut next = self.clone();
        let known = |queue: u32| match queue < queues {
            true => Ok(()),
            false => Err(SteerError(format!("queue {queue}: the port has {queues}, numbered from 0"))),
        };
        match change {
            Change::Insert(rule) => {
                if let super::Action::Queue(queue) = rule.action {
                    known(queue)?;
                }
                let full = |rule: Rule| SteerError(format!("no place is left for: {rule}"));
                let loc = next.insert(rule).map_err(full)?;
                return Ok((next, Some(loc)));
            }
            Change::Delete(loc) if next.remove(loc) => {}
            Change::Delete(loc) => return Err(SteerError(format!("delete {loc}: no rule is there"))),
            Change::Spread { queues: table, key } => {
                table.iter().flatten().try_for_each(|&queue| known(queue))?;
                let old = next.rss.take();
                let key = key.map(|key| *key).or(old.as_ref().map(|rss| *rss.key())).unwrap_or(KEY_PUBLISHED);
                let table = table.or(old.map(|rss| rss.indirection().to_vec()));
                let table = table.unwrap_or_else(|| (0..ENTRIES).map(|entry| entry % queues.max(1)).collect());
                next.rss = Some(Rss::new(&key, &table));
            }
            Change::Off => next.rss = None,
        }
        Ok((next, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(steering: &Steering, text: &str) -> Result<Steering, String> {
        let change = Change::parse(text).map_err(|e| e.to_string())?;
        steering.changed(change, 4).map(|(next, _)| next).map_err(|e| e.to_string())
    }

    fn counts(steering: &Steering) -> [usize; 4] {
        let table = steering.rss().expect("it is on").indirection();
        [0, 1, 2, 3].map(|queue| table.iter().filter(|&&entry| entry == queue).count())
    }

    #[test]
    fn ethtools_words_change_the_hash() {
        let steering = change(&Steering::new(), "equal 3 start 1").unwrap();
        assert_eq!(counts(&steering), [0, 43, 43, 42]);
        let weighted = change(&steering, "weight 6 2 0 8").unwrap();
        assert_eq!(counts(&weighted), [48, 16, 0, 64]);
        assert_eq!(weighted.rss().unwrap().key(), &KEY_PUBLISHED);
        // What is not said stays.
        let keyed = change(&weighted, "hkey symmetric").unwrap();
        assert_eq!((counts(&keyed), keyed.rss().unwrap().key()), ([48, 16, 0, 64], &KEY_SYMMETRIC));
        let bytes = (0..40).map(|n| format!("{n:02x}")).collect::<Vec<_>>().join(":");
        let keyed = change(&Steering::new(), &format!("equal 2 hkey {bytes}")).unwrap();
        assert_eq!((keyed.rss().unwrap().key()[39], counts(&keyed)), (39, [64, 64, 0, 0]));
        assert_eq!(counts(&change(&Steering::new(), "hkey default").unwrap()), [32; 4]);
        assert!(change(&keyed, "off").unwrap().rss().is_none());
    }

    #[test]
    fn rules_come_and_go() {
        let text = "flow-type udp4 dst-port 53 action 2 loc 7";
        let steering = change(&Steering::new(), text).unwrap();
        assert_eq!(steering.rules().map(ToString::to_string).collect::<Vec<_>>(), [text]);
        assert_eq!(change(&steering, "delete 7").unwrap().rules().count(), 0);
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        for (text, message) in [
            ("flow-type udp4 action 4", "queue 4: the port has 4, numbered from 0"),
            ("equal 5", "queue 4: the port has 4, numbered from 0"),
            ("equal 0", "equal 0: 1 to 128 queues"),
            ("equal many", "equal many: no number"),
            ("weight", "weight: one number for each queue, not all of them 0"),
            ("weight 0 0", "weight: one number for each queue, not all of them 0"),
            ("hkey 1:2", "hkey 1:2: 40 bytes as in 6d:5a:…, symmetric, or default"),
            ("hkey default start 2", "start: belongs to equal or weight"),
            ("equal 2 context new", "context: not one of equal, weight, start, hkey"),
            ("delete 7", "delete 7: no rule is there"),
            (
                "delete",
                "\"delete\": a change begins with flow-type, delete, equal, weight, hkey or off, as in: flow-type udp4 dst-port 53 action 2",
            ),
            ("flow-type udp4 dst-port x action 1", "dst-port x: no number of 16 bits"),
        ] {
            assert_eq!(change(&Steering::new(), text).err().as_deref(), Some(message), "{text}");
        }
    }
}
