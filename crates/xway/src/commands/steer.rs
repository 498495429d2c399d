//! `xway steer`: which queue of a port packets go to.

use serde_json::json;
use xway_control::message::Steered;
use xway_engine::steer::Change;
use xway_port_afxdp::{Card, CardError};

use super::kernel::failure;
use super::service;
use crate::args_data as args;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &args::Steer, as_json: bool) -> Result<(), Failure> {
    let port = &args.port;
    if !port.contains(':') {
        return card(port, &args.words.join(" "), as_json);
    }
    let words = args.words.join(" ");
    if !words.trim().is_empty() {
        // Words that mean nothing are the command line's fault, not the service's answer.
        Change::parse(&words).map_err(|error| Failure::usage(error.to_string()))?;
    }
    let steered = service::connect(&args.socket)?.steer(port, &words).map_err(failure)?;
    if as_json {
        print::json(&print::document("steer", fields(port, &steered)));
    } else {
        print::text(&text(port, &steered));
    }
    Ok(())
}

/// An interface without a port in front of it: the rules are its card's own, and stay when we go.
fn card(interface: &str, words: &str, as_json: bool) -> Result<(), Failure> {
    let failed = |error: CardError| match error {
        CardError::None { .. } | CardError::Refused { .. } => Failure::needs(error),
        CardError::Rule(_) | CardError::Full { .. } => Failure::usage(error.to_string()),
    };
    xway_hook::kernel::device(interface).map_err(failure)?;
    let card = Card::open(interface).map_err(failed)?;
    match (!words.trim().is_empty()).then(|| Change::parse(words)).transpose() {
        Ok(None) => {}
        Ok(Some(Change::Insert(rule))) => drop(card.insert(&rule).map_err(failed)?),
        Ok(Some(Change::Delete(place))) => card.delete(place).map_err(failed)?,
        Ok(Some(Change::Spread { .. } | Change::Off)) => {
            let why = format!("{interface} is an interface: how its card spreads flows is set with ethtool -X");
            return Err(
                Failure::usage(why).hint(format!("packet:{interface} or afxdp:{interface} is the service's port"))
            );
        }
        Err(error) => return Err(Failure::usage(error.to_string())),
    }
    let rules = card.rules().map_err(failed)?.iter().map(ToString::to_string).collect();
    let steered = Steered { rules, ..Steered::default() };
    if as_json {
        print::json(&print::document("steer", fields(interface, &steered)));
    } else if steered.rules.is_empty() {
        print::text(&format!("{interface}: its card has no rules\n"));
    } else {
        print::text(&text(interface, &steered));
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
