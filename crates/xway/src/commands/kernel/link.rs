//! `xway link`: attachments that are held by links.

use serde_json::{Value, json};
use xway_kernel::{LINK_TYPE_XDP, LinkInfo, ObjectKind, XdpLink, devices, ids};

use super::pinned::Pinned;
use super::which::Which;
use super::{by_id, pinning, refused};
use crate::args_kernel::{self as args, HookRest as Rest, Place, ShowRest};
use crate::failure::Failure;
use crate::print;

/// Names of `enum bpf_link_type`, by number, as bpftool prints them.
const TYPES: [&str; 15] = [
    "unspec",
    "raw_tracepoint",
    "tracing",
    "cgroup",
    "iter",
    "netns",
    "xdp",
    "perf_event",
    "kprobe_multi",
    "struct_ops",
    "netfilter",
    "tcx",
    "uprobe_multi",
    "netkit",
    "sockmap",
];

/// Runs the command.
pub fn run(args: &args::Link, as_json: bool) -> Result<(), Failure> {
    let place = match args {
        args::Link::Show(rest) => &rest.place,
        args::Link::Detach(rest) | args::Link::Pin(rest) => &rest.place,
    };
    if place.hook == Some(Place::User) {
        let message = "the engine has no links: its ports hold their programs themselves";
        return Err(Failure::no(message)
            .hint("xway status --hook user shows what is attached, xway unload PORT -i ID --hook user takes it away"));
    }
    match args {
        args::Link::Show(rest) => show(rest, as_json),
        args::Link::Detach(rest) => detach(rest, as_json),
        args::Link::Pin(rest) => pin(rest, as_json),
    }
}

fn show(args: &ShowRest, as_json: bool) -> Result<(), Failure> {
    let pinned = Pinned::of(ObjectKind::Link, args)?;
    let found: Vec<LinkInfo> = match Which::only(&args.words)? {
        Some(which) => vec![open(&which)?.info().map_err(refused)?],
        // A link that goes away meanwhile is left out.
        None => {
            let all = ids(ObjectKind::Link).map_err(refused)?;
            all.into_iter().filter_map(|id| XdpLink::by_id(id).and_then(|l| l.info()).ok()).collect()
        }
    };
    if as_json {
        let doc = json!({ "links": found.iter().map(|info| pinned.json(info.id, json(info))).collect::<Vec<_>>() });
        print::json(&print::document("link show", doc));
    } else {
        print::text(&found.iter().map(|info| text(info) + &pinned.text(info.id)).collect::<String>());
    }
    Ok(())
}

fn detach(args: &Rest, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&args.words, "link")?;
    if let Some(extra) = rest.first() {
        return Err(Failure::usage(format!("{extra}: not expected here")));
    }
    let link = open(&which)?;
    let info = link.info().map_err(refused)?;
    link.detach().map_err(refused)?;
    if as_json {
        print::json(&print::document("link detach", json!({ "link": json(&info) })));
    } else {
        print::text(&format!("link {} is detached\n", info.id));
    }
    Ok(())
}

fn pin(args: &Rest, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&args.words, "link")?;
    let path = pinning::path("link", &rest)?;
    let link = open(&which)?;
    let info = link.info().map_err(refused)?;
    pinning::pin("link", std::os::fd::AsFd::as_fd(&link), info.id, &path, as_json)
}

fn open(which: &Which) -> Result<XdpLink, Failure> {
    match which {
        Which::Id(id) => by_id("link", *id, XdpLink::by_id(*id)),
        Which::Pinned(path) => XdpLink::pinned(path).map_err(refused),
        Which::Name(_) | Which::Tag(_) => {
            Err(Failure::usage(format!("{which}: links have no names")).hint("id N or pinned PATH"))
        }
    }
}

fn json(info: &LinkInfo) -> Value {
    json!({
        "id": info.id,
        "type": type_name(info.link_type),
        "prog_id": info.prog_id,
        "ifindex": info.ifindex,
        "devname": device(info),
    })
}

fn text(info: &LinkInfo) -> String {
    let place = match (info.link_type == LINK_TYPE_XDP, info.ifindex) {
        (true, None) => "  its interface has gone".to_owned(),
        (_, Some(index)) => {
            format!("  {} (number {index})", device(info).unwrap_or_else(|| "in another namespace".into()))
        }
        (false, None) => String::new(),
    };
    format!("{}: {}  prog {}{place}\n", info.id, type_name(info.link_type), info.prog_id)
}

fn device(info: &LinkInfo) -> Option<String> {
    let index = info.ifindex?;
    // The number is that of the interface's own namespace: it is ours only if our interface has this program.
    let found = devices().ok()?.into_iter().find(|d| d.ifindex == index)?;
    let here = found.attached().any(|(_, id)| id == info.prog_id);
    here.then_some(found.name)
}

fn type_name(number: u32) -> String {
    TYPES.get(number as usize).map_or_else(|| format!("type {number}"), |n| (*n).to_owned())
}
