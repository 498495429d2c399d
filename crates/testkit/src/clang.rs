//! BPF C to object files with the machine's clang.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::skip::find_command;

/// Why there is no object file.
#[derive(Debug, thiserror::Error)]
pub enum ClangError {
    /// The machine lacks the compiler or the headers.
    #[error("no BPF compiler: {0} is missing (`make setup` installs it)")]
    Missing(String),
    /// clang refused the source; its own words.
    #[error("clang refused {source_name}:\n{messages}")]
    Refused {
        /// File, or the name given with the text.
        source_name: String,
        /// What clang wrote to standard error.
        messages: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
}

/// `Ok` when BPF C that includes `linux/bpf.h` and `bpf/bpf_helpers.h` compiles here; otherwise the name of what is missing.
pub fn available() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    ANSWER.get_or_init(probe).clone()
}

fn probe() -> Result<(), String> {
    let clang = compiler().ok_or("clang")?;
    let listed = Command::new(clang).arg("--print-targets").output().map_err(|_| "clang")?;
    if !String::from_utf8_lossy(&listed.stdout).lines().any(|l| l.trim_start().starts_with("bpf ")) {
        return Err("a clang with the bpf target".into());
    }
    if !include_dirs().iter().any(|dir| dir.join("bpf/bpf_helpers.h").exists()) {
        return Err("libbpf-dev".into());
    }
    Ok(())
}

/// The compiler: `CLANG` from the environment, or `clang`, or the newest `clang-N` there is.
pub fn compiler() -> Option<PathBuf> {
    if let Some(chosen) = std::env::var_os("CLANG") {
        return Some(chosen.into());
    }
    find_command("clang").or_else(|| (11..40).rev().find_map(|n| find_command(&format!("clang-{n}"))))
}

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").components().fold(PathBuf::new(), |mut path, part| {
        if part == std::path::Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
        path
    })
}

/// Where compiled objects go: `bpf` in cargo's target directory.
pub fn out_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    repository().join(target).join("bpf")
}

fn include_dirs() -> Vec<PathBuf> {
    // Debian keeps `asm/` in the directory of the machine's triple, which `-target bpf` does not look into.
    let triple = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let dirs = [repository().join("bpf/include"), triple.into(), "/usr/include".into(), "/usr/local/include".into()];
    dirs.into_iter().filter(|dir| dir.exists()).collect()
}

/// Compiles a file with `-O2 -g` and the given further flags; returns the object file's bytes.
///
/// The object also stays in [`out_dir`], under the source's name, for a look with other tools. `flags` stand last, so that
/// `-O1`, `-g0` or `-mcpu=v1` win.
pub fn compile_file(source: &Path, flags: &[&str]) -> Result<Vec<u8>, ClangError> {
    compile_file_as(source, "o", flags)
}

fn compile_file_as(source: &Path, extension: &str, flags: &[&str]) -> Result<Vec<u8>, ClangError> {
    let source = &source.canonicalize().map_err(|error| ClangError::Io { path: source.into(), error })?;
    let dir = source.parent().unwrap_or(Path::new("/"));
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    compile_in(dir, &name, source, extension, flags)
}

/// Compiles C text. `name` appears in messages, in line info and in the object's file name.
pub fn compile_text(name: &str, text: &str, flags: &[&str]) -> Result<Vec<u8>, ClangError> {
    let dir = out_dir().join("text");
    let path = dir.join(unique(&format!("{name}.c")));
    create_dir(&dir)?;
    write(&path, text.as_bytes())?;
    let object = compile_in(&repository(), name, &path, "o", flags);
    // Kept when clang refuses it: its messages point there.
    if object.is_ok() {
        let _ = std::fs::remove_file(&path);
    }
    object
}

/// Compiles a file as compilers before LLVM 7 did: no debug information, and a symbol table that says of no symbol whether
/// it is a function or data.
///
/// The way there is assembler text without its `.type` and `.size` lines.
pub fn compile_untyped(source: &Path) -> Result<Vec<u8>, ClangError> {
    let assembler = compile_file_as(source, "s", &["-g0", "-S"])?;
    let text = String::from_utf8_lossy(&assembler);
    let typed = |line: &&str| matches!(line.split_whitespace().next(), Some(".type" | ".size"));
    let stripped: String = text.lines().filter(|l| !typed(l)).flat_map(|l| [l, "\n"]).collect();
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let dir = out_dir().join("text");
    let path = dir.join(unique(&format!("{stem}.s")));
    create_dir(&dir)?;
    write(&path, stripped.as_bytes())?;
    let object = compile_in(&dir, &format!("{stem}-untyped.c"), &path, "o", &["-g0"]);
    let _ = std::fs::remove_file(&path);
    object
}

fn compile_in(dir: &Path, name: &str, source: &Path, extension: &str, flags: &[&str]) -> Result<Vec<u8>, ClangError> {
    available().map_err(ClangError::Missing)?;
    let clang = compiler().ok_or_else(|| ClangError::Missing("clang".into()))?;
    let out_dir = out_dir();
    create_dir(&out_dir)?;
    let stem = name.trim_end_matches(".c").trim_end_matches(".bpf");
    // Compiled under a name of its own, then renamed: tests of other processes never see half an object.
    let temporary = out_dir.join(unique(&format!("{stem}.tmp")));
    let mut command = Command::new(clang);
    command.current_dir(dir).args(["-O2", "-g", "-Wall", "-target", "bpf", "-c"]).arg(source).arg("-o").arg(&temporary);
    for include in include_dirs() {
        command.arg("-I").arg(include);
    }
    let output = command.args(flags).output().map_err(|error| ClangError::Io { path: source.into(), error })?;
    if !output.status.success() {
        let _ = std::fs::remove_file(&temporary);
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(ClangError::Refused { source_name: name.into(), messages });
    }
    let bytes = std::fs::read(&temporary).map_err(|error| ClangError::Io { path: temporary.clone(), error })?;
    let kept = out_dir.join(format!("{stem}.{extension}"));
    std::fs::rename(&temporary, &kept).map_err(|error| ClangError::Io { path: kept.clone(), error })?;
    Ok(bytes)
}

fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}-{name}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn create_dir(dir: &Path) -> Result<(), ClangError> {
    std::fs::create_dir_all(dir).map_err(|error| ClangError::Io { path: dir.into(), error })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ClangError> {
    std::fs::write(path, bytes).map_err(|error| ClangError::Io { path: path.into(), error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Needs;

    #[test]
    fn text_becomes_an_elf_file() {
        if !Needs::of("clang::text_becomes_an_elf_file").clang().met() {
            return;
        }
        let object =
            compile_text("tiny", "__attribute__((section(\"xdp\"))) int p(void *c) { return 2; }\n", &[]).unwrap();
        assert_eq!(&object[..4], b"\x7fELF");
        let refused = compile_text("broken", "int p( {", &[]).unwrap_err();
        assert!(refused.to_string().contains("error:"), "{refused}");
    }

    #[test]
    fn the_root_is_the_repository() {
        assert!(repository().join("Cargo.toml").exists(), "{}", repository().display());
    }
}
