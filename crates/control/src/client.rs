//! The other end of the socket: the service as a [`Hook`].

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use xway_abi::MapSpec;
use xway_hook::{
    AttachRequest, Attached, AttachmentInfo, Blame, CaptureRequest, CapturedPackets, Dump, Elements, Hook, HookError,
    HookEvent, HookKind, Image, LoadRequest, MapId, MapInfo, MapTypes, ObjectId, Objects, PinInfo, PortFeatures,
    ProgId, ProgramInfo, Statistics, TestAnswer, TestRequest,
};
use xway_maps::{Shape, Window};

use crate::message::{self, Answer, Attach, Bytes, Capture, Code, Map, Packets, Part, Request, Spec, Tested};
use crate::share;
use crate::wire::{self, WireError};

/// How long an answer may take: a load verifies and compiles.
const ANSWER: Duration = Duration::from_secs(120);

/// A connection to the service. What is made over it is held as long as it stands, and longer by pins and attachments.
#[derive(Debug)]
pub struct Service {
    socket: UnixStream,
    place: String,
}

impl Service {
    /// All names of maps and programs, each with whether anything else keeps its object.
    pub fn pins(&mut self) -> Result<Vec<PinInfo>, HookError> {
        self.ask(&Request::Pins)
    }

    /// Takes those names away whose objects nothing else keeps, or only tells which; their paths.
    pub fn clean(&mut self, dry_run: bool) -> Result<Vec<PathBuf>, HookError> {
        self.ask(&Request::Clean { dry_run })
    }

