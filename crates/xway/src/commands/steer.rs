//! `xway steer`: which queue of a port packets go to.

use serde_json::json;
use xway_control::message::Steered;

use super::kernel::failure;
use super::service;
use crate::args_data as args;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &args::Steer, as_json: bool) -> Result<(), Failure> {
    let port = &args.port;
    if !port.contains(':') {
        let why = format!("{port} is an interface: what its card steers by is set with ethtool -N and -X");
        return Err(Failure::usage(why).hint(format!("packet:{port} or afxdp:{port} is the service's port on it")));
    }
    let steered = service::connect(&args.socket)?.steer(port, &args.words.join(" ")).map_err(failure)?;
    if as_json {
        print::json(&print::document("steer", fields(port, &steered)));
    } else {
        print::text(&text(port, &steered));
    }
    Ok(())
}

fn fields(port: &str, steered: &Steered) -> serde_json::Value {
    json!({ "port": port, "rules": steered.rules, "key": steered.key, "indirection": steered.indirection })
}

fn text(port: &str, steered: &Steered) -> String {
    let mut out = String::new();
    for rule in &steered.rules {
        out += &format!("{port}: {rule}\n");
    }
    if let Some(key) = &steered.key {
        let queues = steered.indirection.iter().max().map_or(0, |queue| queue + 1);
        let share = |queue: u32| steered.indirection.iter().filter(|&&entry| entry == queue).count();
        let shares: Vec<String> = (0..queues).map(|queue| format!("{queue}: {}", share(queue))).collect();
        out += &format!("{port}: hash over {} entries, of queue {}\n", steered.indirection.len(), shares.join(", "));
        out += &format!("{port}: key {key}\n");
    }
    if out.is_empty() {
        out = format!("{port}: packets stay on the queue that they come in on\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_shares_are_shown() {
        let steered = Steered {
            rules: vec!["flow-type ether action 1 loc 3".into()],
            key: Some("6d:5a".into()),
            indirection: vec![0, 1, 0, 2],
        };
        let want = "tap:a: flow-type ether action 1 loc 3\ntap:a: hash over 4 entries, of queue 0: 2, 1: 1, 2: 1\n\
                    tap:a: key 6d:5a\n";
        assert_eq!(text("tap:a", &steered), want);
        assert_eq!(text("tap:a", &Steered::default()), "tap:a: packets stay on the queue that they come in on\n");
    }
}
