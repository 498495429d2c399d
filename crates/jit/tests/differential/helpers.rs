//! What is emitted in the place of helpers, against the interpreter: every case that the helper tells apart.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_maps::Map;
use xway_object::{MapDef, Object, Program};
use xway_vm::Instance;

use crate::engines::{Outcome, Prepare, compare};

/// Lengths around what an Ethernet header and the fields below need; the fourth byte is read by programs as their choice.
fn packets() -> Vec<Vec<u8>> {
    let mut all = vec![];
    for choice in 0..16u8 {
        for len in [14usize, 18, 60, 300] {
            let mut packet: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(29).wrapping_add(choice)).collect();
            packet[3] = choice;
            all.push(packet);
        }
    }
    all
}

/// The context in r6 and the packet's choice, 0 to 15, in r7.
const CHOICE: &str = "r6 = r1\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nr0 = 1\nif r4 > r3 goto out\n\
                      r7 = *(u8 *)(r2 +3)\nr7 &= 15\n";

fn object(body: &str, maps: Vec<MapSpec>) -> Arc<Object> {
    // Functions stand behind the main one, with its way out in front of them.
    let text = if body.contains("\nout:") { format!("{CHOICE}{body}") } else { format!("{CHOICE}{body}\nout: exit") };
    let insns = xway_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = Program { name: "helper".into(), section: "xdp".into(), insns, ..Program::default() };
    let maps = maps.into_iter().enumerate().map(|(n, spec)| MapDef::new(&format!("map{n}"), spec)).collect();
    Arc::new(Object { programs: vec![image], maps, license: Some("GPL".into()), ..Object::default() })
}

fn agree(name: &str, body: &str, maps: Vec<MapSpec>, prepare: Prepare<'_>) {
    match compare(&object(body, maps), 0, &packets(), prepare) {
        Outcome::Same => {}
        Outcome::Differs(how) => panic!("{name}: {how}"),
        Outcome::NotCompiled(why) => panic!("{name}: not compiled: {why}"),
        Outcome::Unverified | Outcome::Apart => panic!("{name}: refused, or not compared"),
    }
}

const NOTHING: Prepare<'_> = &|_: &Instance| ();

#[test]
fn random_numbers_are_the_generators() {
    agree("random", "call 7\nr8 = r0\ncall 7\nr0 ^= r8", vec![], NOTHING);
    // Calls that are not emitted go on from where emitted ones left it.
    agree(
        "random in a function",
        "call more\nr8 = r0\ncall 7\nr0 ^= r8\nout: exit\nmore: call 7\nexit",
        vec![],
        NOTHING,
    );
}

#[test]
fn room_is_made_and_refused_as_the_helpers_do() {
    // From far in front of the headroom to behind the packet; twice, because the second meets what the first left.
    for helper in [44, 54, 65] {
        for (scale, from) in [(1, -8), (4, -32), (40, -300), (0x1000_0000, i32::MIN)] {
            let body = format!(
                "r7 *= {scale}\nr7 += {from}\nr1 = r6\nr2 = r7\ncall {helper}\nr8 = r0\nr1 = r6\nr2 = r7\ncall {helper}\n\
                 r0 &= 0xffff\nr8 <<= 16\nr0 |= r8"
            );
            agree(&format!("helper {helper} by {scale}"), &body, vec![], NOTHING);
        }
        // With metadata in front of the packet, written and moved along.
        let body = format!(
            "r1 = r6\nr2 = -16\ncall 54\nr2 = *(u32 *)(r6 +8)\nr3 = *(u32 *)(r6 +0)\nr4 = r2\nr4 += 4\n\
             if r4 > r3 goto without\n*(u32 *)(r2 +0) = 77\nwithout: r7 *= 4\nr7 += -32\nr1 = r6\nr2 = r7\ncall {helper}"
        );
        agree(&format!("helper {helper} with metadata"), &body, vec![], NOTHING);
    }
}

