//! `xway lab`.

use serde_json::{Value, json};
use xway_lab::{Existing, LabError, Plan};

use crate::args_machine::{Lab, LabUp};
use crate::failure::Failure;
use crate::print;

pub fn run(args: &Lab, as_json: bool) -> Result<(), Failure> {
    match args {
        Lab::Up(args) => up(args, as_json),
        Lab::Down(args) => down(&args.name, as_json),
        Lab::Show => show(as_json),
    }
}

fn up(args: &LabUp, as_json: bool) -> Result<(), Failure> {
    let name = &args.name.name;
    let net = args.net.map_or_else(|| xway_lab::free_net().map_err(failure), Ok)?;
    // Where IPv6 is switched off no such address can be given.
    let off = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let ipv6 = off.is_ok_and(|text| text.trim() == "0");
    let plan = Plan::new(name, args.hosts, net, ipv6).map_err(|error| Failure::usage(error.to_string()))?;
    if args.dry_run {
        let commands: Vec<String> = plan.steps().iter().map(|step| format!("ip {}", step.join(" "))).collect();
        match as_json {
            true => print::json(&document(&plan, name, Some(&commands))),
            false => print::text(&(commands.join("\n") + "\n")),
        }
        return Ok(());
    }
    xway_lab::up(&plan, name).map_err(failure)?;
    let hosts = 0..plan.hosts();
    if as_json {
        print::json(&document(&plan, name, None));
        return Ok(());
    }
    let mut out = String::new();
    for host in hosts {
        let [near, far] = plan.addresses(host);
        let (here, there) = (plan.interface(host), plan.namespace(host));
        out.push_str(&format!("{here} {near}  <->  eth0 {far} in namespace {there}\n"));
    }
    let (first, namespace, [near, _]) = (plan.interface(0), plan.namespace(0), plan.addresses(0));
    out.push_str(&format!("try:    ip netns exec {namespace} ping -c 3 {near}\n"));
    out.push_str(&format!("load:   xway load {first} prog.o\n"));
    out.push_str(&format!("remove: xway lab down {name}\n"));
    print::text(&out);
    Ok(())
}

/// A lab; `commands` would make it.
fn document(plan: &Plan, name: &str, commands: Option<&[String]>) -> Value {
    let hosts: Vec<Value> = (0..plan.hosts()).map(|host| host_json(plan, host)).collect();
    let mut doc = json!({ "dry_run": commands.is_some(), "name": name, "hosts": hosts });
    if let Some(commands) = commands {
        doc["commands"] = json!(commands);
    }
    print::document("lab up", doc)
}

fn host_json(plan: &Plan, host: u8) -> Value {
    let text = |address: &dyn std::fmt::Display| address.to_string();
    let [near, far] = plan.addresses(host);
    let six = plan.addresses6(host);
    json!({
        "number": host,
        "interface": plan.interface(host),
        "namespace": plan.namespace(host),
        "address": text(&near),
        "peer": { "interface": "eth0", "address": text(&far), "address6": six.map(|[_, far]| text(&far)) },
        "address6": six.map(|[near, _]| text(&near)),
    })
}

fn down(name: &str, as_json: bool) -> Result<(), Failure> {
    let hosts = xway_lab::down(name).map_err(failure)?;
    match as_json {
        true => print::json(&print::document("lab down", json!({ "name": name, "hosts": hosts }))),
        false => print::text(&format!("lab {name} is gone, with its {hosts} hosts\n")),
    }
    Ok(())
}

fn show(as_json: bool) -> Result<(), Failure> {
    let labs = xway_lab::existing().map_err(failure)?;
    if as_json {
        let host = |h: &xway_lab::Host| json!({ "number": h.number, "namespace": h.namespace, "interface": h.interface, "here": h.here });
        let lab = |l: &Existing| json!({ "name": l.name, "hosts": l.hosts.iter().map(host).collect::<Vec<_>>() });
        let labs: Vec<Value> = labs.iter().map(lab).collect();
        print::json(&print::document("lab show", json!({ "labs": labs })));
        return Ok(());
    }
    if labs.is_empty() {
        print::text("no lab; xway lab up makes one\n");
        return Ok(());
    }
    let mut out = String::new();
    for lab in &labs {
        out.push_str(&format!("{}\n", lab.name));
        for host in &lab.hosts {
            let here = if host.here { "" } else { ", whose wire does not end in this namespace" };
            out.push_str(&format!("  {}  <->  namespace {}{here}\n", host.interface, host.namespace));
        }
    }
    print::text(&out);
    Ok(())
}

fn failure(error: LabError) -> Failure {
    match &error {
        LabError::Exists(name) => {
            Failure::no(error.to_string()).hint(format!("xway lab show, or remove it: xway lab down {name}"))
        }
        LabError::None(_) => Failure::no(error.to_string()).hint("xway lab show lists them"),
        _ => Failure::needs(error.to_string()).hint("labs need root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2"),
    }
}
