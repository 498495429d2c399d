// Shared by the build scripts of the crates that embed BPF objects.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles all `.bpf.c` of these folders of the repository, and writes `OUT_DIR/objects.rs` with them. Without
/// clang the build succeeds with an empty list that says what was missing; `who` has no programs of its own then.
pub fn embed(folders: &[&str], who: &str) {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let sources: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    for watched in sources.iter().chain([&root.join("bpf/include")]) {
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    println!("cargo::rerun-if-env-changed=CLANG");
    let (objects, missing) = match compile_all(&root, &sources, &out) {
        Ok(objects) => (objects, None),
        Err(why) => {
            println!("cargo::warning={who} has no programs of its own: {why}");
            (Vec::new(), Some(why))
        }
    };
    let mut text = String::from("pub const OBJECTS: &[(&str, &[u8])] = &[\n");
    for (name, path) in &objects {
        writeln!(text, "    ({name:?}, include_bytes!({:?})),", path.display().to_string()).expect("a string grows");
    }
    writeln!(text, "];\npub const MISSING: Option<&str> = {missing:?};").expect("a string grows");
    std::fs::write(out.join("objects.rs"), text).expect("OUT_DIR can be written");
}

/// Name and object file of each source, or what was missing.
fn compile_all(root: &Path, sources: &[PathBuf], out: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in sources {
        let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        files.extend(entries.filter_map(|e| Some(e.ok()?.path())));
    }
    files.retain(|p| p.to_string_lossy().ends_with(".bpf.c"));
    files.sort();
    files.iter().map(|file| compile(root, file, out)).collect()
}

fn compile(root: &Path, source: &Path, out: &Path) -> Result<(String, PathBuf), String> {
    let name = source.file_name().unwrap_or_default().to_string_lossy().replace(".bpf.c", "");
    let object = out.join(format!("{name}.o"));
    let clang = std::env::var_os("CLANG").map_or_else(|| PathBuf::from("clang"), PathBuf::from);
    let mut command = Command::new(&clang);
    // The flags of scripts/samples. Debian keeps asm/ in a directory of the machine's name.
    command.args(["-O2", "-g", "-Wall", "-target", "bpf", "-I"]).arg(root.join("bpf/include"));
    command.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    let output = command.arg("-c").arg(source).arg("-o").arg(&object).output().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("{} was not found when this was built", clang.display()),
        _ => format!("{}: {e}", clang.display()),
    })?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let first = words.lines().find(|l| l.contains("error")).unwrap_or("no message").to_owned();
        return Err(format!("clang refused {}: {first}", source.file_name().unwrap_or_default().display()));
    }
    Ok((name, object))
}