/// Bytes that a packet gains are zero, whatever lay there, up to where the chunk ends.
#[test]
fn packets_gain_bytes_as_the_helper_gives_them() {
    for delta in [1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 14, 15, 16, 31, 63, 64, 65, 200] {
        let cut = format!("r1 = r6\nr2 = -{delta}\ncall 65\nr8 = r0\n");
        let gained = format!("r1 = r6\nr2 = {delta}\ncall 65\n");
        agree(&format!("{delta} bytes again"), &format!("{cut}{gained}r8 <<= 8\nr0 ^= r8"), vec![], NOTHING);
        let until_full = format!("{gained}r8 += r0\n").repeat(4000 / delta.max(20));
        agree(&format!("{delta} bytes and more"), &format!("r8 = 0\n{until_full}r0 = r8"), vec![], NOTHING);
        let looked_at = format!(
            "{gained}if r0 != 0 goto out\nr2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\nr4 = r2\nr4 += {}\n\
             r0 = 3\nif r4 > r3 goto out\nr0 = *(u8 *)(r4 -1)\n*(u8 *)(r4 -1) = 7",
            60 + delta
        );
        agree(&format!("{delta} bytes looked at"), &looked_at, vec![], NOTHING);
    }
}

/// In arrays, where it is part of the code, and in tables: all flags, indexes inside and outside, values of every shape, the old value
/// behind a pointer, and the value found anew.
#[test]
fn elements_are_overwritten_as_the_helper_does_it() {
    use MapType::{Array, Hash, LruHash, LruPercpuHash, PercpuArray, PercpuHash};
    let mut turn = 0;
    for map_type in [Array, PercpuArray, Hash, LruHash, PercpuHash, LruPercpuHash] {
        for size in [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 24, 31, 63, 64, 65, 72] {
            for flags in ["0", "1", "2", "3", "4", "r7"] {
                turn += 1;
                let index = ["r7", "2", "7", "8", "9"][turn % 5];
                let filled: String = (0..9)
                    .map(|n| format!("r5 *= 0x1234567\nr5 += {n}\n*(u64 *)(r10 -{}) = r5\n", 80 - 8 * n))
                    .collect();
                let look = |to: &str| {
                    format!(
                        "r1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nr9 = r0\nr0 = 0\nif r9 == 0 goto none{to}\n\
                         r0 = *(u8 *)(r9 +{})\nnone{to}: r8 *= 31\nr8 += r0\n",
                        size - 1
                    )
                };
                let put = format!(
                    "r1 = map[idx:0]\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -80\nr4 = {flags}\ncall 2\nr8 *= 31\nr8 += r0\n"
                );
                let (first, second, last) = (look("a"), look("b"), look("c"));
                let body = format!(
                    "r8 = 0\nr5 = {index}\n*(u32 *)(r10 -4) = r5\nr5 = r7\nr5 += 1\n{filled}{first}{put}\
                     r5 = 77\n*(u8 *)(r10 -80) = r5\n{second}{put}{last}r0 = r8"
                );
                // Which element goes where one has to is another one in each map.
                let entries = if matches!(map_type, LruHash | LruPercpuHash) { 64 } else { 8 };
                let maps = vec![MapSpec::new(map_type, 4, size, entries)];
                agree(&format!("{map_type:?}, {size} bytes, {flags}, {index}"), &body, maps, NOTHING);
            }
        }
    }
}

/// Of a host of its own: what it says each time.
#[test]
fn ticks_are_the_hosts() {
    agree("ticks", "call 118\nr8 = r0\ncall 160\nr8 *= 31\nr8 += r0\ncall 118\nr8 *= 31\nr0 += r8", vec![], NOTHING);
}

/// What is left of a constant in fewer bits than an int has is another number.
#[test]
fn room_is_moved_by_what_is_left_of_a_constant() {
    let left = [
        "r2 = le16 r2",
        "*(u16 *)(r10 -8) = r2\nr2 = *(u16 *)(r10 -8)",
        "*(u8 *)(r10 -8) = r2\nr2 = *(u8 *)(r10 -8)",
        "w2 = w2",
    ];
    for (helper, left) in [44, 54, 65].into_iter().flat_map(|helper| left.map(|left| (helper, left))) {
        agree(&format!("{helper}: {left}"), &format!("r1 = r6\nr2 = -20\n{left}\ncall {helper}"), vec![], NOTHING);
    }
}

