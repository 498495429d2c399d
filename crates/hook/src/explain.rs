//! What an errno of the kernel means in its place, and what mends it.

use std::path::Path;

use xway_abi::Errno;
use xway_kernel::{Device, DriverFeatures, KernelError, XDP_FEATURES, bit_names, driver_features};

use crate::doctor::machine::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN, capabilities, version};
use crate::{Blame, HookError, Mode, OtherEnd, at_other_end, pins};

/// An error that has nothing to do with an interface.
pub fn plain(error: &KernelError) -> HookError {
    let blame = error.errno().filter(|_| error.log().is_empty()).map_or(Blame::Request, Blame::of);
    let mut out = HookError::new(blame, error);
    out.errno = error.errno();
    out.log = error.log().to_owned();
    if let (KernelError::Path { path, errno: Errno::EPERM | Errno::EACCES, .. }, Some(why)) = (error, no_pin_of(error))
    {
        out.blame = Blame::Input;
        out.message = format!("{path}: {why} ({error})");
        out.hint =
            Some(format!("pins are files below {}; xway prog show and xway map show have the numbers", pins::BPFFS));
        return out;
    }
    if let KernelError::Path { path, errno: Errno::EPERM, .. } = error
        && let Err(dotted) = pins::named(Path::new(path))
    {
        return dotted;
    }
    match error {
        KernelError::Path { path, step: "opening the pin", errno: Errno::ENOENT } => {
            out.message = format!("there is no pin at {path}");
        }
        KernelError::Path { path, errno: Errno::EINVAL, step } => {
            if let (Some(wanted), Some(kind)) = (step.strip_prefix("opening as a "), pins::kind(Path::new(path))) {
                out.message = format!("{path}: it is a {kind}, not a {wanted}");
            }
        }
        _ => {}
    }
    match error.errno() {
        Some(Errno::EEXIST) => {
            if let KernelError::Path { path, .. } = error {
                let verb = match pins::kind(Path::new(path)) {
                    Some("program") => Some("prog"),
                    other => other,
                };
                out.hint = Some(match verb {
                    Some(verb) => format!("another path, or take that pin away: xway {verb} unpin {path}"),
                    None if Path::new(path).is_dir() => format!("a name in that directory: {path}/NAME"),
                    None => "another path".into(),
                });
            }
        }
        Some(Errno::EPERM | Errno::EACCES) if error.log().is_empty() => {
            out.blame = Blame::Machine;
            out.hint = Some(if error.errno() == Some(Errno::EPERM) { denied() } else { privilege() });
        }
        Some(Errno::ENOMEM) => {
            out.blame = Blame::Machine;
            out.hint = Some("free memory, or raise the limit of locked memory: ulimit -l unlimited".into());
        }
        Some(Errno::ENOSYS) => {
            out.blame = Blame::Machine;
            out.hint = Some("a kernel with bpf(2): CONFIG_BPF_SYSCALL=y".into());
        }
        _ => {}
    }
    match error {
        KernelError::Program { .. } | KernelError::Btf { .. } => {
            out.blame = if out.blame == Blame::Machine { Blame::Machine } else { Blame::Input };
        }
        KernelError::NoSymbol { .. } | KernelError::Object { .. } => out.blame = Blame::Input,
        _ => {}
    }
    out
}

/// Why a path leads to no object at all: there the kernel says the same as to somebody who may not.
fn no_pin_of(error: &KernelError) -> Option<&'static str> {
    let KernelError::Path { path, .. } = error else { return None };
    let path = Path::new(path);
    let there = std::fs::metadata(path).ok()?;
    match () {
        () if !pins::is_bpffs(path) => Some("not in a BPF file system, so no object is pinned there"),
        () if there.is_dir() => Some("a directory of pins, not a pin"),
        () => None,
    }
}

/// `NETDEV_XDP_ACT_HW_OFFLOAD`: the device itself runs programs.
const HW_OFFLOAD: u64 = 1 << 4;

