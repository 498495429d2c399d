//! What the service hands to others: maps by their descriptors, sockets, a look for those who may not change anything; and what
//! its file says of steering.

mod running;

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use running::{Running, answer, ask, until};
use serde_json::json;
use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_control::Service;
use xway_hook::Hook;
use xway_maps::Window;
use xway_testkit::Needs;
use xway_xsk_client::{Bind, Connection};

#[test]
fn a_map_goes_to_others_by_its_descriptor() {
    let running = Running::start(&Running::dir("share"), "");
    let mut maker = running.connect();
    let map = maker.map_create("shared", &MapSpec::new(MapType::Hash, 4, 8, 4)).unwrap();
    let other = maker.map_create("other", &MapSpec::new(MapType::Hash, 4, 8, 4)).unwrap();
    maker.map_update(map, &[1; 4], &[2; 8], 0).unwrap();
    let mut whole = Service::over(maker.share(map, false).unwrap());
    let mut look = Service::over(maker.share(map, true).unwrap());
    assert_eq!(maker.share(xway_hook::MapId(9999), true).unwrap_err().errno, Some(Errno::ENOENT));
    assert_eq!(maker.maps().unwrap().len(), 2, "the connection goes on behind a refusal");

    // It reaches this map and nothing else, and it outlives the one who made it.
    drop(maker);
    let mut watcher = running.connect();
    until("the other map goes with its maker", || watcher.map_info(other).is_err());
    assert_eq!(look.map_lookup(map, &[1; 4], 0).unwrap(), [2; 8]);
    whole.map_update(map, &[3; 4], &[4; 8], 0).unwrap();
    assert_eq!(look.map_lookup(map, &[3; 4], 0).unwrap(), [4; 8]);
    let refused = look.map_update(map, &[1; 4], &[0; 8], 0).unwrap_err();
    assert!(refused.errno == Some(Errno::EPERM) && refused.message.contains("for reading"), "{refused}");
    for asked in [whole.map_info(other).map(drop), whole.maps().map(drop), whole.down(), whole.ports().map(drop)] {
        assert_eq!(asked.unwrap_err().errno, Some(Errno::EPERM));
    }
    assert_eq!(look.map_lookup(map, &[1; 4], 0).unwrap(), [2; 8]);

    // The last descriptor takes it along.
    drop(whole);
    assert!(watcher.map_info(map).is_ok());
    drop(look);
    until("the map goes with its last descriptor", || watcher.map_info(map).is_err());
}

