//! Network namespaces with veth pairs between them.
//!
//! ```no_run
//! # use xway_testkit::{Lab, traffic};
//! let lab = Lab::new("ping")?;
//! let (left, right) = (lab.namespace("left")?, lab.namespace("right")?);
//! lab.veth(&left, "l0", &right, "r0")?;
//! left.address("l0", "10.9.0.1/24")?;
//! right.address("r0", "10.9.0.2/24")?;
//! let answers = left.enter(|| traffic::ping([10, 9, 0, 2].into(), 3))??;
//! assert_eq!(answers, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Names carry the process's number, so labs of parallel runs do not meet; dropping a lab removes its namespaces and with
//! them every interface inside. Labs of processes that died are removed by the next [`Lab::new`].

use std::fs::File;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// What went wrong in a lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A command failed.
    #[error("`{command}` failed: {said}")]
    Command {
        /// As it was run.
        command: String,
        /// What it wrote to standard error, or why it could not start.
        said: String,
    },
    /// A namespace could not be entered, or a file in it not be written.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// The reason.
        error: std::io::Error,
    },
}

const PREFIX: &str = "xwlab-";

/// A set of namespaces that live and die together.
#[derive(Debug)]
pub struct Lab {
    name: String,
    namespaces: std::sync::Mutex<Vec<String>>,
}

impl Lab {
    /// An empty lab. `label` appears in the names of its namespaces. Needs root and `ip`.
    pub fn new(label: &str) -> Result<Lab, LabError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_orphans();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{label}", std::process::id());
        Ok(Lab { name, namespaces: std::sync::Mutex::default() })
    }

    /// A new namespace with its loopback interface up. IPv6 is off in it, so that no neighbour discovery disturbs counts;
    /// [`Namespace::ipv6`] switches it on.
    pub fn namespace(&self, label: &str) -> Result<Namespace, LabError> {
        let name = format!("{}-{label}", self.name);
        run(Command::new("ip").args(["netns", "add", &name]))?;
        self.namespaces.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(name.clone());
        let namespace = Namespace { name };
        namespace.ipv6(false)?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// A veth pair with one end in each namespace, both up.
    pub fn veth(&self, a: &Namespace, a_if: &str, b: &Namespace, b_if: &str) -> Result<(), LabError> {
        a.ip(&["link", "add", a_if, "type", "veth", "peer", "name", b_if, "netns", &b.name])?;
        a.ip(&["link", "set", a_if, "up"])?;
        b.ip(&["link", "set", b_if, "up"]).map(drop)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in self.namespaces.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner) {
            if let Err(error) = run(Command::new("ip").args(["netns", "del", name])) {
                eprintln!("{error}");
            }
        }
    }
}

/// Removes namespaces of labs whose process is gone (it was killed before it could clean up).
fn remove_orphans() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            // Another process may be faster; that is as good.
            let _ = run(Command::new("ip").args(["netns", "del", &name]));
        }
    }
}

/// A network namespace of a [`Lab`].
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` with these arguments inside; gives what it printed.
    pub fn ip(&self, args: &[&str]) -> Result<String, LabError> {
        let output = run(Command::new("ip").args(["-n", &self.name]).args(args))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Gives an interface an address such as `10.0.0.1/24`; without duplicate address detection for IPv6.
    pub fn address(&self, interface: &str, address: &str) -> Result<(), LabError> {
        let mut args = vec!["addr", "add", address, "dev", interface];
        if address.contains(':') {
            args.push("nodad");
        }
        self.ip(&args).map(drop)
    }

    /// Switches IPv6 on or off for all interfaces, present and future.
    pub fn ipv6(&self, on: bool) -> Result<(), LabError> {
        self.enter(|| {
            ["all", "default"].iter().try_for_each(|scope| {
                let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
                // A kernel without IPv6 has nothing to switch off.
                if !on && !std::path::Path::new(&path).exists() {
                    return Ok(());
                }
                std::fs::write(&path, if on { "0" } else { "1" }).map_err(|error| LabError::Io { what: path, error })
            })
        })?
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `work` on a thread of its own inside the namespace: sockets that it opens belong there. A panic in `work` goes
    /// on in the caller.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let io = |error: std::io::Error| LabError::Io { what: format!("entering namespace {}", self.name), error };
        let file = File::open(format!("/run/netns/{}", self.name)).map_err(io)?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                use std::os::fd::AsFd;
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|errno| io(errno.into()))?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Number of an interface.
    pub fn ifindex(&self, interface: &str) -> Result<u32, LabError> {
        let text = self.ip(&["-o", "link", "show", "dev", interface])?;
        text.split(':').next().and_then(|n| n.trim().parse().ok()).ok_or_else(|| LabError::Command {
            command: format!("ip -o link show dev {interface}"),
            said: format!("no number in {text:?}"),
        })
    }

    /// Packets that an interface has received and sent, by the kernel's own counters.
    pub fn packets(&self, interface: &str) -> Result<(u64, u64), LabError> {
        // Lines after the two headers: `name: bytes packets errs drop fifo frame compressed multicast bytes packets …`.
        // `/proc/net` is the namespace of the process; the thread's own is found through its task.
        let text = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        let text = text.map_err(|error| LabError::Io { what: "/proc/net/dev".into(), error })?;
        let line = text.lines().find_map(|l| l.trim().strip_prefix(interface)?.strip_prefix(':'));
        let numbers: Vec<u64> = line.unwrap_or("").split_whitespace().filter_map(|n| n.parse().ok()).collect();
        match (numbers.get(1), numbers.get(9)) {
            (Some(received), Some(sent)) => Ok((*received, *sent)),
            _ => Err(LabError::Command { command: "/proc/net/dev".into(), said: format!("no interface {interface}") }),
        }
    }
}

fn run(command: &mut Command) -> Result<Output, LabError> {
    let said = match command.output() {
        Ok(output) if output.status.success() => return Ok(output),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(LabError::Command { command: format!("{command:?}").replace('"', ""), said })
}
