//! The rules of the verifier, one small program each, by subject: what must be accepted, and what must be refused as what.
//!
//! The tables stand beside this file. A case is
//!
//! ```text
//! == name with $X [X=1,2,3] -> accept | kind of refusal; Linux accepts | errs | refuses: why the kernel differs
//! assembler text with $X
//! ```
//!
//! and stands for one program for each value of its parameters. `@packet N`, `@value M`, `@inside M`, `@reserve N` and `@out` are
//! common beginnings and ends. `errs` is said where Linux accepts what can go wrong. As root the running kernel is asked, too.

mod strict;

use std::os::fd::{AsFd, AsRawFd, RawFd};

use xway_abi::{MapSpec, MapType, map_flags};
use xway_kernel::{KernelMap, KernelProg, ProgSpec};
use xway_object::{MapDef, Program};
use xway_testkit::Needs;
use xway_verifier::{Config, MapsView, verify};

const TABLES: [(&str, &str); 6] = [
    ("packet", include_str!("packet.txt")),
    ("value", include_str!("value.txt")),
    ("stack", include_str!("stack.txt")),
    ("context", include_str!("context.txt")),
    ("calls", include_str!("calls.txt")),
    ("flow", include_str!("flow.txt")),
];

struct Case {
    name: String,
    text: String,
    /// `accept`, or the kind of refusal.
    want: String,
    /// What the kernel says when it differs: accepts.
    linux: Option<bool>,
    /// What Linux accepts can go wrong.
    errs: bool,
}

/// The maps that the tables name by index.
fn maps() -> Vec<MapDef> {
    let with = |flags: u32, mut s: MapSpec| {
        s.flags = flags;
        s
    };
    let of_maps = |inner: MapSpec| {
        let mut outer = MapSpec::new(MapType::ArrayOfMaps, 4, 4, 4);
        outer.inner = Some(Box::new(inner));
        outer
    };
    let array = MapSpec::new(MapType::Array, 4, 64, 4);
    vec![
        MapDef::new("array", array.clone()),
        MapDef::new("hash", MapSpec::new(MapType::Hash, 8, 48, 8)),
        MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096)),
        MapDef::new("programs", MapSpec::new(MapType::ProgArray, 4, 4, 4)),
        MapDef::new("read_only", with(map_flags::RDONLY_PROG, array.clone())),
        MapDef::new("write_only", with(map_flags::WRONLY_PROG, array.clone())),
        MapDef::new("arrays", of_maps(array.clone())),
        MapDef::new("arrays_that_differ", of_maps(with(map_flags::INNER_MAP, array))),
        MapDef::new("percpu_arrays", of_maps(MapSpec::new(MapType::PercpuArray, 4, 64, 4))),
        MapDef::new("hashes", of_maps(MapSpec::new(MapType::Hash, 4, 64, 4))),
        MapDef::new("sockets", MapSpec::new(MapType::Xskmap, 4, 4, 4)),
    ]
}

fn cases() -> Vec<Case> {
    TABLES.iter().flat_map(|(subject, table)| table.split("\n== ").skip(1).flat_map(|c| expand(subject, c))).collect()
}

/// One entry of a table, for each value of its parameters.
fn expand(subject: &str, entry: &str) -> Vec<Case> {
    let (head, body) = entry.split_once('\n').unwrap_or((entry, ""));
    let (name, want) = head.rsplit_once(" -> ").unwrap_or_else(|| panic!("{subject}: no expectation in {head}"));
    let (want, differs) = want.split_once("; Linux ").map_or((want, None), |(w, d)| (w, Some(d)));
    let linux = differs.map(|d| match d.split_once(": ") {
        Some(("accepts" | "errs", _)) => true,
        Some(("refuses", _)) => false,
        _ => panic!("{subject}: {head}: write `accepts: why`, `errs: why` or `refuses: why`"),
    });
    let (name, in_head) = name.split_once(" [").map_or((name, ""), |(n, p)| (n, p.trim_end_matches(']')));
    let in_body = body.lines().find_map(|l| l.strip_prefix('[')).map_or("", |p| p.trim_end_matches(']'));
    let mut all = vec![(name.to_owned(), body.lines().filter(|l| !l.starts_with('[')).collect::<Vec<_>>().join("\n"))];
    for param in [in_head, in_body].into_iter().flat_map(|p| p.split("; ")).filter(|p| !p.is_empty()) {
        let (var, values) = param.split_once('=').unwrap_or_else(|| panic!("{subject}: {head}: {param}"));
        let var = format!("${var}");
        let put = |(n, b): &(String, String), v: &str| {
            let name = if n.contains(&var) { n.replace(&var, v) } else { format!("{n} ({v})") };
            (name, b.replace(&var, v))
        };
        all = all.iter().flat_map(|nb| values.split(',').map(|v| put(nb, v)).collect::<Vec<_>>()).collect();
    }
    let case = |(name, body): (String, String)| Case {
        name: format!("{subject}: {name}"),
        text: body.lines().map(|l| shorthand(l) + "\n").collect(),
        want: want.trim().to_owned(),
        linux,
        errs: differs.is_some_and(|d| d.starts_with("errs: ")),
    };
    all.into_iter().map(case).collect()
}

