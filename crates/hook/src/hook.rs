//! The seam: one trait for every place where a program can run.

use std::path::Path;
use std::time::Duration;

use xway_abi::MapSpec;
use xway_maps::Window;

use crate::{
    AttachRequest, Attached, AttachmentInfo, CaptureRequest, CapturedPackets, Dump, Elements, HookError, HookEvent,
    HookKind, Image, LoadRequest, MapId, MapInfo, MapTypes, ObjectId, Objects, PortFeatures, ProgId, ProgramInfo,
    Statistics, TestAnswer, TestRequest,
};

/// A place where programs run, with everything that belongs to it: maps, programs, attachments, counters, events.
///
/// # Life of objects
/// What [`Hook::map_create`] and [`Hook::load`] make lives while this hook holds it, and as long as something else does: an
/// attachment, a pin, a program that uses the map. [`Hook::release`] gives up the hook's own hold.
///
/// # Errors
/// Every refusal carries Linux's errno where Linux would give one ([`HookError::errno`]), the same on every implementor: an
/// unknown number is `ENOENT`; maps answer as the commands of `bpf(2)` do. What an implementor cannot do at all is
/// `EOPNOTSUPP`, by name.
pub trait Hook {
    /// Which implementor this is.
    fn kind(&self) -> HookKind;

    // Maps.

