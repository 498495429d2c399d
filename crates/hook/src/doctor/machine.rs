//! Questions about the machine as a whole.

use std::process::{Command, Stdio};

use super::Finding;

/// What the machine says about itself. `None` where it does not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// As `uname -r` prints it.
    pub release: String,
    /// Effective capabilities, a bit each (`linux/capability.h`).
    pub capabilities: u64,
    /// `/proc/mounts`.
    pub mounts: String,
    /// `/sys/kernel/security/lockdown`.
    pub lockdown: Option<String>,
    /// `/proc/sys/net/core/bpf_jit_enable`.
    pub jit: Jit,
    /// The kernel's types, `/sys/kernel/btf/vmlinux`, are there.
    pub types: bool,
    /// Soft limit of locked memory, bytes; `None`: unlimited.
    pub locked_memory: Option<u64>,
    /// Free huge pages of the default size.
    pub huge_pages: Option<u64>,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub transparent: Option<String>,
    /// The clock that the kernel uses.
    pub clock: Option<String>,
    /// `/dev/net/tun` is there.
    pub tun: bool,
    /// clang can make BPF objects.
    pub clang: bool,
    /// `bpf/bpf_helpers.h` is where clang looks.
    pub headers: bool,
}

/// What is known of the kernel's own compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Jit {
    /// The switch stands at this.
    Is(u32),
    /// Only root may look.
    Hidden,
    /// This network namespace does not show it: only the machine's first one does.
    #[default]
    Elsewhere,
}

impl Jit {
    fn of(read: std::io::Result<String>) -> Jit {
        match read {
            Ok(text) => text.trim().parse().map_or(Jit::Hidden, Jit::Is),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Jit::Elsewhere,
            Err(_) => Jit::Hidden,
        }
    }
}

pub(crate) const CAP_NET_ADMIN: u64 = 12;
const CAP_NET_RAW: u64 = 13;
pub(crate) const CAP_SYS_ADMIN: u64 = 21;
pub(crate) const CAP_PERFMON: u64 = 38;
pub(crate) const CAP_BPF: u64 = 39;

impl Machine {
    /// Looks at the running machine. Cost: a few files, and clang started once.
    pub fn here() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let after = |text: &str, key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key).map(|rest| rest.trim().to_owned()))
        };
        let status = read("/proc/self/status").unwrap_or_default();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let memory = read("/proc/meminfo").unwrap_or_default();
        Machine {
            release: read("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            capabilities: capabilities(&status),
            mounts: read("/proc/self/mounts").unwrap_or_default(),
            lockdown: read("/sys/kernel/security/lockdown"),
            jit: Jit::of(std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable")),
            types: std::path::Path::new("/sys/kernel/btf/vmlinux").exists(),
            locked_memory: limit.current,
            huge_pages: after(&memory, "HugePages_Free:").and_then(|n| n.parse().ok()),
            transparent: read("/sys/kernel/mm/transparent_hugepage/enabled"),
            clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            tun: std::path::Path::new("/dev/net/tun").exists(),
            clang: clang(),
            headers: std::path::Path::new("/usr/include/bpf/bpf_helpers.h").exists(),
        }
    }

    fn may(&self, capability: u64) -> bool {
        self.capabilities >> capability & 1 != 0
    }
}