/// Where the packet begins and ends is known behind moves that are part of the code, and asked for behind calls.
#[test]
fn bounds_behind_moves_are_those_of_the_helpers() {
    // A check, what lies at both ends of what it found, and a byte written there; then the metadata.
    let look = |n: usize| {
        format!(
            "r2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\nr4 = r2\nr4 += 14\nr0 = 9\nif r4 > r3 goto out\nr5 = *(u8 *)(r2 +0)\n\
             r8 *= 3\nr8 += r5\nr5 = *(u8 *)(r2 +13)\nr8 ^= r5\n*(u8 *)(r2 +1) = r8\nr4 = r2\nr4 += 34\n\
             if r4 > r3 goto short{n}\nr5 = *(u8 *)(r2 +33)\nr8 += r5\nshort{n}: r5 = *(u32 *)(r6 +8)\nr4 = r5\nr4 += 4\n\
             if r4 > r2 goto without{n}\nr4 = *(u32 *)(r5 +0)\nr8 ^= r4\n*(u8 *)(r5 +2) = r8\nwithout{n}: r8 += {n}\n"
        )
    };
    let scaled = |scale: i32, from: i32| format!("r2 = r7\nr2 *= {scale}\nr2 += {from}");
    let by = [
        scaled(0, -20),
        scaled(0, 4),
        scaled(0, -300),
        scaled(4, -32),
        scaled(1, -8),
        "r2 = -20".into(),
        "r2 = 4".into(),
    ];
    // The result as compilers ask for it, and moved to another register first.
    let asked = [
        "if r0 != 0 goto out",
        "r1 = r0\nr0 = 5\nif r1 != 0 goto out",
        "if w0 == 0 goto good{n}\nexit\ngood{n}: r8 += 1",
    ];
    let (first, last) = (look(0), look(1));
    let mut turn = 0;
    for helpers in [44, 54, 65].into_iter().flat_map(|a| [44, 54, 65].map(|b| [a, b])) {
        for by in &by {
            turn += 1;
            let step = |n: usize| {
                let asked = asked[(turn + n) % 3].replace("{n}", &n.to_string());
                format!("r1 = r6\n{by}\ncall {}\n{asked}\n", helpers[n])
            };
            let body = format!("r8 = r7\n{}{first}{}{last}r0 = r8", step(0), step(1));
            agree(&format!("{helpers:?} by {by:?}"), &body, vec![], NOTHING);
        }
    }
}

