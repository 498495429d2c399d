//! Skips that are explicit, named and counted.

use std::io::Write;
use std::path::Path;

/// Says that a test did not run: prints exactly `not run: NAME needs X`.
///
/// When the environment variable `XWAY_SKIP_LOG` names a file the line is appended to it too; `make test` uses that to
/// count the skips of a whole run, because cargo hides the output of tests that pass.
pub fn skip(name: &str, needs: &str) {
    let line = format!("not run: {name} needs {needs}");
    println!("{line}");
    let Some(path) = std::env::var_os("XWAY_SKIP_LOG") else { return };
    // One write of one whole line to a file opened for appending: lines of parallel tests do not mix.
    let logged = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = logged {
        eprintln!("cannot write {}: {error}", Path::new(&path).display());
    }
}

/// What a test needs of the machine, asked one after the other; the first that is missing is reported.
///
/// ```no_run
/// # use xway_testkit::Needs;
/// #[test]
/// fn veth_counts() {
///     if !Needs::of("veth_counts").root().command("ip").met() {
///         return;
///     }
///     // the test
/// }
/// ```
pub struct Needs {
    name: String,
    missing: Option<String>,
}

impl Needs {
    /// Starts the list of needs of the test `name`.
    pub fn of(name: &str) -> Needs {
        Needs { name: name.to_owned(), missing: None }
    }

    /// Effective user 0.
    pub fn root(self) -> Needs {
        self.that(is_root(), "root")
    }

    /// A program that can be found through `PATH` (or in the system directories that a user's `PATH` may lack).
    pub fn command(self, program: &str) -> Needs {
        self.that(has_command(program), program)
    }

    /// A file or directory.
    pub fn file(self, path: impl AsRef<Path>) -> Needs {
        let path = path.as_ref();
        self.that(path.exists(), &path.display().to_string())
    }

    /// A clang that can compile for BPF, and libbpf's headers.
    pub fn clang(self) -> Needs {
        match crate::clang::available() {
            Ok(()) => self,
            Err(what) => self.that(false, &what),
        }
    }

    /// A running kernel of at least this version.
    pub fn kernel(self, major: u32, minor: u32) -> Needs {
        self.that(kernel_at_least(major, minor), &format!("Linux {major}.{minor}"))
    }

    /// Any other condition; `what` completes the sentence "NAME needs …".
    pub fn that(mut self, holds: bool, what: &str) -> Needs {
        if !holds && self.missing.is_none() {
            self.missing = Some(what.to_owned());
        }
        self
    }

    /// True when nothing is missing; otherwise reports the skip and is false.
    #[must_use]
    pub fn met(self) -> bool {
        match self.missing {
            None => true,
            Some(what) => {
                skip(&self.name, &what);
                false
            }
        }
    }
}

/// True for effective user 0.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// True when `program` is an executable file in `PATH`, `/usr/sbin` or `/sbin`.
pub fn has_command(program: &str) -> bool {
    find_command(program).is_some()
}

pub(crate) fn find_command(program: &str) -> Option<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|file| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// True when the running kernel is at least this version; false where the version cannot be read.
pub fn kernel_at_least(major: u32, minor: u32) -> bool {
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else { return false };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0u32));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_missing_need_decides() {
        assert!(Needs::of("x").that(true, "a").met());
        let needs = Needs::of("x").that(true, "a").that(false, "b").that(false, "c");
        assert_eq!(needs.missing.as_deref(), Some("b"));
    }

    #[test]
    fn commands_are_found_by_name() {
        assert!(has_command("sh"));
        assert!(!has_command("no-such-program-anywhere"));
    }

    #[test]
    fn kernel_versions_compare_as_numbers() {
        assert!(kernel_at_least(2, 6));
        assert!(!kernel_at_least(999, 0));
    }
}
