//! One object on two sides: in the kernel and in one of our engines, behind the same few calls.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use xway_abi::{Errno, MapType};
use xway_jit::{Compiled, RunEnv};
use xway_kernel::{KernelError, KernelObject, KernelRing, TestInput, possible_cpus};
use xway_maps::Guard;
use xway_object::Object;
use xway_packet::{Pool, PoolConfig};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::{Env, Instance, SystemHost};

/// What a map holds: values by key.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a run over one packet gave: the return value, and metadata and packet behind it.
#[derive(PartialEq, Eq, Debug)]
pub struct Run {
    pub ret: u32,
    pub bytes: Vec<u8>,
    /// Why the program was stopped, on the side where that can happen.
    pub fault: Option<String>,
}

pub trait Side {
    /// One packet that comes in on queue 0 of the loopback interface, as in a test run without a context.
    fn run(&mut self, program: usize, packet: &[u8]) -> Run;
    fn update(&self, map: usize, key: &[u8], value: &[u8]) -> Result<(), Errno>;
    fn put_program(&self, map: usize, key: u32, program: usize);
    fn lookup(&self, map: usize, key: &[u8]) -> Result<Vec<u8>, Errno>;
    fn keys(&self, map: usize) -> Vec<Vec<u8>>;
    fn pop(&self, map: usize) -> Option<Vec<u8>>;
    fn records(&self, map: usize) -> Vec<Vec<u8>>;
    /// The id by which a map shows this program, if it was loaded.
    fn program_id(&self, program: usize) -> Option<u32>;
}

/// Contents of a map as both sides can be compared by: `None` for types whose contents are objects or secrets.
pub fn contents(side: &dyn Side, object: &Object, map: usize) -> Option<Contents> {
    use MapType::*;
    let spec = &object.maps[map].spec;
    match spec.map_type {
        Array | Hash | LruHash | LpmTrie | PercpuArray | PercpuHash | LruPercpuHash => {
            let value = |key: &Vec<u8>| {
                let mut value = side.lookup(map, key).unwrap_or_else(|e| panic!("{}: {e}", object.maps[map].name));
                if matches!(spec.map_type, PercpuArray | PercpuHash | LruPercpuHash) {
                    // Both sides run on CPU 0.
                    value.truncate(spec.value_size as usize);
                }
                value
            };
            Some(side.keys(map).into_iter().map(|key| (key.clone(), value(&key))).collect())
        }
        // Programs by their place in the object, devices and CPUs as they are.
        ProgArray | Devmap | DevmapHash | Cpumap => {
            let at = if spec.map_type == ProgArray { 0 } else { 4 };
            let ids: Vec<_> = (0..object.programs.len()).map(|p| side.program_id(p)).collect();
            let value = |key: &Vec<u8>| {
                let mut value = side.lookup(map, key).ok()?;
                if let Some(id) = value.get_mut(at..at + 4)
                    && let Some(place) =
                        ids.iter().position(|known| known.map(u32::to_ne_bytes).as_ref().map(|k| &k[..]) == Some(id))
                {
                    id.copy_from_slice(&(place as u32).to_be_bytes());
                }
                Some((key.clone(), value))
            };
            Some(side.keys(map).iter().filter_map(value).collect())
        }
        Queue | Stack => Some(numbered(std::iter::from_fn(|| side.pop(map)))),
        Ringbuf => Some(numbered(side.records(map).into_iter())),
        _ => None,
    }
}

fn numbered(values: impl Iterator<Item = Vec<u8>>) -> Contents {
    values.zip(0u32..).map(|(value, number)| (number.to_be_bytes().to_vec(), value)).collect()
}

pub struct InKernel {
    pub loaded: KernelObject,
}

impl InKernel {
    /// Errors say which program the kernel refuses, and its log.
    pub fn load(object: &Object) -> Result<InKernel, KernelError> {
        Ok(InKernel { loaded: KernelObject::load(object)? })
    }
}

impl Side for InKernel {
    fn run(&mut self, program: usize, packet: &[u8]) -> Run {
        let program = self.loaded.programs[program].as_ref().expect("checked by the caller");
        let out = program.test_run(&TestInput::packet(packet)).expect("a packet of 14 bytes to a page runs");
        Run { ret: out.ret, bytes: out.data, fault: None }
    }

    fn update(&self, map: usize, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.loaded.maps[map].update(key, value, 0)
    }

    fn put_program(&self, map: usize, key: u32, program: usize) {
        let program = self.loaded.programs[program].as_ref().expect("the kernel takes it");
        self.loaded.maps[map].update_fd(&key.to_ne_bytes(), program.as_fd(), 0).expect("room in the array");
    }

    fn lookup(&self, map: usize, key: &[u8]) -> Result<Vec<u8>, Errno> {
        self.loaded.maps[map].get(key)
    }

    fn program_id(&self, program: usize) -> Option<u32> {
        Some(self.loaded.programs[program].as_ref().ok()?.info().expect("a loaded program").id)
    }

    fn keys(&self, map: usize) -> Vec<Vec<u8>> {
        self.loaded.maps[map].keys().expect("keys")
    }

    fn pop(&self, map: usize) -> Option<Vec<u8>> {
        let map = &self.loaded.maps[map];
        let mut value = vec![0; map.user_value_size()];
        map.lookup_and_delete(&[], &mut value, 0).is_ok().then_some(value)
    }

