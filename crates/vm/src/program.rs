//! Linking: from an object's program and live maps to something that can be run.

use std::any::Any;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use xway_abi::{HelperProto, MapType};
use xway_isa::{CallTarget, DecodeError, Imm64, Insn};
use xway_maps::{Map, ProgramObject, ProgramUse};
use xway_object::{LineInfo, ProgramKind, Subprog};
use xway_verifier::{Config, MapsView, Rejection, Verified};

use crate::fuse::fuse;
use crate::kfuncs::Kfunc;
use crate::op::{Code, Op, translate};

/// A program that can be run: decoded, with its maps. Immutable and shared; replacing a program means linking another.
#[derive(Debug)]
pub struct Program {
    me: Weak<Program>,
    id: u32,
    name: String,
    section: String,
    kind: ProgramKind,
    tag: [u8; 8],
    pub(crate) insns: Vec<Option<Insn>>,
    pub(crate) ops: Box<[Op]>,
    pub(crate) maps: Box<[Arc<Map>]>,
    pub(crate) calls: Box<[HelperSite]>,
    pub(crate) kfuncs: Box<[Kfunc]>,
    pub(crate) traps: Box<[String]>,
    subprogs: Vec<Subprog>,
    lines: Vec<LineInfo>,
    native: OnceLock<Arc<dyn Any + Send + Sync>>,
    tail: OnceLock<Arc<dyn Any + Send + Sync>>,
    make_tail: OnceLock<MakeTail>,
    proof: Option<Arc<Verified>>,
    /// Where tail calls from machine code jump; 0 while there is no code.
    entry: AtomicUsize,
}

/// Makes code that tail calls enter, and keeps it with the program.
struct MakeTail(Box<Make>);

type Make = dyn Fn(&Arc<Program>) + Send + Sync;

impl std::fmt::Debug for MakeTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MakeTail")
    }
}

/// What a call instruction reaches.
#[derive(Clone, Copy, Debug)]
pub enum Callee<'p> {
    /// A helper.
    Helper(&'static HelperProto),
    /// A kernel function.
    Kfunc(Kfunc),
    /// Nothing, for this reason: reaching the call stops the program.
    Nothing(&'p str),
}

/// A helper call that was resolved at link time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelperSite {
    pub proto: &'static HelperProto,
    pub run: crate::helpers::Implementation,
}

/// Why a program could not be linked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The verifier refused it.
    #[error("program {program} is refused: {rejection}")]
    Refused {
        /// Its name.
        program: String,
        /// Why, and what the analysis cost.
        rejection: Box<Rejection>,
    },
    /// No instructions.
    #[error("program {program} has no instructions")]
    Empty {
        /// Its name.
        program: String,
    },
    /// More slots than the limit.
    #[error("program {program} has {slots} instruction slots; at most {max} are taken")]
    TooLong {
        /// Its name.
        program: String,
        /// Number of slots.
        slots: usize,
        /// The limit.
        max: usize,
    },
    /// A slot is no instruction.
    #[error("program {program}: {error}")]
    Decode {
        /// Its name.
        program: String,
        /// Where and why.
        error: DecodeError,
    },
    /// A jump or call leaves the program or lands inside a wide instruction.
    #[error("program {program}: instruction {at} goes to slot {target}, which is no instruction")]
    Target {
        /// Its name.
        program: String,
        /// The jump.
        at: usize,
        /// Where it goes.
        target: i64,
    },
    /// Execution can run past the end of a function.
    #[error("program {program}: the last instruction ({at}) is neither exit nor a jump back")]
    OpenEnd {
        /// Its name.
        program: String,
        /// The last instruction.
        at: usize,
    },
    /// A map index without a map.
    #[error("program {program}: instruction {at} refers to map {index}, but {maps} maps were given")]
    NoMap {
        /// Its name.
        program: String,
        /// The instruction.
        at: usize,
        /// Index asked for.
        index: i32,
        /// Maps that were given.
        maps: usize,
    },
    /// A reference of a kind that only a kernel can resolve (file descriptors, kernel variables, arenas).
    #[error("program {program}: instruction {at}: {what}")]
    Unsupported {
        /// Its name.
        program: String,
        /// The instruction.
        at: usize,
        /// What it refers to.
        what: String,
    },
    /// The program is proved, but works on objects that only a kernel has.
    #[error(
        "program {program} is proved, but needs kernel objects: {objects}; only a kernel has them (attach it there with \
         --mode native or --mode generic)"
    )]
    KernelObjects {
        /// Its name.
        program: String,
        /// The functions, helpers and structures that give them.
        objects: String,
    },
    /// A PROG_ARRAY that is for programs of another kind (Linux: `EINVAL`).
    #[error(
        "program {program}: instruction {at} loads the program array {map}, whose programs are for another place than this one, or differ \
         from it in whether they take packets of several buffers (xdp.frags)"
    )]
    OtherPrograms {
        /// Its name.
        program: String,
        /// The first instruction that loads the array's address.
        at: usize,
        /// The array's name.
        map: String,
    },
    /// A kernel function that is not there.
    #[error("program {program}: instruction {at} calls kernel function {name}: {why}")]
    Kfunc {
        /// Its name.
        program: String,
        /// The instruction.
        at: usize,
        /// The function.
        name: String,
        /// Why it cannot be called.
        why: &'static str,
    },
}

