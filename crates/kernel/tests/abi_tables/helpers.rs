//! The helper table.

use std::os::fd::{AsFd, AsRawFd};

use xway_abi::{ArgKind, HELPER_MAX, HelperProto, MapType, helper, helper_takes_map, helpers};
use xway_testkit::Needs;

use crate::load::{is_refused, load, load_with, reason, without_perfmon};
use crate::maps::{self, Maps};
use crate::probe::{self, Vary, expectations, program};

#[test]
fn xdp_may_call_what_linux_says() {
    if !Needs::of("xdp_may_call_what_linux_says").root().kernel(6, 18).met() {
        return;
    }
    let mut wrong = Vec::new();
    for id in 1..=HELPER_MAX + 3 {
        let refused = match load(&format!("call #{id}\nr0 = 2\nexit"), "GPL") {
            Ok(()) => false,
            Err(log) => is_refused(&log),
        };
        let table = helper(id).is_some_and(|h| h.xdp);
        if table == refused {
            wrong.push(id);
        }
    }
    assert!(wrong.is_empty(), "helpers whose `xdp` flag is not Linux's: {wrong:?}");
}

#[test]
fn gpl_only_is_what_linux_says() {
    if !Needs::of("gpl_only_is_what_linux_says").root().kernel(6, 18).met() {
        return;
    }
    for h in helpers().iter().filter(|h| h.xdp) {
        let answer = load(&format!("call #{}\nr0 = 2\nexit", h.id), "MIT");
        let gpl = answer.is_err_and(|log| log.contains("GPL"));
        assert_eq!(gpl, h.gpl_only, "{}", h.name);
    }
}

#[test]
fn arguments_are_what_linux_says() {
    if !Needs::of("arguments_are_what_linux_says").root().kernel(6, 18).met() {
        return;
    }
    let maps = Maps::create().expect("maps");
    let mut wrong = Vec::new();
    let mut not_built = Vec::new();
    let mut tried = 0;
    for h in helpers().iter().filter(|h| h.xdp && !h.might_sleep) {
        for (vary, expected) in expectations(h) {
            let Some(text) = program(h, vary, &maps) else {
                not_built.push(h.name);
                break;
            };
            tried += 1;
            let answer = match vary {
                Vary::Uninit(_) => match without_perfmon(|| load_with(&text, "GPL", Some(&maps))) {
                    Err(log) if is_refused(&log) => continue,
                    answer => answer,
                },
                _ => load_with(&text, "GPL", Some(&maps)),
            };
            if answer.is_ok() != expected {
                let why = answer.err().map_or("accepted".to_owned(), |log| reason(&log).to_owned());
                wrong.push(format!("{}#{} {vary:?}: expected {expected}, Linux: {why}", h.name, h.id));
                if vary == Vary::Nothing {
                    break;
                }
            }
        }
    }
    println!("{tried} programs");
    // These want kernel variables and typed kernel pointers in map values.
    assert_eq!(not_built, ["bpf_per_cpu_ptr", "bpf_this_cpu_ptr", "bpf_kptr_xchg"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A tail call that fails leaves the packet alone; one that succeeds inside a subprogram may have moved it for the caller.
#[test]
fn tail_calls_invalidate_the_callers_packet_pointers() {
    if !Needs::of("tail_calls_invalidate_the_callers_packet_pointers").root().kernel(6, 18).met() {
        return;
    }
    let maps = Maps::create().expect("maps");
    let tail_call = format!("r1 = r6\nr2 = map[fd:{}]\nr3 = 0\ncall #12\n", maps.for_helper(12));
    let program = |in_main: &str, in_subprogram: &str| {
        format!(
            "r6 = r1\nr7 = *(u32 *)(r6 +0)\nr2 = *(u32 *)(r6 +4)\nr1 = r7\nr1 += 8\nif r1 > r2 goto out\n{in_main}\
             r1 = r6\ncall callback\nr1 = *(u8 *)(r7 +0)\nout:\nr0 = 2\nexit\n\
             callback:\nr6 = r1\n{in_subprogram}r0 = 0\nexit\n"
        )
    };
    let verdict = |text: String| load_with(&text, "GPL", Some(&maps)).map_err(|log| reason(&log).to_owned());
    assert_eq!(verdict(program("", "")), Ok(()));
    assert_eq!(verdict(program(&tail_call, "")), Ok(()));
    let inside = verdict(program("", &tail_call));
    assert!(inside.as_ref().is_err_and(|why| why.contains("R7 invalid mem access 'scalar'")), "{inside:?}");
}

#[test]
fn helpers_take_the_map_types_that_linux_says() {
    if !Needs::of("helpers_take_the_map_types_that_linux_says").root().kernel(6, 18).met() {
        return;
    }
    let maps = Maps::create().expect("maps");
    let types = maps::every_type();
    let mut wrong = Vec::new();
    // A timer's map must be the one that the timer lies in, so any other is refused for that reason.
    let with_map = |h: &&HelperProto| h.xdp && h.id != 169 && h.args.iter().any(|a| a.kind == ArgKind::ConstMap);
    for h in helpers().iter().filter(with_map) {
        for map in &types {
            let text = probe::program_with_map(h, map.as_fd().as_raw_fd(), &maps).expect("buildable");
            let map_type = map.spec().map_type;
            let answer = load_with(&text, "GPL", Some(&maps));
            let accepted = match &answer {
                Ok(()) => true,
                // The right kind of map, but this test has no socket for it and gives none back.
                Err(log) => {
                    let sockets = matches!(map_type, MapType::Sockmap | MapType::Sockhash);
                    sockets && (log.contains("reference leak") || log.contains("R3 type=fp expected=sock"))
                }
            };
            if accepted != helper_takes_map(h.id, map_type) {
                let why = answer.err().map_or("accepted".to_owned(), |log| reason(&log).to_owned());
                wrong.push(format!("{} with a map of type {}: Linux: {why}", h.name, map_type.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
