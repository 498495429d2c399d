//! The service killed with SIGKILL in the middle of each kind of request: it comes back, and what it says is so.

mod common;

use std::path::Path;
use std::time::Duration;

use common::Dir;
use common::service::{KINDS, Up};
use serde_json::Value;
use xway_abi::{MapSpec, MapType};
use xway_control::Service;
use xway_hook::{AttachRequest, Hook, HookError, Image, LoadRequest, ObjectId, Replace, TestRequest};

/// Kinds of requests that change something, or that take their time.
const ALL: [&str; 15] = [
    "pin", "unpin", "load", "program", "release", "attach", "replace", "detach", "writes", "batch", "ports", "apply",
    "steer", "test-run", "freeze",
];

/// Bytes of a packet that the program counts.
const PACKET: [u8; 64] = [0; 64];

/// One request of a kind, with what must be there for it. What was made in one round is there in the next one, up to a bound.
fn once(kind: &str, n: u32, service: &mut Service, image: &Image) -> Result<(), HookError> {
    let spec = MapSpec::new(MapType::Hash, 4, 4, 1024);
    let path = format!("/hammer/{kind}/{}", n % 50);
    let path = Path::new(&path);
    let port = "sim:h?count=1";
    let pinned = LoadRequest { programs: Vec::new(), pins: Some(path.to_owned()) };
    let give_up = |service: &mut Service, objects: xway_hook::Objects| {
        let maps = objects.maps.iter().map(|(_, id)| ObjectId::Map(*id));
        let programs = objects.programs.iter().map(|(_, id)| ObjectId::Program(*id));
        maps.chain(programs).collect::<Vec<_>>().into_iter().try_for_each(|object| service.release(object))
    };
    match kind {
        "pin" | "unpin" => {
            let id = ObjectId::Map(service.map_create("m", &spec)?);
            // A name of an earlier round is taken: that is an answer.
            let _ = service.pin(id, path);
            if kind == "unpin" {
                service.unpin(path)?;
            }
            service.release(id)
        }
        "load" => {
            let objects = service.load(image, &pinned)?;
            give_up(service, objects)
        }
        "program" => {
            let objects = service.load(image, &LoadRequest::default())?;
            let _ = service.pin(ObjectId::Program(objects.programs[0].1), path);
            give_up(service, objects)
        }
        "release" => {
            let objects = service.load(image, &LoadRequest::default())?;
            give_up(service, objects)
        }
        "attach" | "replace" | "detach" => {
            let objects = service.load(image, &LoadRequest::default())?;
            let program = objects.programs[0].1;
            let replace = if kind == "replace" { Replace::Any } else { Replace::Never };
            let queue = (n % 2 == 1).then_some(0);
            let request =
                AttachRequest { chain: kind != "replace", replace, queue, ..AttachRequest::new(port, program) };
            service.attach(&request)?;
            if kind == "detach" || n % 8 == 7 && kind == "attach" {
                service.detach(port, None)?;
            }
            give_up(service, objects)
        }
        "writes" | "batch" | "freeze" => {
            let id = service.map_create("m", &spec)?;
            let _ = service.pin(ObjectId::Map(id), path);
            if kind == "batch" {
                let entries: Vec<_> = (0..500u32).map(|k| (k.to_ne_bytes().to_vec(), vec![1; 4])).collect();
                service.map_update_batch(id, &entries, 0)?;
            } else {
                (0..20u32).try_for_each(|k| service.map_update(id, &k.to_ne_bytes(), &[1; 4], 0))?;
                service.map_delete(id, &3u32.to_ne_bytes())?;
            }
            if kind == "freeze" {
                service.map_freeze(id)?;
            }
            service.release(ObjectId::Map(id))
        }
        "ports" => {
            let own = format!("sim:p{}?count=1", n % 3);
            service.open_port(&own)?;
            service.close_port(&own)
        }
        "apply" => {
            let extra =
                if n.is_multiple_of(2) { "[[port]]\nname = \"sim:x?count=1\"\nsteer = [\"equal 1\"]\n" } else { "" };
            service.apply(&format!("[[port]]\nname = \"{port}\"\n{extra}"), false).map(drop)
        }
        "steer" if n % 4 == 3 => service.steer(port, "off").map(drop),
        "steer" if n % 4 == 2 => service.steer(port, "equal 1 hkey symmetric").map(drop),
        "steer" => service.steer(port, &format!("flow-type ether action 0 loc {}", n % 50)).map(drop),
        "test-run" => {
            let objects = service.load(image, &LoadRequest::default())?;
            let test = TestRequest { data: &PACKET, ctx: None, repeat: 20_000 };
            service.test_run(objects.programs[0].1, &test)?;
            give_up(service, objects)
        }
        other => panic!("{other}: no such kind"),
    }
}

