//! From the command line to an object: reading the file, the machine's types and configuration, the choice of a program.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use xway_hook::Image;
use xway_object::{Btf, LoadOptions, Object, ObjectError, Program};

use crate::args::Select;
use crate::failure::Failure;
use crate::payload;

/// Largest object file, bytes.
pub const OBJECT_MAX: u64 = 256 << 20;
/// Largest kernel type information, bytes (a kernel's is some 6 MB).
const BTF_MAX: u64 = 128 << 20;
/// Largest kernel configuration, bytes.
const KCONFIG_MAX: u64 = 4 << 20;

/// Reads the object that the arguments name.
pub fn object(select: &Select) -> Result<Object, Failure> {
    read(&select.object, select.part.btf.as_deref())
}

/// Reads the object in a file.
pub fn read(path: &Path, btf: Option<&Path>) -> Result<Object, Failure> {
    let bytes = payload::file(path, OBJECT_MAX)?;
    parse(&bytes, btf).map_err(|f| f.at(path.display()))
}

/// The same with the file's bytes, for hooks that read them themselves.
pub fn image(select: &Select) -> Result<Image, Failure> {
    let bytes = payload::file(&select.object, OBJECT_MAX)?;
    let object = parse(&bytes, select.part.btf.as_deref()).map_err(|f| f.at(select.object.display()))?;
    Ok(Image { bytes: bytes.into(), object: Arc::new(object) })
}

/// Reads an object for this machine: its kernel's types, version and configuration where they can be had.
pub fn parse(bytes: &[u8], btf: Option<&Path>) -> Result<Object, Failure> {
    Object::parse(bytes, &options_with(btf)?).map_err(|e| failure(&e))
}

/// How objects are read on this machine.
pub fn options() -> Result<LoadOptions, Failure> {
    options_with(None)
}

fn options_with(btf: Option<&Path>) -> Result<LoadOptions, Failure> {
    Ok(LoadOptions {
        target_btf: target_btf(btf)?,
        kernel_version: kernel_version(),
        kconfig: kconfig(),
        ..LoadOptions::default()
    })
}

/// The program that is asked for: by name, by section, or the only one that there is. As an XDP program.
pub fn choose(object: &Object, select: &Select) -> Result<Program, Failure> {
    let part = &select.part;
    choose_by(object, part.name.as_deref(), part.section.as_deref()).map_err(|f| f.at(select.object.display()))
}

/// As [`choose`], from the two names.
pub fn choose_by(object: &Object, name: Option<&str>, section: Option<&str>) -> Result<Program, Failure> {
    let by_name = |name: &str| object.select(&xway_object::Select::Name(name.into()));
    let found = match (name, section) {
        (None, None) => object.select(&xway_object::Select::Only),
        (None, Some(section)) => object.select(&xway_object::Select::Section(section.into())),
        (Some(name), None) => by_name(name),
        (Some(name), Some(section)) => by_name(name).and_then(|p| {
            if p.section == section {
                return Ok(p);
            }
            Err(ObjectError::NotFound { what: "section", wanted: section.into(), have: p.section.clone() })
        }),
    };
    found.and_then(Program::as_xdp).map_err(|e| match e {
        ObjectError::NotFound { .. } => Failure::usage(e),
        ObjectError::Ambiguous { .. } => {
            Failure::usage(e).hint("choose one with -n NAME, or a section with -s SECTION")
        }
        _ => failure(&e),
    })
}

/// Linux's tag of a program, as bpftool prints it.
pub fn tag(program: &Program) -> String {
    program.tag().iter().map(|b| format!("{b:02x}")).collect()
}

fn failure(error: &ObjectError) -> Failure {
    Failure::input(error)
}

/// Types to resolve CO-RE relocations against. The running kernel's are used when they are there; when a file was named it
/// must be readable.
fn target_btf(path: Option<&Path>) -> Result<Option<Arc<Btf>>, Failure> {
    let read = |path: &Path| -> Result<Arc<Btf>, Failure> {
        let bytes = payload::file(path, BTF_MAX)?;
        Btf::parse(bytes).map(Arc::new).map_err(|e| Failure::input(format!("{}: {e}", path.display())))
    };
    match path {
        Some(path) if path.as_os_str() == "none" => Ok(None),
        Some(path) => read(path).map(Some),
        // Read once, however many objects are loaded.
        None => Ok(xway_kernel::vmlinux()),
    }
}

/// `LINUX_KERNEL_VERSION` of the running kernel.
fn kernel_version() -> Option<u32> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let (major, minor, patch) = (numbers.next()?, numbers.next()?, numbers.next().unwrap_or(0));
    Some(major << 16 | minor.min(255) << 8 | patch.min(255))
}

/// The running kernel's configuration: `/proc/config.gz`, or the file that distributions put beside the kernel.
fn kconfig() -> Option<Arc<str>> {
    let unpacked = |path: &str| -> Option<String> {
        let file = fs::File::open(path).ok()?;
        let mut text = String::new();
        flate2::read::GzDecoder::new(file).take(KCONFIG_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let plain = || -> Option<String> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let file = fs::File::open(format!("/boot/config-{}", release.trim())).ok()?;
        let mut text = String::new();
        file.take(KCONFIG_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    };
    unpacked("/proc/config.gz").or_else(plain).map(Arc::from)
}
