//! A port or a file system that is not there: every verb that wants one says so, with the exit code for what the machine lacks.

mod common;

use common::service::Up;
use common::wire::{Bench, ready};
use common::{Dir, compiled, xway};
use xway_testkit::Needs;

const PASS: &str = "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }
    char _license[] SEC(\"license\") = \"GPL\";";

/// Verbs that take a port, with what else they want; `PORT` and `OBJ` stand for those.
const VERBS: [&str; 19] = [
    "load PORT OBJ",
    "load PORT OBJ -P 10",
    "unload PORT -a",
    "unload PORT -i 1",
    "status PORT",
    "features PORT",
    "features PORT OBJ",
    "stats PORT --count 1",
    "stats PORT --count 1 --ndjson",
    "dump PORT -c 1",
    "monitor PORT -c 1",
    "monitor PORT -e -c 1",
    "forward load PORT",
    "forward unload PORT",
    "forward status PORT",
    "filter load PORT",
    "filter unload PORT",
    "filter stats PORT --count 1",
    "filter list PORT",
];

/// Those that know interfaces of this host only.
const HOST: [&str; 9] = [
    "doctor PORT",
    "steer PORT",
    "trafficgen PORT -n 1",
    "trafficgen packet:PORT -n 1",
    "run OBJ -i packet:PORT",
    "run OBJ -i afxdp:PORT",
    "load PORT OBJ -m native",
    "load PORT OBJ -m generic",
    "load PORT OBJ -m offload",
];

fn words(verb: &str, object: &str) -> Vec<String> {
    verb.split(' ').map(|word| word.replace("PORT", "nowhere0").replace("OBJ", object)).collect()
}

#[test]
fn an_interface_that_is_not_there_is_exit_code_4() {
    if !ready("missing::an_interface_that_is_not_there_is_exit_code_4") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("missing", true));
    let object = compiled(&dir, "pass", PASS, &[]);
    for hook in [&["--hook", "native"][..], &[]] {
        // Those that watch packets ask the service unless they are told otherwise.
        let here = |verb: &&&str| !hook.is_empty() || !["dump", "monitor"].iter().any(|of| verb.starts_with(of));
        for verb in VERBS.iter().filter(here) {
            let args = words(verb, &object);
            let args: Vec<&str> = args.iter().map(String::as_str).chain(hook.iter().copied()).collect();
            told(&args, &bench.xway(&args));
            let json = [&args[..], &["-j"]].concat();
            let ran = bench.xway(&json);
            told(&json, &ran);
            assert_eq!(ran.json()["error"]["kind"], "needs", "{json:?}: {}", ran.out);
        }
    }
    for verb in HOST {
        let args = words(verb, &object);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        told(&args, &bench.xway(&args));
    }
}

#[track_caller]
fn told(args: &[&str], ran: &common::Ran) {
    assert_eq!(ran.code, 4, "{args:?}: {}{}", ran.out, ran.err);
    assert!(ran.err.contains("nowhere0") && !ran.err.contains("panicked"), "{args:?}: {}", ran.err);
}

#[test]
fn a_port_that_the_service_does_not_have_is_exit_code_4() {
    if !common::clang("missing::a_port_that_the_service_does_not_have_is_exit_code_4") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "pass", PASS, &[]);
    let up = Up::new(&dir, None, None);
    for verb in VERBS.iter().chain(&["steer packet:PORT"]) {
        let args = words(verb, &object);
        let place: &[&str] = if verb.starts_with("steer") { &[] } else { &["--hook", "user"] };
        let at = ["--socket", up.socket.as_str()];
        let args: Vec<&str> = args.iter().map(String::as_str).chain(place.iter().copied()).chain(at).collect();
        told(&args, &xway(&args));
    }
}

#[test]
fn a_machine_without_a_trace_log_is_exit_code_4() {
    if !Needs::of("xway::missing::a_machine_without_a_trace_log_is_exit_code_4").root().command("unshare").met() {
        return;
    }
    // Empty directories where tracefs may be, seen by this command alone.
    let script =
        "for d in /sys/kernel/tracing /sys/kernel/debug; do [ ! -d $d ] || mount -t tmpfs none $d || exit 99; done
        exec \"$0\" prog tracelog -j";
    let ran = common::output(std::process::Command::new("unshare").args([
        "-m",
        "sh",
        "-c",
        script,
        env!("CARGO_BIN_EXE_xway"),
    ]));
    let ran = ran.exits(4).says("no tracefs is mounted").says("mount -t tracefs");
    assert_eq!(ran.json()["error"]["kind"], "needs", "{}", ran.out);
}