#[test]
fn killed_in_the_middle_of_each_kind_of_request_it_comes_back_whole() {
    if !common::clang("xway::killed::killed_in_the_middle_of_each_kind_of_request_it_comes_back_whole") {
        return;
    }
    let dir = Dir::new();
    let bytes = std::fs::read(common::compiled(&dir, "sort", KINDS, &[])).unwrap();
    // A port that needs no privilege and ends after one packet.
    let text = "[[port]]\nname = \"sim:h?count=1\"\n";
    let file = dir.file("port.toml", text);
    for (round, kind) in ALL.iter().enumerate() {
        let mut up = Up::new(&dir, Some(&file), None);
        let (mut service, image) = (up.connect(), Image::parse(&bytes, &Default::default()).unwrap());
        let (done, counted) = std::sync::mpsc::channel();
        let asking = std::thread::spawn(move || {
            let mut last = None;
            for n in 0.. {
                match once(kind, n, &mut service, &image) {
                    Ok(()) => done.send(n).unwrap_or_default(),
                    Err(e) => {
                        last = Some(e);
                        break;
                    }
                }
            }
            last
        });
        // Some are done, then it dies somewhere in those that follow.
        for _ in 0..3 {
            counted.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{kind}: nothing is done"));
        }
        std::thread::sleep(Duration::from_millis(5 + 3 * round as u64));
        up.kill();
        let last = asking.join().unwrap().unwrap();
        // The connection broke; a request that was refused would be another story.
        assert!(last.errno.is_none(), "{kind}: {last}");
        drop(up);
        consistent(kind, &dir, text, &file);
    }
}

/// It starts without a complaint, everything that its state names is there, and it takes new requests.
fn consistent(kind: &str, dir: &Dir, text: &str, file: &str) {
    let state: Value = serde_json::from_slice(&std::fs::read(dir.path("state/state.json")).unwrap()).unwrap();
    let up = Up::new(dir, Some(file), None);
    let mut service = up.connect();
    let attached = service.attachments(None).unwrap();
    assert_eq!(attached.len(), state["attachments"].as_array().unwrap().len(), "{kind}: {state}");
    for a in &attached {
        service.detach(&a.port, None).or_else(|e| if e.errno.is_none() { Ok(Vec::new()) } else { Err(e) }).unwrap();
    }
    for pin in state["pins"].as_array().unwrap() {
        let path = Path::new(pin["path"].as_str().unwrap());
        let found = service.pinned(path).unwrap_or_else(|e| panic!("{kind}: {e}"));
        match found {
            ObjectId::Map(id) => {
                assert_eq!(service.map_info(id).unwrap().id, id);
                let key = service.map_next_key(id, None);
                assert!(key.is_ok(), "{kind}: {key:?}");
            }
            ObjectId::Program(id) => {
                let test = TestRequest { data: &PACKET, ctx: None, repeat: 1 };
                assert_eq!(service.test_run(id, &test).unwrap().ret, 2, "{kind}");
            }
        }
        service.unpin(path).unwrap_or_else(|e| panic!("{kind}: {e}"));
        service.release(found).unwrap();
    }
    service.apply(text, false).unwrap_or_else(|e| panic!("{kind}: {e}"));
    assert_eq!(service.apply(text, true).unwrap(), [""; 0], "{kind}");
    assert_eq!(service.ports().unwrap(), ["sim:h"], "{kind}");
    assert_eq!(
        (service.maps().unwrap().len(), service.programs().unwrap().len()),
        (0, 0),
        "{kind}: nothing is left over"
    );
    // Objects that nobody names any more have gone.
    let left = std::fs::read_dir(dir.path("state/objects")).unwrap().count();
    assert_eq!(left, 0, "{kind}: object files");
}
