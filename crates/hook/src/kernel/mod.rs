//! Linux's own hook: programs on interfaces of this machine, by name, in the network namespace of the calling thread.
//!
//! An attachment must outlive the command that makes it. Where a BPF file system is mounted it is a *link* that is pinned
//! there (nobody else takes it away by accident, and replacing it is one atomic step); elsewhere, and beside programs that
//! others attached over netlink, it is made over netlink, as `ip link` does. Which of the two, and why, is said.
//!
//! | file | what |
//! |---|---|
//! | `attach` | programs on interfaces |
//! | `chain` | several programs on one interface: which way, and our own by tail calls |
//! | `dispatcher` | the ecosystem's way, by extension programs |
//! | `spaces` | what runs in any network namespace |
//! | `objects` | an object file into the kernel, with its pins |
//! | `events` | exceptions and failed redirects, from tracepoints |
//! | `maps` | maps by id, in the words of the trait |

mod attach;
mod chain;
mod dispatcher;
mod events;
mod maps;
mod objects;
pub(crate) mod spaces;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xway_abi::{Errno, MapSpec};
use xway_kernel::{
    KernelMap, KernelObject, KernelProg, ObjectKind, RX_METADATA, TestInput, XDP_FEATURES, XdpLink, XdpMd, bit_names,
    driver_features, ids,
};
use xway_maps::{Shape, Window};

pub use attach::{Attachment, clean, device, elsewhere, status, unload};

use crate::{
    AttachRequest, Attached, AttachmentInfo, Dump, Elements, Hook, HookError, HookEvent, HookKind, Image, LoadRequest,
    MapId, MapInfo, MapTypes, Mode, ObjectId, Objects, PortFeatures, ProgId, ProgramInfo, Statistics, TestAnswer,
    TestRequest, batch, explain, pins,
};

/// Linux behind [`Hook`]. Holds a descriptor of every object that it made or was asked about by its pin, until
/// [`Hook::release`]; of a PROG_ARRAY that it was asked about by its number for as long as questions follow one another.
#[derive(Debug, Default)]
pub struct Kernel {
    maps: BTreeMap<u32, KernelMap>,
    programs: BTreeMap<u32, Program>,
    /// PROG_ARRAYs that others hold.
    asked: maps::Asked,
    /// Tracepoints, from the first call of [`Hook::events`] on.
    events: Option<events::Events>,
}

/// A program that this hook holds.
#[derive(Debug)]
struct Program {
    prog: KernelProg,
    /// It may send frames, as far as our verifier can tell.
    may_send: bool,
    /// What it was made of, when it was loaded here: a chain needs it once more.
    source: Option<Arc<Source>>,
}

/// A program in its object, with the object's maps and types in the kernel.
#[derive(Debug)]
struct Source {
    object: Arc<xway_object::Object>,
    kernel: Arc<KernelObject>,
    index: usize,
}

impl Kernel {
    /// An interface of the calling thread's namespace.
    ///
    /// # Errors
    /// `ENODEV`, with the names that there are.
    pub fn device(name: &str) -> Result<xway_kernel::Device, HookError> {
        attach::device(name)
    }

    /// The running kernel. Nothing is asked of it yet.
    pub fn new() -> Kernel {
        Kernel::default()
    }

    /// Does something with a program, held or not.
    fn program<T>(&self, id: ProgId, then: impl FnOnce(&KernelProg) -> Result<T, HookError>) -> Result<T, HookError> {
        match self.programs.get(&id.0) {
            Some(held) => then(&held.prog),
            None => then(&KernelProg::by_id(id.0).map_err(|e| by_id(id, &e))?),
        }
    }

    fn hold_map(&mut self, map: KernelMap) -> Result<MapId, HookError> {
        let id = map.info().map_err(|e| HookError::errno("asking about a map", e))?.id;
        self.maps.insert(id, map);
        Ok(MapId(id))
    }
}

/// A number that leads nowhere.
fn by_id(what: impl Into<ObjectId>, error: &xway_kernel::KernelError) -> HookError {
    match error.errno() {
        Some(Errno::ENOENT) => HookError::unknown(what),
        _ => explain::plain(error),
    }
}

fn described(prog: &KernelProg) -> Result<ProgramInfo, HookError> {
    Ok(told(prog.info().map_err(|e| explain::plain(&e))?))
}

fn told(info: xway_kernel::ProgInfo) -> ProgramInfo {
    ProgramInfo {
        id: ProgId(info.id),
        name: info.name,
        tag: info.tag,
        maps: info.map_ids.into_iter().map(MapId).collect(),
        engine: if info.jited_len > 0 { "kernel jit" } else { "kernel interpreter" },
        reason: (info.jited_len == 0)
            .then(|| "net.core.bpf_jit_enable is 0, or the machine has no compiler".to_owned()),
        gpl_compatible: info.gpl_compatible,
        runs: (info.run_count > 0).then_some((info.run_count, info.run_time)),
    }
}