/// Whether clang is there and knows the target.
fn clang() -> bool {
    let mut command = Command::new("clang");
    command.args(["-target", "bpf", "-x", "c", "-c", "/dev/null", "-o", "/dev/null"]);
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// All findings about a machine, the most basic first.
pub fn machine(of: &Machine) -> Vec<Finding> {
    vec![
        kernel(of),
        privileges(of),
        locked_down(of),
        types(of),
        jit(of),
        bpffs(of),
        tracefs(of),
        locked_memory(of),
        huge_pages(of),
        clock(of),
        tun(of),
        compiler(of),
    ]
}

/// The first two numbers of what `uname -r` prints.
pub(crate) fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Effective capabilities in a `/proc/PID/status`, a bit each; none where it does not say.
pub(crate) fn capabilities(status: &str) -> u64 {
    let found = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    found.and_then(|n| u64::from_str_radix(n.trim(), 16).ok()).unwrap_or(0)
}

fn kernel(of: &Machine) -> Finding {
    const TOPIC: &str = "kernel";
    let version = version(&of.release);
    let found = format!("Linux {}", of.release);
    match version {
        (6.., 3..) | (7.., _) => Finding::good(TOPIC, found),
        (5, 9..) | (6.., _) => {
            let lacks = "drivers do not say what they can do (Linux 6.3), attaching shows it";
            Finding::note(TOPIC, format!("{found}: {lacks}"), "xway load IFACE OBJ -m native")
        }
        _ => Finding::bad(
            TOPIC,
            format!("{found}: links for XDP need Linux 5.9; the kernel's hook is not served below"),
            "xway run OBJ -i packet:IFACE   # the user-space engine does not need them",
        ),
    }
}

fn privileges(of: &Machine) -> Finding {
    const TOPIC: &str = "privileges";
    let all = of.may(CAP_SYS_ADMIN);
    let wanted = [("CAP_NET_ADMIN", CAP_NET_ADMIN), ("CAP_BPF", CAP_BPF), ("CAP_PERFMON", CAP_PERFMON)];
    let mut lacks: Vec<&str> = wanted
        .iter()
        .filter(|(name, bit)| !(of.may(*bit) || all && *name != "CAP_NET_ADMIN"))
        .map(|(n, _)| *n)
        .collect();
    if !of.may(CAP_NET_RAW) {
        lacks.push("CAP_NET_RAW");
    }
    match lacks.is_empty() {
        true => Finding::good(TOPIC, "enough to load, attach and open packet sockets"),
        false => Finding::note(
            TOPIC,
            format!("{} missing: captures and tests work, devices and the kernel's hook do not", lacks.join(", ")),
            "sudo setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon+ep $(command -v xway)",
        ),
    }
}

fn locked_down(of: &Machine) -> Finding {
    const TOPIC: &str = "lockdown";
    match of.lockdown.as_deref().unwrap_or("") {
        mode if mode.contains("[confidentiality]") => Finding::bad(
            TOPIC,
            "confidentiality: the kernel refuses BPF to everybody",
            "boot with lockdown=integrity, or: xway run OBJ -i packet:IFACE",
        ),
        mode if mode.contains("[integrity]") => Finding::good(TOPIC, "integrity: XDP is allowed"),
        _ => Finding::good(TOPIC, "none"),
    }
}

fn types(of: &Machine) -> Finding {
    const TOPIC: &str = "types";
    match of.types {
        true => Finding::good(TOPIC, "/sys/kernel/btf/vmlinux is there"),
        false => Finding::note(
            TOPIC,
            "the kernel does not tell its types (CONFIG_DEBUG_INFO_BTF): objects with CO-RE relocations need a file",
            "xway run OBJ --btf vmlinux.btf -i PORT",
        ),
    }
}

fn jit(of: &Machine) -> Finding {
    const TOPIC: &str = "kernel-jit";
    match of.jit {
        Jit::Is(0) => Finding::bad(
            TOPIC,
            "off: the kernel interprets programs, several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Jit::Is(_) => Finding::good(TOPIC, "on"),
        Jit::Hidden => Finding::note(TOPIC, "not readable without root", "sudo sysctl net.core.bpf_jit_enable"),
        Jit::Elsewhere => Finding::note(
            TOPIC,
            "this network namespace does not show the switch, only the machine's first one does",
            "sudo nsenter --net=/proc/1/ns/net sysctl net.core.bpf_jit_enable",
        ),
    }
}

fn bpffs(of: &Machine) -> Finding {
    const TOPIC: &str = "bpffs";
    let mut mounts = of.mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // What was mounted over it later is what is there.
    let last = mounts.rfind(|words| words.get(1) == Some(&"/sys/fs/bpf"));
    match last.is_some_and(|words| words.get(2) == Some(&"bpf")) {
        true => Finding::good(TOPIC, "mounted at /sys/fs/bpf"),
        false => Finding::note(
            TOPIC,
            "not mounted: attachments outlive the command only through netlink, maps cannot be pinned",
            "mount -t bpf bpf /sys/fs/bpf",
        ),
    }
}

fn tracefs(of: &Machine) -> Finding {
    const TOPIC: &str = "tracefs";
    // Where debugfs is mounted Linux mounts the other one into it when somebody looks.
    let places = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing", "/sys/kernel/debug"];
    let place = |line: &str| line.split_whitespace().nth(1).is_some_and(|at| places.contains(&at));
    match of.mounts.lines().any(place) {
        true => Finding::good(TOPIC, "Linux's tracepoints can be read"),
        false => Finding::note(
            TOPIC,
            "not mounted: xway monitor and prog tracelog see nothing of Linux's hook",
            "mount -t tracefs nodev /sys/kernel/tracing",
        ),
    }
}

fn locked_memory(of: &Machine) -> Finding {
    const TOPIC: &str = "locked-memory";
    /// Packet memory of one queue with room to spare, bytes.
    const ENOUGH: u64 = 64 << 20;
    match of.locked_memory {
        Some(limit) if limit < ENOUGH => Finding::note(
            TOPIC,
            format!("limit {} KiB: AF_XDP memory and, before Linux 5.11, maps count against it", limit >> 10),
            "ulimit -l unlimited",
        ),
        Some(limit) => Finding::good(TOPIC, format!("limit {} MiB", limit >> 20)),
        None => Finding::good(TOPIC, "unlimited"),
    }
}

fn huge_pages(of: &Machine) -> Finding {
    const TOPIC: &str = "huge-pages";
    let transparent = of.transparent.as_deref().is_some_and(|modes| !modes.contains("[never]"));
    match (of.huge_pages, transparent) {
        (Some(free), _) if free > 0 => Finding::good(TOPIC, format!("{free} free")),
        (_, true) => Finding::note(
            TOPIC,
            "none reserved; the kernel may still give transparent ones to large maps and pools",
            "sysctl -w vm.nr_hugepages=128",
        ),
        (_, false) => Finding::note(
            TOPIC,
            "none: large maps and pools pay for page tables at each random access",
            "sysctl -w vm.nr_hugepages=128",
        ),
    }
}

fn clock(of: &Machine) -> Finding {
    const TOPIC: &str = "clock";
    match of.clock.as_deref().map(str::trim) {
        None => Finding::good(TOPIC, "the kernel's own"),
        Some(name @ ("tsc" | "arch_sys_counter")) => {
            Finding::good(TOPIC, format!("{name}: read without a system call"))
        }
        Some(name @ ("kvm-clock" | "hyperv_clocksource_tsc_page")) => {
            Finding::good(TOPIC, format!("{name}: read without a system call, slower than tsc"))
        }
        Some(name) => Finding::note(
            TOPIC,
            format!("{name}: each look at the clock is a system call"),
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
    }
}

fn tun(of: &Machine) -> Finding {
    const TOPIC: &str = "tap";
    match of.tun {
        true => Finding::good(TOPIC, "/dev/net/tun is there"),
        false => Finding::note(TOPIC, "no /dev/net/tun: tap ports cannot be opened", "modprobe tun"),
    }
}

fn compiler(of: &Machine) -> Finding {
    const TOPIC: &str = "compiler";
    match (of.clang, of.headers) {
        (true, true) => Finding::good(TOPIC, "clang makes BPF objects, libbpf's headers are there"),
        (true, false) => Finding::note(
            TOPIC,
            "clang is there, libbpf's headers are not",
            "apt-get install libbpf-dev linux-libc-dev",
        ),
        (false, _) => Finding::note(
            TOPIC,
            "no clang that makes BPF objects: programs must come compiled",
            "apt-get install clang llvm libbpf-dev linux-libc-dev",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Grade;

    fn good() -> Machine {
        Machine {
            release: "6.18.1-amd64".into(),
            capabilities: u64::MAX,
            mounts: "bpf /sys/fs/bpf bpf rw 0 0\ntracefs /sys/kernel/tracing tracefs rw 0 0\n".into(),
            lockdown: Some("[none] integrity confidentiality".into()),
            jit: Jit::Is(1),
            types: true,
            locked_memory: None,
            huge_pages: Some(8),
            transparent: Some("always [madvise] never".into()),
            clock: Some("tsc\n".into()),
            tun: true,
            clang: true,
            headers: true,
        }
    }

    fn grades(of: &Machine) -> Vec<(&'static str, Grade)> {
        machine(of).into_iter().filter(|f| f.grade != Grade::Good).map(|f| (f.topic, f.grade)).collect()
    }

    #[test]
    fn a_good_machine_has_nothing_to_mend() {
        assert_eq!(grades(&good()), []);
    }

    #[test]
    fn each_lack_is_named_alone_and_ends_with_a_command() {
        type Change = fn(&mut Machine);
        let lacks: [(&str, Grade, Change); 18] = [
            ("kernel", Grade::Note, |m| m.release = "5.15.0".into()),
            ("kernel", Grade::Note, |m| m.release = "6.1.0-13-amd64".into()),
            ("kernel", Grade::Bad, |m| m.release = "4.18.0".into()),
            ("privileges", Grade::Note, |m| m.capabilities = 0),
            ("lockdown", Grade::Bad, |m| m.lockdown = Some("none integrity [confidentiality]".into())),
            ("types", Grade::Note, |m| m.types = false),
            ("kernel-jit", Grade::Bad, |m| m.jit = Jit::Is(0)),
            ("kernel-jit", Grade::Note, |m| m.jit = Jit::Hidden),
            ("kernel-jit", Grade::Note, |m| m.jit = Jit::Elsewhere),
            ("bpffs", Grade::Note, |m| m.mounts = m.mounts.replace("/sys/fs/bpf", "/mnt")),
            ("bpffs", Grade::Note, |m| m.mounts.push_str("tmpfs /sys/fs/bpf tmpfs rw 0 0\n")),
            ("tracefs", Grade::Note, |m| m.mounts = m.mounts.replace("/sys/kernel/tracing", "/mnt")),
            ("locked-memory", Grade::Note, |m| m.locked_memory = Some(64 << 10)),
            ("huge-pages", Grade::Note, |m| m.huge_pages = Some(0)),
            ("clock", Grade::Note, |m| m.clock = Some("acpi_pm".into())),
            ("tap", Grade::Note, |m| m.tun = false),
            ("compiler", Grade::Note, |m| m.clang = false),
            ("compiler", Grade::Note, |m| m.headers = false),
        ];
        for (topic, grade, change) in lacks {
            let mut machine = good();
            change(&mut machine);
            assert_eq!(grades(&machine), [(topic, grade)]);
            let found = super::machine(&machine).into_iter().find(|f| f.topic == topic).unwrap();
            assert!(found.mend.is_some_and(|mend| !mend.is_empty()), "{topic}");
        }
    }

    #[test]
    fn full_privileges_are_enough_without_the_newer_capabilities() {
        let mut machine = good();
        machine.capabilities = 1 << CAP_SYS_ADMIN | 1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW;
        assert_eq!(grades(&machine), []);
    }

    #[test]
    fn a_switch_that_is_not_there_is_not_one_that_only_root_may_read() {
        let refused = |kind: std::io::ErrorKind| Jit::of(Err(kind.into()));
        assert_eq!(refused(std::io::ErrorKind::PermissionDenied), Jit::Hidden);
        assert_eq!(refused(std::io::ErrorKind::NotFound), Jit::Elsewhere);
        assert_eq!(Jit::of(Ok("2\n".into())), Jit::Is(2));
    }

    #[test]
    fn newer_kernels_than_this_one_are_good() {
        let mut machine = good();
        for release in ["6.3.0", "7.0.0-rc1", "10.1"] {
            machine.release = release.into();
            assert_eq!(grades(&machine), [], "{release}");
        }
    }
}
