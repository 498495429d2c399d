//! One program in the kernel, in the interpreter and as machine code, behind both verifiers.

use std::sync::Arc;

use xway_jit::{Compiled, Options, RunEnv, compile};
use xway_kernel::{KernelObject, TestInput};
use xway_maps::Guard;
use xway_object::{MapDef, Object, Program};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::{Env, FixedHost, Instance, Timers};

/// A packet that says nothing.
const PACKET: [u8; 64] = [0; 64];

/// What a run leaves: r0, and the value of the first map where the object has one.
#[derive(PartialEq, Eq, Debug)]
pub struct Left {
    /// The return value.
    pub ret: u32,
    /// The value at key 0.
    pub value: Vec<u8>,
}

/// A program, loaded everywhere.
pub struct Machines {
    kernel: Option<KernelObject>,
    instance: Instance,
    program: Arc<xway_vm::Program>,
    compiled: Vec<(&'static str, Arc<Compiled>)>,
    pool: Pool,
}

impl Machines {
    /// Loads the first program of an object: into the kernel when it is asked, behind our verifier, and compiled with each of
    /// the options.
    pub fn new(object: Arc<Object>, kernel: bool, options: &[(&'static str, Options)]) -> Result<Machines, String> {
        let kernel = match kernel {
            false => None,
            true => {
                let loaded = KernelObject::load(&object).map_err(|e| e.to_string())?;
                loaded.programs[0].as_ref().map_err(|e| format!("the kernel refuses it: {e}"))?;
                Some(loaded)
            }
        };
        let image = &object.programs[0];
        let proof = verify(image, &MapsView::from(&*object), &Config::default())
            .map_err(|r| format!("we refuse it: instruction {}: {}", r.errors[0].insn, r.errors[0].message))?;
        let instance = Instance::new(object.clone(), 2).map_err(|e| e.to_string())?;
        let program = instance.link(image).map_err(|e| e.to_string())?;
        let one = |(name, options): &(&'static str, Options)| {
            let code = compile(&program, &proof, options).map_err(|e| format!("{name}: it is not compiled: {e}"))?;
            Ok((*name, code))
        };
        let compiled = options.iter().map(one).collect::<Result<_, String>>()?;
        let pool = Pool::new(PoolConfig::new(1)).map_err(|e| e.to_string())?;
        Ok(Machines { kernel, instance, program, compiled, pool })
    }

    /// Makes the object of a program of instructions alone, with these maps.
    pub fn object(insns: Vec<xway_isa::Slot>, maps: Vec<MapDef>) -> Arc<Object> {
        let program = Program { name: "isa".into(), section: "xdp".into(), insns, ..Program::default() };
        Arc::new(Object { programs: vec![program], maps, license: Some("GPL".to_owned()), ..Object::default() })
    }

    /// Runs over one input everywhere: who it was, and what it left. The interpreter comes first.
    pub fn run(&mut self, input: &[u8]) -> Result<Vec<(&'static str, Left)>, String> {
        let mut all = vec![("interpreter", self.interpret(input)?)];
        for n in 0..self.compiled.len() {
            let (name, code) = self.compiled[n].clone();
            let (guard, host, timers) = (Guard::pin(), FixedHost::new(1), Timers::default());
            self.put(input)?;
            let mut env = RunEnv::new(&guard, &host, 0).with_timers(&timers);
            let mut frame = self.frame()?;
            let ret = code.run_one(&mut frame, &mut env).map_err(|e| e.to_string());
            self.pool.release(frame);
            if let Some((_, fault)) = env.take_faults().first() {
                return Err(format!("{name} stops: {fault}"));
            }
            all.push((name, Left { ret: ret? as u32, value: self.value()? }));
        }
        if let Some(kernel) = &self.kernel {
            let map = kernel.maps.first();
            if let Some(map) = map {
                map.update(&[0; 4], input, 0).map_err(|e| format!("the kernel's map: {e}"))?;
            }
            let program = kernel.programs[0].as_ref().map_err(|e| e.to_string())?;
            let out = program.test_run(&TestInput::packet(&PACKET)).map_err(|e| format!("the kernel's run: {e}"))?;
            let value = map.map_or(Ok(vec![]), |m| m.get(&[0; 4])).map_err(|e| format!("the kernel's map: {e}"))?;
            all.push(("kernel", Left { ret: out.ret, value }));
        }
        Ok(all)
    }

    fn interpret(&mut self, input: &[u8]) -> Result<Left, String> {
        let (guard, host, timers) = (Guard::pin(), FixedHost::new(1), Timers::default());
        self.put(input)?;
        let mut env = Env::new(&guard, &host, 0).with_timers(&timers);
        let mut frame = self.frame()?;
        let out = xway_vm::run(&self.program, &mut frame, &mut env);
        self.pool.release(frame);
        match out.fault {
            Some(fault) => Err(format!("accepted, and the interpreter stops: {fault}")),
            None => Ok(Left { ret: out.ret as u32, value: self.value()? }),
        }
    }

    fn frame(&mut self) -> Result<Frame, String> {
        let mut frame = self.pool.alloc().map_err(|e| e.to_string())?;
        frame.fill(&PACKET).map_err(|e| e.to_string())?;
        Ok(frame)
    }

    fn put(&self, input: &[u8]) -> Result<(), String> {
        let put = |m: &Arc<xway_maps::Map>| m.update(&[0; 4], input, 0).map_err(|e| format!("our map: {e}"));
        self.instance.maps().first().map_or(Ok(()), put)
    }

    fn value(&self) -> Result<Vec<u8>, String> {
        let Some(map) = self.instance.maps().first() else { return Ok(vec![]) };
        let mut value = vec![0; map.user_value_size()];
        map.lookup(&[0; 4], &mut value, 0).map_err(|e| format!("our map: {e}"))?;
        Ok(value)
    }
}