/// Common beginnings and ends.
fn shorthand(line: &str) -> String {
    let (word, arg) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "@packet" => {
            let load = "r6 = r1\nr2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)";
            if arg.is_empty() { load.into() } else { format!("{load}\nr4 = r2\nr4 += {arg}\nif r4 > r3 goto out") }
        }
        // The key has the width that the map says: Linux knows a constant key only then.
        "@value" => format!(
            "*({} *)(r10 -8) = 0\nr2 = r10\nr2 += -8\nr1 = map[idx:{arg}]\ncall bpf_map_lookup_elem",
            if arg == "1" { "u64" } else { "u32" }
        ),
        // The value of key 2 of a map inside map N.
        "@inside" => format!(
            "*(u32 *)(r10 -8) = 0\nr2 = r10\nr2 += -8\nr1 = map[idx:{arg}]\ncall bpf_map_lookup_elem\n\
             if r0 == 0 goto out\n*(u32 *)(r10 -8) = 2\nr2 = r10\nr2 += -8\nr1 = r0\ncall bpf_map_lookup_elem"
        ),
        "@reserve" => format!("r1 = map[idx:2]\nr2 = {arg}\nr3 = 0\ncall bpf_ringbuf_reserve"),
        "@out" => "out: r0 = 0\nexit".into(),
        _ => line.into(),
    }
}

fn program(case: &Case) -> Program {
    let insns = xway_isa::assemble_with(&case.text, &xway_object::HelperNames)
        .unwrap_or_else(|e| panic!("{}: {e}\n{}", case.name, case.text));
    Program { name: "rule".into(), section: "xdp".into(), insns, ..Program::default() }
}

#[test]
fn every_rule_holds() {
    let cases = cases();
    let defs = maps();
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let mut wrong = Vec::new();
    for case in &cases {
        let config = Config { budget: 200_000, ..Config::default() };
        let got = match verify(&program(case), &view, &config) {
            Ok(_) => ("accept", String::new()),
            Err(r) => (r.errors[0].kind.name(), r.errors[0].message.clone()),
        };
        if got.0 != case.want {
            wrong.push(format!("{}: {} ({}), not {}\n{}", case.name, got.0, got.1, case.want, case.text));
        }
    }
    assert!(cases.len() >= 300, "{} cases", cases.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Of what Linux accepts with reason 98 of 100 are accepted, and of what it refuses nothing is accepted without a reason in its row.
#[test]
fn what_linux_accepts_is_accepted() {
    let (defs, cases) = (maps(), cases());
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let (mut both, mut linux, mut neither, mut refuses) = (0u32, 0u32, 0u32, 0u32);
    for case in &cases {
        let config = Config { budget: 200_000, explain: 0, errors_max: 1, ..Config::default() };
        let here = verify(&program(case), &view, &config).is_ok();
        // What Linux says is held by the test below.
        if case.errs {
            assert!(!here, "{}", case.name);
        } else if case.linux.unwrap_or(case.want == "accept") {
            linux += 1;
            both += u32::from(here);
        } else {
            refuses += 1;
            neither += u32::from(!here);
            assert!(!here || case.linux == Some(false), "{}: accepted, and no reason is given", case.name);
        }
    }
    println!("Linux accepts {linux}, here {both} of them; it refuses {refuses}, here {neither} of them");
    assert!(linux >= 100 && refuses >= 150, "{linux} {refuses}");
    assert!(both * 100 >= linux * 98, "{both} of {linux}");
    assert!(neither * 100 >= refuses * 85, "{neither} of {refuses}");
}

#[test]
fn the_kernel_agrees_where_no_reason_is_given() {
    if !Needs::of("testkit::verifier_rules::the_kernel_agrees_where_no_reason_is_given").root().kernel(6, 18).met() {
        return;
    }
    let maps: Vec<KernelMap> = maps().iter().map(|d| KernelMap::create(&d.name, &d.spec).unwrap()).collect();
    let fds: Vec<RawFd> = maps.iter().map(|m| m.as_fd().as_raw_fd()).collect();
    let mut wrong = Vec::new();
    for case in cases() {
        let program = program(&case);
        let spec = ProgSpec { fd_array: &fds, ..ProgSpec::xdp("rule", &program.insns) };
        let loaded = KernelProg::load(&spec);
        let expected = case.linux.unwrap_or(case.want == "accept");
        if loaded.is_ok() != expected {
            let says = loaded.err().map_or("accepts".to_owned(), |e| {
                format!("refuses: {e}\n{}", e.log().lines().rev().take(6).collect::<Vec<_>>().join("\n"))
            });
            wrong.push(format!("{} (here {}): the kernel {says}\n{}", case.name, case.want, case.text));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