#[test]
fn folds_of_sums_are_what_the_steps_give() {
    // Numbers around every carry, as the first eight bytes of packets.
    let mut numbers = vec![0u64, 1, 0xffff, 0x1_0000, 0x1_ffff, 0xffff_ffff, 0x1_0000_0000, u64::MAX, u64::MAX - 1];
    numbers.extend((0..55).map(|n| 0x0fff_f001_ffff_fffe_u64.rotate_left(n) ^ u64::from(n) << (n % 40)));
    let packet = |n: u64| [n.to_le_bytes().to_vec(), vec![0; 52]].concat();
    let packets: Vec<Vec<u8>> = numbers.into_iter().map(packet).collect();
    let step = |bits: u32| format!("r2 = r1\nr2 >>= {bits}\nr3 = {:#x} ll\nr1 &= r3\nr1 += r2\n", (1u64 << bits) - 1);
    let cut = "r2 = r1\nr2 >>= 32\nw1 = w1\nr1 += r2\n".to_owned();
    let up_and_down = "r2 = r1\nr2 >>= 32\nr1 <<= 32\nr1 >>= 32\nr1 += r2\n".to_owned();
    // Sums of up to 64, 32, 33 and 17 bits.
    let sums = [
        "r1 = *(u64 *)(r5 +0)\n",
        "r1 = *(u32 *)(r5 +0)\n",
        "r1 = *(u32 *)(r5 +0)\nr3 = *(u32 *)(r5 +4)\nr1 += r3\n",
        "r1 = *(u16 *)(r5 +0)\nr3 = *(u16 *)(r5 +2)\nr1 += r3\nr1 += 6283\n",
    ];
    let steps = [
        [step(32), step(16), step(16)].concat(),
        [cut, step(16), step(16)].concat(),
        [up_and_down, step(16), step(16)].concat(),
        [step(16), step(16), step(16)].concat(),
        [step(32), step(16), step(16), step(16)].concat(),
        // Too few for the longest sums: what is left has more bits.
        [step(32), step(16)].concat(),
        [step(16), step(16)].concat(),
        step(16),
        step(32),
    ];
    // What is taken of the sum, whole or with its upper bits added once more: all, the lower half, less, and more.
    let whole = "r0 = r1\n";
    let half = "r0 = r1\nr0 >>= 16\nr0 += r1\n";
    let taken = [
        "",
        "r0 &= 0xffff\n",
        "r0 &= 1\n",
        "r0 &= 0x1ffff\n",
        "r0 ^= -1\n*(u16 *)(r5 +8) = r0\nr0 = 2\n",
        "r0 ^= -1\n*(u32 *)(r5 +8) = r0\nr0 = 2\n",
        "r0 ^= -1\n*(u16 *)(r5 +8) = r0\n",
        "*(u8 *)(r5 +8) = r0\nr0 <<= 48\nr0 >>= 48\n",
        "*(u16 *)(r5 +8) = r0\nr0 <<= 40\nr0 >>= 40\n",
        "r0 = be16 r0\n*(u16 *)(r5 +8) = r0\nr0 = 2\n",
        "r0 ^= r1\nr0 &= 0xffff\n",
    ];
    let ends = [whole, half].into_iter().flat_map(|end| taken.map(|taken| [end, taken].concat()));
    let all = sums.into_iter().flat_map(|sum| steps.iter().map(move |steps| [sum, steps].concat()));
    for (sum, end) in all.flat_map(|sum| ends.clone().map(move |end| (sum.clone(), end))) {
        let text = format!(
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nr0 = 1\nif r4 > r3 goto out\nr5 = r2\n{sum}{end}out: exit"
        );
        let insns = xway_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let image = Program { name: "fold".into(), section: "xdp".into(), insns, ..Program::default() };
        let object = Arc::new(Object { programs: vec![image], license: Some("GPL".into()), ..Object::default() });
        match compare(&object, 0, &packets, NOTHING) {
            Outcome::Same => {}
            Outcome::Differs(how) => panic!("{how}\n{text}"),
            Outcome::NotCompiled(why) => panic!("not compiled: {why}\n{text}"),
            Outcome::Unverified | Outcome::Apart => panic!("refused, or not compared\n{text}"),
        }
    }
}

#[test]
fn targets_are_chosen_and_forgotten() {
    agree("redirect", "r1 = r7\nr2 = 0\ncall 23", vec![], NOTHING);
    agree("redirect with flags", "r1 = 5\nr2 = r7\nr2 &= 1\ncall 23", vec![], NOTHING);
    agree("a second one", "r1 = 5\nr2 = 0\ncall 23\nr1 = r7\nr2 = 0\ncall 23", vec![], NOTHING);
    agree("in a function", "r1 = r7\ncall send\nout: exit\nsend: r2 = 0\ncall 23\nexit", vec![], NOTHING);
    // Slots 1, 4 and 7 hold something.
    let full = |instance: &Instance| {
        for key in [1u32, 4, 7] {
            instance.maps()[0].update(&key.to_ne_bytes(), &(key + 2).to_ne_bytes(), 0).expect("room");
        }
    };
    for flags in [0, 1, 2, 3, 8] {
        let text = format!("r1 = map[idx:0]\nr2 = r7\nr3 = {flags}\ncall 51");
        for devices in [MapType::Devmap, MapType::DevmapHash] {
            agree(&format!("{devices:?}, {flags}"), &text, vec![MapSpec::new(devices, 4, 4, 8)], &full);
        }
        // There are two CPUs.
        let cpus = |instance: &Instance| {
            instance.maps()[0].update(&1u32.to_ne_bytes(), &64u32.to_ne_bytes(), 0).expect("room");
        };
        if flags != 8 {
            agree(&format!("CPUs, {flags}"), &text, vec![MapSpec::new(MapType::Cpumap, 4, 4, 2)], &cpus);
            agree(&format!("sockets, {flags}"), &text, vec![MapSpec::new(MapType::Xskmap, 4, 4, 8)], NOTHING);
        }
    }
    let text = "r1 = 9\nr2 = 0\ncall 23\nr1 = map[idx:0]\nr2 = r7\nr3 = 2\ncall 51";
    agree("a slot that holds nothing", text, vec![MapSpec::new(MapType::Devmap, 4, 4, 8)], &full);
}

