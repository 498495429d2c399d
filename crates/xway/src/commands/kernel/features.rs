//! `xway features`: what a driver, or a port of the service's engine, can do.

use serde_json::{Value, json};
use xway_hook::{Hook, PortFeatures, kernel};
use xway_kernel::{DriverFeatures, RX_METADATA, XDP_FEATURES, XSK_FEATURES, bit_names, driver_features};

use super::{failure, refused};
use crate::args_kernel as args;
use crate::commands::service;
use crate::failure::Failure;
use crate::print;

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
    if as_json {
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
        print::json(&print::document("features", doc));
        return Ok(());
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
    print::text(&out);
    Ok(())
}

/// What a port of the service's engine can do, in the words of the kernel's drivers where there are such.
fn user_features(args: &args::Features, as_json: bool) -> Result<(), Failure> {
    let PortFeatures { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts } =
        service::connect(&args.place.socket)?.features(&args.interface).map_err(failure)?;
    if as_json {
        let verdicts: serde_json::Map<String, Value> = verdicts.into_iter().map(|(v, can)| (v, json!(can))).collect();
        let doc = json!({
            "interface": port,
            "ifindex": ifindex,
            "kind": kind,
            "rx_queues": rx_queues,
            "tx_queues": tx_queues,
            "known": true,
            "xdp": xdp,
            "rx_metadata": rx_metadata,
            "verdicts": verdicts,
        });
        print::json(&print::document("features", doc));
        return Ok(());
    }
    let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let mut out = format!("{port} (number {ifindex}): {rx_queues} receive and {tx_queues} transmit queues\n");
    out.push_str(&format!("  XDP:         {}\n  RX metadata: {}\n", list(&xdp), list(&rx_metadata)));
    verdicts.iter().for_each(|(verdict, can)| out.push_str(&format!("  {:<12} {can}\n", format!("{verdict}:"))));
    print::text(&out);
    Ok(())
}
