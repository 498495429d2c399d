//! Ports that need no device: captures with options (`pcap:a.pcap,b.pcap?loop=3&speed=1`) and packets from memory
//! (`sim:a?flows=100&size=64`).

use std::fmt;
use std::path::{Path, PathBuf};

use xway_port_pcap::Playback;
use xway_port_sim::{Pattern, Traffic};

use crate::{NameError, Options};

/// Captures, and how they are played.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Played {
    /// Files, in their order.
    pub paths: Vec<PathBuf>,
    /// How many times; 0 is without end.
    pub loops: u64,
    /// Thousandths of the speed that the timestamps say; `None`: as fast as they are taken.
    pub speed: Option<u64>,
    /// Long packets come in several buffers.
    pub frags: bool,
}

impl Played {
    /// Reads what follows `pcap:`; `None` for a file without options. A name that has a `?` or a comma in it and is `there` is
    /// a file.
    pub fn parse(text: &str, rest: &str, there: impl Fn(&Path) -> bool) -> Result<Option<Played>, NameError> {
        let special = rest.contains('?') || rest.contains(',');
        if !special || there(Path::new(rest)) {
            return Ok(None);
        }
        let (files, mut options) = Options::split(text, rest);
        let loops = options.number("loop", 0..=u64::MAX)?.unwrap_or(1);
        let speed = match options.take("speed") {
            None => None,
            Some(value) => {
                let speed = value.parse::<f64>().ok().filter(|speed| (0.001..=1e9).contains(speed));
                let wrong = || NameError::new(format!("{text}: speed={value} is no number from 0.001 to 1e9"));
                Some((speed.ok_or_else(wrong)? * 1000.0) as u64)
            }
        };
        let frags = options.yes("frags")?;
        options.end()?;
        let paths: Vec<PathBuf> = files.split(',').map(PathBuf::from).collect();
        if paths.iter().any(|path| path.as_os_str().is_empty()) {
            return Err(NameError::new(format!("{text}: a file without a name")));
        }
        if (loops != 1 || paths.len() > 1) && paths.iter().any(|path| path.as_os_str() == "-") {
            return Err(NameError::new(format!("{text}: standard input can be played once only")));
        }
        Ok(Some(Played { paths, loops, speed, frags }))
    }

    /// For the port.
    pub fn playback(&self) -> Playback {
        Playback {
            loops: self.loops,
            speed: self.speed.map(|thousandths| thousandths as f64 / 1000.0),
            frags: self.frags,
            ..Playback::default()
        }
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        write!(f, "pcap:{}?loop={}", paths.join(","), self.loops)
    }
}

/// Packets from memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sim {
    /// Its name, without options.
    pub name: String,
    /// Flows, 1 to [`Traffic::FLOWS_MAX`].
    pub flows: u32,
    /// Bytes of a packet, 60 to 65,535.
    pub size: u32,
    /// Order of the flows.
    pub pattern: Pattern,
    /// Packets; `None` without end.
    pub count: Option<u64>,
    /// Queues, 1 to 1,024.
    pub queues: u32,
    /// Packets longer than a frame come in several buffers.
    pub frags: bool,
}

impl Sim {
    /// Reads what follows `sim:`.
    pub fn parse(text: &str, rest: &str) -> Result<Sim, NameError> {
        let (name, mut options) = Options::split(text, rest);
        let words = [("scan", Pattern::Scan), ("uniform", Pattern::Uniform), ("zipf", Pattern::Zipf)];
        let sim = Sim {
            name: name.to_owned(),
            flows: options.number("flows", 1..=Traffic::FLOWS_MAX)?.unwrap_or(1),
            size: options.number("size", 60..=65_535)?.unwrap_or(64),
            pattern: options.choice("pattern", &words)?.unwrap_or_default(),
            count: options.number("count", 1..=u64::MAX)?,
            queues: options.number("queues", 1..=1024)?.unwrap_or(1),
            frags: options.yes("frags")?,
        };
        options.end()?;
        if sim.name.is_empty() {
            return Err(NameError::new("sim: names no port, as in sim:a"));
        }
        Ok(sim)
    }

    /// What it makes.
    pub fn traffic(&self) -> Result<Traffic, NameError> {
        let made = Traffic::udp(self.flows, self.size as usize, self.pattern, 1);
        made.map_err(|e| NameError::new(format!("{self}: {e}")))
    }
}

impl fmt::Display for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sim:{}", self.name)
    }
}
