//! Helpers of text and of the worker, by the short ways in, against the interpreter.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_object::{Initial, MapDef, Object, Program};

use crate::engines::{Outcome, compare};

/// Runs a program over packets; `text` is a constant, which the first map holds with a zero behind it.
fn agree(name: &str, body: &str, text: &[u8], packets: &[Vec<u8>]) {
    let insns = xway_isa::assemble(body).unwrap_or_else(|e| panic!("{e}\n{body}"));
    let image = Program { name: "text".into(), section: "xdp".into(), insns, ..Program::default() };
    let bytes = [text, &[0]].concat();
    let spec = MapSpec { flags: map_flags::RDONLY_PROG, ..MapSpec::new(MapType::Array, 4, bytes.len() as u32, 1) };
    let map = MapDef { initial: Initial::Data(bytes), frozen: true, ..MapDef::new("constant", spec) };
    let object = Object { programs: vec![image], maps: vec![map], license: Some("GPL".into()), ..Object::default() };
    match compare(&Arc::new(object), 0, packets, &|_| ()) {
        Outcome::Same => {}
        Outcome::Differs(how) => panic!("{name}: {how}\n{body}"),
        Outcome::NotCompiled(why) => panic!("{name}: not compiled: {why}\n{body}"),
        Outcome::Unverified | Outcome::Apart => panic!("{name}: refused, or not compared\n{body}"),
    }
}

/// Packets with these bytes behind the Ethernet header, filled up with zeros.
fn packets<'t>(texts: impl IntoIterator<Item = &'t [u8]>) -> Vec<Vec<u8>> {
    let packet = |text: &[u8]| [&[1; 14], text, &vec![0; 64 - text.len()][..]].concat();
    texts.into_iter().map(packet).collect()
}

/// Sixteen bytes of the packet on the stack, the context in r6.
const LOAD: &str = "r6 = r1\nr2 = 14\nr3 = r10\nr3 += -16\nr4 = 16\ncall 189\nif r0 != 0 goto out\n";

#[test]
fn texts_are_compared_up_to_where_they_differ_or_end() {
    let texts =
        ["", "a", "host", "host: x", "host: xy", "host: xyz and mor", "host: xyz and more than that", "h\u{fc}"];
    let padded: Vec<Vec<u8>> = texts.iter().map(|t| [t.as_bytes(), &[0; 16]].concat()[..16].to_vec()).collect();
    let packets = packets(padded.iter().map(|t| &t[..]));
    for (text, len) in texts.iter().flat_map(|text| [1, 5, 7, 8, 15, 16].map(|len| (text, len))) {
        let tell = format!("r2 = {len}\nr3 = map[idx:0][0]+0\ncall 182\nr0 += 5\nout: exit");
        agree("on the stack", &format!("{LOAD}r1 = r10\nr1 += -16\n{tell}"), text.as_bytes(), &packets);
        let checked = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 30\nr0 = 1\nif r4 > r3 goto out\nr1 = r2\nr1 += 14\n";
        let in_packet = format!("{checked}r2 = *(u64 *)(r1 +0)\n*(u64 *)(r10 -8) = r2\nr1 = r10\nr1 += -8\n");
        agree(
            "of a word",
            &format!("{in_packet}{}", tell.replace(&format!("r2 = {len}"), "r2 = 8")),
            text.as_bytes(),
            &packets,
        );
    }
}