/// Longest program, in slots: Linux's limit on verified instructions for privileged users.
pub const SLOTS_MAX: usize = 1_000_000;

static NEXT_ID: AtomicU32 = AtomicU32::new(1);

impl Program {
    /// Links a program without a proof: for the checked interpreter, which trusts nothing. [`Program::verify`] is the way to
    /// everything else.
    ///
    /// Links a program that an object holds with the live maps of that object, in the order of [`xway_object::Object::maps`].
    ///
    /// Checked here: every slot is an instruction, jumps and calls reach instructions, map references exist. Not checked:
    /// what the program does; the interpreter traps what is wrong when it happens. A call of a helper that does not exist
    /// or that XDP programs may not call is no error unless it is reached, because programs guard such calls by constants.
    /// Cost: linear in the number of instructions.
    pub fn link(image: &xway_object::Program, maps: &[Arc<Map>]) -> Result<Arc<Program>, LinkError> {
        Program::link_with(image, maps, None, true)
    }

    /// The same without the fast forms of sequences: every instruction is executed by itself, so that a
    /// [`Tracer`](crate::Tracer) sees each of them.
    pub fn link_plain(image: &xway_object::Program, maps: &[Arc<Map>]) -> Result<Arc<Program>, LinkError> {
        Program::link_with(image, maps, None, false)
    }

    /// Verifies a program and links it. `view` describes the maps as they were created and filled.
    ///
    /// # Errors
    /// [`LinkError::Refused`] with the verifier's reasons; what [`Program::link`] says of a program that is accepted.
    pub fn verify(
        image: &xway_object::Program,
        maps: &[Arc<Map>],
        view: &MapsView<'_>,
        config: &Config,
    ) -> Result<Arc<Program>, LinkError> {
        match xway_verifier::verify(image, view, config) {
            Ok(proof) => Program::link_with(image, maps, Some(Arc::new(proof)), true),
            Err(rejection) => Err(LinkError::Refused { program: image.name.clone(), rejection: Box::new(rejection) }),
        }
    }

