//! Files that are not what they should be: one message, the right exit code, nothing half-written.

mod common;

use common::{Dir, capture, clang, mixture, sample, xway};

/// An object and a capture that work.
fn good(dir: &Dir) -> (String, String) {
    capture(&dir.path("good.pcap"), &mixture());
    (sample(dir, "count"), dir.arg("good.pcap"))
}

#[test]
fn objects_that_are_none() {
    if !clang("bad_input::objects_that_are_none") {
        return;
    }
    let dir = Dir::new();
    let (object, input) = good(&dir);
    let bytes = std::fs::read(&object).unwrap();
    let mut other_machine = bytes.clone();
    other_machine[18..20].copy_from_slice(&62u16.to_le_bytes());
    let mut big_endian = bytes.clone();
    big_endian[5] = 2;
    let own = std::env::current_exe().unwrap();
    for (path, words) in [
        (dir.file("empty.o", b""), "not an ELF"),
        (dir.file("text.o", b"#!/bin/sh\n"), "not an ELF"),
        (dir.file("short.o", &bytes[..40]), "ELF"),
        (dir.file("half.o", &bytes[..bytes.len() / 2]), "ELF"),
        (dir.file("machine.o", &other_machine), "BPF"),
        (dir.file("endian.o", &big_endian), "endian"),
        (own.to_str().unwrap().to_owned(), "BPF"),
        (dir.arg("missing.o"), "no such file"),
        (dir.arg(""), "is a directory"),
        ("/dev/null".into(), "is a device"),
    ] {
        let out = dir.arg("out.pcapng");
        for args in [
            &["run", &path, "-i", &input, "-o", &out][..],
            &["prog", "run", &path, "--data-in", "hex:00", "--data-out", &out],
            &["prog", "inspect", &path],
        ] {
            let ran = xway(args).exits(3).says(words);
            assert!(ran.err.contains(&path), "the message names the file: {}", ran.err);
            assert_eq!(ran.out, "");
        }
        assert!(!dir.names().iter().any(|n| n.starts_with("out")), "{:?}", dir.names());
    }
}

#[test]
fn damaged_objects_never_panic() {
    if !clang("bad_input::damaged_objects_never_panic") {
        return;
    }
    let dir = Dir::new();
    let (object, input) = good(&dir);
    let bytes = std::fs::read(&object).unwrap();
    let mut random = xway_testkit::Rng::new(7);
    for round in 0..120 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random.below(8) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = if round % 2 == 0 { 0xff } else { random.below(256) as u8 };
        }
        let path = dir.file("damaged.o", &damaged);
        // Every other one without a proof, so that the interpreter gets its share.
        let checked = if round % 4 < 2 { &["--checked"][..] } else { &[] };
        let ran = xway(&[&["run", &path, "-i", &input, "--budget", "100000", "-j"], checked].concat());
        assert!([0, 1, 2, 3].contains(&ran.code), "round {round}: exit {}\n{}", ran.code, ran.err);
        assert!(!ran.err.contains("panicked"), "round {round}: {}", ran.err);
        ran.json();
    }
}

#[test]
fn captures_that_are_none() {
    if !clang("bad_input::captures_that_are_none") {
        return;
    }
    let dir = Dir::new();
    let (object, input) = good(&dir);
    let good = std::fs::read(&input).unwrap();
    let mut raw_ip = good.clone();
    raw_ip[20..24].copy_from_slice(&101u32.to_le_bytes());
    let mut huge = good.clone();
    huge[32..36].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    for (path, words) in [
        (dir.file("empty.pcap", b""), "first header"),
        (dir.file("text.pcap", b"hello, world\n"), "not a capture"),
        (dir.file("header.pcap", &good[..10]), ""),
        (dir.file("rawip.pcap", &raw_ip), "link type"),
        (dir.file("huge.pcap", &huge), "after packet 0 (byte 24)"),
        (dir.file("bad.pcap.gz", b"\x1f\x8b\x08\x00garbage"), ""),
        (dir.arg("missing.pcap"), "no such file"),
    ] {
        let ran = xway(&["run", &object, "-i", &path]).exits(3);
        let ran = ran.says(words);
        assert!(ran.err.contains(&path), "the message names the file: {}", ran.err);
    }
}

