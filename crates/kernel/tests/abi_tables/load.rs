//! Program text to the kernel, and what it says.

use std::borrow::Cow;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use xway_isa::{Names, assemble, assemble_with};
use xway_kernel::{FuncInfo, KernelProg, ProgSpec, vmlinux};
use xway_object::Btf;
use xway_object::btf::Kind;

use crate::maps::Maps;

pub fn load(text: &str, license: &str) -> Result<(), String> {
    load_with(text, license, None)
}

/// Loads a program, with type information when there are maps; `callback:` begins its last function. Kernel functions are
/// called by name.
pub fn load_with(text: &str, license: &str, maps: Option<&Maps>) -> Result<(), String> {
    let insns = assemble_with(text, &KernelNames::new()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut spec = ProgSpec { license, ..ProgSpec::xdp("probe", &insns) };
    let callback = text.split_once("callback:").map(|(_, body)| assemble(body).expect("callback").len());
    let start = insns.len() - callback.unwrap_or(0);
    let funcs: Vec<FuncInfo>;
    if let Some(maps) = maps {
        spec.btf = Some(maps.btf.as_fd());
        let main = FuncInfo { insn: 0, type_id: maps.types.main };
        let second = FuncInfo { insn: start as u32, type_id: maps.types.callback };
        funcs = if callback.is_some() { vec![main, second] } else { vec![main] };
        spec.funcs = &funcs;
    }
    KernelProg::load(&spec).map(drop).map_err(|e| e.log().to_owned() + &e.to_string())
}

/// The functions of the running kernel.
pub struct KernelNames(Arc<Btf>);

impl KernelNames {
    pub fn new() -> KernelNames {
        KernelNames(vmlinux().expect("the kernel's type information"))
    }

    /// Names that the kernel tags as kfuncs.
    pub fn kfuncs(&self) -> Vec<&str> {
        let tagged = self.0.types().filter(|(_, t)| t.name == "bpf_kfunc");
        let target = |(_, t): (u32, xway_object::btf::Type<'_>)| match t.kind {
            Kind::DeclTag { target, component: -1 } => Some(target),
            _ => None,
        };
        tagged.filter_map(target).filter_map(|id| Some(self.0.ty(id).ok()?.name)).collect()
    }
}

impl Names for KernelNames {
    fn kfunc(&self, id: i32, _: i16) -> Option<Cow<'_, str>> {
        Some(self.0.ty(id as u32).ok()?.name.into())
    }

    fn kfunc_id(&self, name: &str) -> Option<(i32, i16)> {
        let id = self.0.find(name, |t| matches!(t.kind, Kind::Func(..)))?;
        Some((id as i32, 0))
    }
}

/// True when the log says that this program may not have this helper at all.
pub fn is_refused(log: &str) -> bool {
    ["cannot use helper", "unknown func", "invalid func"].iter().any(|text| log.contains(text))
}

/// Runs `load` on a thread that has CAP_BPF but neither CAP_PERFMON nor CAP_SYS_ADMIN.
pub fn without_perfmon<T: Send>(load: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut caps = capabilities(None).expect("own capabilities");
            caps.effective.remove(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN);
            set_capabilities(None, caps).expect("fewer capabilities");
            load()
        });
        thread.join().expect("loading thread")
    })
}

/// The line of a verifier log that says why.
pub fn reason(log: &str) -> &str {
    log.lines().rfind(|l| !l.starts_with("processed") && !l.is_empty()).unwrap_or(log)
}