    fn link_with(
        image: &xway_object::Program,
        maps: &[Arc<Map>],
        proof: Option<Arc<Verified>>,
        fast: bool,
    ) -> Result<Arc<Program>, LinkError> {
        let name = || image.name.clone();
        if image.insns.is_empty() {
            return Err(LinkError::Empty { program: name() });
        }
        if image.insns.len() > SLOTS_MAX {
            return Err(LinkError::TooLong { program: name(), slots: image.insns.len(), max: SLOTS_MAX });
        }
        if let Some(objects) = proof.as_ref().map(|p| &p.facts().kernel_objects).filter(|o| !o.is_empty()) {
            return Err(LinkError::KernelObjects { program: name(), objects: objects.join(", ") });
        }
        // What was proved is what runs.
        let slots = proof.as_ref().map_or(&*image.insns, |p| p.insns());
        let insns = xway_isa::decode(slots).map_err(|error| LinkError::Decode { program: name(), error })?;
        let mut linker =
            Linker { image, maps, ops: Vec::with_capacity(insns.len()), calls: vec![], kfuncs: vec![], traps: vec![] };
        for (at, insn) in insns.iter().enumerate() {
            let op = match insn {
                None => Op::stop(Code::Hole),
                Some(insn) => linker.op(insn, at)?,
            };
            linker.ops.push(op);
        }
        linker.check_targets()?;
        claim_arrays(image, &insns, maps)?;
        let Linker { mut ops, calls, kfuncs, traps, .. } = linker;
        // A map of maps gives maps, not values: its look-ups take the general way.
        let key_size = |map: i64| {
            let map = maps.get(usize::try_from(map).ok()?)?;
            let gives_values = !matches!(map.map_type(), MapType::ArrayOfMaps | MapType::HashOfMaps);
            gives_values.then(|| map.key_size() as i64)
        };
        if fast {
            fuse(&mut ops, |op| calls[op.imm as usize].proto.id == crate::helpers::LOOKUP, key_size);
        }
        Ok(Arc::new_cyclic(|me| Program {
            me: me.clone(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: image.name.clone(),
            section: image.section.clone(),
            kind: image.kind,
            tag: image.tag(),
            ops: ops.into(),
            insns,
            maps: maps.into(),
            calls: calls.into(),
            kfuncs: kfuncs.into(),
            traps: traps.into(),
            subprogs: image.subprogs.clone(),
            lines: image.line_info.clone(),
            native: OnceLock::new(),
            tail: OnceLock::new(),
            make_tail: OnceLock::new(),
            proof,
            entry: AtomicUsize::new(0),
        }))
    }

    /// The proof that it is safe. `None` when nobody asked for one: such a program runs in the checked interpreter only.
    pub const fn proof(&self) -> Option<&Arc<Verified>> {
        self.proof.as_ref()
    }

    /// The counted reference to this program; `None` when its last one is just going.
    pub fn arc(&self) -> Option<Arc<Program>> {
        self.me.upgrade()
    }

    /// Number of this program, unique in the process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The section it came from.
    pub fn section(&self) -> &str {
        &self.section
    }

    /// What it is for.
    pub fn kind(&self) -> ProgramKind {
        self.kind
    }

    /// Linux's tag: the first eight bytes of a hash over the normalised instructions.
    pub fn tag(&self) -> [u8; 8] {
        self.tag
    }

    /// Number of instruction slots.
    pub fn slots(&self) -> usize {
        self.ops.len()
    }

    /// Its maps, by the index that instructions use.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// The decoded instructions by slot; the second slot of a wide one is `None`.
    pub fn insns(&self) -> &[Option<Insn>] {
        &self.insns
    }

    /// What the call instruction at `at` reaches; `None` where no helper or kernel function is called.
    pub fn callee(&self, at: usize) -> Option<Callee<'_>> {
        let op = self.ops.get(at)?;
        Some(match op.code {
            Code::CallHelper | Code::Lookup | Code::TailCall => Callee::Helper(self.calls.get(op.imm as usize)?.proto),
            Code::CallKfunc => Callee::Kfunc(*self.kfuncs.get(op.imm as usize)?),
            Code::Trap => Callee::Nothing(self.traps.get(op.imm as usize)?),
            _ => return None,
        })
    }

    /// What a compiler has kept here: the program's machine code for bursts.
    pub fn native(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.native.get()
    }

    /// Keeps machine code for bursts with the program. The first to come stays.
    pub fn set_native(&self, code: Arc<dyn Any + Send + Sync>) {
        let _ = self.native.set(code);
    }

    /// The machine code that tail calls enter.
    pub fn tail(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.tail.get()
    }

    /// Keeps the machine code that tail calls enter; `entry` is where they jump. The first to come stays. For the compiler alone,
    /// which vouches for the address.
    pub fn set_tail(&self, code: Arc<dyn Any + Send + Sync>, entry: usize) {
        if self.tail.set(code).is_ok() {
            self.entry.store(entry, Ordering::Release);
        }
    }

    /// What is to be called when the program comes into a PROG_ARRAY and has no code that tail calls enter: most programs
    /// never do, and it takes as long to make as the code for bursts. The first to come stays.
    pub fn make_tail_with(&self, make: impl Fn(&Arc<Program>) + Send + Sync + 'static) {
        let _ = self.make_tail.set(MakeTail(Box::new(make)));
    }

