//! The lists of a filter: changed and read while packets flow.

use std::collections::{BTreeMap, BTreeSet};

use xway_abi::Errno;
use xway_hook::{AttachmentInfo, Blame, Hook, HookError, MapId};

use super::rule::{Entry, Index, Subject};
use super::{MAPS, OUTCOMES};
use crate::ToolError;

/// `BPF_NOEXIST`: only when there is none yet.
const NOEXIST: u64 = 1;
/// Elements asked for at once.
const BATCH: u32 = 4096;

/// Something that becomes of packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rule {
    /// Which packets.
    pub subject: Subject,
    /// They pass, whatever the other lists say; else they are dropped.
    pub pass: bool,
}

impl Rule {
    /// `drop` or `pass`.
    pub const fn action(self) -> &'static str {
        if self.pass { "pass" } else { "drop" }
    }
}

/// Packets and bytes (`struct counter`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

impl Count {
    /// The sum over all CPUs.
    fn of_bytes(bytes: &[u8]) -> Count {
        let words = bytes.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect::<Vec<_>>();
        let sum = |sum: Count, c: &[u64; 2]| Count { packets: sum.packets + c[0], bytes: sum.bytes + c[1] };
        words.as_chunks::<2>().0.iter().fold(Count::default(), sum)
    }
}

/// A rule and what it met since it is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The rule.
    pub rule: Rule,
    /// Its number.
    pub number: u32,
    /// What it met.
    pub count: Count,
}

/// What adding a rule did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// It is on the list now.
    New,
    /// It was there already, and goes on counting.
    Already,
}

/// The maps of one filter; ports that were loaded together have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lists {
    maps: [MapId; MAPS.len()],
}

impl Lists {
    /// In the order of their names.
    pub(super) const fn new(maps: [MapId; MAPS.len()]) -> Lists {
        Lists { maps }
    }

    /// The lists of an attached filter.
    ///
    /// # Errors
    /// The program is not ours after all; what the hook refuses.
    pub fn of(hook: &mut dyn Hook, attachment: &AttachmentInfo) -> Result<Lists, ToolError> {
        let AttachmentInfo { port, program, .. } = attachment;
        Lists::of_program(hook, port, program.id.0, &program.maps)
    }

    /// The same of a program that is loaded, by its maps; `port` is for messages.
    ///
    /// # Errors
    /// As [`Lists::of`].
    pub fn of_program(hook: &mut dyn Hook, port: &str, program: u32, maps: &[MapId]) -> Result<Lists, ToolError> {
        let mut found = [None; MAPS.len()];
        for map in maps {
            let info = hook.map_info(*map)?;
            if let Some(at) = MAPS.iter().position(|name| *name == info.name) {
                found[at] = Some(*map);
            }
        }
        let mut maps = [MapId(0); MAPS.len()];
        for ((name, found), map) in MAPS.iter().zip(found).zip(&mut maps) {
            *map = found.ok_or_else(|| {
                let message = format!("{port}: program {program} is called as ours is, but has no map {name}");
                HookError::new(Blame::Request, message).hint("xway filter load on a port of its own")
            })?;
        }
        Ok(Lists { maps })
    }

    const fn index(&self, index: Index) -> MapId {
        let [net4, net6, ports, _, _] = self.maps;
        match index {
            Index::Net4 => net4,
            Index::Net6 => net6,
            Index::Ports => ports,
        }
    }

    const fn rules(&self) -> MapId {
        self.maps[3]
    }

    const fn counts(&self) -> MapId {
        self.maps[4]
    }