#[test]
fn inner_maps_are_those_that_the_slot_holds() {
    let types = [MapType::Array, MapType::Hash, MapType::LruHash, MapType::PercpuArray];
    for (inner, outer) in types.into_iter().flat_map(|t| [(t, MapType::ArrayOfMaps), (t, MapType::HashOfMaps)]) {
        let template = MapSpec::new(inner, 4, 8, 8);
        let spec = MapSpec { inner: Some(Box::new(template.clone())), ..MapSpec::new(outer, 4, 4, 8) };
        let fill = |instance: &Instance| {
            for slot in [0u32, 1, 3] {
                let map = Map::create(&template, &xway_maps::Env::with_cpus(2)).unwrap();
                for key in (0..8u32).filter(|key| key % 3 != slot % 3) {
                    let value = u64::from(100 * slot + key).to_ne_bytes().repeat(map.user_value_size() / 8);
                    map.update(&key.to_ne_bytes(), &value, 0).expect("room");
                }
                instance.maps()[0].set_inner(&slot.to_ne_bytes(), map).expect("it is like the template");
            }
        };
        // A constant slot, or the packet's; the packet's key; the value is counted up.
        for slot in ["*(u32 *)(r10 -4) = 1", "r8 = r7\nr8 >>= 2\n*(u32 *)(r10 -4) = r8"] {
            let body = format!(
                "{slot}\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\n\
                 *(u32 *)(r10 -8) = r7\nr2 = r10\nr2 += -8\nr1 = r0\ncall 1\nif r0 == 0 goto none\n\
                 r1 = *(u64 *)(r0 +0)\nr2 = r1\nr2 += 1000\n*(u64 *)(r0 +0) = r2\nr0 = r1\nexit\nnone: r0 = 7"
            );
            agree(&format!("{inner:?} in {outer:?}"), &body, vec![spec.clone()], &fill);
        }
    }
}