    /// Source lines, by rising instruction; empty where the object has no types.
    pub fn lines(&self) -> &[LineInfo] {
        &self.lines
    }

    /// Source line of an instruction.
    pub fn line(&self, insn: usize) -> Option<&LineInfo> {
        let after = self.lines.partition_point(|l| l.insn <= insn);
        self.lines[..after].last()
    }

    /// Name of the function that an instruction stands in.
    pub fn function(&self, insn: usize) -> &str {
        self.subprogs
            .iter()
            .find(|s| (s.start..s.start + s.len).contains(&insn))
            .map_or(self.name.as_str(), |s| s.name.as_str())
    }
}

/// The programs of an array that a program makes tail calls through are of its own kind; the first that is loaded or put in says which
/// (`bpf_prog_map_compatible` of Linux).
fn claim_arrays(image: &xway_object::Program, insns: &[Option<Insn>], maps: &[Arc<Map>]) -> Result<(), LinkError> {
    for (at, insn) in insns.iter().enumerate() {
        let Some(Insn::LoadImm64 { imm: Imm64::MapIdx(index), .. }) = insn else { continue };
        let map = usize::try_from(*index).ok().and_then(|index| maps.get(index));
        if let Some(map) = map.filter(|map| map.map_type() == MapType::ProgArray)
            && map.claim_programs(use_of(image.kind), image.kind.frags()).is_err()
        {
            return Err(LinkError::OtherPrograms { program: image.name.clone(), at, map: map.name().to_owned() });
        }
    }
    Ok(())
}

/// What a program of this kind is for.
fn use_of(kind: ProgramKind) -> ProgramUse {
    match kind {
        ProgramKind::XdpDevmap { .. } => ProgramUse::XdpDevmap,
        ProgramKind::XdpCpumap { .. } => ProgramUse::XdpCpumap,
        ProgramKind::Raw => ProgramUse::Other(0),
        // A section whose name says nothing is run as XDP when it is asked for.
        _ => ProgramUse::Xdp,
    }
}

impl ProgramObject for Program {
    fn id(&self) -> u32 {
        self.id
    }

    fn program_use(&self) -> ProgramUse {
        use_of(self.kind)
    }

    fn frags(&self) -> bool {
        self.kind.frags()
    }

    fn entry(&self) -> Option<&AtomicUsize> {
        Some(&self.entry)
    }

