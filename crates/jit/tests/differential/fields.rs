//! Fields of a packet that are compared one behind the other, and what becomes one comparison of a word: fields of every length, put
//! together, turned, shifted and masked in every way, some of them used or written besides, over packets that match but for a bit.

use std::fmt::Write as _;
use std::sync::Arc;

use xway_jit::{Options, compile};
use xway_object::{Object, Program};
use xway_testkit::Rng;
use xway_verifier::{Config, MapsView, verify};
use xway_vm::Instance;

use crate::engines::{Outcome, compare};

/// What the packet that matches begins with.
const LEN: usize = 40;

/// Loads a field into r5, and says what it is for the packet that matches.
fn field(rng: &mut Rng, packet: &[u8], (near, base): (usize, usize), text: &mut String) -> u64 {
    let len = [1, 1, 1, 2, 2, 2, 4, 8][rng.below(8) as usize];
    let at = (near + rng.below(8) as usize).min(LEN - len);
    let bytes = &packet[at..at + len];
    let little = bytes.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
    let mut value = if len > 1 && rng.one_in(2) {
        // Byte by byte, as clang reads packed headers, in either order.
        let big = rng.one_in(3);
        *text += "r5 = 0\n";
        for n in 0..len {
            let shift = 8 * if big { len - 1 - n } else { n };
            let at = (at + n) as i64 - base as i64;
            let _ = writeln!(text, "r3 = *(u8 *)(r2 {at:+})\nr3 <<= {shift}\nr5 |= r3");
        }
        if big { little.swap_bytes() >> (64 - 8 * len) } else { little }
    } else {
        let _ = writeln!(text, "r5 = *(u{} *)(r2 {:+})", 8 * len, at as i64 - base as i64);
        little
    };
    for _ in 0..rng.below(4).saturating_sub(1) {
        let bits = rng.below(12);
        value = match rng.below(6) {
            0 | 1 => {
                let mask = if rng.one_in(2) { 0xf << bits } else { 1 + rng.below(0x7fff_ffff) };
                let _ = writeln!(text, "r5 &= {mask}");
                value & mask
            }
            2 => {
                let _ = writeln!(text, "r5 >>= {bits}");
                value >> bits
            }
            3 => {
                let _ = writeln!(text, "r5 <<= {bits}");
                value << bits
            }
            4 => {
                *text += "r5 = be16 r5\n";
                u64::from((value as u16).swap_bytes())
            }
            _ => {
                let _ = writeln!(text, "w5 &= 0xff0f");
                value & 0xff0f
            }
        };
    }
    value
}

/// Packets that are too short leave at once; others go on as long as a field is what it is in the packet that matches.
fn program(rng: &mut Rng, packet: &[u8]) -> String {
    let mut text = format!(
        "r2 = *(u32 *)(r1 +0)\nr4 = *(u32 *)(r1 +4)\nr3 = r2\nr3 += {LEN}\nr0 = 1\nr6 = 0\nif r3 > r4 goto out\n"
    );
    // Now and then the pointer is moved first, as behind a header of variable length, so that fields lie in front of it, too.
    let base = if rng.one_in(4) {
        let (front, more) = (8 + rng.below(12) as usize, usize::from(packet[0] & 7));
        let _ = writeln!(text, "r5 = *(u8 *)(r2 +0)\nr5 &= 7\nr2 += {front}\nr2 += r5");
        let rest = LEN - front - more;
        let _ = writeln!(text, "r3 = r2\nr3 += {rest}\nif r3 > r4 goto out");
        front + more
    } else {
        0
    };
    let first = if base == 0 { 0 } else { 7 };
    let mut near = first + rng.below(24 - first as u64) as usize;
    for _ in 0..2 + rng.below(3) {
        let mut value = field(rng, packet, (near, base), &mut text);
        // Now and then nothing can match.
        value = if rng.one_in(20) { value ^ 1 << rng.below(16) } else { value };
        if rng.one_in(8) {
            text += "r6 += r5\n";
        }
        if rng.one_in(16) {
            let at = near + rng.below(8) as usize;
            let off = at as i64 - base as i64;
            let _ = writeln!(text, "*(u8 *)(r2 {off:+}) = {}", if rng.one_in(2) { packet[at] } else { 7 });
        }
        // Most are compared with a number, as clang does it; what does not fit stands in a register.
        match i32::try_from(value) {
            Ok(value) => writeln!(text, "if r5 != {value} goto out"),
            Err(_) => writeln!(text, "r3 = {value} ll\nif r5 != r3 goto out"),
        }
        .expect("text");
        if rng.one_in(8) {
            near = first + rng.below(24 - first as u64) as usize;
        }
    }
    text + "r0 = r6\nr0 &= 0xffff\nr0 += 2\nout: exit"
}

