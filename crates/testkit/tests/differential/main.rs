//! Whole programs, ours against the kernel's: same object, same map contents, same packets; verdicts, bytes and map
//! contents must be the same.

mod aarch64;
mod compare;
mod helpers;
mod perf;
mod side;

use std::path::{Path, PathBuf};

use compare::{Fill, Report, Subject};
use xway_object::{Initial, ProgramKind};
use xway_testkit::{Needs, Rng, clang};

/// Objects that other people wrote: those of Debian's package xdp-tools.
fn xdp_tools() -> Vec<PathBuf> {
    let dir = format!("/usr/lib/{}-linux-gnu/bpf", std::env::consts::ARCH);
    let mut found: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.extension().is_some_and(|e| e == "o"));
    found.sort();
    found
}

/// The same for a test that needs them; none when the test cannot run, which is then reported.
fn xdp_tools_for(name: &str) -> Vec<PathBuf> {
    let found = xdp_tools();
    if needs(name).that(!found.is_empty(), "xdp-tools").met() { found } else { Vec::new() }
}

fn needs(name: &str) -> Needs {
    Needs::of(&format!("testkit::differential::{name}")).root().kernel(5, 14)
}

fn read(path: &Path) -> Subject {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Subject::read(&path.file_name().unwrap().to_string_lossy(), &bytes)
}

#[test]
fn xdp_tools_with_empty_maps() {
    let paths = xdp_tools_for("xdp_tools_with_empty_maps");
    if paths.is_empty() {
        return;
    }
    let mut report = Report::default();
    paths.iter().for_each(|path| report.add(&read(path)));
    // The two programs of xdpdump for other hooks are no XDP programs; everything else runs.
    let names: Vec<_> = report.refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["xdpdump_bpf.o:trace_on_entry", "xdpdump_bpf.o:trace_on_exit"], "{:?}", report.refused);
    report.finish("xdp-tools, empty maps");
}

#[test]
fn xdp_filter_with_rules() {
    let paths = xdp_tools_for("xdp_filter_with_rules");
    if paths.is_empty() {
        return;
    }
    let mut report = Report::default();
    for path in paths.iter().filter(|p| p.to_string_lossy().contains("xdpfilt_")) {
        let plain = read(path);
        // Flags in a rule's value, low bits: source 1, destination 2, TCP 4, UDP 8.
        for flags in [0x01, 0x02, 0x0f] {
            let have = |name: &str| plain.object.maps.iter().any(|m| m.name == name);
            let rules = filter_rules(flags).into_iter().filter(|f| matches!(f, Fill::Number(map, ..) if have(map)));
            report.add(&read(path).fill(rules));
        }
    }
    report.finish("xdp-filter with rules");
}

/// A rule for each kind of key that xdp-filter has, for addresses and ports of the mixed set.
fn filter_rules(flags: u64) -> Vec<Fill> {
    let mut v6 = [0; 16];
    v6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    v6[15] = 1;
    let port = |port: u16| Fill::Number("filter_ports", u32::from(port.to_be()).to_ne_bytes().into(), flags);
    vec![
        Fill::Number("filter_ipv4", vec![10, 1, 0, 1], flags),
        Fill::Number("filter_ipv4", vec![192, 0, 2, 66], flags),
        Fill::Number("filter_ipv6", v6.into(), flags),
        Fill::Number("filter_ethernet", vec![2, 0, 0, 0, 0, 1], flags),
        port(53),
        port(80),
        port(443),
    ]
}

#[test]
fn xdp_dispatcher_with_slots() {
    let paths = xdp_tools_for("xdp_dispatcher_with_slots");
    if paths.is_empty() {
        return;
    }
    let path = paths.iter().find(|p| p.ends_with("xdp-dispatcher.o")).expect("the dispatcher");
    let mut report = Report::default();
    // How many slots are in use, and for which of their return values the next one is asked (31 is what an empty slot
    // returns).
    for (slots, go_on) in [(0u8, 0u32), (1, 0), (1, 1 << 31), (3, 1 << 31), (10, 1 << 31), (10, 0xffff_ffff)] {
        let subject = read(path).patch(|object| {
            let config = object.maps.iter_mut().find(|m| m.name.ends_with(".rodata")).expect("a configuration");
            let Initial::Data(bytes) = &mut config.initial else { panic!("no bytes") };
            bytes[2] = slots;
            for place in bytes[4..44].as_chunks_mut::<4>().0 {
                *place = go_on.to_ne_bytes();
            }
        });
        report.add(&subject);
    }
    report.finish("xdp-dispatcher with slots");
}

