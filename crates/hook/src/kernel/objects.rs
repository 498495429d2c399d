//! An object file into the kernel: maps shared by their pins, programs, what they may do.

use std::path::PathBuf;

use xway_abi::{Errno, Verdict};
use xway_kernel::{Device, KernelError, KernelObject, KernelProg};
use xway_object::{Initial, MapDef, Object, Program, SlotRef};
use xway_verifier::{Config, MapsView, verify};

use crate::{HookError, LoadRequest, explain, pins};

/// An object in the kernel.
pub(super) struct LoadedObject {
    pub object: KernelObject,
    /// Programs that were asked for, by name.
    pub programs: Vec<(String, KernelProg)>,
    /// What is known of each of them.
    pub images: Vec<Known>,
    pub shared: Vec<PathBuf>,
    pub pinned: Vec<PathBuf>,
}

/// What our verifier says of a program.
pub(super) struct Known {
    /// Its place in the object.
    pub index: usize,
    pub may_send: bool,
}

/// Loads; `device`: the one whose hardware is to run the programs.
pub(super) fn load(object: &Object, request: &LoadRequest, device: Option<&Device>) -> Result<LoadedObject, HookError> {
    let explained = |e: &KernelError| device.map_or_else(|| explain::plain(e), |device| explain::offload(e, device));
    let asked = |p: &Program| match request.programs.is_empty() {
        true => p.as_xdp().is_ok(),
        false => request.programs.contains(&p.name),
    };
    if let Some(name) = request.programs.iter().find(|n| object.programs.iter().all(|p| p.name != **n)) {
        let have: Vec<&str> = object.programs.iter().map(|p| p.name.as_str()).collect();
        return Err(HookError::missing(format!("program {name} in the object; there are {}", have.join(", "))));
    }
    let (dir, all) = match &request.pins {
        Some(dir) => (dir.clone(), true),
        None => (PathBuf::from(pins::BPFFS), false),
    };
    let wants_pins = object.maps.iter().any(|def| pins::wanted(def, all));
    if wants_pins {
        pins::directory(&dir)?;
    }
    let (mut shared, mut refused) = (Vec::new(), None);
    let find = |def: &MapDef| {
        if !wants_pins || !pins::wanted(def, all) {
            return Ok(None);
        }
        let path = dir.join(&def.name);
        match pins::find(&path, def) {
            Ok(found) => {
                shared.extend(found.is_some().then_some(path));
                Ok(found)
            }
            Err(e) => {
                refused = Some(e);
                Err(KernelError::Call { step: "sharing a map", errno: Errno::EINVAL })
            }
        }
    };
    let called = tail_called(object);
    let (place, wanted) = (device.map_or(0, |d| d.ifindex), |p: &Program| asked(p) || called.contains(&p.name));
    let mut loaded = match KernelObject::load_in(place, object, wanted, find) {
        Ok(loaded) => loaded,
        Err(e) => return Err(refused.unwrap_or_else(|| explained(&e))),
    };
    let (mut programs, mut images) = (Vec::new(), Vec::new());
    for (index, (image, prog)) in object.programs.iter().zip(std::mem::take(&mut loaded.programs)).enumerate() {
        if asked(image) {
            programs.push((image.name.clone(), prog.map_err(|e| explained(&e))?));
            images.push(Known { index, may_send: may_send(object, image) });
        }
    }
    let pinned = if wants_pins { pins::pin(&dir, object, &loaded, all)? } else { Vec::new() };
    Ok(LoadedObject { object: loaded, programs, images, shared, pinned })
}

/// Programs that stand in a PROG_ARRAY of the object from the start.
fn tail_called(object: &Object) -> Vec<String> {
    let mut out = Vec::new();
    for def in &object.maps {
        if let Initial::Slots(slots) = &def.initial {
            for (_, slot) in slots {
                if let SlotRef::Program(index) = slot {
                    out.extend(object.programs.get(*index).map(|p| p.name.clone()));
                }
            }
        }
    }
    out
}

/// Whether a program may send frames; what cannot be proved, may.
fn may_send(object: &Object, program: &Program) -> bool {
    let Ok(program) = program.as_xdp() else { return true };
    let proof = verify(&program, &MapsView::from(object), &Config::default());
    let verdicts = proof.ok().and_then(|p| p.facts().verdicts.clone());
    verdicts.is_none_or(|all| all.iter().any(|v| matches!(v, Verdict::Tx | Verdict::Redirect)))
}
