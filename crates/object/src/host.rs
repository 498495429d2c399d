//! Load options of the machine that this runs on. The only file here that reads files.

use std::io::Read as _;
use std::sync::Arc;

use crate::{Btf, LoadOptions};

/// The largest configuration text that is read; real ones have some hundred kilobytes.
const MAX_CONFIG: u64 = 16 << 20;

impl LoadOptions {
    /// What the running kernel says about itself: its types (`/sys/kernel/btf/vmlinux`), its configuration
    /// (`/proc/config.gz`, or `/boot/config-RELEASE`), its version and its CPUs. What cannot be read is left out, so the
    /// result is always usable. Costs some milliseconds and megabytes, for the types.
    ///
    /// ```
    /// let opts = xway_object::LoadOptions::of_running_kernel();
    /// assert!(opts.possible_cpus.is_none_or(|n| n > 0));
    /// ```
    pub fn of_running_kernel() -> LoadOptions {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let btf = std::fs::read("/sys/kernel/btf/vmlinux").ok().and_then(|raw| Btf::parse(raw).ok());
        LoadOptions {
            target_btf: btf.map(Arc::new),
            kernel_version: version(&release),
            kconfig: config(release.trim()).map(Arc::from),
            possible_cpus: std::fs::read_to_string("/sys/devices/system/cpu/possible").ok().and_then(|t| count(&t)),
            ..LoadOptions::default()
        }
    }
}

/// `6.18.44-something` as a number; the patch level ends at 255, as in `LINUX_VERSION_CODE`.
fn version(release: &str) -> Option<u32> {
    let plain = release.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut parts = plain.split('.').map(|p| p.parse::<u32>().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    let patch = parts.next().flatten().unwrap_or(0);
    Some(major.min(0xffff) << 16 | minor.min(255) << 8 | patch.min(255))
}

fn config(release: &str) -> Option<String> {
    let gzipped = || {
        let file = std::fs::File::open("/proc/config.gz").ok()?;
        let mut text = String::new();
        flate2::read::GzDecoder::new(file).take(MAX_CONFIG).read_to_string(&mut text).ok()?;
        Some(text)
    };
    gzipped().or_else(|| std::fs::read_to_string(format!("/boot/config-{release}")).ok())
}

/// The number of CPUs in a list such as `0-3,8`: one more than the highest.
fn count(list: &str) -> Option<u32> {
    let last = list.trim().split([',', '-']).next_back()?;
    last.parse::<u32>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_and_cpu_lists_are_read() {
        assert_eq!(version("6.18.44-fc-v470\n"), Some(6 << 16 | 18 << 8 | 44));
        assert_eq!(version("5.10.0-28-amd64"), Some(5 << 16 | 10 << 8));
        assert_eq!(version("4.19.300"), Some(4 << 16 | 19 << 8 | 255));
        assert_eq!(version(""), None);
        assert_eq!(count("0-3\n"), Some(4));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,8"), Some(9));
    }
}
