//! The trait's data on a wire: what is the same there as here says so by a derive, and these are the two things that need more.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xway_engine::Outcome;

/// A word out of a fixed set, as modes, engines and kinds of events have them.
pub type Word = &'static str;

/// The fixed words of the trait; one that this end does not know is `other`.
fn known(text: &str) -> Word {
    const WORDS: [Word; 33] = [
        "jit",
        "interp",
        "auto",
        "engine",
        "chain",
        "program",
        "exception",
        "invalid_verdict",
        "invalid_action",
        "tx_error",
        "redirect_error",
        "pass_error",
        "attach",
        "detach",
        "port",
        "lost",
        "burst function",
        "pass",
        "host",
        "drop",
        "mode",
        "native",
        "generic",
        "offload",
        "program not ours",
        "copying",
        "copy",
        "zero-copy",
        "copies only",
        "user",
        "open",
        "dead",
        "detached",
    ];
    WORDS.into_iter().find(|w| *w == text).unwrap_or("other")
}

pub(crate) fn serialize<S: Serializer>(word: &Word, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(word)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    Ok(known(&String::deserialize(from)?))
}

/// [`Outcome`] belongs to the engine, which knows of no wire.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Outcome")]
struct Told {
    #[serde(with = "crate::words")]
    what: Word,
    #[serde(with = "crate::words")]
    requested: Word,
    #[serde(with = "crate::words")]
    effective: Word,
    reason: String,
}

/// Lists of outcomes.
pub(crate) mod outcomes {
    use super::*;

    #[derive(Serialize)]
    struct Lent<'a>(#[serde(with = "Told")] &'a Outcome);

    #[derive(Deserialize)]
    struct Own(#[serde(with = "Told")] Outcome);

    pub(crate) fn serialize<S: Serializer>(all: &[Outcome], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(Lent))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Outcome>, D::Error> {
        Ok(Vec::<Own>::deserialize(from)?.into_iter().map(|own| own.0).collect())
    }
}

/// Runs and the nanoseconds that they took.
pub(crate) mod runs {
    use std::time::Duration;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(runs: &Option<(u64, Duration)>, to: S) -> Result<S::Ok, S::Error> {
        runs.map(|(count, time)| (count, time.as_nanos() as u64)).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<(u64, Duration)>, D::Error> {
        let runs = Option::<(u64, u64)>::deserialize(from)?;
        Ok(runs.map(|(count, nanos)| (count, Duration::from_nanos(nanos))))
    }
}
