//! The command line itself: help, version, mistakes.

mod common;

use common::{Dir, xway};

#[test]
fn every_verb_has_help_with_an_example() {
    let alone = "run verify test load unload status stats features steer clean up down apply diff conformance doctor trafficgen";
    let prog = "run inspect show pin unpin profile tracelog";
    let map = "show dump lookup update delete getnext pin unpin freeze create push pop peek event_pipe";
    let groups = [
        ("prog", prog),
        ("map", map),
        ("link", "show detach pin unpin"),
        ("btf", "dump"),
        ("sock", "show serve end"),
        ("forward", "load unload status"),
        ("filter", "load unload add del list stats"),
    ];
    let mut verbs: Vec<Vec<&str>> = alone.split(' ').map(|verb| vec![verb]).collect();
    verbs.extend(groups.iter().flat_map(|(group, all)| all.split(' ').map(move |verb| vec![*group, verb])));
    for verb in verbs {
        let help = xway(&[&verb[..], &["--help"]].concat()).exits(0);
        assert!(help.out.contains("Examples:"), "{verb:?}:\n{}", help.out);
        assert!(help.out.contains(&format!("xway {}", verb.join(" "))), "{verb:?}");
        assert_eq!(help.err, "");
    }
    assert!(xway(&["--help"]).exits(0).out.contains("Exit codes: 0 done"));
    assert!(xway(&["--version"]).exits(0).out.starts_with("xway "));
}

#[test]
fn mistakes_are_usage_errors() {
    for args in [
        &["nonsense"][..],
        &["run"],
        &["run", "x.o"],
        &["run", "x.o", "-i", "x.pcap", "--count", "many"],
        &["run", "x.o", "-i", "x.pcap", "--timeout", "-1"],
        &["prog", "run", "x.o"],
        &["prog", "run", "x.o", "--data-in", "hex:00", "--repeat", "0"],
        &["test"],
        &["conformance", "--engine", "magic"],
        &["conformance", "zz"],
    ] {
        let ran = xway(args).exits(2);
        assert!(!ran.err.is_empty() && ran.out.is_empty(), "{args:?}");
    }
}

/// Any bytes can stand on a command line.
#[test]
fn words_that_are_no_text_are_usage_errors() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    for (words, json) in [(&["load"][..], false), (&["map", "show", "name"], false), (&["load", "-j"], true)] {
        let ran = common::output(common::command(words).arg(odd).arg("x.o")).exits(2);
        assert!(!ran.err.is_empty() && ran.out.is_empty() != json, "{words:?}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn unload_names_what_it_wants() {
    let ran = xway(&["unload", "eth0"]).exits(2);
    assert!(ran.err.contains("--id <ID>|--all"), "{}", ran.err);
    xway(&["unload", "eth0", "-a", "-i", "7"]).exits(2);
    for verb in ["unload", "status"] {
        let help = xway(&[verb, "--help"]).exits(0).out;
        assert!(help.contains("PORT") && !help.contains("IFACE"), "{help}");
    }
    assert!(!xway(&["steer", "--help"]).exits(0).out.contains("own rules say ethtool"));
}

#[test]
fn usage_errors_are_json_documents_too() {
    let doc = xway(&["run", "-j"]).exits(2).json();
    assert_eq!((doc["error"]["exit"].as_u64(), doc["error"]["kind"].as_str()), (Some(2), Some("usage")));
    let doc = xway(&["prog", "inspect", "/no/such/file", "-j"]).exits(3).json();
    assert_eq!(doc["error"]["kind"], "input");
    assert!(doc["error"]["message"].as_str().unwrap().contains("/no/such/file"));
}

/// A message is a sentence; how a verb is used is for people, on standard error.
#[test]
fn a_mistake_in_json_is_a_message_and_a_hint() {
    for (args, message, hint) in [
        (&["-j", "frob"][..], "unrecognized subcommand 'frob'", None),
        (&["-j", "stauts"], "unrecognized subcommand 'stauts'", Some("status")),
        (&["map", "shwo", "-j"], "unrecognized subcommand 'shwo'", Some("show")),
        (&["run", "-j"], "the following required arguments were not provided: --input <PORT> <OBJ>", None),
        (&["status", "--measure", "x", "-j"], "invalid value 'x' for '--measure <SECS>'", None),
        (&["load", "-j", "--nosuch"], "unexpected argument '--nosuch' found", None),
    ] {
        let ran = xway(args).exits(2);
        let error = ran.json()["error"].clone();
        let said = error["message"].as_str().unwrap();
        assert!(said.starts_with(message) && !said.contains('\n') && !said.contains("Usage"), "{args:?}: {said:?}");
        match hint {
            Some(word) => assert!(error["hint"].as_str().unwrap().contains(word), "{args:?}: {error}"),
            None => assert!(!error["hint"].as_str().is_some_and(|h| h.contains("Usage")), "{args:?}: {error}"),
        }
        assert!(ran.err.contains("Usage") || ran.err.contains("--help"), "{args:?}: {}", ran.err);
    }
}

#[test]
fn json_is_indented_where_bpftool_takes_the_word_for_it() {
    for args in [
        &["-p", "prog", "inspect", "/no/such/file"][..],
        &["prog", "-p", "inspect", "/no/such/file"],
        &["prog", "inspect", "/no/such/file", "--pretty"],
        &["-p", "verify", "/no/such/file"],
    ] {
        let ran = xway(args).exits(3);
        assert!(ran.out.starts_with("{\n  \"schema_version\": 1,\n"), "{args:?}: {}", ran.out);
        assert_eq!(ran.json()["error"]["kind"], "input");
    }
}

#[test]
fn output_that_nobody_reads_is_no_disaster() {
    let dir = Dir::new();
    let script = format!("{} --help | head -c 1; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_xway"));
    let path = dir.file("script.sh", script);
    let done = std::process::Command::new("bash").arg(path).output().unwrap();
    assert!(!String::from_utf8_lossy(&done.stderr).contains("panicked"));
}

/// A form of output that somebody asks for beside JSON was dropped without a word.
#[test]
fn standard_output_has_one_form() {
    let help = xway(&["bench", "--help"]).exits(0).out;
    let (_, below) = help.split_once("\nCommands:\n").unwrap();
    let names = below.lines().take_while(|l| !l.is_empty()).filter_map(|l| l.strip_prefix("  ")?.split(' ').next());
    let tables = names.filter(|name| !["", "help"].contains(name)).filter(|name| {
        let help = xway(&["bench", name, "--help"]).exits(0).out;
        help.contains("--markdown")
    });
    let mut verbs: Vec<Vec<&str>> = tables.map(|name| vec!["bench", name, "--markdown"]).collect();
    assert!(verbs.len() > 10, "{verbs:?}");
    verbs.iter_mut().filter(|verb| help_of(verb).contains("table of --sweep")).for_each(|verb| verb.push("--sweep"));
    verbs.push(vec!["test", "x.toml", "--tap"]);
    for verb in verbs {
        for args in [[&verb[..], &["-j"]].concat(), [&["-j"], &verb[..]].concat(), [&["-p"], &verb[..]].concat()] {
            let ran = xway(&args).exits(2).says("and JSON: standard output has one form");
            assert_eq!(ran.json()["error"]["kind"], "usage", "{args:?}");
        }
    }
    // A list of cases is a table as well.
    let list = xway(&["bench", "prog", "--list", "--markdown"]);
    assert!(list.code != 0 || list.out.contains("\n|---|"), "{}", list.out);
}

fn help_of(verb: &[&str]) -> String {
    xway(&[&verb[..2], &["--help"]].concat()).exits(0).out
}
