//! `xway features`: what a driver, or a port of the service's engine, can do; what a program needs; and what is missing between them.

use std::path::Path;

use serde_json::{Value, json};
use xway_abi::Verdict;
use xway_hook::{Hook, PortFeatures, PortMemory, QueueMemory, kernel};
use xway_kernel::{
    Device, DriverFeatures, RX_METADATA, XDP_FEATURES, XSK_FEATURES, bit_names, devices, driver_features,
};

use super::asked::{Asked, Pair};
use super::attach::{outcomes_json, outcomes_text};
use super::{failure, refused};
use crate::args_kernel as args;
use crate::commands::service;
use crate::failure::Failure;
use crate::print;

/// `xway features`
pub fn run(args: &args::Features, as_json: bool) -> Result<(), Failure> {
    let (port, object) = args.sides();
    if args.name.is_some() && object.is_none() {
        return Err(Failure::usage("-n names a program of an object, and there is none"));
    }
    let user = args.place.hook == Some(args::Place::User);
    let Some(port) = port else {
        return match object {
            Some(path) => alone(path, args.name.as_deref(), as_json),
            None => all(args, user, as_json),
        };
    };
    let answer = match user {
        true => of_port(service::connect(&args.place.socket)?.features(port).map_err(failure)?),
        false => of_driver(kernel::device(port).map_err(failure)?)?,
    };
    let asked = object.map(|path| Asked::of(path, args.name.as_deref())).transpose()?;
    let pair = asked.map(|mut all| Pair::of(all.remove(0), &answer.has));
    let Answer { name, mut doc, mut text, .. } = answer;
    if let Some(pair) = &pair {
        doc["program"] = pair.json();
        text.push_str(&pair.text());
    }
    match as_json {
        true => print::json(&print::document("features", doc)),
        false => print::text(&text),
    }
    let verdict = pair.map_or(Ok(()), |pair| pair.verdict(&name));
    // There is one document, and it names what is missing.
    verdict.map_err(|failure| if as_json { failure.said() } else { failure })
}

/// What programs of an object need, of any port.
fn alone(path: &Path, name: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let asked = match name {
        Some(_) => Asked::of(path, name)?,
        None => Asked::all(path)?,
    };
    if as_json {
        let programs: Vec<Value> = asked.iter().map(Asked::json).collect();
        print::json(&print::document(
            "features",
            json!({ "object": path.display().to_string(), "programs": programs }),
        ));
    } else {
        print::text(&asked.iter().map(Asked::text).collect::<String>());
    }
    Ok(())
}

/// What every interface, or every port of the service, can do.
fn all(args: &args::Features, user: bool, as_json: bool) -> Result<(), Failure> {
    let answers: Vec<Answer> = if user {
        let mut service = service::connect(&args.place.socket)?;
        let ports = service.ports().map_err(failure)?;
        ports.iter().map(|port| service.features(port).map(of_port).map_err(failure)).collect::<Result<_, _>>()?
    } else {
        devices().map_err(refused)?.into_iter().map(of_driver).collect::<Result<_, _>>()?
    };
    if as_json {
        let ports: Vec<Value> = answers.into_iter().map(|answer| answer.doc).collect();
        print::json(&print::document("features", json!({ "ports": ports })));
    } else {
        print::text(&answers.into_iter().map(|answer| answer.text).collect::<String>());
    }
    Ok(())
}

/// What one side can do.
struct Answer {
    name: String,
    doc: Value,
    text: String,
    /// Whether something that a program needs is there.
    has: Box<dyn Fn(&str) -> bool>,
}