#[test]
fn a_capture_that_is_cut_delivers_what_it_has_and_says_where_it_ends() {
    if !clang("bad_input::a_capture_that_is_cut_delivers_what_it_has_and_says_where_it_ends") {
        return;
    }
    let dir = Dir::new();
    let (object, _) = good(&dir);
    for name in ["in.pcap", "in.pcapng"] {
        capture(&dir.path(name), &mixture());
        let whole = std::fs::read(dir.path(name)).unwrap();
        let cut = dir.file(&format!("cut-{name}"), &whole[..whole.len() - 5]);
        let out = dir.arg(&format!("out-{name}"));
        let ran = xway(&["run", &object, "-i", &cut, "-o", &out, "-j"]).exits(3);
        assert!(ran.err.contains("cut") && ran.err.contains("packet 6"), "{}", ran.err);
        let doc = ran.json();
        assert_eq!((doc["packets"].as_u64(), doc["end"].as_str()), (Some(6), Some("failed")));
        assert_eq!(doc["errors"][0]["kind"], "input");
        // What was written is whole.
        let mut reader = xway_port_pcap::CaptureReader::open(out.as_ref()).unwrap();
        while reader.next_with(|_| ()).unwrap().is_some() {}
        assert!(dir.names().iter().all(|n| !n.contains("part")), "{:?}", dir.names());
    }
}

#[test]
fn packets_of_extreme_lengths_are_counted() {
    if !clang("bad_input::packets_of_extreme_lengths_are_counted") {
        return;
    }
    let dir = Dir::new();
    let (object, _) = good(&dir);
    let packets = vec![vec![], vec![1], vec![2; 13], vec![3; 14], vec![4; 1514], vec![5; 9000], vec![6; 65535]];
    capture(&dir.path("lengths.pcapng"), &packets);
    let doc = xway(&["run", &object, "-i", &dir.arg("lengths.pcapng"), "-j"]).exits(0).json();
    let port = &doc["losses"]["ports"][0];
    let seen = doc["packets"].as_u64().unwrap() + port["oversize"].as_u64().unwrap() + others(port);
    assert_eq!(seen, 7, "every packet is run or counted as not run: {doc}");
    if doc["packets"].as_u64() != Some(7) {
        assert!(!doc["errors"].as_array().unwrap().is_empty(), "{doc}");
    }
}

fn others(port: &serde_json::Value) -> u64 {
    port["other"].as_object().unwrap().values().filter_map(|v| v.as_u64()).sum()
}

#[test]
fn interfaces_and_outputs_that_cannot_be_used() {
    if !clang("bad_input::interfaces_and_outputs_that_cannot_be_used") {
        return;
    }
    let dir = Dir::new();
    let (object, input) = good(&dir);
    xway(&["run", &object, "-i", "packet:nosuch0"]).exits(4).says("nosuch0");
    xway(&["run", &object, "-i", "packet:a-name-that-is-much-too-long"]).exits(4).says("a-name-that-is");
    xway(&["run", &object, "-i", "tap:a-name-that-is-much-too-long"]).exits(2).says("more than 15 bytes");
    xway(&["run", &object, "-i", "nosuch0"]).exits(2).says("packet:IFACE");
    // A pipe that nobody writes into is not waited for; what stands in the place of a file is named.
    let (pipe, socket) = (dir.arg("pipe"), dir.arg("socket"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, what) in
        [(pipe.as_str(), "a pipe"), (&socket, "a socket"), ("/dev/null", "a device"), ("/", "a directory")]
    {
        for verb in [
            &["verify", path][..],
            &["prog", "inspect", path],
            &["load", "lo", path],
            &["btf", "dump", "file", path],
            &["test", path],
        ] {
            xway(verb).exits(3).says(&format!("{path}: is {what}, and a file is wanted"));
        }
    }
    // Under another name too: the packets would be gone.
    let (alias, before) = (dir.arg("alias.pcapng"), std::fs::read(&input).unwrap());
    std::os::unix::fs::symlink(&input, &alias).unwrap();
    for (from, to) in [(&input, &input), (&input, &alias), (&format!("pcap:{input}?loop=2"), &input)] {
        xway(&["run", &object, "-i", from, "-o", to]).exits(2).says("this is the input");
    }
    // And where the shell has opened it.
    let mut redirected = common::command(&["run", &object, "-i", "-", "-o", &input]);
    let said = redirected.stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&said.stderr).contains("this is the input"), "{said:?}");
    assert_eq!(std::fs::read(&input).unwrap(), before);
    // A full disk is the output's, and is told once.
    let long = format!("pcap:{input}?loop=20000");
    let full = xway(&["run", &object, "-i", &long, "-o", "/dev/full"]).exits(3);
    assert!(full.out.contains(", output failed: ") && full.err.matches("No space left").count() == 1, "{full:?}");
    let full = xway(&["-j", "run", &object, "-i", &input, "-o", "/dev/full"]).exits(3).json();
    let errors = full["errors"].as_array().unwrap();
    assert!(errors.len() == 1 && errors[0]["kind"] == "output", "{errors:?}");
    let nowhere = dir.arg("none/out.pcapng");
    xway(&["run", &object, "-i", &input, "-o", &nowhere]).exits(3).says("none/out.pcapng");
    xway(&["prog", "run", &object, "--data-in", "hex:00112233445566778899aabbccddeeff", "--data-out", &nowhere])
        .exits(3)
        .says("none/out.pcapng");
}