/// Values in memory: for who may change the map, or was given them by such a one.
#[test]
fn a_maps_memory_goes_to_others_by_its_descriptor() {
    let running = Running::start(&Running::dir("memory"), "[service]\nreadable = true\n");
    let mut maker = running.connect();
    let spec = MapSpec::new(MapType::Array, 4, 8, 4).with_flags(map_flags::MMAPABLE);
    let map = maker.map_create("values", &spec).unwrap();
    let other = maker.map_create("other", &spec).unwrap();
    let mut whole = Service::over(maker.share(map, false).unwrap());
    let mut look = Service::over(maker.share(map, true).unwrap());
    let window = whole.map_window(map, true).unwrap();
    window.store(3, 0, 8, 77).unwrap();
    assert_eq!(maker.map_lookup(map, &[3, 0, 0, 0], 0).unwrap(), 77u64.to_ne_bytes());
    assert_eq!(look.map_window(map, false).unwrap().load(3, 0, 8), Ok(77));
    for refused in [look.map_window(map, true), look.map_window(other, false), whole.map_window(other, true)] {
        assert_eq!(refused.unwrap_err().errno, Some(Errno::EPERM));
    }
    // A descriptor on its way, and one that nobody has mapped yet, is as good as a mapping.
    assert_eq!(maker.map_freeze(map).unwrap_err().errno, Some(Errno::EBUSY));
    drop(window);
    let (fd, shape) = maker.map_memory(map, true).unwrap();
    assert_eq!(shape.bytes(), Some(4096));
    assert_eq!(maker.map_freeze(map).unwrap_err().errno, Some(Errno::EBUSY));
    drop(fd);
    // (Each answer is behind the closing of the descriptor that went with the one before.)
    maker.map_info(map).unwrap();
    whole.map_info(map).unwrap();
    maker.map_freeze(map).unwrap();
    assert_eq!(whole.map_window(map, true).unwrap_err().errno, Some(Errno::EPERM));
    assert!(whole.map_window(map, false).is_ok());

    if !Needs::of("control::a_maps_memory_goes_to_others_by_its_descriptor").root().met() {
        return;
    }
    // Who may only look gets no memory, which would stay with him; what somebody passes on to him is for reading, and stays so.
    let socket = running.dir.join("control.sock");
    let given = maker.map_memory(other, false).unwrap();
    let mut passed_on = Service::over(maker.share(other, true).unwrap());
    std::thread::spawn(move || {
        become_nobody();
        let mut nobody = Service::connect(&socket).unwrap();
        let refused = nobody.map_window(other, false).unwrap_err();
        assert!(refused.errno == Some(Errno::EPERM) && refused.message.contains("may look"), "{refused}");
        assert_eq!(nobody.map_window(other, true).unwrap_err().errno, Some(Errno::EPERM));
        let mut own = Service::over(nobody.share(other, true).unwrap());
        assert_eq!(own.map_window(other, false).unwrap_err().errno, Some(Errno::EPERM));
        assert!(passed_on.map_window(other, false).is_ok());
        let (fd, shape) = given;
        assert_eq!(Window::of_memory(fd.as_fd(), shape, false).unwrap().load(0, 0, 8), Ok(0));
        assert_eq!(Window::of_memory(fd.as_fd(), shape, true).unwrap_err(), Errno::EACCES);
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = std::fs::OpenOptions::new().write(true).open(again).unwrap_err();
        assert_eq!(again.kind(), std::io::ErrorKind::PermissionDenied);
    })
    .join()
    .unwrap();
}

#[test]
fn steering_is_part_of_the_file_and_of_the_state() {
    let dir = Running::dir("steer");
    let text = "[[port]]\nname = \"sim:a?count=1&queues=2\"\n\
                steer = [\"flow-type udp4 dst-port 53 action 1 loc 5\", \"flow-type ether action -1 loc 9\", \"equal 2\"]\n";
    let mut running = Running::start(&dir, text);
    let mut service = running.connect();
    let told = service.steer("sim:a", "").unwrap();
    assert!(told.rules[0].starts_with("flow-type udp4 dst-port 53") && told.rules.len() == 2, "{told:?}");
    assert_eq!(told.indirection[..4], [0, 1, 0, 1]);
    assert_eq!(service.apply(text, true).unwrap(), [""; 0]);
    for words in ["delete 9", "flow-type ip4 dst-ip 10.0.0.1 action 0 loc 1", "weight 3 1 hkey symmetric"] {
        service.steer("a", words).unwrap();
    }
    let wrong = service.steer("a", "flow-type ip4 dst-port 1 action 0").unwrap_err();
    assert!(wrong.message.contains("dst-port"), "{wrong}");
    assert!(service.steer("a", "flow-type ether action 2").unwrap_err().message.contains("queue 2"));
    let told = service.steer("a", "").unwrap();
    assert_eq!((told.rules.len(), told.indirection.iter().filter(|q| **q == 0).count()), (2, 96));
    drop(service);
    running.end();
    // What was asked for last is there again; the file's own words come back when they are applied.
    let again = Running::start(&dir, text);
    let mut service = again.connect();
    assert_eq!(service.steer("a", "").unwrap(), told);
    let steps = service.apply(text, false).unwrap();
    assert!(
        steps.len() == 1 && steps[0].starts_with("steer packets of sim:a?count=1&queues=2: flow-type udp4"),
        "{steps:?}"
    );
    assert_eq!(service.steer("a", "").unwrap().indirection[..4], [0, 1, 0, 1]);
}