    /// Connects to the service's socket.
    ///
    /// # Errors
    /// `ENOENT` or `ECONNREFUSED` when no service is there, `EACCES` when one may not speak to it.
    pub fn connect(path: &Path) -> Result<Service, HookError> {
        let socket = UnixStream::connect(path).map_err(|e| {
            let errno = xway_abi::Errno(e.raw_os_error().unwrap_or(xway_abi::Errno::EIO.0));
            let hint = match e.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "as root, or as a member of the socket's group; readable = true in [service] lets everybody look"
                }
                _ => "xway up -c FILE.toml starts the service; --socket names another one",
            };
            let message = format!("{}: no service answers ({errno})", path.display());
            HookError { errno: Some(errno), ..HookError::new(Blame::Machine, message) }.hint(hint)
        })?;
        Ok(Service { socket, place: path.display().to_string() })
    }

    /// Who answers, and what came of an upgrade when it began by one.
    pub fn about(&mut self) -> Result<message::About, HookError> {
        self.ask(&Request::About)
    }

    /// Names of the open ports.
    pub fn ports(&mut self) -> Result<Vec<String>, HookError> {
        self.ask(&Request::Ports)
    }

    /// Opens a port, as `packet:eth0`.
    pub fn open_port(&mut self, port: &str) -> Result<(), HookError> {
        self.ask(&Request::OpenPort { port: port.to_owned() })
    }

    /// Closes a port.
    pub fn close_port(&mut self, port: &str) -> Result<(), HookError> {
        self.ask(&Request::ClosePort { port: port.to_owned() })
    }

    /// Changes which queue packets of a port go to, in ethtool's words ([`xway_engine::steer::Change`]); without any, only asks.
    pub fn steer(&mut self, port: &str, words: &str) -> Result<message::Steered, HookError> {
        self.ask(&Request::Steer { port: port.to_owned(), words: words.to_owned() })
    }

    /// Serves AF_XDP-style sockets at a path.
    pub fn serve(&mut self, socket: &crate::config::Socket) -> Result<(), HookError> {
        self.ask(&Request::Serve { socket: socket.clone() })
    }

    /// Serves them there no more.
    pub fn unserve(&mut self, path: &Path) -> Result<(), HookError> {
        self.ask(&Request::Unserve { path: path.to_owned() })
    }

    /// The sockets that applications have, by the path at which they are served.
    pub fn sockets(&mut self) -> Result<Vec<message::ServedPath>, HookError> {
        self.ask(&Request::Sockets)
    }

    /// Makes the engine what a configuration says; the steps, in words. With `dry_run` nothing is done.
    pub fn apply(&mut self, config: &str, dry_run: bool) -> Result<Vec<String>, HookError> {
        self.ask(&Request::Apply { config: config.to_owned(), dry_run })
    }

    /// What programs wrote into a perf event array or a ring buffer since the last time, waiting for the first record at most this
    /// long. The first call about a perf event array opens its rings: before it, programs find no reader.
    pub fn map_events(&mut self, map: MapId, wait: Duration) -> Result<message::Records, HookError> {
        let wait_ms = wait.as_millis().min(u128::from(u32::MAX)) as u64;
        self.ask(&Request::MapEvents { id: map.0, wait_ms })
    }

    /// What programs of the service print (`bpf_printk`) since the last time, as lines of the kernel's trace log, waiting for the first at
    /// most this long. The first call begins to listen, and it ends with this connection; every listener hears every line.
    ///
    /// # Errors
    /// `EPERM` for who may only look: programs print what packets hold.
    pub fn trace_log(&mut self, wait: Duration) -> Result<message::TraceLines, HookError> {
        let wait_ms = wait.as_millis().min(u128::from(u32::MAX)) as u64;
        self.ask(&Request::TraceLog { wait_ms })
    }

    /// A descriptor of a map. It keeps the map alive, may be given to any process over a UNIX socket, and is used there by
    /// [`Service::over`]: for this one map, and for reading alone where `read_only` says so.
    pub fn share(&mut self, map: MapId, read_only: bool) -> Result<OwnedFd, HookError> {
        self.ask::<()>(&Request::Share { map: map.0, read_only })?;
        self.descriptor(map)
    }

    /// The hook as far as a descriptor from [`Service::share`] reaches.
    pub fn over(descriptor: OwnedFd) -> Service {
        Service { socket: descriptor.into(), place: "a map's descriptor".into() }
    }

    /// A descriptor of the memory in which an array's values lie, and how they lie there. It may be given to any process over a UNIX
    /// socket, which maps it with mmap(2) or [`Window::of_memory`]: for reading alone unless `write` says so.
    ///
    /// # Errors
    /// Those of [`xway_maps::Map::memory_fd`]; `EPERM` for who may only look.
    pub fn map_memory(&mut self, map: MapId, write: bool) -> Result<(OwnedFd, Shape), HookError> {
        let lies: message::Lies = self.ask(&Request::MapMemory { id: map.0, write })?;
        let fd = self.descriptor(map)?;
        Ok((fd, Shape { value_size: lies.value_size, entries: lies.entries }))
    }

    fn descriptor(&self, map: MapId) -> Result<OwnedFd, HookError> {
        self.socket
            .set_read_timeout(Some(ANSWER))
            .and_then(|()| share::receive(&self.socket))
            .map_err(|e| HookError::new(Blame::Machine, format!("{}: the descriptor of {map}: {e}", self.place)))
    }

    /// Puts another executable in the place of the running one, which keeps the socket and takes over the state; with `dry_run`
    /// only says what becomes of everything.
    ///
    /// # Errors
    /// `EPERM` for all but root and the service's own user; what is no `xway` is refused before anything ends.
    pub fn upgrade(&mut self, executable: &Path, dry_run: bool) -> Result<message::Handover, HookError> {
        self.ask(&Request::Upgrade { executable: executable.to_owned(), dry_run })
    }

    /// Ends the service.
    pub fn down(&mut self) -> Result<(), HookError> {
        self.ask(&Request::Down)
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, HookError> {
        let failed = |e: WireError| HookError::new(Blame::Machine, format!("{}: {e}", self.place));
        // A service that is full, or that does not want this peer, answers before it is asked and closes: what it said is
        // there although nothing can be sent any more.
        let sent = wire::send(&mut self.socket, request);
        let answer = wire::receive(&self.socket, wire::MESSAGE_MAX, Some(ANSWER), ANSWER);
        let answer = match (sent, answer) {
            (_, Ok(answer)) => answer,
            (Err(e), _) | (_, Err(e)) => return Err(failed(e)),
        };
        let answer: Answer<T> = serde_json::from_slice(&answer).map_err(|e| {
            HookError::new(Blame::Machine, format!("{}: an answer that is not understood: {e}", self.place))
        })?;
        match answer {
            Answer::Ok(value) => Ok(value),
            Answer::Error(refusal) => Err(refusal.into()),
        }
    }
}

