//! `xway features`: what a driver, or a port of the service's engine, can do.

use serde_json::{Value, json};
use xway_abi::Verdict;
use xway_engine::Needs;
use xway_hook::{Hook, PortFeatures, PortMemory, kernel};
use xway_kernel::{DriverFeatures, RX_METADATA, XDP_FEATURES, XSK_FEATURES, bit_names, driver_features};

use super::attach::{outcomes_json, outcomes_text};
use super::{failure, refused};
use crate::args_kernel as args;
use crate::commands::service;
use crate::failure::Failure;
use crate::session::{self, Trust};
use crate::{load, print};

/// `xway features`
pub fn run(args: &args::Features, as_json: bool) -> Result<(), Failure> {
    if args.place.hook == Some(args::Place::User) {
        return user_features(args, as_json);
    }
    let device = kernel::device(&args.interface).map_err(failure)?;
    let asked = driver_features(device.ifindex).map_err(refused)?;
    let features = asked.unwrap_or_default();
    let DriverFeatures { xdp, zero_copy_segments, rx_metadata, xsk } = features;
    let (xdp, meta) = (bit_names(xdp, &XDP_FEATURES), bit_names(rx_metadata, &RX_METADATA));
    let xsk = bit_names(xsk, &XSK_FEATURES);
    let known = asked.is_some();
    let pair = Pair::of(args, &|need| match need {
        // What cannot be asked is not held against the driver; nor is the generic hook, which does all but metadata.
        _ if !known => true,
        "drop" | "tx" | "metadata" => xdp.iter().any(|name| name == "basic"),
        "redirect" => xdp.iter().any(|name| name == "redirect"),
        // Drivers that have XDP have packets that programs may write to.
        "write-access" => true,
        "frags" => xdp.iter().any(|name| name == "rx-sg"),
        other => meta.iter().any(|name| name == other),
    })?;
    if as_json {
        let mut doc = json!({
            "interface": device.name,
            "ifindex": device.ifindex,
            "kind": device.kind,
            "mtu": device.mtu,
            "rx_queues": device.rx_queues,
            "tx_queues": device.tx_queues,
            "known": asked.is_some(),
            "xdp": xdp,
            "zero_copy_segments": zero_copy_segments,
            "rx_metadata": meta,
            "xsk": xsk,
        });
        pair.iter().for_each(|pair| pair.put(&mut doc));
        print::json(&print::document("features", doc));
        return Pair::verdict(pair.as_ref(), &device.name);
    }
    let kind = if device.kind.is_empty() { String::new() } else { format!(", {}", device.kind) };
    let mut out = format!(
        "{} (number {}{kind}): MTU {}, {} receive and {} transmit queues\n",
        device.name, device.ifindex, device.mtu, device.rx_queues, device.tx_queues
    );
    if asked.is_none() {
        out.push_str("  the running kernel cannot be asked what drivers can do (Linux 6.3 and later can)\n");
    } else {
        let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        out.push_str(&format!("  native XDP:  {}\n", list(&xdp)));
        out.push_str(&format!("  RX metadata: {}\n", list(&meta)));
        out.push_str(&format!("  AF_XDP TX:   {}\n", list(&xsk)));
        if zero_copy_segments > 0 {
            out.push_str(&format!("  zero copy:   {zero_copy_segments} buffers a frame at most\n"));
        }
        out.push_str("  generic XDP: always\n");
    }
    pair.iter().for_each(|pair| out.push_str(&pair.text()));
    print::text(&out);
    Pair::verdict(pair.as_ref(), &device.name)
}

/// What a port of the service's engine can do, in the words of the kernel's drivers where there are such.
fn user_features(args: &args::Features, as_json: bool) -> Result<(), Failure> {
    let PortFeatures { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts, memory, outcomes } =
        service::connect(&args.place.socket)?.features(&args.interface).map_err(failure)?;
    let verdict = |name: &str| verdicts.iter().any(|(verdict, can)| verdict == name && can != "none");
    let pair = Pair::of(args, &|need| match need {
        "drop" => verdict(Verdict::Drop.name()),
        "tx" => verdict(Verdict::Tx.name()),
        "redirect" => verdict(Verdict::Redirect.name()),
        // Pools have it on every port.
        "metadata" => true,
        "frags" => xdp.iter().any(|name| name == "rx-sg"),
        "write-access" => memory.as_ref().is_none_or(|memory| memory.writable),
        other => rx_metadata.iter().any(|name| name == other),
    })?;
    if as_json {
        let verdicts: serde_json::Map<String, Value> = verdicts.into_iter().map(|(v, can)| (v, json!(can))).collect();
        let mut doc = json!({
            "interface": port,
            "ifindex": ifindex,
            "kind": kind,
            "rx_queues": rx_queues,
            "tx_queues": tx_queues,
            "known": true,
            "xdp": xdp,
            "rx_metadata": rx_metadata,
            "verdicts": verdicts,
            "memory": memory.as_ref().map(memory_json),
            "outcomes": outcomes_json(&outcomes),
        });
        pair.iter().for_each(|pair| pair.put(&mut doc));
        print::json(&print::document("features", doc));
        return Pair::verdict(pair.as_ref(), &args.interface);
    }
    let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let mut out = format!("{port} (number {ifindex}): {rx_queues} receive and {tx_queues} transmit queues\n");
    out.push_str(&format!("  XDP:         {}\n  RX metadata: {}\n", list(&xdp), list(&rx_metadata)));
    verdicts.iter().for_each(|(verdict, can)| out.push_str(&format!("  {:<12} {can}\n", format!("{verdict}:"))));
    memory.iter().for_each(|memory| out.push_str(&format!("  memory:      {}\n", memory_text(memory))));
    out.push_str(&outcomes_text(&outcomes));
    pair.iter().for_each(|pair| out.push_str(&pair.text()));
    print::text(&out);
    Pair::verdict(pair.as_ref(), &args.interface)
}