/// A program that a device was to run itself, and that was refused when it was loaded for it or attached there: what the kernel says,
/// and what it tells of the driver.
pub fn offload(error: &KernelError, device: &Device) -> HookError {
    // Netlink's family of drivers came with 6.3; before it nothing is told.
    offload_of(error, device, driver_features(device.ifindex).ok().flatten())
}

fn offload_of(error: &KernelError, device: &Device, features: Option<DriverFeatures>) -> HookError {
    let mut out = plain(error);
    let name = &device.name;
    if !error.log().is_empty() || matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES)) {
        // The verifier has its say, or nobody got as far as the driver.
        out.message = format!("{name}: in the device: {error}");
        return out;
    }
    let kind = if device.kind.is_empty() { String::new() } else { format!(" ({})", device.kind) };
    out.blame = Blame::Machine;
    let (why, hint) = match features {
        Some(of) if of.xdp & HW_OFFLOAD != 0 => (
            format!("its driver{kind} runs programs in the device, but not this one"),
            "a program with fewer helpers and maps, or -m native",
        ),
        Some(of) => {
            let has = bit_names(of.xdp, &XDP_FEATURES).join(", ");
            let has = if has.is_empty() { "nothing of XDP".into() } else { has };
            (format!("its driver{kind} has no hw-offload; the kernel lists for it: {has}"), "-m native or -m generic")
        }
        None => (
            format!("the kernel does not tell whether its driver{kind} has hw-offload"),
            "-m native or -m generic; or a device whose driver runs programs itself",
        ),
    };
    out.message = format!("{name}: {why} ({error})");
    out.hint = Some(hint.into());
    out
}

/// The largest MTU that leaves room for headroom and tailroom in a page of 4 KiB, as most drivers count it; above it they
/// refuse programs without fragments.
pub(crate) const MTU_ONE_PAGE: u32 = 3498;

/// The same of a veth's other end, whose packets the program gets: it counts neither VLAN tags nor rounding.
pub(crate) const MTU_VETH: u32 = 3506;

/// An attachment that was refused.
pub fn attach(error: &KernelError, device: &Device, mode: Mode) -> HookError {
    if mode == Mode::Offload {
        return offload(error, device);
    }
    let mut out = plain(error);
    out.message = format!("{}: {error}", device.name);
    let said = match error {
        KernelError::Netlink { said, .. } => said.to_lowercase(),
        _ => String::new(),
    };
    let name = &device.name;
    let (blame, hint) = match error.errno() {
        Some(Errno::EBUSY | Errno::EEXIST) if said.contains("same time") || other_mode(device, mode) => {
            let there = attached(device);
            (
                Blame::Request,
                format!(
                    "{there}; load in the same mode, replace it in whichever mode: --force, or take it away: xway unload {name} -a"
                ),
            )
        }
        Some(Errno::EBUSY | Errno::EEXIST) => {
            let there = attached(device);
            (Blame::Request, format!("{there}; replace it: --replace ID, or take it away: xway unload {name} -a"))
        }
        Some(Errno::EOPNOTSUPP) => {
            let kind = if device.kind.is_empty() { String::new() } else { format!(" ({})", device.kind) };
            (Blame::Machine, format!("the driver of {name}{kind} has no native XDP; use -m generic"))
        }
        Some(Errno::EPERM | Errno::EACCES) => (Blame::Machine, privilege()),
        Some(Errno::EINVAL | Errno::ERANGE) if device.mtu > MTU_ONE_PAGE || said.contains("mtu") => {
            let peer = said.contains("peer").then(|| OtherEnd::of(device));
            (Blame::Machine, too_long(device, peer.as_ref().map(Option::as_ref)))
        }
        Some(Errno::EINVAL) if said.contains("lro") || said.contains("gro_hw") => {
            (Blame::Machine, format!("switch the offload off: ethtool -K {name} lro off rx-gro-hw off"))
        }
        Some(Errno::EINVAL | Errno::ENOSPC) if said.contains("queue") || said.contains("channel") => (
            Blame::Machine,
            format!("the driver wants spare queues for XDP: ethtool -L {name} combined N, with a lower N"),
        ),
        Some(Errno::ENETDOWN) => (Blame::Machine, format!("ip link set {name} up")),
        Some(Errno::ENODEV) => (Blame::Machine, "the interface has gone".to_owned()),
        _ => return out,
    };
    out.blame = blame;
    out.hint = Some(hint);
    out
}

