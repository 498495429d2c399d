//! One program before both verifiers, and what was accepted on both machines.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_kernel::{KernelError, KernelMap, KernelProg, ProgSpec};
use xway_maps::{Guard, Map};
use xway_object::{Initial, MapDef, Program};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::{Env, FixedHost, TestRun, test_run};

/// The maps that generated programs use.
pub fn map_defs() -> Vec<MapDef> {
    vec![
        MapDef::new("array", MapSpec::new(MapType::Array, 4, 64, 4)),
        MapDef::new("hash", MapSpec::new(MapType::Hash, 8, 48, 8)),
        MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096)),
    ]
}

/// What the two made of a program.
pub enum Answer {
    /// Both accepted it, and it behaved the same as far as that can be told.
    BothAccept,
    /// Both refused it.
    BothRefuse,
    /// Only we refuse: our reason.
    OnlyWeRefuse(String),
    /// Only the kernel refuses: the last lines of its log. It ran here without a fault.
    OnlyKernelRefuses(String),
    /// What must not be.
    Wrong(String),
}

/// Maps of one program on both sides.
pub struct Maps {
    /// Descriptions.
    pub defs: Vec<MapDef>,
    kernel: Vec<KernelMap>,
    env: xway_maps::Env,
}

impl Maps {
    /// Makes the kernel's side. Ours is made for each run, so that runs start from the same contents.
    pub fn new(defs: Vec<MapDef>) -> Result<Maps, String> {
        let kernel = defs
            .iter()
            .map(|d| KernelMap::create(&d.name, &d.spec).map_err(|e| format!("{}: {e}", d.name)))
            .collect::<Result<Vec<KernelMap>, String>>()?;
        for (def, map) in defs.iter().zip(&kernel) {
            if let Initial::Data(bytes) = &def.initial {
                map.update(&[0; 4], bytes, 0).map_err(|e| format!("{}: {e}", def.name))?;
                if def.frozen {
                    map.freeze().map_err(|e| format!("{}: {e}", def.name))?;
                }
            }
        }
        Ok(Maps { defs, kernel, env: xway_maps::Env::default() })
    }

    fn ours(&self) -> Result<Vec<Arc<Map>>, String> {
        let create = |d: &MapDef| {
            let map = Map::create(&d.spec, &self.env).map_err(|e| format!("{}: {e}", d.name))?;
            if let Initial::Data(bytes) = &d.initial {
                map.update(&[0; 4], bytes, 0).map_err(|e| format!("{}: {e}", d.name))?;
            }
            Ok(map)
        };
        self.defs.iter().map(create).collect()
    }

    /// Puts the kernel's maps back to their first contents.
    fn reset(&self) {
        for map in &self.kernel {
            let spec = map.spec();
            match spec.map_type {
                MapType::Array => {
                    let zero = vec![0; spec.value_size as usize];
                    for i in 0..spec.max_entries {
                        let _ = map.update(&i.to_ne_bytes(), &zero, 0);
                    }
                }
                MapType::Hash => {
                    for key in map.keys().unwrap_or_default() {
                        let _ = map.delete(&key);
                    }
                    for k in 0..4u64 {
                        let _ = map.update(&k.to_ne_bytes(), &hash_value(k, spec.value_size), 0);
                    }
                }
                _ => {}
            }
        }
    }
}

fn hash_value(k: u64, len: u32) -> Vec<u8> {
    (0..len as u8).map(|i| i.wrapping_mul(7).wrapping_add(k as u8)).collect()
}

/// Packets that generated programs run over.
pub fn packets() -> Vec<Vec<u8>> {
    [14usize, 15, 34, 60, 64, 100, 300]
        .iter()
        .map(|n| (0..*n).map(|i| (i as u8).wrapping_mul(37).wrapping_add(*n as u8)).collect())
        .collect()
}

/// Puts one program before both, and runs it.
pub fn ask(program: &Program, maps: &Maps, comparable: bool) -> Answer {
    let view = MapsView { maps: &maps.defs, btf: None, license: Some("GPL") };
    let config = Config { budget: 1_000_000, errors_max: 1, explain: 0, ..Config::default() };
    let ours = verify(program, &view, &config);
    let fds: Vec<RawFd> = maps.kernel.iter().map(|m| m.as_fd().as_raw_fd()).collect();
    let spec = ProgSpec { fd_array: &fds, ..ProgSpec::xdp("fuzz", &program.insns) };
    let theirs = KernelProg::load(&spec);
    match (ours, theirs) {
        (Err(_), Err(_)) => Answer::BothRefuse,
        (Err(r), Ok(_)) => Answer::OnlyWeRefuse(format!(
            "{} at {}: {}",
            r.errors[0].kind.name(),
            r.errors[0].insn,
            r.errors[0].message
        )),
        (Ok(_), theirs) => match run(program, maps, theirs.as_ref().ok().filter(|_| comparable)) {
            Err(wrong) => Answer::Wrong(wrong),
            Ok(()) => match theirs {
                Ok(_) => Answer::BothAccept,
                Err(e) => Answer::OnlyKernelRefuses(reason(&e)),
            },
        },
    }
}

/// Runs the program here, and there when it is to be compared.
fn run(program: &Program, maps: &Maps, kernel: Option<&KernelProg>) -> Result<(), String> {
    for packet in packets() {
        let ours = maps.ours()?;
        for (def, map) in maps.defs.iter().zip(&ours) {
            if def.spec.map_type == MapType::Hash {
                for k in 0..4u64 {
                    let _ = map.update(&k.to_ne_bytes(), &hash_value(k, def.spec.value_size), 0);
                }
            }
        }
        let linked = xway_vm::Program::link(program, &ours).map_err(|e| format!("link: {e}"))?;
        let guard = Guard::pin();
        let host = FixedHost::new(1);
        let mut env = Env::new(&guard, &host, 0);
        let out = match test_run(&linked, &TestRun::new(&packet), &mut env) {
            Ok(out) => out,
            Err(e) => return Err(format!("test run: {e}")),
        };
        if let Some(fault) = out.fault {
            return Err(format!("accepted, but with {} bytes of packet: {fault}", packet.len()));
        }
        if let Some(kernel) = kernel {
            maps.reset();
            let theirs =
                kernel.test_run(&xway_kernel::TestInput::packet(&packet)).map_err(|e| format!("kernel run: {e}"))?;
            if theirs.ret != out.retval || theirs.data != out.data_out {
                return Err(format!(
                    "with {} bytes of packet the kernel returns {:#x} and {} bytes, we {:#x} and {} bytes",
                    packet.len(),
                    theirs.ret,
                    theirs.data.len(),
                    out.retval,
                    out.data_out.len()
                ));
            }
        }
    }
    Ok(())
}

/// The decisive line of the kernel's log.
fn reason(e: &KernelError) -> String {
    let log = e.log();
    let last = log.lines().rev().find(|l| {
        let l = l.trim();
        !l.is_empty()
            && !l.starts_with("processed")
            && !l.starts_with("verification time")
            && !l.starts_with("max_states")
            && !l.starts_with("stack depth")
    });
    last.map_or_else(|| e.to_string(), str::to_owned)
}
