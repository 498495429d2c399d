//! Forwarding by the host's own routes, on any hook.
//!
//! A program on each interface of a set asks the host's routing tables and its neighbours about every packet that
//! comes in, and redirects those that leave by an interface of the set. Whatever it is not sure about passes to the
//! host's stack, so what the host does with packets stays as it is; only firewall rules do not see what is
//! forwarded here.

use xway_hook::{Attached, AttachmentInfo, Hook, HookKind, LoadRequest, Mode, OtherEnd, ProgId, at_other_end};

use crate::attach::{How, everywhere};
use crate::{ToolError, objects};

/// How routes are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fib {
    /// Rules first, then the tables that they name.
    #[default]
    Full,
    /// One table without rules.
    Direct,
}

impl Fib {
    /// Name of the program, which is the name that others see.
    pub const fn program(self) -> &'static str {
        match self {
            Fib::Full => "forward_full",
            Fib::Direct => "forward_direct",
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// How routes are looked up.
    pub fib: Fib,
    /// Where in Linux the program runs.
    pub mode: Mode,
    /// Run together with other programs of the interfaces, at this place; `None`: alone.
    pub priority: Option<u32>,
}

/// What became of the packets, in the order of the program's counters.
pub const OUTCOMES: [&str; 13] = [
    "forwarded",
    "not_ip",
    "tagged",
    "group",
    "malformed",
    "options",
    "fragment",
    "hop_limit",
    "no_route",
    "no_neighbour",
    "too_long",
    "other_port",
    "address",
];

/// One interface of a set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Its name.
    pub port: String,
    /// What attaching did.
    pub attached: Attached,
    /// What will lose packets as things are.
    pub warnings: Vec<String>,
}

/// Most interfaces in one set: the size of the program's map.
pub const PORTS_MAX: usize = 256;

/// Forwards between these ports, all of them or none.
///
/// # Errors
/// A port that is not there or has a program already; too many ports; what the hook refuses.
pub fn load(hook: &mut dyn Hook, ports: &[String], options: &Options) -> Result<Vec<Loaded>, ToolError> {
    if ports.len() > PORTS_MAX {
        let message = format!("{} ports: a set has at most {PORTS_MAX}", ports.len());
        return Err(ToolError::Request(message));
    }
    let mut known = Vec::new();
    for port in ports {
        known.push(hook.features(port)?);
    }
    let request = LoadRequest { programs: vec![options.fib.program().to_owned()], ..LoadRequest::default() };
    let made = hook.load(&objects::image("route")?, &request)?;
    let missing = |what| ToolError::Object { name: "route", why: format!("it has no {what}") };
    let map = made.map("forward_ports").ok_or_else(|| missing("map forward_ports"))?;
    let program = made.program(options.fib.program()).ok_or_else(|| missing(options.fib.program()))?;
    for port in &known {
        // `struct bpf_devmap_val`: the interface, and no program behind it.
        let value = [port.ifindex.to_ne_bytes(), [0; 4]].concat();
        hook.map_update(map, &port.ifindex.to_ne_bytes(), &value, 0)?;
    }
    let how = How { mode: options.mode, priority: options.priority };
    let attached = everywhere(hook, ports, program, how)?;
    let mut done: Vec<Loaded> =
        attached.into_iter().map(|(port, attached)| Loaded { port, attached, warnings: Vec::new() }).collect();
    if hook.kind() == HookKind::Kernel {
        for one in &mut done {
            one.warnings = warnings(hook, one)?;
        }
    }
    Ok(done)
}

/// What an interface lacks as a target.
fn warnings(hook: &mut dyn Hook, one: &Loaded) -> Result<Vec<String>, ToolError> {
    let features = hook.features(&one.port)?;
    let mut out = Vec::new();
    let native = one.attached.mode.effective != Mode::Generic.name();
    // Of a veth the hook has said it already.
    let veth = features.kind == "veth";
    if native && !veth && !features.xdp.is_empty() && !features.xdp.iter().any(|f| f == "ndo-xmit") {
        let mend = "attach in generic mode, which needs nothing from the driver";
        out.push(format!("{} takes no redirected frames, what is forwarded to it is lost: {mend}", one.port));
    }
    if native && veth {
        let end = xway_hook::kernel::device(&one.port).ok().and_then(|device| OtherEnd::of(&device));
        let mend = at_other_end(&one.port, end.as_ref(), |end| format!("ethtool -K {end} tx off"));
        out.push(format!(
            "{} is a veth: a sender on the same machine leaves checksums to the device, and they stay unfinished on the \
             way through the hook: {mend}",
            one.port
        ));
    }
    Ok(out)
}

/// Forwarding programs on one port, or on all.
///
/// # Errors
/// What the hook refuses.
pub fn attached(hook: &mut dyn Hook, port: Option<&str>) -> Result<Vec<AttachmentInfo>, ToolError> {
    let all = hook.attachments(port)?;
    let ours = |a: &AttachmentInfo| [Fib::Full, Fib::Direct].iter().any(|fib| a.program.name == fib.program());
    Ok(all.into_iter().filter(ours).collect())
}

/// Takes forwarding away from a port, and leaves other programs there. Gives what was taken away; empty: there was
/// none.
///
/// # Errors
/// What the hook refuses.
pub fn unload(hook: &mut dyn Hook, port: &str) -> Result<Vec<ProgId>, ToolError> {
    let mut gone = Vec::new();
    for one in attached(hook, Some(port))? {
        gone.extend(hook.detach(port, Some(one.program.id))?);
    }
    Ok(gone)
}

/// What became of the packets on a port, by [`OUTCOMES`]; the ports of a set count together.
///
/// # Errors
/// What the hook refuses.
pub fn counts(hook: &mut dyn Hook, attachment: &AttachmentInfo) -> Result<[u64; OUTCOMES.len()], ToolError> {
    let mut out = [0; OUTCOMES.len()];
    for map in &attachment.program.maps {
        let info = hook.map_info(*map)?;
        if info.name != "forward_counts" {
            continue;
        }
        for (key, sum) in (0u32..).zip(&mut out) {
            let values = hook.map_lookup(*map, &key.to_ne_bytes(), 0)?;
            *sum = values.as_chunks::<8>().0.iter().map(|cpu| u64::from_ne_bytes(*cpu)).sum();
        }
    }
    Ok(out)
}
