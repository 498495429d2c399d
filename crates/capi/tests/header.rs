//! The header is what the source says, and C programs work with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use xway_testkit::{Needs, clang};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_made_from_the_source() {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let source = here().join("src/lib.rs");
    let bindings = cbindgen::Builder::new().with_config(config).with_src(source).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let path = here().join("include/xway.h");
    if std::env::var_os("XWAY_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == made, "include/xway.h is not what src/lib.rs says; XWAY_BLESS=1 writes it");
}

/// Where cargo has put the shared library: beside this test.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    [deps.clone(), deps.join("..")]
        .into_iter()
        .find(|dir| dir.join("libxway.so").exists())
        .expect("libxway.so is built with this test")
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
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .arg(here().join("examples/filter.c"))
        .arg("-I")
        .arg(here().join("include"))
        .arg("-L")
        .arg(&library)
        .arg("-lxway")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

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

    let (code, _, err) = run(&[&object, Path::new("nothing")]);
    assert_eq!(code, Some(1));
    assert!(err.contains("nothing"), "{err}");
    let (code, _, err) = run(&[&here().join("Cargo.toml")]);
    assert!(code == Some(1) && err.contains("Cargo.toml: "), "{err}");
    std::fs::remove_dir_all(&dir).unwrap();
}