fn memory_json(memory: &PortMemory) -> Value {
    json!({
        "model": memory.model,
        "packets_a_chunk": memory.packets_a_chunk,
        "frags": memory.frags,
        "zero_copy": memory.zero_copy,
        "writable": memory.writable,
        "headroom": memory.headroom,
        "tailroom": memory.tailroom,
    })
}

fn memory_text(memory: &PortMemory) -> String {
    let word = |is: bool, yes: &str, no: &str| if is { yes.to_owned() } else { no.to_owned() };
    let room = |bytes: Option<u32>, at: &str| bytes.map(|bytes| format!("{bytes} bytes {at}"));
    let mut all = vec![
        memory.model.clone(),
        format!("{} packet a chunk", memory.packets_a_chunk),
        word(memory.frags, "packets of several buffers", "packets of one buffer"),
        word(memory.zero_copy, "zero-copy", "not zero-copy"),
        word(memory.writable, "writable", "read-only"),
    ];
    all.extend(room(memory.headroom, "in front"));
    all.extend(room(memory.tailroom, "behind"));
    all.join(", ")
}

/// A program and a port.
struct Pair {
    program: String,
    /// What the program needs, and what it asks for and can do without.
    needs: Vec<&'static str>,
    asks: Vec<&'static str>,
    missing: Vec<&'static str>,
    absent: Vec<&'static str>,
}

impl Pair {
    /// Proves the program that the arguments name, if they name one, and asks of each thing that it needs whether it is there.
    fn of(args: &args::Features, has: &dyn Fn(&str) -> bool) -> Result<Option<Pair>, Failure> {
        let Some(path) = &args.object else { return Ok(None) };
        let object = load::read(path, None)?;
        let image = load::choose_by(&object, args.name.as_deref(), None).map_err(|f| f.at(path.display()))?;
        let place = path.display().to_string();
        let program = session::link(&session::instance(object, Trust::Verified, &place)?, &image, &place)?;
        let proof = program.proof().ok_or_else(|| Failure::no(format!("{}: it has no proof", image.name)))?;
        let found = Needs::of(proof.facts());
        // Verdicts that only a map or the packet decides are nobody's need.
        let returns = |verdict| found.verdicts.contains(&verdict);
        let all = [
            ("drop", returns(Verdict::Drop)),
            ("tx", returns(Verdict::Tx)),
            ("redirect", returns(Verdict::Redirect)),
            ("metadata", found.metadata),
            ("write-access", Needs::of_program(&program).writes.is_some()),
        ];
        let optional = [
            // A program with frags also takes packets in one piece.
            ("frags", image.kind.frags()),
            ("hash", found.rx_hash),
            ("timestamp", found.rx_timestamp),
            ("vlan-tag", found.rx_vlan),
        ];
        let names = |all: &[(&'static str, bool)]| all.iter().filter(|(_, is)| *is).map(|(n, _)| *n).collect();
        let (needs, asks): (Vec<&str>, Vec<&str>) = (names(&all), names(&optional));
        let lacks = |all: &[&'static str]| all.iter().copied().filter(|need| !has(need)).collect();
        let (missing, absent) = (lacks(&needs), lacks(&asks));
        Ok(Some(Pair { program: image.name, needs, asks, missing, absent }))
    }

    fn put(&self, doc: &mut Value) {
        doc["program"] = json!({
            "name": self.program, "needs": self.needs, "asks_for": self.asks, "missing": self.missing, "absent": self.absent,
        });
    }

    fn text(&self) -> String {
        let list = |all: &[&str]| if all.is_empty() { "nothing".to_owned() } else { all.join(", ") };
        let Pair { program, needs, asks, missing, absent } = self;
        format!(
            "program {program}\n  needs:       {}\n  asks for:    {}\n  missing:     {}\n  absent:      {}\n",
            list(needs),
            list(asks),
            list(missing),
            list(absent)
        )
    }

    /// The answer is no when something is missing.
    fn verdict(pair: Option<&Pair>, port: &str) -> Result<(), Failure> {
        match pair {
            Some(Pair { program, missing, .. }) if !missing.is_empty() => {
                Err(Failure::no(format!("{port} lacks what {program} needs: {}", missing.join(", "))))
            }
            _ => Ok(()),
        }
    }
}
