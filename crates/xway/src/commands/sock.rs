//! `xway sock`: AF_XDP-style sockets that the service's engine serves.

use std::path::PathBuf;

use serde_json::{Map, json};
use xway_control::config::Socket;
use xway_control::message::{ServedPath, ServedSocket};

use super::kernel::failure;
use super::service::connect;
use crate::args_data as args;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &args::Sock, as_json: bool) -> Result<(), Failure> {
    match args {
        args::Sock::Show(args) => {
            let served = connect(&args.socket)?.sockets().map_err(failure)?;
            if as_json {
                print::json(&print::document("sock show", fields(&served)));
            } else {
                print::text(&text(&served));
            }
            Ok(())
        }
        args::Sock::Serve(args) => {
            // The service has another directory.
            let path = absolute(&args.path)?;
            let socket = Socket {
                path,
                group: args.group.clone(),
                trusted_uids: args.trusted.clone(),
                own_queue_zero_copy: args.own_queue,
                untrusted_bytes: args.untrusted_bytes,
            };
            connect(&args.socket)?.serve(&socket).map_err(failure)?;
            done("sock serve", &socket.path, as_json);
            Ok(())
        }
        args::Sock::End(args) => {
            let path = absolute(&args.path)?;
            connect(&args.socket)?.unserve(&path).map_err(failure)?;
            done("sock end", &path, as_json);
            Ok(())
        }
    }
}

fn absolute(path: &std::path::Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

fn done(command: &str, path: &std::path::Path, as_json: bool) {
    if as_json {
        print::json(&print::document(command, json!({ "path": path })));
    }
}

fn mode(socket: &ServedSocket) -> &'static str {
    if socket.zero_copy { "zero-copy" } else { "copy" }
}

fn fields(served: &[ServedPath]) -> serde_json::Value {
    let socket = |s: &ServedSocket| {
        let counters: Map<_, _> = s.counters.iter().map(|(name, n)| (name.clone(), json!(n))).collect();
        json!({
            "id": s.id, "pid": s.pid, "port": s.port, "queue": s.queue, "mode": mode(s), "direct": s.direct,
            "counters": counters,
        })
    };
    let path = |p: &ServedPath| json!({ "path": p.path, "sockets": p.sockets.iter().map(socket).collect::<Vec<_>>() });
    json!({ "served": served.iter().map(path).collect::<Vec<_>>() })
}

fn text(served: &[ServedPath]) -> String {
    if served.is_empty() {
        return "no sockets are served; xway sock serve PATH, or [[socket]] in the configuration\n".into();
    }
    let mut out = String::new();
    for path in served {
        out += &format!("{}: {} open\n", path.path.display(), path.sockets.len());
        for s in &path.sockets {
            let past = if s.direct { ", past all programs" } else { "" };
            out += &format!("  {} of process {}: {} queue {}, {}{past}\n", s.id, s.pid, s.port, s.queue, mode(s));
            let counted: Vec<String> =
                s.counters.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
            if !counted.is_empty() {
                out += &format!("    {}\n", counted.join(", "));
            }
        }
    }
    out
}