#[test]
fn numbers_are_read_beside_their_result_and_over_it() {
    let texts = [
        "0",
        "12345",
        " -17",
        "\t+4",
        "-",
        "",
        "0x1fz",
        "0xg",
        "017",
        "9223372036854775807"[..16].as_ref(),
        "-99999999999999",
        "77777777777777777"[..16].as_ref(),
        "ffffffffffffffff",
        "0x8000000000000",
        "-0",
        "1-",
        "\u{b}08",
    ];
    let packets = packets(texts.iter().map(|t| t.as_bytes()));
    for (helper, base) in [105, 106].into_iter().flat_map(|h| [0, 8, 10, 16, 7, 32].map(|base| (h, base))) {
        // Apart, one behind the other, the result over either half of the text, and a text that begins in its middle.
        for (text, len, result) in [(-16, 16, -24), (-16, 8, -8), (-16, 16, -16), (-16, 16, -8), (-12, 12, -16)] {
            let body = format!(
                "{LOAD}r1 = 77\n*(u64 *)(r10 -24) = r1\nr1 = r10\nr1 += {text}\nr2 = {len}\nr3 = {base}\nr4 = r10\nr4 += {result}\n\
                 call {helper}\nr1 = *(u64 *)(r10 -24)\nr2 = *(u64 *)(r10 -16)\nr3 = *(u64 *)(r10 -8)\n\
                 r0 *= 31\nr0 += r1\nr0 *= 31\nr0 += r2\nr0 *= 31\nr0 += r3\nout: exit"
            );
            agree(&format!("{helper} by {base}, {text} {len} {result}"), &body, b"", &packets);
        }
    }
}

#[test]
fn what_is_printed_is_what_the_interpreter_prints() {
    let numbers =
        [0u64, 1, 9, 10, 99, u64::MAX, 1 << 63, (1 << 31) - 1, 1 << 31, u64::MAX << 32, 0x1234_5678_9abc_def0];
    let both: Vec<Vec<u8>> = (0..numbers.len())
        .map(|n| [numbers[n], numbers[(n + 3) % numbers.len()]].map(u64::to_le_bytes).concat())
        .collect();
    let packets = packets(both.iter().map(|b| &b[..]));
    let formats = [
        "",
        "text",
        "%d",
        "%d %u",
        "%x,%X",
        "%lld %llu",
        "%llx %lX",
        "[%08d] [%-8d]",
        "%+d % d",
        "%c%c",
        "100%% %d",
        "%p",
        "%",
        "%d%",
        "%q",
        "%d %d %d",
        "a\u{1}b",
        "\u{e4}\u{f6} %3d",
        "%200d",
        "%-150lld|",
        "%0130x",
    ];
    for (format, size) in formats.iter().flat_map(|f| [0u32, 1, 4, 40, 160].map(|size| (f, size))) {
        let buffer = format!("r1 = r10\nr1 += -{}\n", 16 + size);
        let cleared: String = (0..size.div_ceil(8)).map(|n| format!("*(u64 *)(r10 -{}) = r7\n", 24 + 8 * n)).collect();
        let out = if size == 0 { "r1 = 0\n".to_owned() } else { buffer.clone() };
        let shown = size.min(40);
        let show = match shown {
            0 => String::new(),
            _ => format!("r1 = r6\nr2 = 30\nr3 = r10\nr3 += -{}\nr4 = {shown}\ncall 190\n", 16 + size),
        };
        for data in [0, 8, 16, 12] {
            let body = format!(
                "{LOAD}r7 = 0x4141414141414141 ll\n{cleared}{out}r2 = {size}\nr3 = map[idx:0][0]+0\nr4 = r10\nr4 += -16\nr5 = {data}\n\
                 call 165\nr7 = r0\n{show}r0 = r7\nout: exit"
            );
            agree(&format!("{format:?} into {size}, {data}"), &body, format.as_bytes(), &packets);
        }
    }
}

#[test]
fn who_runs_is_said_alike_however_often() {
    for helper in [14, 15, 42, 80] {
        let body = format!(
            "r6 = 3\nr7 = 0\nmore: call {helper}\nr7 *= 31\nr7 += r0\nr6 -= 1\nif r6 != 0 goto more\nr0 = r7\nexit"
        );
        agree(&format!("helper {helper}"), &body, b"", &packets([&b""[..]; 3]));
    }
    let name = "r6 = r1\nr1 = r10\nr1 += -16\nr2 = 9\ncall 16\nr0 = *(u64 *)(r10 -16)\nexit";
    agree("name", name, b"", &packets([&b""[..]; 3]));
}