    /// The entry of exactly this subject; a shorter prefix that holds it is another one.
    fn entry(&self, hook: &mut dyn Hook, subject: Subject) -> Result<Option<Entry>, ToolError> {
        match hook.map_lookup(self.index(subject.index()), &subject.key(), 0) {
            Ok(value) => Ok(Entry::of_bytes(&value).filter(|e| e.length == subject.length())),
            Err(e) if e.errno == Some(Errno::ENOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn count(&self, hook: &mut dyn Hook, number: u32) -> Result<Count, ToolError> {
        match hook.map_lookup(self.rules(), &number.to_ne_bytes(), 0) {
            Ok(value) => Ok(Count::of_bytes(&value)),
            // Somebody is taking the rule away at this moment.
            Err(e) if e.errno == Some(Errno::ENOENT) => Ok(Count::default()),
            Err(e) => Err(e.into()),
        }
    }

    /// Puts rules on the lists, all of them or none. What is on the list as it is asked for stays as it is.
    ///
    /// # Errors
    /// A list is full; a subject is on its list with the other action; what the hook refuses.
    pub fn add(&self, hook: &mut dyn Hook, rules: &[Rule]) -> Result<Vec<Added>, ToolError> {
        let mut done = Vec::new();
        let mut outcome = Vec::new();
        for rule in rules {
            match self.add_one(hook, *rule) {
                Ok(added) => {
                    outcome.push(added);
                    done.extend((added == Added::New).then_some(rule.subject));
                }
                Err(error) => {
                    for subject in done {
                        // The refusal is the one to tell.
                        let _ = self.remove_one(hook, subject);
                    }
                    return Err(error);
                }
            }
        }
        Ok(outcome)
    }

    fn add_one(&self, hook: &mut dyn Hook, rule: Rule) -> Result<Added, ToolError> {
        let (subject, pass) = (rule.subject, rule.pass);
        if let Some(there) = self.entry(hook, subject)? {
            return already(rule, there);
        }
        let number = self.claim(hook, subject)?;
        let entry = Entry { rule: number, pass, length: subject.length() };
        let Err(error) = hook.map_update(self.index(subject.index()), &subject.key(), &entry.to_bytes(), NOEXIST)
        else {
            return Ok(Added::New);
        };
        // The number goes back, whatever stood in the way of the entry.
        let _ = hook.map_delete(self.rules(), &number.to_ne_bytes());
        match (error.errno, self.entry(hook, subject)?) {
            // Somebody else was faster.
            (Some(Errno::EEXIST), Some(there)) => already(rule, there),
            _ => Err(full(hook, self.index(subject.index()), subject, error)),
        }
    }

    /// A number that no rule has, with a counter that stands at zero.
    fn claim(&self, hook: &mut dyn Hook, subject: Subject) -> Result<u32, ToolError> {
        let zero = vec![0; hook.map_info(self.rules())?.user_value_size as usize];
        let first = number(subject);
        let mut at = first;
        loop {
            match hook.map_update(self.rules(), &at.to_ne_bytes(), &zero, NOEXIST) {
                Ok(()) => return Ok(at),
                Err(e) if e.errno == Some(Errno::EEXIST) && at.wrapping_add(1) != first => at = at.wrapping_add(1),
                Err(e) => return Err(full(hook, self.rules(), subject, e)),
            }
        }
    }

    /// Takes rules off the lists, all of them or, when one is not there, none; gives what they had met.
    ///
    /// # Errors
    /// A subject is on no list; what the hook refuses.
    pub fn remove(&self, hook: &mut dyn Hook, subjects: &[Subject]) -> Result<Vec<Listed>, ToolError> {
        let each: BTreeSet<Subject> = subjects.iter().copied().collect();
        for subject in &each {
            if self.entry(hook, *subject)?.is_none() {
                return Err(unlisted(*subject));
            }
        }
        each.into_iter().map(|subject| self.remove_one(hook, subject)).collect()
    }

    fn remove_one(&self, hook: &mut dyn Hook, subject: Subject) -> Result<Listed, ToolError> {
        let entry = self.entry(hook, subject)?.ok_or_else(|| unlisted(subject))?;
        match hook.map_delete(self.index(subject.index()), &subject.key()) {
            Err(e) if e.errno == Some(Errno::ENOENT) => return Err(unlisted(subject)),
            other => other?,
        }
        // Nothing leads to the number any more: what it counted is final, but for packets on their way this moment.
        let count = self.count(hook, entry.rule)?;
        let _ = hook.map_delete(self.rules(), &entry.rule.to_ne_bytes());
        Ok(Listed { rule: Rule { subject, pass: entry.pass }, number: entry.rule, count })
    }

    /// All rules, in order, with what they met.
    ///
    /// # Errors
    /// What the hook refuses.
    pub fn all(&self, hook: &mut dyn Hook) -> Result<Vec<Listed>, ToolError> {
        let number = |key: &[u8]| key.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
        let mut out = Vec::new();
        for index in Index::ALL {
            for (key, value) in elements(hook, self.index(index))? {
                let (Some(subject), Some(entry)) = (Subject::of_key(index, &key), Entry::of_bytes(&value)) else {
                    continue;
                };
                let rule = Rule { subject, pass: entry.pass };
                out.push(Listed { rule, number: entry.rule, count: Count::default() });
            }
        }
        let counts =
            elements(hook, self.rules())?.into_iter().map(|(key, value)| (number(&key), Count::of_bytes(&value)));
        let counts: BTreeMap<u32, Count> = counts.collect();
        out.iter_mut().for_each(|one| one.count = counts.get(&one.number).copied().unwrap_or_default());
        out.sort_by_key(|one| one.rule);
        Ok(out)
    }

    /// What became of packets, by [`OUTCOMES`].
    ///
    /// # Errors
    /// What the hook refuses.
    pub fn outcomes(&self, hook: &mut dyn Hook) -> Result<[Count; OUTCOMES.len()], ToolError> {
        let mut out = [Count::default(); OUTCOMES.len()];
        for (key, count) in (0u32..).zip(&mut out) {
            *count = Count::of_bytes(&hook.map_lookup(self.counts(), &key.to_ne_bytes(), 0)?);
        }
        Ok(out)
    }
}

/// Where the search for a number begins: the same subject gets the same one, as long as nobody else has it (FNV-1a).
fn number(subject: Subject) -> u32 {
    subject.key().iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn already(rule: Rule, there: Entry) -> Result<Added, ToolError> {
    if there.pass == rule.pass {
        return Ok(Added::Already);
    }
    let (subject, is) = (rule.subject, Rule { pass: there.pass, ..rule });
    let message = format!("{subject}: it is on the list with the action {}", is.action());
    Err(HookError::new(Blame::Request, message).hint("take it off first: xway filter del").into())
}

fn unlisted(subject: Subject) -> ToolError {
    let message = format!("{subject}: it is on no list");
    HookError { errno: Some(Errno::ENOENT), ..HookError::new(Blame::Request, message) }.hint("xway filter list").into()
}

/// A refusal by a map, which is a full one in most cases.
fn full(hook: &mut dyn Hook, map: MapId, subject: Subject, error: HookError) -> ToolError {
    let Some(errno @ (Errno::E2BIG | Errno::ENOSPC)) = error.errno else { return error.into() };
    let most = hook.map_info(map).map_or(0, |info| info.max_entries);
    let message = format!("{subject}: the list is full: it takes {most} rules");
    let full = HookError { errno: Some(errno), ..HookError::new(Blame::Request, message) };
    full.hint("one prefix can stand for many addresses; xway filter list shows what met nothing").into()
}

/// A key and its value.
type Element = (Vec<u8>, Vec<u8>);

/// Everything in a map. It may change meanwhile.
fn elements(hook: &mut dyn Hook, map: MapId) -> Result<Vec<Element>, ToolError> {
    let mut out = Vec::new();
    let mut from = None;
    loop {
        match hook.map_lookup_batch(map, from.as_deref(), BATCH) {
            Ok(part) => {
                out.extend(part.entries);
                from = part.next;
            }
            // Kernels that read this type one by one only.
            Err(e)
                if out.is_empty() && matches!(e.errno, Some(Errno::EOPNOTSUPP | Errno::ENOTSUPP | Errno::EINVAL)) =>
            {
                return one_by_one(hook, map);
            }
            Err(e) => return Err(e.into()),
        }
        if from.is_none() {
            return Ok(out);
        }
    }
}

fn one_by_one(hook: &mut dyn Hook, map: MapId) -> Result<Vec<Element>, ToolError> {
    let most = hook.map_info(map)?.max_entries as usize;
    let mut out: Vec<Element> = Vec::new();
    let mut key = hook.map_next_key(map, None)?;
    // A list that changes under the walk could lead in circles.
    while let Some(at) = key.filter(|_| out.len() <= most) {
        key = hook.map_next_key(map, Some(&at))?;
        match hook.map_lookup(map, &at, 0) {
            Ok(value) => out.push((at, value)),
            Err(e) if e.errno == Some(Errno::ENOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_processors() {
        let bytes: Vec<u8> = [1u64, 60, 2, 1500].iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(Count::of_bytes(&bytes), Count { packets: 3, bytes: 1560 });
    }
}
