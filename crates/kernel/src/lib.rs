//! Linux's own XDP through a thin `bpf(2)` layer: the kernel takes our loader's instructions and maps as they are.
//!
//! [`sys`] is the system call; the other modules wrap one kind of kernel object each and are safe to call:
//!
//! - [`KernelMap`]: one method per map command, errno as the kernel gives it.
//! - [`KernelProg`]: load with the verifier's log, describe, run over one packet.
//! - [`KernelRing`], [`KernelPerf`]: what programs wrote into a ring buffer, into a perf event array.
//! - [`KernelTrace`], [`KernelTally`]: exceptions and failed redirects, from tracepoints.
//! - [`XdpLink`]: a program on an interface, for as long as the link lives; [`set_xdp`]: until it is taken away.
//! - [`RawTracepoint`]: a program that runs whenever the kernel passes a tracepoint.
//! - [`takes_extensions`]: whether the dispatcher that other tools chain programs with can work here; [`dispatcher`]: one.
//! - [`devices`], [`driver_features`]: what is attached where, what a driver can do.
//! - [`ids`], [`pin`], [`pinned`]: what others have made.
//! - [`KernelObject`]: all of the above for an object that [`xway_object`] has read. Linked programs name maps by index;
//!   these become descriptors, and names of kernel functions become type ids. Nothing else is rewritten.
//!
//! ```no_run
//! use xway_kernel::{KernelObject, TestInput};
//! let bytes = std::fs::read("prog.o")?;
//! let object = xway_object::Object::parse(&bytes, &Default::default())?;
//! let kernel = KernelObject::load(&object)?;
//! let program = kernel.program(&object, "count_kinds").expect("the verifier accepts it");
//! let run = program.test_run(&TestInput::packet(&[0; 64]))?;
//! println!("{} after {:?}", run.ret, run.duration);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod btf;
mod chain;
mod device;
pub mod dispatcher;
mod error;
mod ethtool;
mod extension;
mod ids;
mod link;
mod map;
mod netlink;
mod object;
mod perf;
mod prog;
mod ring;
pub mod sys;
mod trace;

pub use btf::{BtfInfo, btf_by_id, btf_info, load_btf, vmlinux};
pub use chain::{CHAIN_ROOT, chain_root};
pub use device::{
    Device, DriverFeatures, Expect, RX_METADATA, XDP_FEATURES, XSK_FEATURES, bit_names, device_by_name,
    device_counters, devices, driver_features, namespace_number, set_xdp,
};
pub use error::KernelError;
pub use ethtool::{Channels, channels, offloads};
pub use extension::takes_extensions;
pub use ids::{ObjectKind, ids, pin, pinned, pinned_object};
pub use link::{LINK_TYPE_XDP, LinkInfo, RawTracepoint, TcxLink, XdpLink, XdpMode};
pub use map::{Batch, KernelMap, MapBtf, MapInfo, possible_cpus};
pub use object::KernelObject;
pub use perf::{KernelPerf, PerfEvent};
pub use prog::{
    FuncInfo, KernelProg, LineInfo, ProgInfo, ProgLines, ProgSpec, RunStatistics, TestInput, TestOutput, XdpMd, consts,
    run_statistics,
};
pub use ring::KernelRing;
pub use trace::{KernelTally, KernelTrace, TraceError, TraceEvent};
