//! BPF C to an object, for test files that name a source.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;

/// Compiles a source; the object's bytes. Relative paths in `flags` start at `dir`.
pub fn compile(source: &Path, dir: &Path, flags: &[String]) -> Result<Vec<u8>, Failure> {
    let place = source.display();
    let out = Scratch::new()?;
    let compiler = std::env::var_os("CLANG").map_or_else(|| PathBuf::from("clang"), PathBuf::from);
    let source = source.canonicalize().map_err(|e| Failure::file(&place, &e))?;
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let mut command = Command::new(&compiler);
    command.current_dir(dir).args(["-O2", "-g", "-Wall", "-target", "bpf"]);
    // Debian keeps asm/ in a directory of the machine's name, into which `-target bpf` does not look.
    let machine = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    if Path::new(&machine).is_dir() {
        command.arg("-I").arg(machine);
    }
    let output = command.arg("-c").arg(&source).arg("-o").arg(&out.0).args(flags).output().map_err(|e| {
        let words = format!("cannot compile {place}: {}: {e}", compiler.display());
        match e.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::needs(words).hint("install clang, or set CLANG to its path, or name an object file")
            }
            _ => Failure::needs(words),
        }
    })?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(Failure::input(format!("{place} does not compile:\n{}", messages.trim_end())));
    }
    if !messages.trim().is_empty() {
        crate::print::warn(messages.trim_end());
    }
    std::fs::read(&out.0).map_err(|e| Failure::file(out.0.display(), &e))
}

/// A file that is gone when this is.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("xway-{}-{number}.o", std::process::id()));
        // Made here and only here: whoever has put something in that place beforehand is told so.
        std::fs::File::create_new(&path).map_err(|e| Failure::file(path.display(), &e))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
