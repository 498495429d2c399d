//! What the machine that the object is loaded for is like.

use std::sync::Arc;

use crate::Btf;

/// Answers whether something of this name exists.
pub type Exists = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What a load may assume about its target. The default assumes nothing: no kernel types, no configuration.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// Types that CO-RE relocations are resolved against (`/sys/kernel/btf/vmlinux`). Without it they are resolved
    /// against the object's own types, which describe the kernel that it was compiled for.
    pub target_btf: Option<Arc<Btf>>,
    /// `LINUX_KERNEL_VERSION`, as `major << 16 | minor << 8 | patch`. [`LoadOptions::DEFAULT_KERNEL_VERSION`] if absent.
    pub kernel_version: Option<u32>,
    /// The kernel's configuration as text (`CONFIG_X=y` lines).
    pub kconfig: Option<Arc<str>>,
    /// Which kernel functions exist. Absent: those that `target_btf` has; without that, all.
    pub kfuncs: Option<Exists>,
    /// Which kernel variables exist. Absent: those that `target_btf` has; without that, none, so that weak ones are null.
    pub ksyms: Option<Exists>,
    /// Number of possible CPUs: the size of PERF_EVENT_ARRAY maps that give none. Absent: what this process may use.
    pub possible_cpus: Option<u32>,
}

impl LoadOptions {
    /// The kernel whose contract this project keeps: 6.18.
    pub const DEFAULT_KERNEL_VERSION: u32 = 6 << 16 | 18 << 8;

    pub(crate) fn cpus(&self) -> u32 {
        let here = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        self.possible_cpus.unwrap_or_else(here).max(1)
    }
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("target_btf", &self.target_btf.is_some())
            .field("kernel_version", &self.kernel_version)
            .field("kconfig", &self.kconfig.as_ref().map(|t| t.len()))
            .field("kfuncs", &self.kfuncs.is_some())
            .field("ksyms", &self.ksyms.is_some())
            .field("possible_cpus", &self.possible_cpus)
            .finish()
    }
}