/// What to do about an MTU. `peer`: it is that of the other end of a veth, `Some(None)`: of one that was not found.
fn too_long(device: &Device, peer: Option<Option<&OtherEnd>>) -> String {
    let name = &device.name;
    let (whose, mtu, most, mend) = match peer {
        None => {
            let most = format!("{MTU_ONE_PAGE} (most drivers)");
            (name.clone(), Some(device.mtu), most, format!("ip link set {name} mtu {MTU_ONE_PAGE}"))
        }
        Some(end) => {
            let mend = at_other_end(name, end, |end| format!("ip link set {end} mtu {MTU_VETH}"));
            let whose = end
                .map_or_else(|| format!("the other end of {name}"), |e| format!("{}, the other end,", e.device.name));
            (whose, end.map(|end| end.device.mtu), MTU_VETH.to_string(), mend)
        }
    };
    let mtu = mtu.map_or_else(String::new, |mtu| format!(" {mtu}"));
    format!(
        "MTU{mtu} of {whose} is too large for a program without fragments, the limit is {most}: {mend}; or build the program \
         for the section xdp.frags"
    )
}

/// `NETDEV_XDP_ACT_NDO_XMIT`: frames can be sent out of the interface by redirects.
pub(crate) const NDO_XMIT: u64 = 1 << 2;

/// What a person must know about an attachment that was made: one line each.
pub fn warnings(device: &Device, mode: Mode, peer: Option<&OtherEnd>, may_send: bool) -> Vec<String> {
    let mut out = Vec::new();
    // Kernels since 6.3 say whether the other end takes frames; before, only a native program there makes it do so.
    let takes = driver_features(device.ifindex).ok().flatten().is_some_and(|f| f.xdp & NDO_XMIT != 0);
    let deaf = !takes && peer.is_none_or(|peer| peer.device.native.is_none());
    if mode == Mode::Native && device.kind == "veth" && may_send && deaf {
        let mend = at_other_end(&device.name, peer, |end| format!("ethtool -K {end} gro on"));
        out.push(format!(
            "{} is a veth: frames that the program sends (XDP_TX, or a redirect to it) are lost unless the other end \
             has a native program too (one that passes everything is enough) or GRO: {mend}",
            device.name
        ));
    }
    if !device.up {
        out.push(format!("{} is down: no packet comes before `ip link set {} up`", device.name, device.name));
    }
    out
}

fn other_mode(device: &Device, mode: Mode) -> bool {
    match mode {
        Mode::Native => device.native.is_none() && device.generic.is_some(),
        Mode::Generic => device.generic.is_none() && device.native.is_some(),
        _ => false,
    }
}

fn attached(device: &Device) -> String {
    let all: Vec<String> = device.attached().map(|(mode, id)| format!("program {id} ({})", mode.name())).collect();
    match all.is_empty() {
        true => format!("{} has another attachment", device.name),
        false => format!("{} has {}", device.name, all.join(" and ")),
    }
}

/// What mends an `EPERM` of bpf(2) itself: the limit of locked memory where that is what it means, otherwise the privilege.
fn denied() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let effective = capabilities(&read("/proc/self/status"));
    locked_memory(&read("/proc/sys/kernel/osrelease"), effective, limit).unwrap_or_else(privilege)
}

/// Before 5.11 Linux counts maps and programs against the limit of locked memory, root's too, and says `EPERM` above it. `limit`:
/// bytes; `None`: there is none.
fn locked_memory(release: &str, capabilities: u64, limit: Option<u64>) -> Option<String> {
    let may = [CAP_SYS_ADMIN, CAP_BPF].into_iter().any(|bit| capabilities >> bit & 1 != 0);
    let limit = limit.filter(|_| may && version(release) < (5, 11))?;
    Some(format!(
        "before Linux 5.11 maps and programs count against the limit of locked memory, which is {} KiB here: ulimit -l \
         unlimited (LimitMEMLOCK=infinity in a unit)",
        limit >> 10
    ))
}

