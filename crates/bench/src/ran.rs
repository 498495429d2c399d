//! Does machine code do what the interpreter does? Asked of a program that was just compiled, over a handful of packets.

use std::sync::Arc;

use xway_abi::MapType;
use xway_jit::{Compiled, RunEnv};
use xway_maps::{Guard, Map};
use xway_object::{Object, Program};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::Verified;
use xway_vm::{Env, FixedHost, Instance};

use crate::packet::template;
use crate::settled::unsettled;

/// What machine code was held against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Packets that went through it.
    pub packets: usize,
    /// Why verdicts, bytes and maps need not be the interpreter's: see [`unsettled`], or the interpreter stops
    /// the program because it takes so long.
    pub not_compared: Option<String>,
    /// What differed.
    pub differs: Option<String>,
}

/// Instructions that a packet may take in the interpreter.
const BUDGET: u64 = 2_000_000;
/// Maps with more room are not compared.
const ELEMENTS: u32 = 1 << 16;

/// Packets of several kinds and lengths: UDP, TCP, IPv6, a tag, nothing known, nothing at all.
fn packets() -> Vec<Vec<u8>> {
    let udp = template(64);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = udp.clone();
        change(&mut packet);
        packet
    };
    vec![
        udp.clone(),
        template(1400),
        changed(&|p| p[23] = 6),
        changed(&|p| p[22] = 1),
        changed(&|p| (p[12], p[13], p[14], p[20]) = (0x86, 0xdd, 0x60, 17)),
        changed(&|p| drop(p.splice(12..12, [0x81, 0, 0, 5]))),
        changed(&|p| (p[12], p[13]) = (0x12, 0x34)),
        vec![0x5a; 14],
    ]
}

/// Runs the code, as one burst, and the interpreter over the same packets, each with maps of its own.
pub fn run(object: &Arc<Object>, image: &Program, proof: &Verified, code: &Compiled, own: &Instance) -> Ran {
    let packets = packets();
    let mut ran = Ran { packets: packets.len(), not_compared: unsettled(object, proof), differs: None };
    match both(object, image, code, own, &packets, ran.not_compared.is_none()) {
        Ok(None) => ran.not_compared = ran.not_compared.or_else(|| Some("too long for the interpreter".into())),
        Ok(Some(differs)) => ran.differs = Some(differs).filter(|d| !d.is_empty()),
        Err(why) => ran.differs = Some(why),
    }
    ran
}

/// In words what differs, empty for nothing; `None` when it cannot be told.
fn both(
    object: &Arc<Object>,
    image: &Program,
    code: &Compiled,
    own: &Instance,
    packets: &[Vec<u8>],
    settled: bool,
) -> Result<Option<String>, String> {
    let interpreted = Instance::new(object.clone(), 1).map_err(|e| e.to_string())?;
    let program = interpreted.link(image).map_err(|e| e.to_string())?;
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut expected = Vec::new();
    let mut pool = Pool::new(PoolConfig::new(packets.len() as u32)).map_err(|e| e.to_string())?;
    let mut frames = Vec::new();
    for packet in packets {
        frames.push(filled(&mut pool, packet)?);
    }
    let mut long = false;
    for frame in &mut frames {
        let outcome = xway_vm::run(&program, frame, &mut Env::new(&guard, &host, 0).with_budget(BUDGET));
        long |= outcome.fault.is_some();
        expected.push((outcome.ret as u32, frame.packet().to_vec()));
    }
    frames.drain(..).for_each(|frame| pool.release(frame));
    if long {
        return Ok(None);
    }
    for packet in packets {
        frames.push(filled(&mut pool, packet)?);
    }
    let (mut env, mut verdicts) = (RunEnv::new(&guard, &host, 0), vec![0; packets.len()]);
    let done = code.run_burst(&mut frames, &mut env, &mut verdicts).map_err(|e| e.to_string());
    let got: Vec<_> = frames.iter().zip(&verdicts).map(|(f, v)| (*v as u32, f.packet().to_vec())).collect();
    frames.drain(..).for_each(|frame| pool.release(frame));
    done?;
    if let Some((_, fault)) = env.take_faults().first() {
        return Err(format!("machine code stops: {fault}"));
    }
    if !settled {
        return Ok(None);
    }
    for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
        if got != expected {
            let bytes = if got.1 == expected.1 { "" } else { ", and other bytes" };
            return Ok(Some(format!("packet {n}: {} instead of {}{bytes}", got.0, expected.0)));
        }
    }
    let maps = own.maps().iter().zip(interpreted.maps());
    let other = maps.filter(|(own, _)| comparable(own)).find(|(own, other)| values(own) != values(other));
    Ok(Some(other.map_or_else(String::new, |(own, _)| format!("map {} holds something else", own.name()))))
}

