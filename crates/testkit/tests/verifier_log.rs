//! The log of states reads like Linux's: the same programs before both, line by line.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_kernel::KernelObject;
use xway_object::{HelperNames, MapDef, Object, Program};
use xway_testkit::Needs;
use xway_verifier::{Config, MapsView, verify};

/// Programs of which both know the same, walked in the same order.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "numbers",
        "r6 = *(u32 *)(r1 +16)\nr7 = r6\nr7 &= 255\nr7 <<= 3\nr8 = *(u32 *)(r1 +12)\nr8 += -70000\nw9 = w8\nr3 = 5 ll\n\
         r4 = 40000\nr5 = -40000\nr4 = r6\nr4 s>>= 4\nr4 *= 3\nr4 |= r7\nr0 = 2\nexit",
    ),
    (
        "branches",
        "r6 = *(u32 *)(r1 +16)\nr0 = 1\nif r6 > 100000 goto +3\nif r6 < 10 goto +2\nr7 = 5\nr7 += 1\nif w6 s> 77 goto +1\n\
         r0 = 2\nexit",
    ),
    (
        "packet",
        "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nr0 = 1\nif r4 > r3 goto +3\nr5 = *(u16 *)(r2 +12)\n\
         *(u8 *)(r2 +3) = 7\nr0 = 2\nexit",
    ),
    (
        "stack",
        "r6 = *(u32 *)(r1 +16)\n*(u64 *)(r10 -8) = r6\n*(u64 *)(r10 -16) = r1\nr7 = *(u64 *)(r10 -8)\n\
         r8 = *(u64 *)(r10 -16)\nr2 = r10\nr2 += -8\nr0 = 2\nexit",
    ),
    (
        "values",
        "r6 = *(u32 *)(r1 +16)\n*(u64 *)(r10 -8) = r6\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n\
         if r0 == 0 goto +2\nr1 = *(u64 *)(r0 +8)\n*(u64 *)(r0 +16) = r1\nr0 = 2\nexit",
    ),
    (
        "functions",
        "r6 = *(u32 *)(r1 +16)\n*(u64 *)(r10 -8) = r6\nr2 = r10\nr2 += -8\nr1 = r6\ncall inner\nr7 = r0\nr0 = 2\nexit\n\
         inner: r3 = *(u64 *)(r2 +0)\nr0 = r1\nr0 &= 7\nexit",
    ),
    (
        "records",
        "r1 = map[idx:1]\nr2 = 16\nr3 = 0\ncall bpf_ringbuf_reserve\nif r0 == 0 goto +4\nr6 = r0\nr1 = r0\nr2 = 0\n\
         call bpf_ringbuf_discard\nr0 = 2\nexit",
    ),
];

fn object() -> Object {
    let maps = vec![
        MapDef::new("hits", MapSpec::new(MapType::Hash, 4, 32, 4)),
        MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096)),
    ];
    Object { maps, license: Some("GPL".into()), ..Object::default() }
}

/// What Linux says beside states: precision, stack liveness, figures. A line that such words cut in two is one again.
fn of_linux(log: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut cut = false;
    for line in log.lines().skip_while(|l| !l.starts_with("0: R1=")) {
        let aside = ["mark_precise", "processed ", "stack depth", "verification time", "("];
        if aside.iter().any(|a| line.starts_with(a)) {
            cut |= line.starts_with("mark_precise");
        } else if let (true, Some((_, state))) = (std::mem::take(&mut cut), line.split_once(": R")) {
            let last = lines.last_mut().expect("an instruction before it");
            *last = format!("{last} ; R{state}");
        } else {
            // A pointer that is known to lie behind the end has a range below zero there.
            lines.push(line.replace("r=0xfffffffffffffffe", "r=0").replace("r=0xffffffffffffffff", "r=0"));
        }
    }
    lines
}

/// Lines without what the two name differently: identities are numbered as they come, addresses of maps left out.
fn comparable(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    let mut out = Vec::new();
    for line in lines.filter(|l| !l.trim().is_empty()) {
        let mut text = String::new();
        let mut rest = line.as_str();
        while let Some(at) = ["id=", "refs="].iter().filter_map(|k| Some(rest.find(k)? + k.len())).min() {
            let digits = rest[at..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| at + n);
            let id = &rest[at..digits];
            let number = ids.iter().position(|i| i == id).unwrap_or_else(|| {
                ids.push(id.to_owned());
                ids.len() - 1
            });
            text += &format!("{}{number}", &rest[..at]);
            rest = &rest[digits..];
        }
        text += rest;
        let words: Vec<&str> =
            text.split_whitespace().filter(|w| !w.starts_with("0xffff8") && !w.starts_with("map[")).collect();
        let line = words.join(" ").trim_end_matches(" ;").to_owned();
        // Where the next instruction is known already Linux does not show what this one did.
        if line.ends_with(": safe")
            && let Some(last) = out.last_mut()
        {
            let last: &mut String = last;
            last.truncate(last.find(" ;").unwrap_or(last.len()));
        }
        out.push(line);
    }
    out
}

#[test]
fn the_log_reads_like_that_of_linux() {
    if !Needs::of("testkit::verifier_log::the_log_reads_like_that_of_linux").root().kernel(6, 18).met() {
        return;
    }
    let object = Arc::new(object());
    let kernel = KernelObject::load(&object).expect("two maps");
    let mut wrong = String::new();
    for (name, text) in PROGRAMS {
        let insns = xway_isa::assemble_with(text, &HelperNames).unwrap_or_else(|e| panic!("{name}: {e}"));
        let program = Program { name: "log".into(), section: "xdp".into(), insns, ..Program::default() };
        let theirs = kernel.load_more(&object, &program, 2).unwrap_or_else(|e| panic!("{name}: {e}: {}", e.log()));
        let config = Config { log: true, ..Config::default() };
        let proof = verify(&program, &MapsView::from(&*object), &config).unwrap_or_else(|e| panic!("{name}: {e}"));
        let ours = comparable(proof.log().lines().map(str::to_owned));
        let linux = comparable(of_linux(theirs.log()).into_iter());
        if ours != linux {
            wrong += &format!("{name}\nours\n{}\n\nLinux\n{}\n", ours.join("\n"), linux.join("\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Where states stand beside their instructions.
#[test]
fn states_stand_in_a_column() {
    let insns = xway_isa::assemble("r6 = r1\nr7 = *(u32 *)(r6 +16)\ncall 7\nr0 = 2\nexit").expect("a program");
    let program = Program { name: "log".into(), section: "xdp".into(), insns, ..Program::default() };
    let config = Config { log: true, ..Config::default() };
    let proof = verify(&program, &MapsView::empty(), &config).expect("accepted");
    let wanted = "0: R1=ctx() R10=fp0\n\
                  0: (bf) r6 = r1                       ; R1=ctx() R6=ctx()\n\
                  1: (61) r7 = *(u32 *)(r6 +16)         ; R6=ctx() R7=scalar(smin=0,smax=umax=0xffffffff,var_off=(0x0; 0xffffffff))\n\
                  2: (85) call bpf_get_prandom_u32#7    ; R0=scalar()\n\
                  3: (b7) r0 = 2                        ; R0=2\n\
                  4: (95) exit\n";
    assert_eq!(proof.log(), wanted);
}