/// What this process lacks of what Linux wants of whoever loads XDP programs, whichever they are, and what to do about it; `None` where
/// nothing is missing. Without CAP_PERFMON alone Linux takes some programs: its verifier then looks at what they might tell a
/// speculating processor, gives up on long ones, and makes other code of the rest.
pub fn lacking() -> Option<(String, String)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = missing(capabilities(&status));
    (!missing.is_empty()).then(|| (missing.join(", "), privilege()))
}

fn missing(capabilities: u64) -> Vec<&'static str> {
    let has = |bit: u64| capabilities >> bit & 1 != 0;
    let wanted = [("CAP_BPF", CAP_BPF), ("CAP_PERFMON", CAP_PERFMON), ("CAP_NET_ADMIN", CAP_NET_ADMIN)];
    let missing = wanted.into_iter().filter(|(_, bit)| !has(*bit) && !has(CAP_SYS_ADMIN));
    missing.map(|(name, _)| name).collect()
}

fn privilege() -> String {
    // The kernel's switch: 1 or 2 forbids it to everyone without the privilege, which is the default.
    let locked = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if locked.contains("[confidentiality]") {
        return "the kernel is locked down (confidentiality): BPF is refused to everybody; boot with another \
                lockdown mode"
            .into();
    }
    "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let some = 1 << CAP_BPF | 1 << CAP_NET_ADMIN;
        assert_eq!(missing(some), ["CAP_PERFMON"]);
        assert_eq!(missing(0), ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"]);
        assert_eq!([missing(some | 1 << CAP_PERFMON), missing(1 << CAP_SYS_ADMIN)], [const { Vec::<&str>::new() }; 2]);
    }

    /// What drivers and the kernel say, and the command that a person is told.
    #[test]
    fn every_cause_has_the_command_that_mends_it() {
        let plain = Device { name: "eth0".into(), mtu: 1500, up: true, ..Device::default() };
        let jumbo = Device { mtu: 9000, ..plain.clone() };
        let veth = Device { kind: "veth".into(), ..plain.clone() };
        let taken = Device { native: Some(7), ..plain.clone() };
        let behind = Device { generic: Some(7), ..plain.clone() };
        let rows: &[(&Device, Errno, &str, Blame, &str)] = &[
            (
                &jumbo,
                Errno::EINVAL,
                "",
                Blame::Machine,
                "MTU 9000 of eth0 is too large for a program without fragments, the limit is 3498 (most drivers): ip link set \
                 eth0 mtu 3498",
            ),
            (&plain, Errno::ERANGE, "Peer MTU is too large", Blame::Machine, "the other end of eth0 is too large"),
            (&plain, Errno::ERANGE, "Peer MTU is too large", Blame::Machine, "ip link set THAT-INTERFACE mtu 3506"),
            (&plain, Errno::EINVAL, "LRO is on", Blame::Machine, "ethtool -K eth0 lro off rx-gro-hw off"),
            (&plain, Errno::EINVAL, "not enough queues", Blame::Machine, "ethtool -L eth0 combined N"),
            (&plain, Errno::ENOSPC, "too few channels", Blame::Machine, "ethtool -L eth0 combined N"),
            (&plain, Errno::EOPNOTSUPP, "", Blame::Machine, "the driver of eth0 has no native XDP; use -m generic"),
            (&veth, Errno::EOPNOTSUPP, "", Blame::Machine, "the driver of eth0 (veth) has no native XDP"),
            (&plain, Errno::EPERM, "", Blame::Machine, &privilege()),
            (&plain, Errno::ENETDOWN, "", Blame::Machine, "ip link set eth0 up"),
            (&plain, Errno::ENODEV, "", Blame::Machine, "the interface has gone"),
            (&plain, Errno::ENOMEM, "", Blame::Machine, "ulimit -l unlimited"),
            (&taken, Errno::EBUSY, "", Blame::Request, "eth0 has program 7 (native); replace it: --replace ID"),
            (
                &behind,
                Errno::EEXIST,
                "",
                Blame::Request,
                "eth0 has program 7 (generic); load in the same mode, replace it in whichever mode: --force",
            ),
        ];
        for (device, errno, said, blame, hint) in rows {
            let error = KernelError::Netlink { step: "attaching", errno: *errno, said: (*said).into() };
            let told = attach(&error, device, Mode::Native);
            assert!(told.hint.as_ref().is_some_and(|h| h.contains(hint)), "{errno} {said:?}: {:?}", told.hint);
            assert_eq!((told.blame, told.errno), (*blame, Some(*errno)), "{errno} {said:?}");
            assert!(told.message.starts_with("eth0: attaching failed with"), "{}", told.message);
        }
    }

    #[test]
    fn a_device_that_runs_no_programs_is_named_with_what_it_has() {
        let device = Device { name: "eth0".into(), kind: "veth".into(), ..Device::default() };
        let error = |errno, log: &str| KernelError::Program { name: "p".into(), errno, log: log.into() };
        let told = |xdp: Option<u64>, errno, log: &str| {
            let features = xdp.map(|xdp| DriverFeatures { xdp, ..DriverFeatures::default() });
            offload_of(&error(errno, log), &device, features)
        };
        let without = told(Some(1 | 1 << 1), Errno::EINVAL, "");
        let words = "eth0: its driver (veth) has no hw-offload; the kernel lists for it: basic, redirect (";
        assert!(without.message.starts_with(words) && without.message.contains("EINVAL"), "{without}");
        assert_eq!((without.blame, without.hint.as_deref()), (Blame::Machine, Some("-m native or -m generic")));
        assert!(told(Some(HW_OFFLOAD), Errno::EINVAL, "").message.contains("but not this one"));
        assert!(told(None, Errno::EINVAL, "").message.contains("does not tell"));
        // A verifier's or driver's log is what counts where there is one.
        let logged = told(Some(HW_OFFLOAD), Errno::EINVAL, "[netdevsim] no");
        assert!(logged.message.starts_with("eth0: in the device: ") && logged.log.contains("netdevsim"), "{logged}");
        assert!(told(Some(1), Errno::EPERM, "").hint.is_some());
    }

    #[test]
    fn a_limit_of_locked_memory_is_named_where_it_counts() {
        let root = u64::MAX;
        let told = locked_memory("5.10.0-28-amd64\n", root, Some(65536)).unwrap();
        assert!(told.contains("64 KiB") && told.contains("ulimit -l unlimited"), "{told}");
        assert!(locked_memory("5.4.0", 1 << CAP_BPF, Some(1)).is_some());
        // No limit, no privilege, or a kernel that counts otherwise: it is something else.
        for (release, capabilities, limit) in
            [("5.10.0", root, None), ("5.10.0", 0, Some(1)), ("5.11.0", root, Some(1))]
        {
            assert_eq!(locked_memory(release, capabilities, limit), None, "{release}");
        }
    }

    #[test]
    fn a_veth_that_would_lose_frames_is_told_of() {
        let far = Device { name: "far".into(), kind: "veth".into(), up: true, ..Device::default() };
        let near = Device { name: "near".into(), ..far.clone() };
        let says = |near: &Device, mode, far: &Device, sends| {
            let end = OtherEnd { device: far.clone(), space: Some("/run/netns/b".into()) };
            warnings(near, mode, Some(&end), sends)
        };
        let told = says(&near, Mode::Native, &far, true);
        assert!(told[0].ends_with(": nsenter --net=/run/netns/b ethtool -K far gro on"), "{told:?}");
        let with = Device { native: Some(1), ..far.clone() };
        for quiet in [says(&near, Mode::Native, &with, true), says(&near, Mode::Generic, &far, true)] {
            assert!(quiet.is_empty(), "{quiet:?}");
        }
        assert!(says(&near, Mode::Native, &far, false).is_empty(), "what only drops loses nothing");
        let down = Device { up: false, ..near.clone() };
        assert!(says(&down, Mode::Native, &far, false)[0].contains("ip link set near up"));
    }
}