/// What a driver of the running kernel can do.
fn of_driver(device: Device) -> Result<Answer, Failure> {
    let asked = driver_features(device.ifindex).map_err(refused)?;
    let DriverFeatures { xdp, zero_copy_segments, rx_metadata, xsk } = asked.unwrap_or_default();
    let (xdp, meta) = (bit_names(xdp, &XDP_FEATURES), bit_names(rx_metadata, &RX_METADATA));
    let xsk = bit_names(xsk, &XSK_FEATURES);
    let doc = json!({
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
    let kind = if device.kind.is_empty() { String::new() } else { format!(", {}", device.kind) };
    let mut text = format!(
        "{} (number {}{kind}): MTU {}, {} receive and {} transmit queues\n",
        device.name, device.ifindex, device.mtu, device.rx_queues, device.tx_queues
    );
    if asked.is_none() {
        text.push_str("  the running kernel cannot be asked what drivers can do (Linux 6.3 and later can)\n");
    } else {
        text.push_str(&format!("  native XDP:  {}\n", list(&xdp)));
        text.push_str(&format!("  RX metadata: {}\n", list(&meta)));
        text.push_str(&format!("  AF_XDP TX:   {}\n", list(&xsk)));
        if zero_copy_segments > 0 {
            text.push_str(&format!("  zero copy:   {zero_copy_segments} buffers a frame at most\n"));
        }
        text.push_str("  generic XDP: always\n");
    }
    let known = asked.is_some();
    let has = move |need: &str| match need {
        // What cannot be asked is not held against the driver; nor is the generic hook, which does all but metadata.
        _ if !known => true,
        "drop" | "tx" | "metadata" => xdp.iter().any(|name| name == "basic"),
        "redirect" => xdp.iter().any(|name| name == "redirect"),
        // Drivers that have XDP have packets that programs may write to.
        "write-access" => true,
        "frags" => xdp.iter().any(|name| name == "rx-sg"),
        other => meta.iter().any(|name| name == other),
    };
    Ok(Answer { name: device.name, doc, text, has: Box::new(has) })
}

/// What a port of the service's engine can do, in the words of the kernel's drivers where there are such.
fn of_port(features: PortFeatures) -> Answer {
    let PortFeatures { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts, memory, outcomes } =
        features;
    let by_name: serde_json::Map<String, Value> = verdicts.iter().map(|(v, can)| (v.clone(), json!(can))).collect();
    let doc = json!({
        "interface": port,
        "ifindex": ifindex,
        "kind": kind,
        "rx_queues": rx_queues,
        "tx_queues": tx_queues,
        "known": true,
        "xdp": xdp,
        "rx_metadata": rx_metadata,
        "verdicts": by_name,
        "memory": memory.as_ref().map(memory_json),
        "outcomes": outcomes_json(&outcomes),
    });
    let mut text = format!("{port} (number {ifindex}): {rx_queues} receive and {tx_queues} transmit queues\n");
    text.push_str(&format!("  XDP:         {}\n  RX metadata: {}\n", list(&xdp), list(&rx_metadata)));
    verdicts.iter().for_each(|(verdict, can)| text.push_str(&format!("  {:<12} {can}\n", format!("{verdict}:"))));
    memory.iter().for_each(|memory| text.push_str(&format!("  memory:      {}\n", memory_text(memory))));
    for queue in memory.iter().flat_map(|memory| &memory.queues) {
        text.push_str(&format!("  queue {:<7}{}\n", format!("{}:", queue.queue), queue_text(queue)));
    }
    text.push_str(&outcomes_text(&outcomes));
    let verdict = move |name: &str| verdicts.iter().any(|(verdict, can)| verdict == name && can != "none");
    let has = move |need: &str| match need {
        "drop" => verdict(Verdict::Drop.name()),
        "tx" => verdict(Verdict::Tx.name()),
        "redirect" => verdict(Verdict::Redirect.name()),
        // Pools have it on every port.
        "metadata" => true,
        "frags" => xdp.iter().any(|name| name == "rx-sg"),
        "write-access" => memory.as_ref().is_none_or(|memory| memory.writable),
        other => rx_metadata.iter().any(|name| name == other),
    };
    Answer { name: port, doc, text, has: Box::new(has) }
}

fn list(all: &[String]) -> String {
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
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
        "queues": memory.queues.iter().map(|queue| json!({
            "queue": queue.queue,
            "bytes": queue.bytes,
            "pages_requested": queue.pages_requested,
            "pages_effective": queue.pages_effective,
            "pages_reason": queue.pages_reason,
            "node": queue.node,
        })).collect::<Vec<_>>(),
    })
}

fn queue_text(queue: &QueueMemory) -> String {
    let reason = queue
        .pages_reason
        .as_ref()
        .map_or_else(String::new, |why| format!(" ({} were asked for: {why})", queue.pages_requested));
    let (pages, bytes) = (&queue.pages_effective, print::scaled(queue.bytes as f64));
    format!("{}B of packet memory, {pages} pages{reason}, {}", bytes, queue.node)
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
