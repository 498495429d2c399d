//! How long a command watches: `[count N] [timeout SECS]`, or until Ctrl-C.

use std::time::{Duration, Instant};

use xway_engine::Stop;

use crate::failure::Failure;
use crate::{args, interrupt};

/// The end of a watch.
pub struct Watch {
    left: Option<u64>,
    until: Option<Instant>,
    stop: Stop,
}

impl Watch {
    /// From the words behind the object.
    pub fn parse(mut words: &[String]) -> Result<Watch, Failure> {
        let (mut left, mut until) = (None, None);
        while let Some((keyword, rest)) = words.split_first() {
            let Some((value, rest)) = rest.split_first() else {
                return Err(Failure::usage(format!("{keyword}: a number is missing")).hint("[count N] [timeout SECS]"));
            };
            match keyword.as_str() {
                "count" => {
                    let count = value.parse();
                    left = Some(count.map_err(|_| Failure::usage(format!("count {value}: not a number")))?);
                }
                "timeout" => {
                    let time = args::seconds(value);
                    until = Some(Instant::now() + time.map_err(|e| Failure::usage(format!("timeout {value}: {e}")))?);
                }
                other => return Err(Failure::usage(format!("{other}: not expected here"))),
            }
            words = rest;
        }
        let stop = Stop::new().map_err(|e| Failure::needs(format!("cannot watch: {e}")))?;
        interrupt::catch(&stop)?;
        Ok(Watch { left, until, stop })
    }

    /// Time until somebody must look again; `None`: it is over.
    pub fn next(&self) -> Option<Duration> {
        const LOOK: Duration = Duration::from_millis(100);
        let time = self.until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
        (self.left != Some(0) && !self.stop.asked() && !time.is_zero()).then_some(time)
    }

    /// Takes one from the count; `false` when there was none left.
    pub fn take(&mut self) -> bool {
        match &mut self.left {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }
}