    fn before_tail_calls(&self) {
        if self.tail.get().is_none()
            && let Some((make, program)) = self.make_tail.get().zip(self.arc())
        {
            (make.0)(&program);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Linker<'a> {
    image: &'a xway_object::Program,
    maps: &'a [Arc<Map>],
    ops: Vec<Op>,
    calls: Vec<HelperSite>,
    kfuncs: Vec<Kfunc>,
    traps: Vec<String>,
}

impl Linker<'_> {
    fn op(&mut self, insn: &Insn, at: usize) -> Result<Op, LinkError> {
        if let Some(op) = translate(insn, at) {
            return Ok(op);
        }
        match *insn {
            Insn::LoadImm64 { dst, imm } => {
                let mut op = self.reference(imm, at)?;
                op.dst = dst.into();
                Ok(op)
            }
            Insn::Call(CallTarget::Helper(id)) => Ok(self.helper(id, at)),
            Insn::Call(CallTarget::Kfunc { id, .. }) => self.kfunc(id, at),
            Insn::AddrSpaceCast { .. } => {
                Err(self.unsupported(at, "arena address casts are not for XDP programs".into()))
            }
            _ => Err(self.unsupported(at, "legacy packet access (ld_abs, ld_ind) is not for XDP programs".into())),
        }
    }

    fn reference(&mut self, imm: Imm64, at: usize) -> Result<Op, LinkError> {
        let mut op = Op::stop(Code::Trap);
        match imm {
            Imm64::MapIdx(i) => {
                op.imm = self.map(i, at)?;
                op.code = Code::LoadMap;
            }
            Imm64::MapIdxValue { idx, off } => {
                op.imm = self.map(idx, at)?;
                op.off = off as i32;
                op.code = Code::LoadMapValue;
            }
            Imm64::Func(off) => {
                op.off = i32::try_from(at as i64 + 1 + i64::from(off)).unwrap_or(-1);
                op.code = Code::LoadFunc;
            }
            Imm64::BtfId { id, .. } => {
                let sym = usize::try_from(id).ok().and_then(|i| self.image.ksyms.get(i));
                match sym {
                    // A weak variable or function that is not there has the address 0; programs test for that.
                    Some(s) if s.weak => op.code = Code::LoadImm,
                    Some(s) => {
                        let what = format!("kernel variable {} cannot be reached from user space", s.name);
                        return Err(self.unsupported(at, what));
                    }
                    None => return Err(self.unsupported(at, format!("reference to kernel variable number {id}"))),
                }
            }
            Imm64::MapFd(fd) | Imm64::MapFdValue { fd, .. } => {
                return Err(self.unsupported(at, format!("map by file descriptor ({fd}); link the object instead")));
            }
            Imm64::Value(v) => {
                op.code = Code::LoadImm;
                op.imm = v as i64;
            }
        }
        Ok(op)
    }

    fn map(&self, index: i32, at: usize) -> Result<i64, LinkError> {
        match usize::try_from(index) {
            Ok(i) if i < self.maps.len() => Ok(i as i64),
            _ => Err(LinkError::NoMap { program: self.image.name.clone(), at, index, maps: self.maps.len() }),
        }
    }

    fn helper(&mut self, id: u32, at: usize) -> Op {
        let mut op = Op::stop(Code::CallHelper);
        let reason = if let Some(p) = self.image.poisons.iter().find(|p| p.insn == at) {
            p.reason.clone()
        } else {
            match (xway_abi::helper(id), crate::helpers::implementation(id)) {
                (None, _) => format!("helper {id} does not exist"),
                (Some(proto), _) if !proto.xdp => format!("Linux does not let XDP programs call {} ({id})", proto.name),
                (Some(proto), None) => format!("{} ({id}) is not implemented", proto.name),
                (Some(proto), Some(run)) => {
                    if proto.is_tail_call() {
                        op.code = Code::TailCall;
                    }
                    op.imm = self.calls.len() as i64;
                    self.calls.push(HelperSite { proto, run });
                    return op;
                }
            }
        };
        self.trap(reason)
    }

    fn kfunc(&mut self, id: i32, at: usize) -> Result<Op, LinkError> {
        let Some(kfunc) = usize::try_from(id).ok().and_then(|i| self.image.kfuncs.get(i)) else {
            return Err(self.unsupported(at, format!("call of kernel function number {id}, which has no name")));
        };
        match crate::kfuncs::resolve(&kfunc.name) {
            Ok(k) => {
                let op = Op { imm: self.kfuncs.len() as i64, ..Op::stop(Code::CallKfunc) };
                self.kfuncs.push(k);
                Ok(op)
            }
            Err(why) if kfunc.weak => Ok(self.trap(format!("kernel function {}: {why}", kfunc.name))),
            Err(why) => Err(LinkError::Kfunc { program: self.image.name.clone(), at, name: kfunc.name.clone(), why }),
        }
    }

    fn trap(&mut self, reason: String) -> Op {
        self.traps.push(reason);
        Op { imm: self.traps.len() as i64 - 1, ..Op::stop(Code::Trap) }
    }

    fn unsupported(&self, at: usize, what: String) -> LinkError {
        LinkError::Unsupported { program: self.image.name.clone(), at, what }
    }

    fn check_targets(&self) -> Result<(), LinkError> {
        let program = || self.image.name.clone();
        for (at, op) in self.ops.iter().enumerate() {
            if !op.code.has_target() {
                continue;
            }
            let ok = usize::try_from(op.off).ok().and_then(|t| self.ops.get(t)).is_some_and(|o| o.code != Code::Hole);
            if !ok {
                return Err(LinkError::Target { program: program(), at, target: op.off.into() });
            }
        }
        let at = self.ops.len() - 1;
        // A weak or poisoned call may stand last: nothing follows a call that never returns.
        match self.ops[at].code {
            Code::Exit | Code::Jump | Code::Trap => Ok(()),
            _ => Err(LinkError::OpenEnd { program: program(), at }),
        }
    }
}
