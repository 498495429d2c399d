//! Source files on disk.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Longest source file that is read, bytes.
const FILE_MAX: u64 = 8 << 20;
/// Files that are kept.
const KEPT_MAX: usize = 64;

/// Source files, each read once.
#[derive(Default)]
pub struct Files {
    read: HashMap<PathBuf, Option<Rc<Vec<String>>>>,
}

impl Files {
    /// The lines of a source file that an object names, when it is there and `line` (from 1) still reads `text`. A name
    /// that is not absolute is looked for here and beside the object. A file that has changed since is of no use: its
    /// lines would accuse the wrong statement.
    pub fn lines(&mut self, name: &str, beside: &str, line: u32, text: &str) -> Option<Rc<Vec<String>>> {
        let beside = Path::new(beside).parent().unwrap_or(Path::new("")).join(name);
        [PathBuf::from(name), beside].into_iter().find_map(|path| {
            let lines = self.file(path)?;
            let there = lines.get(line.checked_sub(1)? as usize)?;
            (!text.trim().is_empty() && there.trim() == text.trim()).then_some(lines)
        })
    }

    fn file(&mut self, path: PathBuf) -> Option<Rc<Vec<String>>> {
        if let Some(known) = self.read.get(&path) {
            return known.clone();
        }
        if self.read.len() >= KEPT_MAX {
            self.read.clear();
        }
        let lines = read(&path).map(Rc::new);
        self.read.insert(path, lines.clone());
        lines
    }
}

/// The lines of a regular file. The name comes from the object, so devices and pipes are left alone.
fn read(path: &Path) -> Option<Vec<String>> {
    let about = std::fs::metadata(path).ok()?;
    if !about.is_file() || about.len() > FILE_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_still_has_the_line_is_used() {
        let dir = std::env::temp_dir().join(format!("xway-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("a.c"), "int a;\n\tint b;\n").unwrap();
        let object = dir.join("a.o").display().to_string();
        let mut files = Files::default();
        let lines = files.lines("a.c", &object, 2, "\tint b;").expect("beside the object");
        assert_eq!(lines[1], "\tint b;");
        assert!(files.lines("a.c", &object, 1, "int b;").is_none(), "the line has changed");
        assert!(files.lines("a.c", &object, 0, "int a;").is_none() && files.lines("a.c", &object, 9, "x").is_none());
        assert!(files.lines("/dev/zero", &object, 1, "x").is_none(), "no regular file");
        assert!(files.lines(dir.to_str().unwrap(), &object, 1, "x").is_none(), "a directory");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