impl Hook for Service {
    fn kind(&self) -> HookKind {
        HookKind::Service
    }

    fn map_create(&mut self, name: &str, spec: &MapSpec) -> Result<MapId, HookError> {
        self.ask(&Request::MapCreate { name: name.to_owned(), spec: Spec::from(spec) })
    }

    fn maps(&mut self) -> Result<Vec<MapInfo>, HookError> {
        let all: Vec<Map> = self.ask(&Request::Maps)?;
        Ok(all.into_iter().filter_map(Map::read).collect())
    }

    fn map_info(&mut self, id: MapId) -> Result<MapInfo, HookError> {
        let map: Map = self.ask(&Request::MapInfo { id: id.0 })?;
        map.read().ok_or_else(|| HookError::unsupported(format!("{id}: its type is not known here")))
    }

    fn map_types(&mut self, id: MapId) -> Result<Option<MapTypes>, HookError> {
        self.ask(&Request::MapTypes { id: id.0 }).map(message::map_types)
    }

    fn map_lookup(&mut self, id: MapId, key: &[u8], flags: u64) -> Result<Vec<u8>, HookError> {
        let value: Bytes = self.ask(&Request::MapLookup { id: id.0, key: Bytes(key.to_vec()), flags })?;
        Ok(value.0)
    }

    fn map_update(&mut self, id: MapId, key: &[u8], value: &[u8], flags: u64) -> Result<(), HookError> {
        let (key, value) = (Bytes(key.to_vec()), Bytes(value.to_vec()));
        self.ask(&Request::MapUpdate { id: id.0, key, value, flags })
    }

    fn map_store(&mut self, id: MapId, key: &[u8], object: ObjectId, flags: u64) -> Result<(), HookError> {
        self.ask(&Request::MapStore { id: id.0, key: Bytes(key.to_vec()), object, flags })
    }

    fn map_delete(&mut self, id: MapId, key: &[u8]) -> Result<(), HookError> {
        self.ask(&Request::MapDelete { id: id.0, key: Bytes(key.to_vec()) })
    }

    fn map_take(&mut self, id: MapId, key: &[u8]) -> Result<Vec<u8>, HookError> {
        let value: Bytes = self.ask(&Request::MapTake { id: id.0, key: Bytes(key.to_vec()) })?;
        Ok(value.0)
    }