#[test]
fn sockets_are_served_as_the_file_says() {
    let dir = Running::dir("xsk");
    let path = dir.join("xsk.sock");
    let ports = "[[port]]\nname = \"sim:s?flows=4\"\n";
    let text = format!("{ports}[[socket]]\npath = \"{}\"\n", path.display());
    let running = Running::start(&dir, &text);
    let mut service = running.connect();
    let mut connection = Connection::open(&path).unwrap();
    let umem = connection.umem(64, 2048, 0).unwrap();
    let mut socket = connection.bind(&umem, &Bind { direct: true, ..Bind::new("sim:s", 0) }).unwrap();
    socket.fill(64);
    socket.ring();
    let mut got = None;
    until("a packet comes", || {
        got = socket.receive();
        got.is_some()
    });
    assert_eq!(got.map(|p| p.bytes().len()), Some(64));
    let served = service.sockets().unwrap().remove(0).sockets;
    assert_eq!((served.len(), served[0].queue, served[0].direct), (1, 0, true));
    assert_eq!((served[0].pid, served[0].port.as_str()), (std::process::id() as i32, "sim:s"));
    // Out of the file: closed, and its path goes.
    let steps = service.apply(ports, false).unwrap();
    assert_eq!(steps, [format!("serve no more sockets at {}", path.display())]);
    assert!(service.sockets().unwrap().is_empty() && Connection::open(&path).is_err());
}

#[test]
fn others_may_look_where_the_file_says_so_and_change_nothing() {
    if !Needs::of("control::others_may_look_where_the_file_says_so_and_change_nothing").root().met() {
        return;
    }
    let dir = Running::dir("others");
    let running = Running::start(&dir, "[service]\nreadable = true\n");
    let socket = dir.join("control.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    let mut owner = running.connect();
    let map = owner.map_create("seen", &MapSpec::new(MapType::Array, 4, 4, 1)).unwrap();
    // A thread of another user: credentials are those of whoever connects.
    std::thread::spawn(move || {
        become_nobody();
        let mut other = Service::connect(&socket).unwrap();
        assert_eq!(other.map_lookup(map, &[0; 4], 0).unwrap(), [0; 4]);
        let mut look = Service::over(other.share(map, true).unwrap());
        assert_eq!(look.map_lookup(map, &[0; 4], 0).unwrap(), [0; 4]);
        for asked in [
            other.map_update(map, &[0; 4], &[1; 4], 0),
            other.share(map, false).map(drop),
            other.open_port("sim:x"),
            other.steer("x", "off").map(drop),
            other.apply("", false).map(drop),
            other.upgrade(Path::new("/bin/true"), false).map(drop),
            other.down(),
        ] {
            let refused = asked.unwrap_err();
            assert!(refused.errno == Some(Errno::EPERM) && refused.message.contains("may look"), "{refused}");
        }
        assert!(other.apply("", true).is_ok(), "a look");
    })
    .join()
    .unwrap();
    assert_eq!(owner.map_lookup(map, &[0; 4], 0).unwrap(), [0; 4]);
}

fn become_nobody() {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (rustix::process::Uid::from_raw(65534), rustix::process::Gid::from_raw(65534));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
}

#[test]
fn requests_are_bounded_in_count_and_work() {
    let running = Running::start(&Running::dir("bounds"), "[limits]\nconnections = 2\n");
    let mut socket = running.raw();
    let told = ask(&mut socket, &json!({"do": "test_run", "id": 1, "data": "", "ctx": null, "repeat": 1_000_001}));
    assert!(told["error"]["message"].as_str().unwrap().contains("field repeat"), "{told}");
    let mut second = running.connect();
    second.ports().unwrap();
    // A third is told why, and so is a descriptor, which is a connection of its own.
    let map = second.map_create("m", &MapSpec::new(MapType::Array, 4, 4, 1)).unwrap();
    assert!(second.share(map, true).unwrap_err().message.contains("2 connections are open"));
    // It is told without having asked, and hears it also when it asks a connection that is closed already.
    let third = answer(&mut running.raw());
    assert!(third["error"]["message"].as_str().unwrap().contains("2 connections are open"), "{third}");
    for _ in 0..50 {
        let refused = running.connect().ports().unwrap_err();
        assert!(refused.message.contains("2 connections are open"), "{refused}");
        assert!(refused.hint.is_some(), "{refused}");
    }
    drop(socket);
    until("there is room again", || running.connect().ports().is_ok());
}
