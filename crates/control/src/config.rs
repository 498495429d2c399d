//! The declarative file: what the engine should be.

use std::collections::HashSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use xway_door::{Access, Group};
use xway_engine::Profile;
use xway_engine::is_called;
use xway_engine::steer::Change;
use xway_hook::{PRIORITY, Verdicts};
use xway_ports::PortName;

use crate::LogFormat;

/// A whole file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The process and its socket. Read when the service starts, not by `apply`.
    #[serde(default)]
    pub service: ServiceConfig,
    /// What others may cost.
    #[serde(default)]
    pub limits: Limits,
    /// Ports to open.
    #[serde(default, rename = "port")]
    pub ports: Vec<Port>,
    /// Programs to attach.
    #[serde(default, rename = "program")]
    pub programs: Vec<Program>,
    /// Where AF_XDP-style sockets are served.
    #[serde(default, rename = "socket")]
    pub sockets: Vec<Socket>,
}

/// A path where applications get AF_XDP-style sockets on the engine's queues.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// The UNIX socket that they connect to.
    pub path: PathBuf,
    /// The group that may connect, beside the owner; none: the process's own.
    #[serde(default)]
    pub group: Option<String>,
    /// Users whose applications may go without copies, by number; root's may.
    #[serde(default)]
    pub trusted_uids: Vec<u32>,
    /// Others may go without copies on a queue that is theirs alone.
    #[serde(default)]
    pub own_queue_zero_copy: bool,
    /// Others get so many first bytes of each packet; without it whole packets.
    #[serde(default)]
    pub untrusted_bytes: Option<u32>,
}

impl Socket {
    /// Who may connect.
    ///
    /// # Errors
    /// There is no such group, in words.
    pub fn access(&self) -> Result<Access, String> {
        let group = self.group.as_deref().map(Group::named).transpose();
        let group = group.map_err(|e| format!("socket {}: group: {e}", self.path.display()))?;
        Ok(Access { gid: group.as_ref().map(Group::gid), ..Access::default() })
    }
}

/// The process and its socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceConfig {
    /// Where the socket lies.
    pub socket: PathBuf,
    /// The group that may connect, beside the owner; none: the process's own.
    pub group: Option<String>,
    /// Everybody else may connect too, look, and change nothing.
    pub readable: bool,
    /// Who connects may send descriptors, as on kernels that cannot refuse them: for tests ([`xway_door::Access::rights`]).
    #[serde(skip)]
    pub rights: bool,
    /// What the service says of itself on standard error: `off`, `text`, `json`.
    pub log: LogFormat,
    /// Directory for what outlives the process; none: nothing does.
    pub state: Option<PathBuf>,
    /// Keep the contents of pinned maps over a clean end and a start.
    pub keep_contents: bool,
    /// Where counters are given out for Prometheus, as 127.0.0.1:9464; none: nowhere. An address that others reach shows them
    /// every port, program and map by name.
    pub metrics: Option<std::net::SocketAddr>,
    /// Workers: threads that serve queues.
    pub workers: u32,
    /// CPUs that they are bound to, in order.
    pub cpus: Vec<usize>,
    /// Most packets that a worker receives at once, from 1 to 64; none: what the profile says.
    pub burst: Option<u32>,
    /// How much memory its queues take: `standard` or `small`.
    #[serde(with = "profile")]
    pub profile: Profile,
    /// For maps that outgrow the cache, machine code fetches what a whole burst will need.
    pub stage: bool,
}

impl ServiceConfig {
    /// Most packets that a worker receives at once.
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.profile.burst())
    }

    /// Whether workers can be bound to the CPUs. Without a port there are no workers yet, and nobody else would say it before traffic comes.
    pub(crate) fn check_cpus(&self) -> Result<(), String> {
        self.cpus.iter().try_for_each(|cpu| {
            let told = |e| {
                format!("service.cpus: no worker can be bound to CPU {cpu}: {e}; name CPUs that are online and allowed")
            };
            xway_engine::can_bind(*cpu).map_err(told)
        })
    }
}

/// A profile by its word.
mod profile {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use xway_engine::Profile;