    fn map_next_key(&mut self, id: MapId, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, HookError> {
        let key = key.map(|k| Bytes(k.to_vec()));
        let next: Option<Bytes> = self.ask(&Request::MapNextKey { id: id.0, key })?;
        Ok(next.map(|n| n.0))
    }

    fn map_lookup_batch(&mut self, id: MapId, from: Option<&[u8]>, count: u32) -> Result<Elements, HookError> {
        let from = from.map(|f| Bytes(f.to_vec()));
        self.ask::<Part>(&Request::MapLookupBatch { id: id.0, from, count }).map(Elements::from)
    }

    fn map_update_batch(&mut self, id: MapId, entries: &[(Vec<u8>, Vec<u8>)], flags: u64) -> Result<u32, HookError> {
        let entries = entries.iter().map(|(k, v)| (Bytes(k.clone()), Bytes(v.clone()))).collect();
        self.ask(&Request::MapUpdateBatch { id: id.0, entries, flags })
    }

    fn map_delete_batch(&mut self, id: MapId, keys: &[Vec<u8>]) -> Result<u32, HookError> {
        let keys = keys.iter().map(|k| Bytes(k.clone())).collect();
        self.ask(&Request::MapDeleteBatch { id: id.0, keys })
    }

    fn map_freeze(&mut self, id: MapId) -> Result<(), HookError> {
        self.ask(&Request::MapFreeze { id: id.0 })
    }

    fn map_window(&mut self, id: MapId, write: bool) -> Result<Window, HookError> {
        let (fd, shape) = self.map_memory(id, write)?;
        Window::of_memory(fd.as_fd(), shape, write)
            .map_err(|e| HookError::errno(format!("{}: mapping the values of {id}", self.place), e))
    }

    fn load(&mut self, image: &Image, request: &LoadRequest) -> Result<Objects, HookError> {
        if let Some(device) = &request.device {
            return Err(xway_hook::user::no_device(device));
        }
        let object = Bytes(image.bytes.to_vec());
        let (programs, pins) = (request.programs.clone(), request.pins.clone());
        self.ask(&Request::Load { object, programs, pins })
    }

    fn programs(&mut self) -> Result<Vec<ProgramInfo>, HookError> {
        self.ask(&Request::Programs)
    }

    fn program_info(&mut self, id: ProgId) -> Result<ProgramInfo, HookError> {
        self.ask(&Request::ProgramInfo { id: id.0 })
    }

    fn program_types(&mut self, id: ProgId) -> Result<Option<Vec<u8>>, HookError> {
        let types: Option<Bytes> = self.ask(&Request::ProgramTypes { id: id.0 })?;
        Ok(types.map(|types| types.0))
    }

    fn test_run(&mut self, id: ProgId, test: &TestRequest<'_>) -> Result<TestAnswer, HookError> {
        let data = Bytes(test.data.to_vec());
        let request = Request::TestRun { id: id.0, data, ctx: test.ctx, repeat: test.repeat };
        self.ask::<Tested>(&request).map(TestAnswer::from)
    }

    fn dump(&mut self, id: ProgId) -> Result<Dump, HookError> {
        self.ask::<Code>(&Request::Dump { id: id.0 }).map(Dump::from)
    }

    fn pin(&mut self, object: ObjectId, path: &Path) -> Result<(), HookError> {
        self.ask(&Request::Pin { object, path: path.to_owned() })
    }

    fn pinned(&mut self, path: &Path) -> Result<ObjectId, HookError> {
        self.ask(&Request::Pinned { path: path.to_owned() })
    }

    fn unpin(&mut self, path: &Path) -> Result<(), HookError> {
        self.ask(&Request::Unpin { path: path.to_owned() })
    }

    fn release(&mut self, object: ObjectId) -> Result<(), HookError> {
        self.ask(&Request::Release { object })
    }

    fn attach(&mut self, request: &AttachRequest) -> Result<Attached, HookError> {
        self.ask(&Request::Attach { request: Attach::from(request) })
    }

    fn detach(&mut self, port: &str, program: Option<ProgId>) -> Result<Vec<ProgId>, HookError> {
        let request = Request::Detach { port: port.to_owned(), program: program.map(|p| p.0) };
        self.ask(&request)
    }

    fn link_detach(&mut self, link: u32) -> Result<(), HookError> {
        self.ask(&Request::LinkDetach { link })
    }

    fn attachments(&mut self, port: Option<&str>) -> Result<Vec<AttachmentInfo>, HookError> {
        self.ask(&Request::Attachments { port: port.map(str::to_owned) })
    }

    fn features(&mut self, port: &str) -> Result<PortFeatures, HookError> {
        self.ask(&Request::Features { port: port.to_owned() })
    }

    fn statistics(&mut self, port: &str) -> Result<Statistics, HookError> {
        self.ask(&Request::Statistics { port: port.to_owned() })
    }

    fn events(&mut self, wait: Duration) -> Result<Vec<HookEvent>, HookError> {
        let wait_ms = wait.as_millis().min(u128::from(u32::MAX)) as u64;
        self.ask(&Request::Events { wait_ms })
    }

    fn port_names(&mut self) -> Result<Vec<String>, HookError> {
        self.ports()
    }

    fn capture(&mut self, request: &CaptureRequest) -> Result<(), HookError> {
        self.ask(&Request::Capture { request: Capture::from(request) })
    }

    fn captured(&mut self, wait: Duration) -> Result<CapturedPackets, HookError> {
        let wait_ms = wait.as_millis().min(u128::from(u32::MAX)) as u64;
        self.ask::<Packets>(&Request::Captured { wait_ms }).map(CapturedPackets::from)
    }
}