/// The one that matches, some that differ in one bit, and some of another length.
fn packets(rng: &mut Rng, packet: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![packet.to_vec(), packet[..LEN - 1].to_vec(), vec![0; 64]];
    for bit in 0..8 * LEN {
        let mut other = packet.to_vec();
        other[bit / 8] ^= 1 << (bit % 8);
        all.push(other);
    }
    // In an order in which neighbours in a burst differ.
    for n in (1..all.len()).rev() {
        all.swap(n, rng.below(n as u64 + 1) as usize);
    }
    all
}

/// `XWAY_SEED` and `XWAY_COUNT` for others and more of them.
#[test]
fn fields_compared_together() {
    let mut rng = Rng::new(crate::number("XWAY_SEED", 31));
    let count = crate::number("XWAY_COUNT", 60);
    let mut together = 0;
    for _ in 0..count {
        // Bytes of which some are alike, so that fields meet in what they want.
        let packet: Vec<u8> = (0..LEN).map(|_| if rng.one_in(3) { 0x45 } else { rng.below(256) as u8 }).collect();
        let text = program(&mut rng, &packet);
        let insns = xway_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let image = Program { name: "fields".into(), section: "xdp".into(), insns, ..Program::default() };
        let object = Arc::new(Object { programs: vec![image], license: Some("GPL".into()), ..Object::default() });
        together += u64::from(is_one_comparison(&object));
        for burst in packets(&mut rng, &packet).chunks(64) {
            match compare(&object, 0, burst, &|_| {}) {
                Outcome::Same => {}
                Outcome::Unverified | Outcome::Apart => panic!("is refused, or runs for long\n{text}"),
                Outcome::NotCompiled(why) => panic!("{why}\n{text}"),
                Outcome::Differs(how) => panic!("{how}\n{text}"),
            }
        }
    }
    assert!(together > count / 8, "in {together} of {count} fields are compared together");
}

/// A field in front of the place that a pointer was moved to: its bits are counted downwards from there.
#[test]
fn fields_in_front_of_a_pointer() {
    // The half of a byte in front of the pointer that its lowest bit is not part of, and the byte behind it.
    let text = "r2 = *(u32 *)(r1 +0)\nr4 = *(u32 *)(r1 +4)\nr0 = 1\nr3 = r2\nr3 += 1\nif r3 > r4 goto out\n\
                r5 = *(u8 *)(r2 +0)\nr5 &= 15\nr2 += 4\nr2 += r5\nr3 = r2\nr3 += 8\nif r3 > r4 goto out\n\
                r5 = *(u8 *)(r2 -1)\nr5 &= 0xf0\nif r5 != 0x40 goto out\n\
                r5 = *(u8 *)(r2 +0)\nif r5 != 6 goto out\nr0 = 2\nout: exit";
    let insns = xway_isa::assemble(text).expect("a program");
    let image = Program { name: "fields".into(), section: "xdp".into(), insns, ..Program::default() };
    let object = Arc::new(Object { programs: vec![image], license: Some("GPL".into()), ..Object::default() });
    let packet = |at: usize, front: u8, behind: u8| {
        let mut packet = vec![0x55; 40];
        packet[0] = at as u8;
        (packet[3 + at], packet[4 + at]) = (front, behind);
        packet
    };
    let all = [(0x40, 6), (0x4f, 6), (0x50, 6), (0, 6), (0xc0, 6), (0x40, 7), (6, 0x40)];
    let burst: Vec<Vec<u8>> = (0..4).flat_map(|at| all.map(|(front, behind)| packet(5 * at, front, behind))).collect();
    match compare(&object, 0, &burst, &|_| {}) {
        Outcome::Same => {}
        Outcome::Unverified | Outcome::Apart => panic!("is refused, or runs for long"),
        Outcome::NotCompiled(how) | Outcome::Differs(how) => panic!("{how}"),
    }
}

/// Whether fewer branches are left with the pass than without it.
fn is_one_comparison(object: &Arc<Object>) -> bool {
    let instance = Instance::new(object.clone(), 1).expect("an instance");
    let proof = verify(&object.programs[0], &MapsView::from(&**object), &Config::default()).expect("a proof");
    let program = instance.link(&object.programs[0]).expect("links");
    let left = |checks| {
        let options = Options { keep_text: true, single: false, checks, ..Options::default() };
        let code = compile(&program, &proof, &options).expect("compiles");
        // What becomes one check by what it differs in has an operation for each field instead.
        let count = |text: &String| text.matches("brif").count() + 8 * text.matches("bxor").count();
        code.texts().iter().map(count).sum::<usize>()
    };
    left(true) < left(false)
}
