//! What a run over one packet came to, in the words of a test run.

use xway_packet::Frame;
use xway_vm::machine::FaultKind;
use xway_vm::{Fault, Outcome};

use crate::{Compiled, RunEnv};

impl Compiled {
    /// Runs the program over one packet. A worker that it has no values for, and a run that did what no verified program does (a defect of
    /// the verifier, behind which it went on), are faults; which instruction it was is not known. Machine code counts no instructions.
    pub fn outcome(&self, frame: &mut Frame, env: &mut RunEnv<'_>) -> Outcome {
        let ran = self.run_one(frame, env);
        let wrong = env.take_faults().into_iter().next().map(|(_, kind)| kind);
        match (ran, wrong) {
            (Ok(ret), None) => Outcome { ret, fault: None, insns: 0 },
            (Ok(_), Some(kind)) => self.stopped(kind),
            (Err(refusal), _) => self.stopped(FaultKind::Call(refusal.to_string())),
        }
    }

    fn stopped(&self, kind: FaultKind) -> Outcome {
        let fault = Fault {
            program: self.name().to_owned(),
            function: String::new(),
            insn: 0,
            text: "somewhere in its machine code".to_owned(),
            line: None,
            kind,
            known: vec![],
            callers: vec![],
        };
        Outcome { ret: 0, fault: Some(Box::new(fault)), insns: 0 }
    }
}

#[cfg(test)]
mod tests {
    use xway_abi::{MapSpec, MapType};
    use xway_maps::{Guard, Map};
    use xway_object::{MapDef, Program};
    use xway_packet::{Pool, PoolConfig};
    use xway_verifier::{Config, MapsView};
    use xway_vm::FixedHost;

    use super::*;
    use crate::{Options, compile};

    #[test]
    fn what_no_verified_program_does_is_a_fault_and_so_is_a_worker_without_values() {
        let spec = MapSpec::new(MapType::PercpuArray, 4, 8, 1);
        let maps = [Map::create(&spec, &xway_maps::Env::with_cpus(1)).unwrap()];
        let defs = [MapDef::new("map", spec)];
        let view = MapsView { maps: &defs, license: Some("GPL"), ..MapsView::empty() };
        let text = "*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nr0 = 2\nexit";
        let image = Program { insns: xway_isa::assemble(text).unwrap(), ..Program::default() };
        let program = xway_vm::Program::verify(&image, &maps, &view, &Config::default()).unwrap();
        let code = compile(&program, program.proof().unwrap(), &Options::default()).unwrap();
        let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
        let mut frame = pool.alloc().unwrap();
        frame.fill(&[0; 64]).unwrap();
        let (guard, host) = (Guard::pin(), FixedHost::new(1));

        let mut env = RunEnv::new(&guard, &host, 0);
        let ran = code.outcome(&mut frame, &mut env);
        assert!(ran.ret == 2 && ran.fault.is_none(), "{ran:?}");
        env.faults.push((0, FaultKind::Call("of a helper that there is not".into())));
        let ran = code.outcome(&mut frame, &mut env);
        assert!(ran.ret == 0 && ran.fault.unwrap().to_string().contains("of a helper that there is not"));
        assert!(code.outcome(&mut frame, &mut env).fault.is_none(), "told once");

        let ran = code.outcome(&mut frame, &mut RunEnv::new(&guard, &host, 1));
        let fault = ran.fault.expect("a map for one worker").to_string();
        assert!(ran.ret == 0 && fault.contains('1'), "{fault}");
        pool.release(frame);
    }
}
