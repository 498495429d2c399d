//! The programs of this crate: `bpf/tools`, compiled when it is built.

use xway_hook::Image;
use xway_kernel::{KernelMap, KernelObject, KernelProg};
use xway_object::{Initial, LoadOptions, Object};

use crate::ToolError;

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/objects.rs"));
}

/// All object files: name and bytes.
pub fn all() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    embedded::OBJECTS.iter().map(|(name, bytes)| (*name, *bytes))
}

/// The object file of this name (`route` of `bpf/tools/route.bpf.c`), read for the running kernel.
///
/// # Errors
/// This crate was built without clang; or an object of ours cannot be read, which a test excludes.
pub fn image(name: &'static str) -> Result<Image, ToolError> {
    let Some((_, bytes)) = all().find(|(n, _)| *n == name) else {
        return Err(ToolError::NotBuilt(embedded::MISSING.unwrap_or("it is not among the embedded ones")));
    };
    // What looks into the kernel's structures needs to know where their fields lie here.
    let options = LoadOptions { target_btf: xway_kernel::vmlinux(), ..LoadOptions::default() };
    Image::parse(bytes, &options).map_err(|e| ToolError::Object { name, why: e.to_string() })
}

/// The same, for the kernel alone, with what its programs call `settings` written into it.
///
/// # Errors
/// As [`image`]; settings of another size than the program's.
pub(crate) fn object(name: &'static str, settings: &[u32]) -> Result<Object, ToolError> {
    let mut object = Object::clone(&image(name)?.object);
    if settings.is_empty() {
        return Ok(object);
    }
    let wrong = |why: String| ToolError::Object { name, why };
    let map = object.maps.iter_mut().find(|m| m.section == ".rodata");
    let map = map.ok_or_else(|| wrong("it has no settings".into()))?;
    let Initial::Data(bytes) = &mut map.initial else { return Err(wrong("its settings have no content".into())) };
    let new: Vec<u8> = settings.iter().flat_map(|word| word.to_ne_bytes()).collect();
    if bytes.len() != new.len() {
        return Err(wrong(format!("its settings are {} bytes, not {}", bytes.len(), new.len())));
    }
    *bytes = new;
    Ok(object)
}

/// A map of a loaded object by its name.
pub(crate) fn map<'a>(kernel: &'a KernelObject, object: &Object, name: &str) -> Result<&'a KernelMap, ToolError> {
    let found = kernel.map(object, name);
    found.ok_or_else(|| ToolError::Object { name: "map", why: format!("it has no map {name}") })
}

/// A program of a loaded object by its name, or why the kernel refused it.
pub(crate) fn program<'a>(kernel: &'a KernelObject, object: &Object, name: &str) -> Result<&'a KernelProg, ToolError> {
    let index = object.programs.iter().position(|p| p.name == name);
    let missing = || ToolError::Object { name: "program", why: format!("it has no program {name}") };
    let loaded = index.and_then(|i| kernel.programs.get(i)).ok_or_else(missing)?;
    loaded.as_ref().map_err(|e| ToolError::Kernel(e.clone()))
}