    pub fn serialize<S: Serializer>(profile: &Profile, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(profile.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Profile, D::Error> {
        let word = String::deserialize(from)?;
        let known = Profile::NAMES.iter().find(|(name, _)| *name == word);
        known
            .map(|(_, profile)| *profile)
            .ok_or_else(|| D::Error::custom(format!("{word:?} is neither standard nor small")))
    }
}

impl Default for ServiceConfig {
    fn default() -> ServiceConfig {
        ServiceConfig {
            socket: crate::SOCKET.into(),
            group: None,
            readable: false,
            rights: false,
            log: LogFormat::default(),
            state: None,
            keep_contents: false,
            metrics: None,
            workers: 1,
            cpus: Vec::new(),
            burst: None,
            profile: Profile::Standard,
            stage: true,
        }
    }
}

/// What others may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Seconds within which a message that has begun must be complete.
    pub message_seconds: u64,
    /// Seconds that a connection may be silent.
    pub idle_seconds: u64,
    /// Requests in a second, of one connection; more are answered later.
    pub requests_per_second: u32,
    /// Maps and programs that one connection may hold.
    pub objects: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 32,
            message_bytes: crate::wire::MESSAGE_MAX,
            message_seconds: 10,
            idle_seconds: 3600,
            requests_per_second: 100_000,
            objects: 4096,
        }
    }
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// `packet:IFACE`, `pcap:FILE`, …
    pub name: String,
    /// Which queue on which worker; none: all, in turn.
    #[serde(default)]
    pub queues: Option<Vec<(u32, u32)>>,
    /// Another port that PASS goes to, instead of the stack.
    #[serde(default)]
    pub pass_to: Option<String>,
    /// Which queue packets go to before programs run, in the words of `xway steer`: `flow-type udp4 dst-port 53 action 1 loc 5`,
    /// `equal 4`, `weight 6 2`, `hkey symmetric`.
    #[serde(default)]
    pub steer: Vec<String>,
    /// While a queue of it is busy sending, up to so many packets wait for one doorbell; 0: each burst has one.
    #[serde(default)]
    pub tx_batch: u32,
    /// Bytes that may wait in a queue of it to be sent; what is beyond is dropped and counted.
    #[serde(default)]
    pub tx_limit: Option<u64>,
    /// Only programs that are proved not to change packets run on it.
    #[serde(default)]
    pub read_only: bool,
    /// Bytes of a chunk of its queues' memory: 4096, one packet a page, or 2048, two; none: what the profile says.
    #[serde(default)]
    pub chunk: Option<u32>,
}

impl Port {
    /// A port with nothing but a name.
    pub fn named(name: &str) -> Port {
        let name = name.to_owned();
        let (queues, pass_to, tx_limit, chunk) = (None, None, None, None);
        Port { name, queues, pass_to, steer: Vec::new(), tx_batch: 0, tx_limit, read_only: false, chunk }
    }

    /// What is decided when it is opened: all but where PASS goes and which queue packets go to.
    pub(crate) fn as_opened(&self) -> Port {
        Port { pass_to: None, steer: Vec::new(), ..self.clone() }
    }
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// What it is called in this file; each name once.
    pub name: String,
    /// Where it is attached.
    pub port: String,
    /// The receive queue; none: the port.
    #[serde(default)]
    pub queue: Option<u32>,
    /// The object file.
    pub object: PathBuf,
    /// The function, when the object has several.
    #[serde(default)]
    pub function: Option<String>,
    /// Smaller numbers run first.
    #[serde(default = "priority")]
    pub priority: u32,
    /// Verdicts behind which the next program of the port runs.
    #[serde(default = "chain_on")]
    pub chain_on: Vec<String>,
    /// Where its maps are pinned, so that they outlive a new version of the object; `/config/NAME` unless told otherwise.
    #[serde(default)]
    pub pins: Option<PathBuf>,
}

fn priority() -> u32 {
    PRIORITY
}

fn chain_on() -> Vec<String> {
    vec!["pass".into()]
}

impl Program {
    /// Where its maps are pinned.
    pub fn pins(&self) -> PathBuf {
        self.pins.clone().unwrap_or_else(|| PathBuf::from("/config").join(&self.name))
    }

    /// Verdicts behind which the next program runs.
    pub fn verdicts(&self) -> Result<Verdicts, String> {
        Verdicts::parse(&self.chain_on.join(","))
    }
}

