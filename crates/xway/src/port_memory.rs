//! Ports that need no device: captures with options (`pcap:a.pcap,b.pcap?loop=3&speed=1`) and packets from memory
//! (`sim:a?flows=100&size=64`).

use std::fmt;
use std::path::PathBuf;

use xway_port_pcap::Playback;
use xway_port_sim::{Pattern, SimPort, Traffic};

use crate::failure::Failure;
use crate::port_options::Options;

/// Interface index of `sim:` ports on the command line.
const SIM_IFINDEX: u32 = 1;

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
    /// Reads what follows `pcap:`; `None` for a file without options. A name that has a `?` or a comma in it and is there is a
    /// file.
    pub fn parse(text: &str, rest: &str) -> Result<Option<Played>, Failure> {
        let special = rest.contains('?') || rest.contains(',');
        if !special || std::path::Path::new(rest).exists() {
            return Ok(None);
        }
        let (files, mut options) = Options::split(text, rest);
        let loops = options.number("loop", 0..=u64::MAX)?.unwrap_or(1);
        let speed = match options.take("speed") {
            None => None,
            Some(value) => {
                let speed = value.parse::<f64>().ok().filter(|speed| (0.001..=1e9).contains(speed));
                let wrong = || Failure::usage(format!("{text}: speed={value} is no number from 0.001 to 1e9"));
                Some((speed.ok_or_else(wrong)? * 1000.0) as u64)
            }
        };
        let frags = options.yes("frags")?;
        options.end()?;
        let paths: Vec<PathBuf> = files.split(',').map(PathBuf::from).collect();
        if paths.iter().any(|path| path.as_os_str().is_empty()) {
            return Err(Failure::usage(format!("{text}: a file without a name")));
        }
        if (loops != 1 || paths.len() > 1) && paths.iter().any(|path| path.as_os_str() == "-") {
            return Err(Failure::usage(format!("{text}: standard input can be played once only")));
        }
        Ok(Some(Played { paths, loops, speed, frags }))
    }

    /// For the port.
    pub fn playback(&self) -> Playback {
        Playback {
            loops: self.loops,
            speed: self.speed.map(|thousandths| thousandths as f64 / 1000.0),
            frags: self.frags,
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
    name: String,
    flows: u32,
    size: u32,
    pattern: Pattern,
    count: Option<u64>,
    frags: bool,
}

impl Sim {
    /// Reads what follows `sim:`.
    pub fn parse(text: &str, rest: &str) -> Result<Sim, Failure> {
        let (name, mut options) = Options::split(text, rest);
        let words = [("scan", Pattern::Scan), ("uniform", Pattern::Uniform), ("zipf", Pattern::Zipf)];
        let sim = Sim {
            name: name.to_owned(),
            flows: options.number("flows", 1..=Traffic::FLOWS_MAX)?.unwrap_or(1),
            size: options.number("size", 60..=65_535)?.unwrap_or(64),
            pattern: options.choice("pattern", &words)?.unwrap_or_default(),
            count: options.number("count", 1..=u64::MAX)?,
            frags: options.yes("frags")?,
        };
        options.end()?;
        if sim.name.is_empty() {
            return Err(Failure::usage("sim: names no port, as in sim:a"));
        }
        Ok(sim)
    }

    /// The port.
    pub fn open(&self) -> Result<SimPort, Failure> {
        let traffic = Traffic::udp(self.flows, self.size as usize, self.pattern, 1).map_err(Failure::usage)?;
        Ok(SimPort::generated(&self.name, SIM_IFINDEX, traffic, self.count).0.with_frags(self.frags))
    }
}

impl fmt::Display for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sim:{}", self.name)
    }
}
