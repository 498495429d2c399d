//! The header is what the source says, and C programs work with it.

mod common;
#[path = "common/queue.rs"]
mod queue;

use std::path::Path;
use std::process::Command;

use common::library;
use queue::Queue;
use xway_testkit::{Needs, clang};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_made_from_the_source() {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    // And of its modules.
    let source = here().join("src/lib.rs");
    let bindings = cbindgen::Builder::new().with_config(config).with_src(source).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let path = here().join("include/xway.h");
    if std::env::var_os("XWAY_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == made, "include/xway.h is not what the sources say; XWAY_BLESS=1 writes it");
}

fn build(example: &str, library: &Path, program: &Path) {
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .arg(here().join("examples").join(example))
        .arg("-I")
        .arg(here().join("include"))
        .arg("-L")
        .arg(library)
        .arg("-lxway")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-o")
        .arg(program)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

#[test]
fn a_c_program_loads_runs_and_reads_maps() {
    let needs = Needs::of("xway-capi::header::a_c_program_loads_runs_and_reads_maps").clang();
    if !needs.command("cc").met() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("xway-capi-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (program, object, library) = (dir.join("filter"), dir.join("count.o"), library());
    build("filter.c", &library, &program);

    let source = clang::repository().join("bpf/samples/count.bpf.c");
    std::fs::write(&object, clang::compile_file(&source, &[]).unwrap()).unwrap();
    let run = |arguments: &[&Path]| {
        let out = Command::new(&program).args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (code, out, err) = run(&[&object]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    // Frames of zeros: an unknown protocol, which passes.
    let engine = if cfg!(target_arch = "x86_64") { "(jit)" } else { "(" };
    assert!(out.contains(engine) && out.contains("aborted 0, drop 0, pass 100, tx 0"), "{out}");
    assert!(out.ends_with("counters: 1 in use\n"), "{out}");

    // Its globals, in memory.
    let source = clang::repository().join("bpf/samples/sample.bpf.c");
    let sample = dir.join("sample.o");
    std::fs::write(&sample, clang::compile_file(&source, &[]).unwrap()).unwrap();
    let (code, out, err) = run(&[&sample]);
    assert!(code == Some(0) && out.ends_with(".bss: 100\n"), "{out}{err}");

    let (code, _, err) = run(&[&object, Path::new("nothing")]);
    assert_eq!(code, Some(1));
    assert!(err.contains("nothing"), "{err}");
    let (code, _, err) = run(&[&here().join("Cargo.toml")]);
    assert!(code == Some(1) && err.contains("Cargo.toml: "), "{err}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A C program gets every packet of a queue and sends it back changed; what it does wrong on purpose is refused.
#[test]
fn a_c_program_has_a_socket() {
    if !Needs::of("xway-capi::header::a_c_program_has_a_socket").command("cc").met() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("xway-capi-socket-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (program, path) = (dir.join("echo"), dir.join("socket"));
    build("echo.c", &library(), &program);

    let queue = Queue::new("c", &path);
    let run = |interface: &str| {
        let out = Command::new(&program).arg(&path).args([interface, "0", "10000"]).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, out, err) = run("sim:c");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let done: u64 = out.lines().nth(1).and_then(|l| l.split(' ').next()).and_then(|n| n.parse().ok()).unwrap();
    assert!(done >= 10_000 && out.contains(" 0 short, ") && out.ends_with(", 0 invalid\n"), "{out}");
    let (code, _, err) = run("sim:nobody");
    assert!(code == Some(1) && err.contains("nobody"), "{err}");
    let packet = Queue::packet();
    queue.ends(done, &[&packet[6..12], &packet[..6], &packet[12..]].concat());
    std::fs::remove_dir_all(&dir).unwrap();
}