/// Compiles every `.bpf.c` file of a folder of the repository, with flags.
fn compiled(folder: &str, flags: &[&str]) -> Vec<Subject> {
    let mut sources: Vec<_> =
        std::fs::read_dir(clang::repository().join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
    sources.retain(|p| p.to_string_lossy().ends_with(".bpf.c"));
    sources.sort();
    let compile = |path: &PathBuf| {
        let stem = path.file_name().unwrap().to_string_lossy().replace(".bpf.c", "");
        let object = clang::compile_file(path, flags).unwrap_or_else(|e| panic!("{e}"));
        let name = format!("{stem} {}", flags.join(" "));
        Subject::read(name.trim_end(), &object).fill(contents_of(&stem))
    };
    sources.iter().map(compile).collect()
}

/// What the maps of our own programs hold before the first packet.
fn contents_of(stem: &str) -> Vec<Fill> {
    let n = |n: u32| n.to_ne_bytes().to_vec();
    let prefix = |bits: u32, address: [u8; 4]| [bits.to_ne_bytes(), address].concat();
    let port = |port: u16, protocol: u8| [port.to_be_bytes(), [protocol, 0]].concat();
    match stem {
        "blacklist" => vec![
            Fill::Number("prefixes", prefix(24, [192, 0, 2, 0]), 0),
            Fill::Number("prefixes", prefix(32, [192, 0, 2, 66]), 7),
            Fill::Number("prefixes", prefix(9, [172, 16, 0, 0]), 0),
            Fill::Number("ports", port(53, 17), 0),
            Fill::Number("ports", port(443, 6), 0),
        ],
        "ipip" => {
            let tunnel = [198, 51, 100, 1, 198, 51, 100, 2, 2, 0, 0, 0, 0, 10, 2, 0, 0, 0, 0, 11, 64, 0, 0, 0];
            vec![Fill::Value("config", n(0), tunnel.into())]
        }
        // Interface 1 is the loopback interface of every namespace; a redirect is decided, not carried out.
        "redirect" => vec![Fill::Value("ports", n(42), [n(1), n(0)].concat())],
        "old_libbpf" => vec![
            Fill::Value("prefixes", prefix(8, [10, 0, 0, 0]), n(3)),
            Fill::Value("prefixes", prefix(16, [10, 1, 0, 0]), n(1)),
            Fill::Value("prefixes", prefix(32, [192, 0, 2, 66]), n(77)),
        ],
        "before_libbpf" => {
            vec![Fill::Program("jumps", 1, "long_packet"), Fill::Program("jumps", 2, "odd_length")]
        }
        _ => vec![],
    }
}

#[test]
fn samples_as_every_cpu_generation() {
    if !needs("samples_as_every_cpu_generation").clang().met() {
        return;
    }
    let mut report = Report::default();
    for flags in [&["-mcpu=v2"][..], &["-mcpu=v3"], &["-mcpu=v3", "-O1"]] {
        compiled("bpf/samples", flags).iter().for_each(|s| report.add(s));
    }
    assert_eq!(report.refused, []);
    report.finish("samples");
}

#[test]
fn every_age_of_convention() {
    if !needs("every_age_of_convention").clang().met() {
        return;
    }
    let mut report = Report::default();
    for flags in [&["-mcpu=v2"][..], &["-mcpu=v3"]] {
        compiled("bpf/tests", flags).iter().for_each(|s| report.add(s));
    }
    // Without debug information, and with symbols that have no type.
    for stem in ["old_libbpf", "before_libbpf", "iproute2"] {
        let path = clang::repository().join(format!("bpf/tests/{stem}.bpf.c"));
        let bare = clang::compile_file(&path, &["-g0", "-mcpu=v1"]).unwrap();
        let untyped = clang::compile_untyped(&path).unwrap();
        for (how, bytes) in [("bare", bare), ("untyped", untyped)] {
            let subject = Subject::read(&format!("{stem} {how}"), &bytes);
            // Sections named anything say nothing: their programs are taken for XDP, as when a person asks for them.
            let subject = subject.patch(|object| {
                for program in object.programs.iter_mut().filter(|p| p.kind == ProgramKind::Unknown) {
                    program.kind = ProgramKind::Xdp { frags: false };
                }
            });
            report.add(&subject.fill(contents_of(stem)));
        }
    }
    assert_eq!(report.refused, []);
    report.finish("four ages of convention");
}

#[test]
fn helpers_by_remote_control() {
    if !needs("helpers_by_remote_control").kernel(6, 3).clang().met() {
        return;
    }
    let source = clang::repository().join("bpf/tests/helpers.bpf.c");
    let subject = Subject::read("helpers", &clang::compile_file(&source, &["-mcpu=v3"]).unwrap());
    let mut report = Report::default();
    // One packet at a time: each is compared with what it left in the maps.
    let small = |rng: &mut Rng, n: usize| if n.is_multiple_of(2) { rng.u32() } else { helpers::distance(rng) };
    report.add_each(&subject, "adjust", &helpers::arguments(1, 3000, small));
    let offset = |rng: &mut Rng, _: usize| if rng.one_in(8) { rng.u32() } else { rng.below(260) as u32 };
    report.add_each(&subject, "bytes", &helpers::arguments(2, 2000, offset));
    report.add_each(&subject, "checksum", &helpers::arguments(3, 2000, |rng, _| rng.u32()));
    report.add_each(&subject, "packet_checksum", &helpers::arguments(15, 2000, |rng, _| rng.u32()));
    report.add_each(&subject, "long_checksum", &helpers::arguments(16, 2000, |rng, _| rng.u32()));
    report.add_each(&subject, "lengths", &helpers::arguments(7, 500, |rng, _| rng.u32()));
    report.add_each(&subject, "member", &helpers::arguments(10, 200, |rng, _| rng.u32()));
    let wide = |rng: &mut Rng, _: usize| match rng.below(4) {
        0 => rng.below(2000) as u32,
        1 => *rng.pick(&[u32::MAX, i32::MAX as u32, 1 << 31, 65_536, 57_000]),
        _ => rng.u32(),
    };
    report.add_each(&subject, "wide", &helpers::arguments(11, 1000, wide));
    report.add_each(&subject, "print_addresses", &helpers::arguments(12, 300, |rng, _| rng.u32()));
    report.add_each(&subject, "print_wide", &helpers::arguments(13, 5, |rng, _| rng.u32()));
    report.add_each(&subject, "print", &helpers::arguments(4, 2000, |rng, _| rng.u32() >> rng.below(32)));
    let digits =
        |rng: &mut Rng, _: usize| u32::from_ne_bytes(std::array::from_fn(|_| *rng.pick(b"0x123456789 +-afZ\0")));
    report.add_each(&subject, "parse", &helpers::arguments(5, 4000, digits));
    report.add_each(&subject, "context", &helpers::arguments(6, 3, |rng, _| rng.u32()));
    // Conversions that read memory are left to the interpreter; everything else is compiled.
    let others: Vec<_> = report.not_compiled.iter().filter(|(name, _)| !name.contains(":print")).collect();
    assert!(others.is_empty(), "{others:?}");
    report.finish("helpers by remote control");
}

#[test]
fn turns_of_iterators() {
    if !needs("turns_of_iterators").kernel(6, 4).clang().met() {
        return;
    }
    let source = clang::repository().join("bpf/tests/turns.bpf.c");
    let subject = Subject::read("turns", &clang::compile_file(&source, &["-mcpu=v3"]).unwrap());
    let mut report = Report::default();
    let mut packets = helpers::arguments(8, 2, |rng, _| rng.u32());
    for start in [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 3, i32::MAX] {
        for step in [-1, 0, 1, 3, 8 << 20, (8 << 20) + 1] {
            // Millions of turns once are enough.
            if start == -1 || step < 1000 {
                let words = [start as u32, start.wrapping_add(step) as u32];
                packets.extend(helpers::arguments(9, 1, |_, n| words[n.min(1)]));
            }
        }
    }
    report.add_each(&subject, "turns", &packets);
    report.add_each(&subject, "dynptrs", &helpers::arguments(14, 300, |rng, _| rng.u32()));
    report.finish("turns of iterators");
}

#[test]
fn spoilt_packets() {
    if !needs("spoilt_packets").clang().met() {
        return;
    }
    let mut report = Report::default();
    let packets = helpers::spoilt(7, 20);
    for subject in compiled("bpf/samples", &["-mcpu=v3"]) {
        report.add_with(&subject, &packets);
    }
    for path in xdp_tools() {
        report.add_with(&read(&path), &packets);
    }
    report.finish("spoilt packets");
}
