//! Clients that send along what is slow to close, or take every connection. Nobody waits for them: no other client, and not the service
//! when it ends.

mod running;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use running::{Running, answer, ask, pipe, until};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;
use xway_abi::{MapSpec, MapType};
use xway_hook::Hook;
use xway_testkit::{LINGERS, Needs, as_user, kernel_at_least, lingering, skip};

/// Half of a request, with a descriptor.
fn send_along(to: &UnixStream, fd: &OwnedFd) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(to, &[IoSlice::new(&[200, 0, 0, 0])], &mut control, SendFlags::NOSIGNAL)
}

/// The same with what whoever closes it last waits for; where that is us it is not the test.
fn send_slow(to: &UnixStream) -> (rustix::io::Result<usize>, TcpStream) {
    let (near, far) = lingering();
    let sent = send_along(to, &near);
    std::thread::spawn(move || drop(near));
    (sent, far)
}

#[test]
fn descriptors_are_refused() {
    if !kernel_at_least(6, 16) {
        return skip("control::descriptors_are_refused", "Linux 6.16, which has SO_PASSRIGHTS");
    }
    let running = Running::start(&Running::dir("rights"), "");
    let mut socket = running.raw();
    assert_eq!(send_slow(&socket).0, Err(Errno::PERM));
    assert_eq!(ask(&mut socket, &json!({"do": "ports"})), json!({"ok": []}), "the connection stands");
    assert_eq!(send_slow(&socket).0, Err(Errno::PERM));
    // What a descriptor of a map is, is a connection like others.
    let mut maker = running.connect();
    let map = maker.map_create("one", &MapSpec::new(MapType::Array, 4, 4, 1)).unwrap();
    let given = UnixStream::from(maker.share(map, false).unwrap());
    assert_eq!(send_slow(&given).0, Err(Errno::PERM));
}

/// As on kernels that cannot refuse them: in the middle of a request, behind one, from those who are not taken in, and from those who
/// wait for that when the service ends.
#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let old = |config: &mut xway_control::Config| config.service.rights = true;
    let mut running = Running::start_with(&Running::dir("slow"), "[limits]\nconnections = 4\n", old);
    let mut honest = running.connect();
    let mut ends = Vec::new();
    let mut hostile = Vec::new();
    for _ in 0..2 {
        let socket = running.raw();
        let (sent, far) = send_slow(&socket);
        assert_eq!(sent, Ok(4));
        ends.push(far);
        hostile.push(socket);
    }
    assert_eq!(honest.ports().unwrap(), [""; 0]);
    let last = running.connect();
    // Nobody more has room: each is told so, whatever those before it sent.
    for _ in 0..6 {
        let mut away = running.raw();
        ends.push(send_slow(&away).1);
        let said = answer(&mut away);
        assert!(said["error"]["message"].as_str().unwrap().contains("4 connections are open"), "{said}");
        hostile.push(away);
    }
    drop(last);
    until("whoever comes next is taken in", || ask_or(&mut running.raw(), &json!({"do": "ports"})).is_some());
    assert_eq!(honest.ports().unwrap(), [""; 0]);
    drop(honest);
    // More than are told why at one time: these wait in the kernel.
    for _ in 0..20 {
        let waits = running.raw();
        ends.push(send_slow(&waits).1);
    }
    let began = Instant::now();
    running.end();
    assert!(began.elapsed() < LINGERS, "{:?}", began.elapsed());
    // They close now.
    drop((ends, hostile));
}

#[test]
fn nobody_keeps_all_others_out() {
    if !Needs::of("control::nobody_keeps_all_others_out").root().met() {
        return;
    }
    let text = "[service]\nreadable = true\n[limits]\nconnections = 4\n";
    let running = Running::start(&Running::dir("half"), text);
    let stranger = || as_user((65_533, 65_533), &[], || running.raw());
    let ports = json!({"do": "ports"});
    let mut own: Vec<UnixStream> = (0..2).map(|_| stranger()).collect();
    own.iter_mut().for_each(|socket| assert_eq!(ask(socket, &ports), json!({"ok": []})));
    let said = answer(&mut stranger());
    assert!(said["error"]["message"].as_str().unwrap().contains("user 65533 has 2 connections open, half"), "{said}");
    // Others come in.
    let mut owner = running.raw();
    assert_eq!(ask(&mut owner, &ports), json!({"ok": []}));
    let mut other = as_user((65_532, 65_532), &[], || running.raw());
    assert_eq!(ask(&mut other, &ports), json!({"ok": []}));
    // What one has given up it may have again.
    drop(own);
    until("there is room again", || ask_or(&mut stranger(), &ports).is_some());
}

