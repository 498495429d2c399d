//! Two hosts on one wire, for tests of hooks with real packets.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use xway_testkit::{Lab, Namespace, Needs, traffic};

use super::Ran;

pub const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 2);

pub fn ready(name: &str) -> bool {
    let needs = Needs::of(&format!("xway::{name}")).root().command("ip").command("unshare");
    needs.command("nsenter").clang().met()
}

/// Mounts that nobody else sees, until it is dropped.
pub struct Mounts(Child);

impl Mounts {
    /// `script`: the shell's commands that make them.
    pub fn new(script: &str) -> Mounts {
        // Lives until its standard input closes.
        let mut shell = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &format!("{script} && echo ready && exec cat")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Mounts(shell)
    }

    /// What is said next runs there, at a host.
    pub fn enter(&self, host: &Namespace) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.0.id()));
        command.arg(format!("--net=/run/netns/{}", host.name()));
        command
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Two hosts on one wire; the commands run at the right one, in a mount namespace of their own, with or without a BPF file
/// system that nobody else sees.
pub struct Bench {
    _lab: Lab,
    pub left: Namespace,
    pub right: Namespace,
    mounts: Mounts,
}

impl Bench {
    pub fn new(label: &str, bpffs: bool) -> Bench {
        let lab = Lab::new(label).unwrap();
        let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
        lab.veth(&left, "l0", &right, "r0").unwrap();
        left.address("l0", "10.9.1.1/24").unwrap();
        right.address("r0", &format!("{RIGHT}/24")).unwrap();
        let mount = if bpffs { "mount -t bpf bpf /sys/fs/bpf" } else { "mount -t tmpfs none /sys/fs/bpf" };
        let mounts = Mounts::new(mount);
        Bench { _lab: lab, left, right, mounts }
    }

    /// A command at the right host.
    pub fn run(&self, program: &str, args: &[&str]) -> Ran {
        let out = self.mounts.enter(&self.right).arg(program).args(args).stdin(Stdio::null()).output().unwrap();
        Ran {
            code: out.status.code().unwrap(),
            out: String::from_utf8(out.stdout).unwrap(),
            err: String::from_utf8(out.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn xway(&self, args: &[&str]) -> Ran {
        self.run(env!("CARGO_BIN_EXE_xway"), args)
    }

    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        self.xway(&[args, &["-j"]].concat()).exits(0).json()
    }

    /// Id of the map with this name that an attached program uses.
    pub fn map_of(&self, attached: &Value, name: &str) -> String {
        let ids = attached["program"]["map_ids"].as_array().unwrap();
        let named = |id: &String| self.json(&["map", "show", "id", id])["maps"][0]["name"] == name;
        ids.iter().map(Value::to_string).find(named).unwrap()
    }

    /// Echo replies to one request.
    pub fn pings(&self) -> u16 {
        self.left.enter(|| traffic::ping(RIGHT, 1)).unwrap().unwrap()
    }
}

/// What is said of a program, without what goes on counting: any process of the machine may have its runs counted.
pub fn uncounted(program: &Value) -> Value {
    let mut rest = program.clone();
    for field in ["run_time_ns", "run_cnt"] {
        rest[field].take();
    }
    rest
}
