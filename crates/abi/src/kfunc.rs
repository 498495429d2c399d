//! Kernel functions that programs call by name (kfuncs): the vocabulary, and the table of those that Linux 6.18 knows.
//!
//! Sources: the names that the running kernel's BTF tags `bpf_kfunc`; which of them an XDP program may call, from loading a
//! program with each of them; arguments from the functions' BTF types and the naming rules of
//! `Documentation/bpf/kfuncs.rst` (`__sz`, `__szk`, `__uninit`, `__ign`, `__opt`, `__k`). All of them need a licence compatible with
//! the GPL.

mod table;

use crate::Arg;

/// What a kfunc is about, and so what stands between it and a program outside the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KfuncClass {
    /// RX metadata of the packet. Linux wants a program bound to one device (`BPF_F_XDP_DEV_BOUND_ONLY`).
    Metadata,
    /// The packet itself.
    Packet,
    /// Bounded memory behind a descriptor on the stack.
    Dynptr,
    /// Loops whose state is on the stack.
    Iterator,
    /// Regions that the program enters and leaves: RCU, preemption, interrupts, resilient spin locks.
    Region,
    /// Objects that the program allocates, and the lists and trees that hold them.
    Object,
    /// Another view of a pointer.
    Cast,
    /// Strings.
    Text,
    /// Work that runs after the program.
    Deferred,
    /// Leaving the program at once.
    Exception,
    /// Maps as a whole.
    Map,
    /// Works on objects that only a kernel has: tasks, cgroups, connections, IPsec states, keys.
    Kernel,
    /// The engine's own: Linux has nothing like it.
    Engine,
    /// May sleep, which no XDP program may.
    Sleepable,
    /// Not for XDP.
    Foreign,
}

/// What a kfunc gives in r0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KfuncRet {
    /// A number.
    Integer,
    /// Nothing; r0 must not be read.
    Void,
    /// Memory of the length that the constant size argument says, or null. It becomes invalid with the dynptr, and with the
    /// packet when the dynptr stands for the packet.
    SliceOrNull {
        /// The program may write through it.
        writable: bool,
    },
    /// The element that an iterator stands on (read-only memory of this many bytes), or null behind the last one.
    ElementOrNull(u32),
    /// A kernel object of a named BTF type.
    BtfPtr {
        /// Type.
        name: &'static str,
        /// May be null.
        nullable: bool,
        /// May be passed on; otherwise it can only be read, and reads of a bad address give 0.
        trusted: bool,
        /// The program must release it.
        acquire: bool,
    },
    /// An object of the program's own type (first argument), or null; must be released.
    ObjectOrNull,
}

/// How a kfunc changes the region that the program is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Region {
    /// `bpf_rcu_read_lock` (does not nest on 6.18).
    RcuEnter,
    /// `bpf_rcu_read_unlock`.
    RcuLeave,
    /// `bpf_preempt_disable` (nests).
    PreemptEnter,
    /// `bpf_preempt_enable`.
    PreemptLeave,
}

/// One kfunc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KfuncProto {
    /// Name.
    pub name: &'static str,
    /// What it is about.
    pub class: KfuncClass,
    /// Arguments r1…; `None` where the function's BTF type says what they are (and what the result is).
    pub args: Option<&'static [Arg]>,
    /// Result.
    pub ret: KfuncRet,
    /// Enters or leaves a region.
    pub region: Option<Region>,
    /// Moves or replaces packet data: every packet pointer becomes invalid.
    pub changes_packet: bool,
    /// What BTF does not say of it.
    pub rules: KfuncRules,
}

/// What the kernel's registration of a kfunc says beyond its BTF type (`KF_ACQUIRE` and its relatives).
///
/// Source: `Documentation/bpf/kfuncs.rst` for the meaning; which function has which from loading programs that only one
/// answer explains.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KfuncRules {
    /// The result is a reference that the program must release.
    pub acquire: bool,
    /// The argument that is a reference is released.
    pub release: bool,
    /// The result may be null.
    pub ret_null: bool,
    /// Pointers to kernel objects must be trusted: a reference, or what the kernel itself vouches for.
    pub trusted_args: bool,
    /// Pointers to kernel objects must be trusted, or protected by RCU.
    pub rcu: bool,
}

impl KfuncProto {
    /// True when Linux 6.18 lets an XDP program call it (bound to a device for [`KfuncClass::Metadata`]).
    pub const fn xdp(&self) -> bool {
        !matches!(self.class, KfuncClass::Foreign | KfuncClass::Sleepable)
    }
}

/// The engine's own.
pub const fn engine_kfuncs() -> &'static [KfuncProto] {
    &table::OWN
}

/// All kfuncs of Linux in the table, by subject.
pub const fn kfuncs() -> &'static [KfuncProto] {
    &table::TABLE
}

/// The kfunc with this name. Linear in the size of the table: for load time.
pub fn kfunc(name: &str) -> Option<&'static KfuncProto> {
    table::TABLE.iter().chain(&table::OWN).find(|k| k.name == name)
}