/// Of arrays it is a loop in the code, of tables a call: callbacks of every kind, stopped at each element or never, and refused flags.
#[test]
fn elements_are_walked_as_the_helper_does_it() {
    use MapType::{Array, Hash, LruHash, PercpuArray, PercpuHash};
    // The key, the value, which is counted up, and where to stop.
    let small = "each: r5 = *(u32 *)(r2 +0)\nr6 = *(u64 *)(r3 +0)\nr7 = *(u64 *)(r4 +0)\nr7 *= 31\nr7 += r5\nr7 += r6\n\
                 *(u64 *)(r4 +0) = r7\nr6 += 1\n*(u64 *)(r3 +0) = r6\nr0 = 0\nr1 = *(u64 *)(r4 +8)\nif r5 != r1 goto on\nr0 = 1\non: exit";
    // The same element by its key, and the other map.
    let asks = "each: r6 = r4\nr7 = r3\ncall 1\nif r0 == 0 goto none\nr1 = *(u64 *)(r0 +0)\nr1 += 3\n*(u64 *)(r7 +0) = r1\n\
                r2 = *(u64 *)(r6 +0)\nr2 ^= r1\n*(u64 *)(r6 +0) = r2\nnone: r0 = 0\nexit";
    // A function of its own, because it calls another.
    let calls = "each: r6 = r4\nr1 = *(u32 *)(r2 +0)\ncall more\nr1 = *(u64 *)(r6 +0)\nr1 += r0\n*(u64 *)(r6 +0) = r1\nr0 = 0\nexit\n\
                 more: r0 = r1\nr0 *= 5\nexit";
    // A walk in a walk, whose key is another one.
    let nested = "each: r6 = r2\nr7 = r4\nr1 = map[idx:0]\nr2 = subprog[inner]\nr3 = r7\nr4 = 0\ncall 164\nr1 = *(u32 *)(r6 +0)\n\
                  r0 += r1\nr1 = *(u64 *)(r7 +0)\nr1 *= 7\nr1 += r0\n*(u64 *)(r7 +0) = r1\nr0 = 0\nexit\n\
                  inner: r5 = *(u32 *)(r2 +0)\nr1 = *(u64 *)(r4 +0)\nr1 += r5\n*(u64 *)(r4 +0) = r1\nr0 = 0\nexit";
    for map_type in [Array, PercpuArray, Hash, LruHash, PercpuHash] {
        for (name, callback) in [("small", small), ("asks", asks), ("calls", calls), ("nested", nested)] {
            for flags in ["0", "1", "r7"] {
                let body = format!(
                    "*(u64 *)(r10 -16) = 0\n*(u64 *)(r10 -8) = r7\n*(u32 *)(r10 -20) = 2\n*(u64 *)(r10 -32) = 5\nr1 = map[idx:0]\nr2 = r10\n\
                     r2 += -20\nr3 = r10\nr3 += -32\nr4 = 0\ncall 2\nr1 = map[idx:0]\nr2 = subprog[each]\nr3 = r10\nr3 += -16\nr4 = {flags}\n\
                     call 164\nr8 = *(u64 *)(r10 -16)\nr8 *= 31\nr0 += r8\nout: exit\n{callback}"
                );
                // One element, because tables have an order of their own each.
                let spec = MapSpec::new(map_type, 4, 8, if matches!(map_type, LruHash) { 64 } else { 8 });
                agree(&format!("{map_type:?}, {name}, {flags}"), &body, vec![spec], NOTHING);
            }
        }
    }
}

/// Values of every length go in and come out, or find no room and nothing.
#[test]
fn queues_are_used_as_the_helpers_do_it() {
    for (map_type, size) in [MapType::Queue, MapType::Stack].into_iter().flat_map(|t| [1, 4, 8, 12, 72].map(|s| (t, s)))
    {
        for flags in [0, 1, 2, 3] {
            let put = format!("r1 = map[idx:0]\nr2 = r10\nr2 += -80\nr3 = {flags}\ncall 87\nr8 *= 31\nr8 += r0\n");
            let take = |helper: u32| {
                format!(
                    "r1 = map[idx:0]\nr2 = r10\nr2 += -160\ncall {helper}\nr8 *= 31\nr8 += r0\nr5 = *(u8 *)(r10 -{})\nr8 ^= r5\n",
                    161 - size
                )
            };
            let filled: String =
                (0..20).map(|n| format!("r5 *= 0x1234567\nr5 += {n}\n*(u64 *)(r10 -{}) = r5\n", 160 - 8 * n)).collect();
            let body = format!(
                "r8 = 0\nr5 = r7\n{filled}{put}{}if r7 > 8 goto more\n{}more: {put}{put}{}r0 = r8",
                take(89),
                take(88),
                take(88)
            );
            agree(
                &format!("{map_type:?} of {size} bytes, {flags}"),
                &body,
                vec![MapSpec::new(map_type, 0, size, 3)],
                NOTHING,
            );
        }
    }
}