fn filled(pool: &mut Pool, packet: &[u8]) -> Result<Frame, String> {
    let mut frame = pool.alloc().map_err(|e| e.to_string())?;
    // What lies around a packet is the same for both.
    frame.chunk_mut().fill(0);
    let full = frame.fill(packet).map_err(|e| e.to_string());
    frame.set_ingress(1, 0);
    match full {
        Ok(()) => Ok(frame),
        Err(why) => {
            pool.release(frame);
            Err(why)
        }
    }
}

fn comparable(map: &Map) -> bool {
    use MapType::{Array, Hash, LpmTrie, PercpuArray, PercpuHash};
    matches!(map.map_type(), Array | Hash | LpmTrie | PercpuArray | PercpuHash) && map.spec().max_entries <= ELEMENTS
}

fn values(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let value = |key: &Vec<u8>| {
        let mut value = vec![0; map.user_value_size()];
        map.lookup(key, &mut value, 0).map_or_else(|_| Vec::new(), |()| value)
    };
    let mut all: Vec<_> = map.keys().unwrap_or_default().into_iter().map(|key| (key.clone(), value(&key))).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_jit::{Options, compile};
    use xway_verifier::{Config, MapsView, verify};

    fn ran(text: &str, compiled: &str) -> Ran {
        let image = |text: &str| Program {
            name: "p".into(),
            section: "xdp".into(),
            insns: xway_isa::assemble(text).unwrap(),
            ..Program::default()
        };
        let object = Arc::new(Object::default());
        let own = Instance::new(object.clone(), 1).unwrap();
        let other = image(compiled);
        let proof = verify(&other, &MapsView::from(&*object), &Config::default()).unwrap();
        let code = compile(&own.link(&other).unwrap(), &proof, &Options::default()).unwrap();
        run(&object, &image(text), &proof, &code, &own)
    }

    #[test]
    fn code_of_another_program_is_noticed() {
        let length = "r2 = *(u32 *)(r1 + 4)\nr1 = *(u32 *)(r1 + 0)\nr2 -= r1\nr0 = r2\nexit\n";
        let same = ran(length, length);
        assert_eq!(same, Ran { packets: packets().len(), not_compared: None, differs: None });
        let other = ran(length, "r0 = 64\nexit\n");
        assert_eq!(other.differs.as_deref(), Some("packet 1: 64 instead of 1400"));
        let writes = "r2 = *(u32 *)(r1 + 4)\nr1 = *(u32 *)(r1 + 0)\nr3 = r1\nr3 += 14\nif r3 > r2 goto +1\n\
                      *(u8 *)(r1 + 0) = r10\nr0 = 1\nexit\n";
        let writes = writes.replace("r10", "1");
        let bytes = ran("r0 = 1\nexit\n", &writes);
        assert_eq!(bytes.differs.as_deref(), Some("packet 0: 1 instead of 1, and other bytes"));
    }

    #[test]
    fn chance_is_not_compared() {
        let chance = "call 7\nexit\n";
        let not_compared = Some("random numbers".to_owned());
        assert_eq!(ran(chance, chance), Ran { packets: packets().len(), not_compared, differs: None });
    }
}
