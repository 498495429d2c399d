//! The ecosystem's dispatcher: one program with ten functions that other programs replace (`BPF_PROG_TYPE_EXT`).
//!
//! ```text
//!   interface ──▶ xdp_dispatcher ──calls──▶ prog0 ◀─replaced by─ member 1, held by a link
//!                       │ reads .rodata     prog1 ◀─replaced by─ member 2 …
//! ```
//!
//! A dispatcher never changes. To add or remove a program a new one is made, its functions are replaced by the old members
//! and the new one, and it takes the old one's place on the interface in one step. Source: libxdp's protocol document
//! (`lib/libxdp/protocol.org` of xdp-tools), versions 2 and 3; program and code here are our own.

mod config;

use std::os::fd::{AsFd, OwnedFd};

use xway_abi::{MapSpec, MapType, map_flags};
use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding, VarLinkage};

pub use config::{DispatcherConfig, DispatcherSlot, SLOTS};

use crate::link::replace_function;
use crate::{FuncInfo, KernelError, KernelMap, KernelProg, MapBtf, ProgSpec, consts, load_btf};

/// Its name, by which tools know it.
pub const DISPATCHER: &str = "xdp_dispatcher";

/// A dispatcher that is loaded, and whose functions wait to be replaced.
#[derive(Debug)]
pub struct Dispatcher {
    prog: KernelProg,
    /// Types of `prog0` to `prog9` among its own.
    slots: [u32; SLOTS],
}

impl Dispatcher {
    /// Loads one with this configuration. `attach_type` is what it is loaded for: [`consts::ATTACH_XDP`], or 0 as old loaders
    /// have it; programs that have replaced functions of another dispatcher want the same.
    pub fn load(config: &DispatcherConfig, attach_type: u32) -> Result<Dispatcher, KernelError> {
        let types = types(config.version);
        let btf = load_btf(&types.bytes)?;
        let refused = |step: &'static str| {
            move |errno| KernelError::Map { name: "the dispatcher's configuration".into(), step, errno }
        };
        let mut spec = MapSpec::new(MapType::Array, 4, DispatcherConfig::bytes(config.version) as u32, 1);
        spec.flags = map_flags::RDONLY_PROG;
        let typed = MapBtf { btf: btf.as_fd(), key_type: 0, value_type: types.rodata };
        let map = KernelMap::create_typed("xdp_disp.rodata", &spec, Some(typed)).map_err(refused("creating it"))?;
        map.update(&[0; 4], &config.to_bytes(), 0).map_err(refused("writing it"))?;
        map.freeze().map_err(refused("freezing it"))?;
        let insns = config::program(std::os::fd::AsRawFd::as_raw_fd(&map.as_fd()));
        let ids = [&[types.main], &types.slots[..]].concat();
        let funcs: Vec<FuncInfo> = config::functions()
            .iter()
            .zip(&ids)
            .map(|(insn, type_id)| FuncInfo { insn: *insn as u32, type_id: *type_id })
            .collect();
        let prog = KernelProg::load(&ProgSpec {
            attach_type,
            flags: if config.frags { consts::F_XDP_HAS_FRAGS } else { 0 },
            btf: Some(btf.as_fd()),
            funcs: &funcs,
            ..ProgSpec::xdp(DISPATCHER, &insns)
        })?;
        Ok(Dispatcher { prog, slots: types.slots })
    }

    /// The program.
    pub fn prog(&self) -> &KernelProg {
        &self.prog
    }

    /// What an extension program must name to replace the function of a slot.
    pub fn target(&self, slot: usize) -> (&KernelProg, u32) {
        (&self.prog, self.slots[slot])
    }

    /// Replaces the function of a slot by a program, for as long as the link lives (Linux 5.10).
    ///
    /// Errors: `EINVAL` when the program was loaded against a dispatcher of another attach type; `EPERM`.
    pub fn fill(&self, slot: usize, member: &KernelProg) -> Result<OwnedFd, KernelError> {
        replace_function(member, &self.prog, self.slots[slot])
    }

    /// The configuration of a dispatcher that runs. `None`: the program is none.
    ///
    /// # Errors
    /// Inside: why it is one that is not understood.
    pub fn read(prog: &KernelProg) -> Result<Option<Result<DispatcherConfig, String>>, KernelError> {
        let info = prog.info()?;
        if info.name != DISPATCHER {
            return Ok(None);
        }
        let [map] = info.map_ids[..] else {
            return Ok(Some(Err(format!("it has {} maps instead of one", info.map_ids.len()))));
        };
        let map = KernelMap::by_id(map)?;
        let bytes = map.get(&[0; 4]).map_err(|errno| KernelError::Call { step: "reading a dispatcher", errno })?;
        Ok(Some(DispatcherConfig::parse(&bytes)))
    }
}

/// Its types: what the kernel needs to replace functions, and where tools look for the version.
struct Types {
    bytes: Vec<u8>,
    rodata: u32,
    main: u32,
    slots: [u32; SLOTS],
}

fn types(version: u8) -> Types {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let (byte, word) =
        (b.int("unsigned char", 1, IntEncoding::Unsigned), b.int("unsigned int", 4, IntEncoding::Unsigned));
    let names = ["data", "data_end", "data_meta", "ingress_ifindex", "rx_queue_index", "egress_ifindex"];
    let fields: Vec<_> = names.iter().enumerate().map(|(i, name)| (*name, word, 32 * i as u32)).collect();
    let context = b.structure("xdp_md", 24, &fields);
    let pointer = b.ptr(context);
    let prototype = b.prototype(int, &[("ctx", pointer)]);
    let main = b.func(DISPATCHER, prototype, FuncLinkage::Global);
    let slots = std::array::from_fn(|i| b.func(&format!("prog{i}"), prototype, FuncLinkage::Global));

    let ten = b.array(word, word, SLOTS as u32);
    let head = ["magic", "dispatcher_version", "num_progs_enabled", "is_xdp_frags"];
    let mut members: Vec<_> = head.iter().enumerate().map(|(i, name)| (*name, byte, 8 * i as u32)).collect();
    let arrays = ["chain_call_actions", "run_prios", "program_flags"];
    members.extend(arrays.iter().enumerate().map(|(i, name)| (*name, ten, 32 + 320 * i as u32)));
    if version >= 3 {
        members.push(("is_xdp_devbound", byte, 992));
    }
    let size = DispatcherConfig::bytes(version) as u32;
    let structure = b.structure("xdp_dispatcher_config", size, &members);
    let conf = b.var("conf", structure, VarLinkage::Static);
    let rodata = b.datasec(".rodata", size, &[(conf, 0, size)]);
    // The version as the length of an array, the ecosystem's way to put a number into types.
    let length = b.array(int, word, version.into());
    let pointer = b.ptr(length);
    let number = b.var("dispatcher_version", pointer, VarLinkage::Global);
    b.datasec("xdp_metadata", 8, &[(number, 0, 8)]);
    Types { bytes: b.to_bytes(), rodata, main, slots }
}