    /// Creates a map (`BPF_MAP_CREATE`): `EINVAL`, `E2BIG`, `ENOMEM`, `EPERM`.
    fn map_create(&mut self, name: &str, spec: &MapSpec) -> Result<MapId, HookError>;
    /// All maps that can be seen, by number.
    fn maps(&mut self) -> Result<Vec<MapInfo>, HookError>;
    /// What a map is.
    fn map_info(&mut self, id: MapId) -> Result<MapInfo, HookError>;
    /// Types of a map's keys and values, where its object had some.
    fn map_types(&mut self, id: MapId) -> Result<Option<MapTypes>, HookError>;
    /// The value of a key; [`MapInfo::user_value_size`] bytes.
    fn map_lookup(&mut self, id: MapId, key: &[u8], flags: u64) -> Result<Vec<u8>, HookError>;
    /// Writes an element. A queue, a stack and a bloom filter take an empty key.
    fn map_update(&mut self, id: MapId, key: &[u8], value: &[u8], flags: u64) -> Result<(), HookError>;
    /// Puts a map or a program into a map of maps or programs, by its number.
    fn map_store(&mut self, id: MapId, key: &[u8], object: ObjectId, flags: u64) -> Result<(), HookError>;
    /// Removes an element.
    fn map_delete(&mut self, id: MapId, key: &[u8]) -> Result<(), HookError>;
    /// Takes an element out (`BPF_MAP_LOOKUP_AND_DELETE_ELEM`); pops a queue or stack with an empty key.
    fn map_take(&mut self, id: MapId, key: &[u8]) -> Result<Vec<u8>, HookError>;
    /// The key behind a key, or the first one. `None`: there is none.
    fn map_next_key(&mut self, id: MapId, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, HookError>;
    /// Up to `count` elements from a place in the map (`BPF_MAP_LOOKUP_BATCH`).
    fn map_lookup_batch(&mut self, id: MapId, from: Option<&[u8]>, count: u32) -> Result<Elements, HookError>;
    /// Writes elements in order until one is refused; gives how many were written.
    fn map_update_batch(&mut self, id: MapId, entries: &[(Vec<u8>, Vec<u8>)], flags: u64) -> Result<u32, HookError>;
    /// Removes elements in order until one is refused; gives how many were removed.
    fn map_delete_batch(&mut self, id: MapId, keys: &[Vec<u8>]) -> Result<u32, HookError>;
    /// Forbids writing from outside programs for ever. `EBUSY` while somebody has its values mapped for writing.
    fn map_freeze(&mut self, id: MapId) -> Result<(), HookError>;
    /// Maps an array's values (`BPF_F_MMAPABLE`) into this process: what mmap(2) on its descriptor does on Linux, with its errno values
    /// ([`xway_maps::Map::memory_fd`]).
    fn map_window(&mut self, id: MapId, write: bool) -> Result<Window, HookError>;

    // Programs.

    /// Creates the maps of an object and loads its programs, behind the hook's verifier.
    fn load(&mut self, image: &Image, request: &LoadRequest) -> Result<Objects, HookError>;
    /// All programs that can be seen, by number.
    fn programs(&mut self) -> Result<Vec<ProgramInfo>, HookError>;
    /// What a program is.
    fn program_info(&mut self, id: ProgId) -> Result<ProgramInfo, HookError>;
    /// Type information of the object that a program is from, where it had some.
    fn program_types(&mut self, id: ProgId) -> Result<Option<Vec<u8>>, HookError>;
    /// Runs a program over one packet (`BPF_PROG_TEST_RUN`).
    fn test_run(&mut self, id: ProgId, test: &TestRequest<'_>) -> Result<TestAnswer, HookError>;
    /// A program's code.
    fn dump(&mut self, id: ProgId) -> Result<Dump, HookError>;

    // Names that outlive whoever made the object.

    /// Gives an object a name in the hook's file system: `EEXIST` when the name is taken.
    fn pin(&mut self, object: ObjectId, path: &Path) -> Result<(), HookError>;
    /// The object with a name; the hook holds it from now on.
    fn pinned(&mut self, path: &Path) -> Result<ObjectId, HookError>;
    /// Takes a name away.
    fn unpin(&mut self, path: &Path) -> Result<(), HookError>;
    /// Gives up the hook's own hold on an object; without another one it goes.
    fn release(&mut self, object: ObjectId) -> Result<(), HookError>;

    // Attachments.

    /// Puts a program on a port.
    fn attach(&mut self, request: &AttachRequest) -> Result<Attached, HookError>;
    /// Takes programs away from a port: the one with this number, or all. Gives the numbers.
    fn detach(&mut self, port: &str, program: Option<ProgId>) -> Result<Vec<ProgId>, HookError>;
    /// Takes one attachment away, by [`AttachmentInfo::link`], whoever else holds it. `ENOENT`: there is no such number.
    fn link_detach(&mut self, link: u32) -> Result<(), HookError>;
    /// Programs on one port, or on all.
    fn attachments(&mut self, port: Option<&str>) -> Result<Vec<AttachmentInfo>, HookError>;
    /// What a port can do. Only asks; nothing is loaded.
    fn features(&mut self, port: &str) -> Result<PortFeatures, HookError>;

    // Watching.

    /// Ports that can be watched: on Linux, interfaces that have a program.
    fn port_names(&mut self) -> Result<Vec<String>, HookError> {
        let mut names: Vec<String> = self.attachments(None)?.into_iter().map(|a| a.port).collect();
        names.dedup();
        Ok(names)
    }
    /// What a port counted since it is there.
    fn statistics(&mut self, port: &str) -> Result<Statistics, HookError>;
    /// Events since the last call, waiting for the first one at most this long. Lost ones are told as an event of kind
    /// `lost`. The first call begins to listen, and the hook listens as long as it lives; until then events of packets
    /// cost nothing and are not kept.
    fn events(&mut self, wait: Duration) -> Result<Vec<HookEvent>, HookError>;
    /// Begins to capture packets, in place of the capture before. It ends with the hook.
    fn capture(&mut self, _: &CaptureRequest) -> Result<(), HookError> {
        let message = format!("the {} hook captures no packets itself", self.kind().name());
        Err(HookError::unsupported(message).hint("xway dump IFACE --hook native sees packets before its programs"))
    }
    /// Packets captured since the last call, waiting for the first one at most this long. `ENOENT` without a capture.
    fn captured(&mut self, _: Duration) -> Result<CapturedPackets, HookError> {
        Err(HookError::missing("capture"))
    }
}