/// A file that names one in its place as an object, and one as a capture.
fn naming(path: &Path) -> [String; 2] {
    let path = path.display();
    let object =
        format!("[[port]]\nname = \"sim:a\"\n[[program]]\nname = \"k\"\nport = \"sim:a\"\nobject = \"{path}\"\n");
    [object, format!("[[port]]\nname = \"pcap:{path}\"\n")]
}

/// The service opens what others name: a pipe is not waited for, and what has no end is not read.
#[test]
fn what_is_no_file_holds_nobody_up() {
    let running = Running::start(&Running::dir("nofile"), "");
    let fifo = running.dir.join("fifo");
    pipe(&fifo);
    let mut socket = running.raw();
    for (path, what) in
        [(fifo.as_path(), "a pipe"), (Path::new("/dev/zero"), "a device"), (Path::new("/"), "a directory")]
    {
        for config in naming(path) {
            for dry_run in [true, false] {
                let said = ask(&mut socket, &json!({"do": "apply", "config": config, "dry_run": dry_run}));
                let message = said["error"]["message"].as_str().unwrap_or_else(|| panic!("{said}"));
                assert!(
                    message.ends_with(&format!("{}: is {what}, and a file is wanted", path.display())),
                    "{message}"
                );
            }
        }
        // Each of its files, when its turn comes.
        for name in [format!("pcap:{}", path.display()), format!("pcap:{}?loop=2", path.display())] {
            let said = ask(&mut socket, &json!({"do": "open_port", "port": name}));
            assert!(said["error"]["message"].as_str().unwrap().contains(&format!("is {what}")), "{said}");
        }
    }
    assert_eq!(running.connect().ports().unwrap(), [""; 0]);
}

/// Who may only look is told the same about every file, whatever it is and whether it is there.
#[test]
fn who_may_only_look_learns_nothing_of_files() {
    if !Needs::of("control::who_may_only_look_learns_nothing_of_files").root().met() {
        return;
    }
    let running = Running::start(&Running::dir("words"), "[service]\nreadable = true\n");
    let (fifo, text) = (running.dir.join("fifo"), running.dir.join("text,more"));
    pipe(&fifo);
    std::fs::write(&text, "a secret").unwrap();
    let mut socket = as_user((65_533, 65_533), &[], || running.raw());
    let mut all = Vec::new();
    for path in
        [fifo.as_path(), &text, &running.dir.join("gone,more"), Path::new("/etc/shadow"), Path::new("/dev/zero")]
    {
        for config in naming(path) {
            let said = ask(&mut socket, &json!({"do": "apply", "config": config, "dry_run": true})).to_string();
            assert!(said.contains("\"ok\"") && said.contains("read the objects and captures"), "{said}");
            all.push(said.replace(&path.display().to_string(), "PATH"));
        }
    }
    // A name with a comma says no more where it is one file than where it is two.
    let first = [all[0].clone(), all[1].clone()];
    assert!(all.chunks(2).all(|both| both == first), "{all:?}");
    // What changes something is not for him.
    let said = ask(&mut socket, &json!({"do": "open_port", "port": format!("pcap:{}", fifo.display())}));
    assert!(said["error"]["message"].as_str().unwrap().contains("may look, but not change"), "{said}");
}

/// An answer, unless it is a refusal.
fn ask_or(socket: &mut UnixStream, request: &serde_json::Value) -> Option<serde_json::Value> {
    let _ = xway_control::wire::send(socket, request);
    let said = answer(socket);
    said.get("ok").is_some().then_some(said)
}
