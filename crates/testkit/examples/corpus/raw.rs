//! Raw programs: instructions and maps in JSON, without types.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::time::Instant;

use serde_json::Value;
use xway_abi::{MapSpec, MapType, SpecialField, SpecialKind};
use xway_isa::slots_from_bytes;
use xway_kernel::{KernelMap, KernelProg, MapBtf, ProgSpec, load_btf, vmlinux};
use xway_object::{MapDef, Program};
use xway_verifier::{Config, MapsView, verify};

use crate::report::{Kernel, Ours, Report};

const STRICT_ALIGNMENT: u64 = 1;

/// Every line of the file.
pub fn run(path: &Path, report: &mut Report) {
    let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) => return report.unreadable(&name, &e.to_string()),
    };
    for (n, line) in text.lines().enumerate() {
        let id = format!("{name}:{}", n + 1);
        match serde_json::from_str::<Value>(line) {
            Ok(row) => {
                let id = row["id"].as_str().map_or(id, str::to_owned);
                if report.wants(&id)
                    && let Err(e) = one(&id, &row, report)
                {
                    report.unreadable(&id, &e);
                }
            }
            Err(e) => report.unreadable(&id, &e.to_string()),
        }
    }
}

fn one(id: &str, row: &Value, report: &mut Report) -> Result<(), String> {
    let bytes = unhex(row["insns"].as_str().unwrap_or("")).ok_or("insns is not hex")?;
    let mut insns = slots_from_bytes(&bytes).ok_or("insns is not whole instructions")?;
    let mut defs = Vec::new();
    for (index, map) in row["maps"].as_array().into_iter().flatten().enumerate() {
        let mut spec = spec(map)?;
        if spec.map_type == MapType::PerfEventArray && spec.max_entries == 0 {
            spec.max_entries = xway_kernel::possible_cpus();
        }
        defs.push(MapDef::new(&format!("m{index}"), spec));
        for at in map["at"].as_array().into_iter().flatten() {
            let slot = at.as_u64().and_then(|at| insns.get_mut(at as usize)).ok_or("a map at no instruction")?;
            slot.src = if slot.src == 2 || slot.src == 6 { 6 } else { 5 };
            slot.imm = index as i32;
        }
    }
    let flags = row["flags"].as_u64().unwrap_or(0);
    let gpl = row["gpl"].as_bool().unwrap_or(true);
    let program = Program { name: "raw".into(), section: "xdp".into(), insns, ..Program::default() };
    let kernel = vmlinux();
    let view =
        MapsView { maps: &defs, btf: None, kernel: kernel.as_deref(), license: Some(if gpl { "GPL" } else { "none" }) };
    let config = Config { strict_alignment: flags & STRICT_ALIGNMENT != 0, ..Config::default() };
    let ours = Ours::of(verify(&program, &view, &config));

    let mut kernel_maps = Vec::new();
    for (def, map) in defs.iter().zip(row["maps"].as_array().into_iter().flatten()) {
        let made = match unhex(map["btf"].as_str().unwrap_or("")).filter(|b| !b.is_empty()) {
            Some(bytes) => {
                let btf = load_btf(&bytes).map_err(|e| e.to_string())?;
                let word = |key: &str| map[key].as_u64().unwrap_or(0) as u32;
                let typed =
                    MapBtf { btf: btf.as_fd(), key_type: word("btf_key_type"), value_type: word("btf_value_type") };
                KernelMap::create_typed(&def.name, &def.spec, Some(typed))
            }
            None => KernelMap::create(&def.name, &def.spec),
        };
        kernel_maps.push(made.map_err(|e| format!("{:?}: {e}", def.spec.map_type))?);
    }
    if let Some(value) = row["first_value"].as_str().and_then(unhex) {
        for map in &kernel_maps {
            let _ = map.update(&[0; 4], &value, 0);
        }
    }
    let fds: Vec<RawFd> = kernel_maps.iter().map(|m| m.as_fd().as_raw_fd()).collect();
    let license = if gpl { "GPL" } else { "none" };
    let spec = ProgSpec { fd_array: &fds, flags: flags as u32, license, ..ProgSpec::xdp("raw", &program.insns) };
    let started = Instant::now();
    let kernel = Kernel::of(KernelProg::load(&spec), started.elapsed());
    report.note(id.to_owned(), program.insns.len(), ours, kernel);
    Ok(())
}

fn spec(map: &Value) -> Result<MapSpec, String> {
    let name = map["type"].as_str().unwrap_or("");
    let kind = (0..64).filter_map(MapType::from_u32).find(|t| t.name() == name).ok_or(format!("map type {name:?}"))?;
    let word = |key: &str| map[key].as_u64().unwrap_or(0) as u32;
    let mut out =
        MapSpec::new(kind, word("key_size"), word("value_size"), word("max_entries")).with_flags(word("flags"));
    if map["inner"].is_object() {
        out.inner = Some(Box::new(spec(&map["inner"])?));
    }
    for field in map["special"].as_array().into_iter().flatten() {
        let kind = match field[0].as_str() {
            Some("spin_lock") => SpecialKind::SpinLock,
            Some("timer") => SpecialKind::Timer,
            Some("kptr") => SpecialKind::Kptr,
            other => return Err(format!("special field {other:?}")),
        };
        out.special.push(SpecialField { kind, offset: field[1].as_u64().unwrap_or(0) as u32 });
    }
    Ok(out)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect()
}