impl Hook for Kernel {
    fn kind(&self) -> HookKind {
        HookKind::Kernel
    }

    fn map_create(&mut self, name: &str, spec: &MapSpec) -> Result<MapId, HookError> {
        let map = KernelMap::create(name, spec).map_err(|e| HookError::errno(format!("map {name}: creating it"), e))?;
        self.hold_map(map)
    }

    fn maps(&mut self) -> Result<Vec<MapInfo>, HookError> {
        let mut found = Vec::new();
        for id in ids(ObjectKind::Map).map_err(|e| explain::plain(&e))? {
            match self.map_info(MapId(id)) {
                Ok(info) => found.push(info),
                // It went away meanwhile, or has a type that XDP knows nothing of.
                Err(e) if matches!(e.errno, Some(Errno::ENOENT | Errno::EINVAL)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    fn map_info(&mut self, id: MapId) -> Result<MapInfo, HookError> {
        self.map(id, maps::info)
    }

    fn map_types(&mut self, id: MapId) -> Result<Option<MapTypes>, HookError> {
        self.map(id, |map| {
            let info = map.info().map_err(|e| HookError::errno("asking about a map", e))?;
            if info.btf_id == 0 {
                return Ok(None);
            }
            let btf = xway_kernel::btf_by_id(info.btf_id).map_err(|e| explain::plain(&e))?;
            Ok(Some(MapTypes { btf, key: info.key_type, value: info.value_type }))
        })
    }

    fn map_lookup(&mut self, id: MapId, key: &[u8], flags: u64) -> Result<Vec<u8>, HookError> {
        self.map(id, |map| maps::lookup(map, id, key, flags))
    }

    fn map_update(&mut self, id: MapId, key: &[u8], value: &[u8], flags: u64) -> Result<(), HookError> {
        self.map(id, |map| map.update(key, value, flags).map_err(|e| HookError::errno(format!("{id}: the update"), e)))
    }

    fn map_store(&mut self, id: MapId, key: &[u8], object: ObjectId, flags: u64) -> Result<(), HookError> {
        let refused = |e| HookError::errno(format!("{id}: storing {object}"), e);
        match object {
            ObjectId::Map(inner) => {
                self.map(inner, |inner| self.map(id, |map| map.update_fd(key, inner.as_fd(), flags).map_err(refused)))
            }
            ObjectId::Program(program) => self.program(program, |program| {
                self.map(id, |map| map.update_fd(key, program.as_fd(), flags).map_err(refused))
            }),
        }
    }

    fn map_delete(&mut self, id: MapId, key: &[u8]) -> Result<(), HookError> {
        self.map(id, |map| map.delete(key).map_err(|e| HookError::errno(format!("{id}: the removal"), e)))
    }

    fn map_take(&mut self, id: MapId, key: &[u8]) -> Result<Vec<u8>, HookError> {
        self.map(id, |map| {
            let mut out = vec![0; map.user_value_size()];
            map.lookup_and_delete(key, &mut out, 0)
                .map_err(|e| HookError::errno(format!("{id}: taking an element"), e))?;
            Ok(out)
        })
    }

    fn map_next_key(&mut self, id: MapId, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, HookError> {
        self.map(id, |map| {
            let mut out = vec![0; map.spec().key_size as usize];
            match map.next_key(key, &mut out) {
                Ok(()) => Ok(Some(out)),
                Err(Errno::ENOENT) => Ok(None),
                Err(e) => Err(HookError::errno(format!("{id}: asking for a key"), e)),
            }
        })
    }

    fn map_lookup_batch(&mut self, id: MapId, from: Option<&[u8]>, count: u32) -> Result<Elements, HookError> {
        self.map(id, |map| batch::lookup(map, id, from, count))
    }

    fn map_update_batch(&mut self, id: MapId, entries: &[(Vec<u8>, Vec<u8>)], flags: u64) -> Result<u32, HookError> {
        self.map(id, |map| batch::update(map, id, entries, flags))
    }

    fn map_delete_batch(&mut self, id: MapId, keys: &[Vec<u8>]) -> Result<u32, HookError> {
        self.map(id, |map| batch::delete(map, id, keys))
    }

    fn map_freeze(&mut self, id: MapId) -> Result<(), HookError> {
        self.map(id, |map| map.freeze().map_err(|e| HookError::errno(format!("{id}: freezing"), e)))
    }

    fn map_window(&mut self, id: MapId, write: bool) -> Result<Window, HookError> {
        self.map(id, |map| {
            let mapped = Window::of_kernel(map.as_fd(), Shape::of(map.spec()), write);
            mapped.map_err(|e| HookError::errno(format!("{id}: mapping its values"), e))
        })
    }

    fn load(&mut self, image: &Image, request: &LoadRequest) -> Result<Objects, HookError> {
        let device = request.device.as_deref().map(attach::device).transpose()?;
        let loaded = objects::load(&image.object, request, device.as_ref())?;
        let mut done = Objects { shared: loaded.shared, pinned: loaded.pinned, ..Objects::default() };
        for (def, map) in image.object.maps.iter().zip(&loaded.object.maps) {
            let id = map.info().map_err(|e| HookError::errno("asking about a map", e))?.id;
            let held = KernelMap::by_id(id).map_err(|e| explain::plain(&e))?;
            done.maps.push((def.name.clone(), self.hold_map(held)?));
        }
        let kernel = Arc::new(loaded.object);
        for (known, (program, prog)) in loaded.images.iter().zip(loaded.programs) {
            let id = prog.info().map_err(|e| explain::plain(&e))?.id;
            let (object, kernel) = (image.object.clone(), kernel.clone());
            let source = Some(Arc::new(Source { object, kernel, index: known.index }));
            self.programs.insert(id, Program { prog, may_send: known.may_send, source });
            done.programs.push((program, ProgId(id)));
        }
        Ok(done)
    }

    fn programs(&mut self) -> Result<Vec<ProgramInfo>, HookError> {
        let mut found = Vec::new();
        for id in ids(ObjectKind::Program).map_err(|e| explain::plain(&e))? {
            match self.program_info(ProgId(id)) {
                Ok(info) => found.push(info),
                // It went away meanwhile.
                Err(e) if e.errno == Some(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    fn program_info(&mut self, id: ProgId) -> Result<ProgramInfo, HookError> {
        self.program(id, described)
    }

    fn program_types(&mut self, id: ProgId) -> Result<Option<Vec<u8>>, HookError> {
        let types = |prog: &KernelProg| match prog.info().map_err(|e| explain::plain(&e))?.btf_id {
            0 => Ok(None),
            id => xway_kernel::btf_by_id(id).map(Some).map_err(|e| explain::plain(&e)),
        };
        self.program(id, types)
    }

    fn test_run(&mut self, id: ProgId, test: &TestRequest<'_>) -> Result<TestAnswer, HookError> {
        self.program(id, |prog| {
            let ctx = test.ctx.as_ref().map(XdpMd::from_bytes);
            let input = TestInput { data: test.data, ctx, repeat: test.repeat, spare: 4096 };
            let out = prog.test_run(&input).map_err(|e| HookError::errno(format!("{id}: the test run"), e))?;
            Ok(TestAnswer { ret: out.ret, data: out.data, ctx: out.ctx.map(XdpMd::to_bytes), duration: out.duration })
        })
    }

    fn dump(&mut self, id: ProgId) -> Result<Dump, HookError> {
        self.program(id, |prog| {
            let (xlated, jited) = prog.code().map_err(|e| explain::plain(&e))?;
            Ok(Dump { xlated, jited, ..Dump::default() })
        })
    }

    fn pin(&mut self, object: ObjectId, path: &Path) -> Result<(), HookError> {
        pins::directory(path.parent().unwrap_or(path))?;
        pins::named(path)?;
        let pin = |fd: std::os::fd::BorrowedFd<'_>| xway_kernel::pin(fd, path).map_err(|e| explain::plain(&e));
        match object {
            ObjectId::Map(id) => self.map(id, |map| pin(map.as_fd())),
            ObjectId::Program(id) => self.program(id, |prog| pin(prog.as_fd())),
        }
    }

    fn pinned(&mut self, path: &Path) -> Result<ObjectId, HookError> {
        let refused = |e: xway_kernel::KernelError| explain::plain(&e);
        if let Ok(prog) = KernelProg::pinned(path) {
            let id = prog.info().map_err(refused)?.id;
            self.programs.insert(id, Program { prog, may_send: true, source: None });
            return Ok(ObjectId::Program(ProgId(id)));
        }
        let map = KernelMap::pinned(path).map_err(refused)?;
        Ok(ObjectId::Map(self.hold_map(map)?))
    }

    fn unpin(&mut self, path: &Path) -> Result<(), HookError> {
        // Only what is a pin: a path is the caller's, and removing a file is not undone.
        if !pins::is_bpffs(path) {
            return Err(HookError::missing(format!("pin at {}: not in a BPF file system", path.display())));
        }
        pins::named(path)?;
        std::fs::remove_file(path).map_err(|e| {
            if e.kind() == std::io::ErrorKind::NotFound {
                return HookError::missing(format!("pin at {}", path.display()));
            }
            let errno = Errno(e.raw_os_error().unwrap_or(Errno::EIO.0));
            HookError::errno(format!("{}: removing the pin", path.display()), errno)
        })
    }

    fn release(&mut self, object: ObjectId) -> Result<(), HookError> {
        let held = match object {
            ObjectId::Map(id) => self.maps.remove(&id.0).is_some(),
            ObjectId::Program(id) => self.programs.remove(&id.0).is_some(),
        };
        if held { Ok(()) } else { Err(HookError::unknown(object)) }
    }

    fn attach(&mut self, request: &AttachRequest) -> Result<Attached, HookError> {
        let held = self.programs.get(&request.program.0);
        let may_send = held.is_none_or(|p| p.may_send);
        if request.chain && request.mode == Mode::Offload {
            let message = format!("{}: a device runs one program, none beside it", request.port);
            return Err(HookError::unsupported(message).hint("leave the priority (-P) and the verdicts (-A) out"));
        }
        if request.chain {
            let source = held.and_then(|p| p.source.clone()).ok_or_else(|| {
                let message = format!("{}: only a program that this hook has loaded can be chained", request.program);
                HookError::unsupported(message).hint("xway load PORT OBJ -P PRIORITY")
            })?;
            // The member is another program than the one that was loaded; its chain holds it, not this hook.
            return chain::attach(&source, request, may_send);
        }
        self.program(request.program, |prog| attach::attach(prog, request, may_send))
    }

    fn detach(&mut self, port: &str, program: Option<ProgId>) -> Result<Vec<ProgId>, HookError> {
        let gone = unload(port, program.map(|id| id.0))?;
        Ok(gone.into_iter().map(ProgId).collect())
    }

    fn link_detach(&mut self, link: u32) -> Result<(), HookError> {
        XdpLink::by_id(link).and_then(|link| link.detach()).map_err(|e| explain::plain(&e))
    }

    fn attachments(&mut self, port: Option<&str>) -> Result<Vec<AttachmentInfo>, HookError> {
        let mut found = Vec::new();
        for a in status(port)? {
            let program = match self.program_info(ProgId(a.program.id)) {
                Ok(info) => info,
                Err(e) if e.errno == Some(Errno::ENOENT) => continue,
                Err(e) => return Err(e),
            };
            let (port, mode, via) = (a.device.name.clone(), a.mode, a.via);
            let link = if let crate::Via::Link(id) = via { Some(id) } else { None };
            let one = AttachmentInfo { port, queue: None, mode, program, via, link, priority: None, chain_on: None };
            let Some(chain) = chain::Chain::find(a.program.id) else {
                // A dispatcher that is not understood is a program like others.
                match dispatcher::find(&a.device, a.program.id).ok().flatten() {
                    None => found.push(one),
                    Some(present) => found.extend(present.members.iter().map(|m| AttachmentInfo {
                        program: told(m.info.clone()),
                        priority: Some(m.slot.priority),
                        chain_on: Some(m.chain_on()),
                        ..one.clone()
                    })),
                }
                continue;
            };
            for member in chain.members()? {
                let (priority, chain_on) = (Some(member.priority), Some(member.chain_on));
                let program = self.program_info(ProgId(member.id))?;
                found.push(AttachmentInfo { program, priority, chain_on, ..one.clone() });
            }
        }
        Ok(found)
    }

    fn features(&mut self, port: &str) -> Result<PortFeatures, HookError> {
        let device = device(port)?;
        let known = driver_features(device.ifindex).map_err(|e| explain::plain(&e))?.unwrap_or_default();
        // A driver says it for all verdicts but REDIRECT together; behind the driver all of them work.
        let verdicts = xway_abi::Verdict::ALL.iter().map(|v| (v.name().to_owned(), "full".to_owned())).collect();
        Ok(PortFeatures {
            verdicts,
            memory: None,
            outcomes: Vec::new(),
            port: device.name,
            ifindex: device.ifindex,
            kind: device.kind,
            rx_queues: device.rx_queues,
            tx_queues: device.tx_queues,
            xdp: bit_names(known.xdp, &XDP_FEATURES),
            rx_metadata: bit_names(known.rx_metadata, &RX_METADATA),
        })
    }

    fn statistics(&mut self, port: &str) -> Result<Statistics, HookError> {
        let device = device(port)?;
        let counters = xway_kernel::device_counters(device.ifindex).map_err(|e| explain::plain(&e))?;
        Ok(Statistics { counters, ..Statistics::default() })
    }

    fn events(&mut self, wait: Duration) -> Result<Vec<HookEvent>, HookError> {
        let events = match &mut self.events {
            Some(events) => events,
            none => none.insert(events::Events::open()?),
        };
        events.next(wait)
    }
}
