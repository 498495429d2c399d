//! Real programs to make mutants of, and packets that reach their inner parts.

use std::sync::Arc;

use xway_kernel::vmlinux;
use xway_object::{LoadOptions, Object, Program, ProgramKind};
use xway_testkit::Rng;
use xway_testkit::packets::mixed_set;

use super::oracle::Place;

/// Programs of one object file, with its maps.
pub struct Real {
    /// Name of the file.
    pub name: String,
    /// Maps on both sides.
    pub place: Place,
    /// XDP programs.
    pub programs: Vec<Program>,
}

/// The objects that can be loaded at all; what cannot is said.
pub fn real_programs(paths: &[String]) -> Vec<Real> {
    let mut out = Vec::new();
    for path in paths {
        match read(path) {
            Ok(real) if !real.programs.is_empty() => out.push(real),
            Ok(_) => {}
            Err(why) => eprintln!("{path}: left out: {why}"),
        }
    }
    out
}

fn read(path: &str) -> Result<Real, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    from_bytes(path, &bytes)
}

/// The same from memory.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Real, String> {
    let options = LoadOptions { target_btf: vmlinux(), ..LoadOptions::default() };
    let mut object = Object::parse(bytes, &options).map_err(|e| e.to_string())?;
    let programs = std::mem::take(&mut object.programs);
    // Lines cost time on both sides and change no verdict; their records would not fit what is changed.
    let programs: Vec<Program> = programs
        .into_iter()
        .filter(|p| !matches!(p.kind, ProgramKind::Other(_)))
        .map(|p| Program { line_info: Vec::new(), ..p })
        .collect();
    // Slots that name programs would need them loaded.
    for map in &mut object.maps {
        if let xway_object::Initial::Slots(slots) = &mut map.initial {
            slots.retain(|s| matches!(s.1, xway_object::SlotRef::Map(_)));
        }
    }
    Ok(Real { name: name.to_owned(), place: Place::new(Arc::new(object))?, programs })
}

/// A packet, and what stands in front of it.
#[derive(Clone)]
pub struct Sent {
    /// Bytes of metadata.
    pub meta: usize,
    /// These and the packet.
    pub bytes: Vec<u8>,
}

/// Makes packets: real shapes with a few bytes changed, and noise.
pub struct Packets {
    shapes: Vec<Vec<u8>>,
}

impl Default for Packets {
    /// The shapes of the test kit.
    fn default() -> Packets {
        let shapes = mixed_set().into_iter().map(|n| n.bytes).filter(|b| (14..=1500).contains(&b.len())).collect();
        Packets { shapes }
    }
}

impl Packets {
    /// One for a program that takes several buffers or does not, now and then with metadata.
    pub fn sent(&self, rng: &mut Rng, several: bool) -> Sent {
        let packet = if several { self.next_of_several(rng) } else { self.next(rng) };
        let meta = if rng.one_in(3) { *rng.pick(&[4, 4, 8, 8, 12, 32, 200]) } else { 0 };
        Sent { meta, bytes: [rng.bytes(meta), packet].concat() }
    }

    /// One packet that may have several buffers, in the kernel's test run 3520 bytes and pages behind these.
    pub fn next_of_several(&self, rng: &mut Rng) -> Vec<u8> {
        let mut packet = self.next(rng);
        if rng.one_in(2) {
            let len = *rng.pick(&[3520, 3521, 3540, 3600, 7616, 7617, 7650, 12_000]);
            packet.extend((packet.len()..len).map(|n| (n * 13 + n / 241) as u8));
        }
        packet
    }

    /// One packet, at least 14 bytes long.
    pub fn next(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.one_in(3) {
            let len = *rng.pick(&[14, 15, 18, 33, 34, 42, 54, 60, 64, 65, 100, 300]);
            return rng.bytes(len);
        }
        let mut packet = rng.pick(&self.shapes).clone();
        for _ in 0..rng.below(4) {
            let i = rng.index(packet.len());
            packet[i] = rng.u32() as u8;
        }
        if rng.one_in(4) {
            packet.truncate(14 + rng.index(packet.len() - 13));
        }
        packet
    }
}