    fn records(&self, map: usize) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        let mut ring = KernelRing::open(&self.loaded.maps[map]).expect("a ring buffer");
        ring.drain(&mut |record| records.push(record.to_vec()));
        records
    }
}

/// How our side runs programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    Interpreter,
    /// Compiled, a packet at a time.
    Single,
    /// Compiled, as a burst (of one packet: the other side takes one at a time).
    Burst,
}

pub struct Ours {
    instance: Instance,
    pool: Pool,
    host: SystemHost,
    engine: Engine,
    /// By program; empty in the interpreter.
    code: Vec<Option<Arc<Compiled>>>,
}

impl Ours {
    /// Creates the maps and compiles, where that is asked for, every program that verifies: tail calls go from one to the
    /// other. The error says why the program with this index is not compiled.
    pub fn load(object: &Arc<Object>, program: usize, engine: Engine) -> Result<Ours, String> {
        let instance = Instance::new(object.clone(), possible_cpus()).expect("an instance");
        let pool = Pool::new(PoolConfig::default()).expect("packet memory");
        let mut code = Vec::new();
        if engine != Engine::Interpreter {
            for (n, image) in object.programs.iter().enumerate() {
                let compiled = compiled(&instance, object, n, image);
                match compiled {
                    Err(why) if n == program => return Err(why),
                    compiled => code.push(compiled.ok()),
                }
            }
        }
        Ok(Ours { instance, pool, host: SystemHost::new(), engine, code })
    }
}

fn compiled(
    instance: &Instance,
    object: &Object,
    index: usize,
    image: &xway_object::Program,
) -> Result<Arc<Compiled>, String> {
    let image = image.as_xdp().unwrap_or_else(|_| image.clone());
    let proof = verify(&image, &MapsView::from(object), &Config::default());
    let proof = proof.map_err(|r| format!("not verified: {}", r.errors[0].message))?;
    let program = instance.program(index).map_err(|e| e.to_string())?;
    // However small the maps are, their memory is fetched ahead.
    let options = xway_jit::Options { stage_from: Some(0), ..xway_jit::Options::default() };
    let code = xway_jit::compile(&program, &proof, &options).map_err(|e| e.to_string())?;
    code.keep_with(&program);
    Ok(code)
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.instance.maps().iter().for_each(|m| m.clear_programs());
    }
}

impl Side for Ours {
    fn run(&mut self, program: usize, packet: &[u8]) -> Run {
        let index = program;
        let program = self.instance.program(program).expect("links");
        let mut frame = self.pool.alloc().expect("a free frame");
        // What lies around a packet is anybody's guess; in a test run of the kernel it is zero.
        frame.chunk_mut().fill(0);
        frame.fill(packet).expect("room for a packet");
        frame.set_ingress(1, 0);
        let guard = Guard::pin();
        let (ret, fault) = match self.code.get(index).and_then(Option::as_ref) {
            None => {
                let outcome = xway_vm::run(&program, &mut frame, &mut Env::new(&guard, &self.host, 0));
                (outcome.ret, outcome.fault.map(|fault| fault.to_string()))
            }
            Some(code) => {
                let mut env = RunEnv::new(&guard, &self.host, 0);
                let mut ret = [0];
                match self.engine {
                    Engine::Burst => {
                        code.run_burst(std::slice::from_mut(&mut frame), &mut env, &mut ret).expect("CPU 0 exists");
                    }
                    _ => ret[0] = code.run_one(&mut frame, &mut env).expect("CPU 0 exists"),
                }
                (ret[0], env.take_faults().first().map(|fault| fault.1.to_string()))
            }
        };
        let bytes = [frame.meta(), frame.packet()].concat();
        self.pool.release(frame);
        Run { ret: ret as u32, bytes, fault }
    }

    fn update(&self, map: usize, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.instance.maps()[map].update(key, value, 0)
    }

    fn put_program(&self, map: usize, key: u32, program: usize) {
        let fd = self.instance.program_fd(program).expect("links");
        self.update(map, &key.to_ne_bytes(), &fd.to_ne_bytes()).expect("room in the array");
    }

    fn lookup(&self, map: usize, key: &[u8]) -> Result<Vec<u8>, Errno> {
        let map = &self.instance.maps()[map];
        let mut value = vec![0; map.user_value_size()];
        map.lookup(key, &mut value, 0).map(|()| value)
    }

    fn program_id(&self, program: usize) -> Option<u32> {
        Some(self.instance.program(program).ok()?.id())
    }

    fn keys(&self, map: usize) -> Vec<Vec<u8>> {
        self.instance.maps()[map].keys().expect("keys")
    }

    fn pop(&self, map: usize) -> Option<Vec<u8>> {
        let map = &self.instance.maps()[map];
        let mut value = vec![0; map.user_value_size()];
        map.lookup_and_delete(&[], &mut value, 0).is_ok().then_some(value)
    }

    fn records(&self, map: usize) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        let ring = self.instance.maps()[map].ringbuf().expect("a ring buffer");
        ring.consume(usize::MAX, &mut |record| records.push(record.to_vec())).expect("nobody else reads");
        records
    }
}