/// Why a file is refused: which field, and what is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl Config {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Fields that are unknown, missing or make no sense, by their names.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse_with(text, crate::ports::parse)
    }

    /// The same by the text alone: no file that it names is looked for, so that who asks does not learn which there are.
    pub(crate) fn parse_words(text: &str) -> Result<Config, ConfigError> {
        Config::parse_with(text, crate::ports::parse_words)
    }

    fn parse_with(text: &str, name: impl Fn(&str) -> Result<PortName, String>) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|e| ConfigError(e.to_string().trim().to_owned()))?;
        config.check(name)?;
        Ok(config)
    }

    /// Whether a port's queues and memory can be had; `count`: how many queues its name says that it has.
    fn check_queues(&self, port: &Port, count: Option<u32>) -> Result<(), String> {
        let mut seen = HashSet::new();
        for &(queue, worker) in port.queues.iter().flatten() {
            let workers = self.service.workers;
            if worker >= workers {
                return Err(format!("queues: worker {worker}; service.workers says {workers}, counted from 0"));
            }
            if let Some(count) = count.filter(|count| queue >= *count) {
                return Err(format!("queues: queue {queue}; the port has {count}, counted from 0"));
            }
            if !seen.insert(queue) {
                return Err(format!("queues: queue {queue} is there twice"));
            }
        }
        match port.chunk {
            None | Some(2048 | 4096) => Ok(()),
            Some(bytes) => Err(format!("chunk: {bytes}; 2048, two packets to a page, or 4096, one")),
        }
    }

    /// Whether the programs of a port that are for one queue have that queue; `count`: how many the port has.
    pub(crate) fn check_programs(&self, port: &Port, count: u32) -> Result<(), ConfigError> {
        for program in self.programs.iter().filter(|program| is_called(&port.name, &program.port)) {
            if let Some(queue) = program.queue.filter(|queue| *queue >= count) {
                let (name, port) = (&program.name, &program.port);
                let message = format!("program {name}: queue {queue}; the port {port} has {count}, counted from 0");
                return Err(ConfigError(message));
            }
        }
        Ok(())
    }

    fn check(&self, name: impl Fn(&str) -> Result<PortName, String>) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError(text));
        let ServiceConfig { workers, ref cpus, .. } = self.service;
        let burst = self.service.burst();
        if !(1..=64).contains(&burst) {
            return refuse(format!("service.burst: {burst}; from 1 to 64"));
        }
        if workers == 0 || workers > 1024 {
            return refuse(format!("service.workers: {workers}; from 1 to 1024"));
        }
        if cpus.len() > workers as usize {
            return refuse(format!("service.cpus: {} for {workers} workers", cpus.len()));
        }
        let mut seen = HashSet::new();
        for port in &self.ports {
            if !seen.insert(port.name.split('?').next()) {
                return refuse(format!("port {}: it is there twice", port.name));
            }
            let told = |e: String| ConfigError(format!("port {}: {e}", port.name));
            let count = crate::ports::queues(&name(&port.name).map_err(told)?);
            self.check_queues(port, count).map_err(told)?;
            count.map_or(Ok(()), |count| self.check_programs(port, count))?;
            let wrong = |words: &String| Change::parse(words).err().map(|e| format!("steer: {e}"));
            port.steer.iter().find_map(wrong).map_or(Ok(()), |e| Err(told(e)))?;
        }
        let known = |name: &str| self.ports.iter().any(|p| is_called(&p.name, name));
        for port in &self.ports {
            if let Some(to) = port.pass_to.as_deref().filter(|to| !known(to)) {
                return refuse(format!("port {}: pass_to: {to} is no port of this file", port.name));
            }
        }
        let mut seen = HashSet::new();
        for program in &self.programs {
            let name = &program.name;
            if !seen.insert(name.as_str()) {
                return refuse(format!("program {name}: it is there twice"));
            }
            if name.is_empty() || name.contains('/') {
                return refuse(format!("program {name:?}: a name is not empty and has no slash"));
            }
            if !known(&program.port) {
                return refuse(format!("program {name}: port: {} is no port of this file", program.port));
            }
            program.verdicts().map_err(|e| ConfigError(format!("program {name}: chain_on: {e}")))?;
            if let Some(pins) = program.pins.as_ref().filter(|pins| !pins.has_root()) {
                return refuse(format!("program {name}: pins: {}: names in the service begin with /", pins.display()));
            }
        }
        let mut seen = HashSet::new();
        for socket in &self.sockets {
            let path = socket.path.display();
            if !socket.path.is_absolute() {
                return refuse(format!("socket {path}: a path from the root"));
            }
            if !seen.insert(&socket.path) || socket.path == self.service.socket {
                return refuse(format!("socket {path}: it is there twice"));
            }
            if self.ports.is_empty() {
                return refuse(format!("socket {path}: without a port there is no queue to bind to"));
            }
        }
        let l = &self.limits;
        for (field, value) in [
            ("connections", l.connections as u64),
            ("message_bytes", l.message_bytes as u64),
            ("message_seconds", l.message_seconds),
            ("idle_seconds", l.idle_seconds),
            ("requests_per_second", l.requests_per_second.into()),
            ("objects", l.objects as u64),
        ] {
            if value == 0 || value > 1 << 32 {
                return refuse(format!("limits.{field}: {value} makes no sense"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[service]
workers = 2
cpus = [0, 1]

[[port]]
name = "packet:eth0"
queues = [[0, 1]]

[[program]]
name = "filter"
port = "packet:eth0"
object = "filter.o"
chain_on = ["pass", "tx"]
"#;

    #[test]
    fn a_file_is_read_with_its_defaults() {
        let config = Config::parse(FILE).unwrap();
        assert_eq!((config.service.workers, config.limits), (2, Limits::default()));
        assert_eq!(config.ports[0].queues, Some(vec![(0, 1)]));
        let program = &config.programs[0];
        assert_eq!((program.priority, program.pins()), (50, PathBuf::from("/config/filter")));
        assert_eq!(program.verdicts().map(|v| v.to_string()), Ok("PASS,TX".into()));
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn sockets_have_a_path_and_a_port_beside_them() {
        let config = "path = \"/run/x\"\ntrusted_uids = [7]\ngroup = \"root\"";
        let config = Config::parse(&format!("{FILE}\n[[socket]]\n{config}")).unwrap();
        let group = Some("root".into());
        let mut want = Socket { path: "/run/x".into(), trusted_uids: vec![7], group, ..Socket::default() };
        assert_eq!(config.sockets, [want.clone()]);
        assert_eq!(want.access(), Ok(Access { mode: 0o660, gid: Some(0), rights: false }));
        want.group = Some("nosuch".into());
        assert_eq!(want.access().unwrap_err(), "socket /run/x: group: there is no group nosuch");
        for (text, words) in [
            (format!("{FILE}\n[[socket]]\npath = \"x\""), "a path from the root"),
            (format!("{FILE}\n[[socket]]\npath = \"/x\"\n[[socket]]\npath = \"/x\""), "twice"),
            ("[[socket]]\npath = \"/x\"".to_owned(), "without a port"),
        ] {
            assert!(Config::parse(&text).unwrap_err().0.contains(words), "{words}");
        }
    }

    #[test]
    fn mistakes_are_told_by_field() {
        for (from, to, want) in [
            ("workers = 2", "workers = 0", "service.workers"),
            ("workers = 2", "wrokers = 2", "wrokers"),
            ("workers = 2", "workers = 2\nburst = 0", "service.burst: 0; from 1 to 64"),
            ("workers = 2", "profile = \"tiny\"", "\"tiny\" is neither standard nor small"),
            ("cpus = [0, 1]", "cpus = [0, 1, 2]", "service.cpus"),
            ("port = \"packet:eth0\"", "port = \"packet:eth1\"", "packet:eth1 is no port"),
            ("\"tx\"", "\"teleport\"", "teleport: not a verdict"),
            ("name = \"filter\"", "name = \"a/b\"", "no slash"),
            ("name = \"packet:eth0\"", "name = \"nonsense\"", "port nonsense"),
            ("queues = [[0, 1]]", "steer = [\"flow-type tcp7 action 1\"]", "port packet:eth0: steer: "),
            ("queues = [[0, 1]]", "steer = [\"equal 0\"]", "steer: equal 0"),
            ("queues = [[0, 1]]", "queues = [[0, 9]]", "port packet:eth0: queues: worker 9; service.workers says 2"),
            ("queues = [[0, 1]]", "queues = [[1, 1]]", "port packet:eth0: queues: queue 1; the port has 1"),
            ("queues = [[0, 1]]", "queues = [[0, 1], [0, 0]]", "queue 0 is there twice"),
            (
                "queues = [[0, 1]]",
                "chunk = 1000",
                "port packet:eth0: chunk: 1000; 2048, two packets to a page, or 4096",
            ),
            ("queues = [[0, 1]]", "chunk = 8192", "port packet:eth0: chunk: 8192; "),
            (
                "object = \"filter.o\"",
                "object = \"f.o\"\nqueue = 17",
                "program filter: queue 17; the port packet:eth0 has 1",
            ),
            ("name = \"packet:eth0\"", "name = \"sim:a?color=1\"", "there is no option \"color\""),
        ] {
            let error = Config::parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(want), "{to}: {error}");
        }
        assert!(Config::parse("[limits]\nconnections = 0").unwrap_err().0.contains("limits.connections"));
    }
}
