//! `xway link`: attachments that are held by links.

use serde_json::{Value, json};
use xway_kernel::{LINK_TYPE_XDP, LinkInfo, ObjectKind, XdpLink, devices, ids};

use super::attach::Place as On;
use super::pinned::Pinned;
use super::which::Which;
use super::{by_id, pinning, refused};
use crate::args_kernel::{self as args, HookRest as Rest, LinkDetach, Place, ShowRest};
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
        args::Link::Detach(detach) => &detach.rest.place,
        args::Link::Pin(rest) | args::Link::Unpin(rest) => &rest.place,
    };
    if place.hook == Some(Place::User) {
        return match args {
            args::Link::Show(rest) => engine::show(rest, as_json),
            args::Link::Detach(detach) => engine::detach(&detach.rest, as_json),
            args::Link::Pin(_) | args::Link::Unpin(_) => {
                let message = "an attachment of the engine needs no pin: it outlives whoever made it, and with a state directory the service";
                Err(Failure::no(message).hint("xway link show --hook user; xway link detach id N --hook user ends it"))
            }
        };
    }
    match args {
        args::Link::Show(rest) => show(rest, as_json),
        args::Link::Detach(args) => detach(args, as_json),
        args::Link::Pin(rest) => pin(rest, as_json),
        args::Link::Unpin(rest) => pinning::unpin("link", rest, as_json),
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

fn detach(args: &LinkDetach, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&args.rest.words, "link")?;
    if let Some(extra) = rest.first() {
        return Err(Failure::usage(format!("{extra}: not expected here")));
    }
    let link = open(&which)?;
    let info = link.info().map_err(refused)?;
    // Numbers of links are the machine's, interfaces those of a namespace: who meant one of these here did not mean that one.
    let elsewhere = info.ifindex.filter(|_| info.link_type == LINK_TYPE_XDP && device(&info).is_none());
    let space = elsewhere.map(|index| xway_hook::kernel::elsewhere(index, info.prog_id));
    if let (Some(space), false) = (&space, args.force) {
        let id = info.id;
        let (place, within) = match space {
            Some((path, name)) => {
                let path = path.display();
                (format!("{name} of {path}"), format!("nsenter --net={path} xway link detach id {id}, or "))
            }
            None => (format!("number {} of a namespace that is not found", elsewhere.unwrap_or(0)), String::new()),
        };
        let message = format!(
            "link {id}: its interface is in another network namespace ({place}), where it holds program {}",
            info.prog_id
        );
        return Err(Failure::no(message).hint(format!("{within}--force detaches it from here")));
    }
    // Where it holds its program it is asked while it does.
    let was = json(&info);
    link.detach().map_err(refused)?;
    let space = space.flatten();
    if as_json {
        let namespace = space.as_ref().map(|(path, _)| path);
        print::json(&print::document("link detach", json!({ "link": was, "namespace": namespace })));
    } else {
        let place = space.map_or_else(String::new, |(path, name)| format!(" from {name} of {}", path.display()));
        print::text(&format!("link {} is detached{place}\n", info.id));
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
        (true, None) => "  it is detached, or its interface has gone".to_owned(),
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

/// The same over the engine's attachments.
mod engine {
    use xway_hook::{AttachmentInfo, Hook};

    use super::*;
    use crate::commands::kernel::{failure, failure_of};

    pub fn show(args: &ShowRest, as_json: bool) -> Result<(), Failure> {
        // (Refuses -f.)
        Pinned::of(ObjectKind::Link, args)?;
        let mut hook = On::of(&args.place)?.boxed();
        let mut found = all(&mut *hook)?;
        if let Some(which) = Which::only(&args.words)? {
            let id = number(&which)?;
            found.retain(|(link, _)| *link == id);
            if found.is_empty() {
                return Err(missing(id));
            }
        }
        let mut shown = Vec::new();
        for (id, a) in &found {
            // It may be closed meanwhile.
            let ifindex = hook.features(&a.port).ok().map(|port| port.ifindex);
            shown.push((*id, a, ifindex));
        }
        if as_json {
            let one = |(id, a, ifindex): &(u32, &AttachmentInfo, Option<u32>)| {
                let at = (&a.port, a.queue);
                json!({ "id": id, "type": "xdp", "prog_id": a.program.id.0, "ifindex": ifindex, "devname": at.0, "queue": at.1 })
            };
            let doc = json!({ "links": shown.iter().map(one).collect::<Vec<_>>() });
            print::json(&print::document("link show", doc));
        } else {
            print::text(&shown.iter().map(|(id, a, ifindex)| line(*id, a, *ifindex)).collect::<String>());
        }
        Ok(())
    }

    fn line(id: u32, a: &AttachmentInfo, ifindex: Option<u32>) -> String {
        let number = ifindex.map_or_else(String::new, |index| format!(" (number {index})"));
        let queue = a.queue.map_or_else(String::new, |queue| format!("  queue {queue}"));
        format!("{id}: xdp  prog {}  {}{number}{queue}\n", a.program.id.0, a.port)
    }

    pub fn detach(args: &Rest, as_json: bool) -> Result<(), Failure> {
        let (which, rest) = Which::needed(&args.words, "link")?;
        if let Some(extra) = rest.first() {
            return Err(Failure::usage(format!("{extra}: not expected here")));
        }
        let id = number(&which)?;
        let mut hook = On::of(&args.place)?.boxed();
        let found = all(&mut *hook)?.into_iter().find(|(link, _)| *link == id);
        let (_, a) = found.ok_or_else(|| missing(id))?;
        hook.link_detach(id).map_err(|e| failure_of("link", hook.kind(), e))?;
        if as_json {
            let link =
                json!({ "id": id, "type": "xdp", "prog_id": a.program.id.0, "devname": a.port, "queue": a.queue });
            print::json(&print::document("link detach", json!({ "link": link, "namespace": Value::Null })));
        } else {
            print::text(&format!("link {id} is detached\n"));
        }
        Ok(())
    }

    fn all(hook: &mut dyn Hook) -> Result<Vec<(u32, AttachmentInfo)>, Failure> {
        let all = hook.attachments(None).map_err(failure)?;
        let mut found: Vec<_> = all.into_iter().filter_map(|a| Some((a.link?, a))).collect();
        found.sort_by_key(|(link, _)| *link);
        Ok(found)
    }

    fn number(which: &Which) -> Result<u32, Failure> {
        match which {
            Which::Id(id) => Ok(*id),
            _ => Err(Failure::usage(format!("{which}: attachments of the engine have numbers only")).hint("id N")),
        }
    }

    fn missing(id: u32) -> Failure {
        Failure::no(format!("no link with id {id}")).hint("xway link show --hook user")
    }
}