#[test]
fn filters_are_asked_as_the_helpers_do_it() {
    for size in [4, 8] {
        let with =
            |helper: u32| format!("r1 = map[idx:0]\nr2 = r10\nr2 += -8\nr3 = 0\ncall {helper}\nr8 *= 31\nr8 += r0\n");
        let (ask, put) = (with(89), with(87));
        let zeros = "*(u64 *)(r10 -8) = 0\n";
        let body = format!(
            "{zeros}r8 = 0\n*(u32 *)(r10 -8) = r7\n{ask}{put}{ask}r7 += 100\n*(u32 *)(r10 -8) = r7\n{ask}r0 = r8"
        );
        let spec = MapSpec::new(MapType::BloomFilter, 0, size, 100).with_flags(xway_abi::map_flags::ZERO_SEED);
        agree(&format!("{size} bytes"), &body, vec![spec], NOTHING);
    }
}

/// The element of each CPU, and of none; by keys in memory and constant ones.
#[test]
fn elements_of_other_cpus_are_those_of_the_helper() {
    for map_type in [MapType::PercpuArray, MapType::PercpuHash, MapType::LruPercpuHash] {
        for (cpu, key) in ["r7", "0", "1", "2", "-1"].into_iter().flat_map(|cpu| ["r7", "3", "9"].map(|key| (cpu, key)))
        {
            let body = format!(
                "r5 = {key}\n*(u32 *)(r10 -4) = r5\n*(u64 *)(r10 -16) = 0\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -16\n\
                 r4 = 1\ncall 2\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\nr3 = {cpu}\ncall 195\nif r0 == 0 goto none\n\
                 r1 = *(u64 *)(r0 +0)\nr1 *= 3\nr1 += r7\n*(u64 *)(r0 +0) = r1\nr0 = r1\nexit\nnone: r0 = 7\nout: exit"
            );
            let entries = if map_type == MapType::LruPercpuHash { 64 } else { 8 };
            agree(
                &format!("{map_type:?}, CPU {cpu}, {key}"),
                &body,
                vec![MapSpec::new(map_type, 4, 8, entries)],
                NOTHING,
            );
        }
    }
}

/// Records of every length, until there is no room; and what the ring says of itself.
#[test]
fn records_go_into_rings_as_the_helpers_do_it() {
    let query = "r1 = map[idx:0]\nr2 = r7\nr2 &= 7\ncall 134\nr8 *= 31\nr8 += r0\n";
    for (size, finish) in [8, 100, 4000, 4089].into_iter().flat_map(|size| [132, 133].map(|f| (size, f))) {
        let body = format!(
            "r8 = 0\nr1 = map[idx:0]\nr2 = {size}\nr3 = 0\ncall 131\nif r0 == 0 goto full\n*(u8 *)(r0 +0) = 9\nr9 = r0\n\
             r1 = map[idx:0]\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto one\n*(u64 *)(r0 +8) = r7\nr1 = r9\nr2 = 0\nr9 = r0\n\
             call {finish}\none: r1 = r9\nr2 = r7\nr2 &= 3\ncall 132\nfull: {query}r0 = r8"
        );
        agree(&format!("{size} bytes, {finish}"), &body, vec![MapSpec::new(MapType::Ringbuf, 0, 0, 4096)], NOTHING);
    }
    for (size, flags) in [1, 8, 13, 40].into_iter().flat_map(|size| [0, 1, 2, 4].map(|flags| (size, flags))) {
        let filled: String =
            (0..5).map(|n| format!("r5 *= 0x1234567\nr5 += {n}\n*(u64 *)(r10 -{}) = r5\n", 40 - 8 * n)).collect();
        let body = format!(
            "r8 = 0\nr5 = r7\n{filled}r1 = map[idx:0]\nr2 = r10\nr2 += -40\nr3 = {size}\nr4 = {flags}\ncall 130\nr8 = r0\n{query}r0 = r8"
        );
        agree(
            &format!("{size} bytes at once, {flags}"),
            &body,
            vec![MapSpec::new(MapType::Ringbuf, 0, 0, 4096)],
            NOTHING,
        );
    }
}
