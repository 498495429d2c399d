//! gdb knows compiled programs by name.

use std::process::Command;
use std::sync::Arc;

use xway_jit::{Compiled, Options, compile};
use xway_object::Program;
use xway_testkit::skip;
use xway_verifier::{Config, MapsView, verify};

fn compiled(name: &str) -> Arc<Compiled> {
    let insns = xway_isa::assemble("call twice\nr0 += 1\nexit\ntwice: r0 = 2\nexit").expect("assembles");
    let image = Program { name: name.into(), section: "xdp".into(), insns, ..Program::default() };
    let view = MapsView { maps: &[], btf: None, kernel: None, license: Some("GPL") };
    let proof = verify(&image, &view, &Config::default()).expect("is safe");
    let program = xway_vm::Program::link(&image, &[]).expect("links");
    compile(&program, &proof, &Options::default()).expect("compiles")
}

/// What runs under the debugger: one program goes, one stays, and the process stops itself.
#[test]
fn under_the_debugger() {
    if std::env::var_os("XWAY_UNDER_GDB").is_none() {
        return;
    }
    drop(compiled("went"));
    let code = compiled("stayed");
    println!("code at {:#x}", code.address());
    std::process::abort();
}

#[test]
fn gdb_names_what_was_compiled() {
    const NAME: &str = "gdb_names_what_was_compiled";
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "set disable-randomization off"]);
    gdb.args(["-ex", "run", "-ex", "info functions xway:", "--args"]);
    gdb.arg(std::env::current_exe().expect("this test")).args(["--exact", "under_the_debugger", "--nocapture"]);
    let Ok(output) = gdb.env("XWAY_UNDER_GDB", "1").output() else { return skip(NAME, "gdb") };
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if said.contains("Operation not permitted") {
        return skip(NAME, "a gdb that may trace processes");
    }
    assert!(said.contains("SIGABRT"), "{said}");
    let at = said.split("code at 0x").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("an address");
    let burst =
        said.lines().find(|l| l.contains("xway:stayed:") && l.ends_with(":burst")).unwrap_or_else(|| panic!("{said}"));
    assert!(burst.trim_start_matches("0x").trim_start_matches('0').starts_with(at), "{burst}\n{at}");
    assert!(said.contains(":single") && !said.contains("xway:went:"), "{said}");
}