#[test]
fn map_files_that_do_not_fit() {
    if !clang("bad_input::map_files_that_do_not_fit") {
        return;
    }
    let dir = Dir::new();
    let (_, input) = good(&dir);
    let object = sample(&dir, "blacklist");
    for (argument, content, code, words) in [
        ("prefixes", None, 2, "NAME=FILE"),
        ("nothing=x.json", Some("[]"), 2, "no map \"nothing\""),
        ("prefixes=x.json", Some("{"), 3, "not JSON"),
        ("prefixes=x.json", Some("7"), 3, "expected a list"),
        ("prefixes=x.json", Some("[7]"), 3, "7 is no entry"),
        ("prefixes=x.json", Some(r#"[{"key":{"length":33},"value":0}]"#), 3, "EINVAL"),
        (
            "prefixes=x.json",
            Some(r#"[{"key":{"len":33},"value":0}]"#),
            3,
            "no member \"len\"; there are length, address",
        ),
        ("prefixes=x.json", Some(r#"[{"key":{"length":3}}]"#), 3, "without \"value\""),
        ("prefixes=missing.json", None, 3, "no such file"),
        ("verdicts=x.json", Some(r#"[{"key":9,"value":{"packets":1}}]"#), 3, "E2BIG"),
    ] {
        if let Some(content) = content {
            dir.file("x.json", content);
        }
        let argument = argument.replace("=", &format!("={}/", dir.arg("")));
        xway(&["run", &object, "-i", &input, "--map", &argument]).exits(code).says(words);
    }
}

/// Whatever is to be written, and whoever writes it.
#[test]
fn directories_that_are_not_there() {
    if !clang("bad_input::directories_that_are_not_there") {
        return;
    }
    let dir = Dir::new();
    let (object, input) = good(&dir);
    let (none, file) = (dir.arg("none"), dir.file("file", b""));
    let (picture, packet) = (dir.arg("none/a.svg"), dir.file("packet", [0; 64]));
    for (option, args) in [
        ("--jitdump", &["run", &object, "-i", &input, "--jitdump", &none][..]),
        ("--jitdump", &["run", &object, "-i", &input, "--perf-map", "--jitdump", &none]),
        ("--jitdump", &["prog", "run", &object, "--engine", "jit", "--data-in", &packet, "--jitdump", &none]),
        ("--jitdump", &["up", "--state", &file, "--jitdump", &none]),
        ("--plot", &["bench", "prog", "--filter", "empty", "--plot", &picture]),
    ] {
        let ran = xway(args).exits(3);
        let lines: Vec<&str> = ran.err.lines().collect();
        let [said, hint] = lines[..] else { panic!("{args:?}: {}", ran.err) };
        assert!(said.starts_with(&format!("xway: {option}: {none}/")), "{said}");
        assert!(said.ends_with(": cannot be created: no such directory"), "{said}");
        assert_eq!(hint, format!("  try: mkdir -p {none}, or name a directory that is there"));
    }
    let ran = xway(&["run", &object, "-i", &input, "--jitdump", &file]).exits(3);
    assert!(ran.err.contains(&format!("{file} is no directory")) && ran.err.contains("try: "), "{}", ran.err);
}
