//! The service killed with SIGKILL in the middle of each kind of request: it comes back, and what it says is so.

mod common;

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use common::Dir;
use common::service::{KINDS, Up};
use serde_json::Value;
use xway_abi::{MapSpec, MapType, map_flags};
use xway_control::{Config, Service, message};
use xway_hook::{
    AttachRequest, AttachmentInfo, Blame, CaptureRequest, Hook, HookError, Image, LoadRequest, MapId, ObjectId, ProgId,
    Replace, TestRequest,
};
use xway_testkit::{Lab, Namespace, Needs};

/// Bytes of a packet that the program counts.
const PACKET: [u8; 64] = [0; 64];
/// What the services of one test have for a port, and where they run.
#[derive(Clone, Copy)]
struct On<'a> {
    /// The port, with its options.
    port: &'a str,
    /// A port that is opened and closed by requests: a number, and the options.
    own: (&'a str, &'a str),
    space: Option<&'a Namespace>,
}

/// A port that needs no privilege and ends after one packet.
const SIM: On<'static> = On { port: "sim:h?count=1", own: ("sim:p", "?count=1"), space: None };

impl On<'_> {
    /// The port as it is called when it is open.
    fn name(&self) -> &str {
        self.port.split('?').next().unwrap()
    }

    fn file(&self) -> String {
        format!("[[port]]\nname = \"{}\"\n", self.port)
    }
}
/// How long one answer is looked for where there is nothing to tell.
const MOMENT: Duration = Duration::from_millis(1);

/// Every kind of request that the protocol has, as the reader of messages names them when it meets another one.
fn kinds() -> Vec<String> {
    let refused = serde_json::from_str::<message::Request>(r#"{"do": "no such request"}"#).unwrap_err().to_string();
    let all: Vec<String> = refused.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert!(all.len() > 40 && all.contains(&"map_create".into()) && all.contains(&"down".into()), "{refused}");
    all
}

/// One connection, and what requests are about.
struct Asking<'a> {
    on: On<'a>,
    dir: &'a Dir,
    socket: String,
    image: &'a Image,
    service: Service,
    map: MapId,
    ring: MapId,
    jumps: MapId,
    program: ProgId,
}

impl<'a> Asking<'a> {
    fn new(on: On<'a>, dir: &'a Dir, up: &Up, image: &'a Image) -> Asking<'a> {
        let mut service = up.connect();
        let map = service.map_create("m", &spec()).unwrap();
        let ring = service.map_create("r", &MapSpec::new(MapType::Ringbuf, 0, 0, 4096)).unwrap();
        let jumps = service.map_create("j", &MapSpec::new(MapType::ProgArray, 4, 4, 8)).unwrap();
        let program = service.load(image, &LoadRequest::default()).unwrap().programs[0].1;
        Asking { on, dir, socket: up.socket.clone(), image, service, map, ring, jumps, program }
    }

    /// One request of a kind, with what must be there for it. What was made in one round is there in the next one, up to a bound.
    fn once(&mut self, kind: &str, n: u32) -> Result<(), HookError> {
        let path = format!("/hammer/{kind}/{}", n % 50);
        let path = Path::new(&path);
        let (map, program, on) = (self.map, self.program, self.on);
        let port = on.port;
        let service = &mut self.service;
        let key = (n % 20).to_ne_bytes();
        let entries = || (0..500u32).map(|k| (k.to_ne_bytes().to_vec(), vec![1; 4])).collect::<Vec<_>>();
        match kind {
            "map_create" => {
                let id = service.map_create("again", &spec())?;
                service.release(ObjectId::Map(id))
            }
            "maps" => service.maps().map(drop),
            "map_info" => service.map_info(map).map(drop),
            "map_types" => service.map_types(map).map(drop),
            "map_lookup" => {
                service.map_update(map, &key, &[1; 4], 0)?;
                service.map_lookup(map, &key, 0).map(drop)
            }
            "map_update" => {
                let _ = service.pin(ObjectId::Map(map), path);
                service.map_update(map, &key, &[1; 4], 0)
            }
            "map_store" => service.map_store(self.jumps, &(n % 8).to_ne_bytes(), ObjectId::Program(program), 0),
            "map_delete" | "map_take" => {
                service.map_update(map, &key, &[1; 4], 0)?;
                if kind == "map_take" { service.map_take(map, &key).map(drop) } else { service.map_delete(map, &key) }
            }
            "map_next_key" => service.map_next_key(map, None).map(drop),
            "map_lookup_batch" => {
                service.map_update_batch(map, &entries(), 0)?;
                service.map_lookup_batch(map, None, 500).map(drop)
            }
            "map_update_batch" | "map_delete_batch" => {
                let _ = service.pin(ObjectId::Map(map), path);
                service.map_update_batch(map, &entries(), 0)?;
                let keys: Vec<_> = entries().into_iter().map(|(key, _)| key).collect();
                if kind == "map_delete_batch" { service.map_delete_batch(map, &keys).map(drop) } else { Ok(()) }
            }
            "map_memory" => {
                let id = service.map_create("shown", &shown())?;
                let _ = service.pin(ObjectId::Map(id), path);
                service.map_memory(id, n % 2 == 1)?;
                service.release(ObjectId::Map(id))
            }
            "map_freeze" => {
                let id = service.map_create("frozen", &spec())?;
                // A name of an earlier round is taken: that is an answer.
                let _ = service.pin(ObjectId::Map(id), path);
                service.map_freeze(id)?;
                service.release(ObjectId::Map(id))
            }
            "load" => {
                let pinned = LoadRequest { pins: Some(path.to_owned()), ..LoadRequest::default() };
                let objects = service.load(self.image, &pinned)?;
                give_up(service, &objects)
            }
            "release" => {
                let objects = service.load(self.image, &LoadRequest::default())?;
                give_up(service, &objects)
            }
            "pins" => service.pins().map(drop),
            "clean" => {
                let id = service.map_create("m", &spec())?;
                let _ = service.pin(ObjectId::Map(id), path);
                service.release(ObjectId::Map(id))?;
                service.clean(n % 4 == 3).map(drop)
            }
            "programs" => service.programs().map(drop),
            "program_types" => service.program_types(program).map(drop),
            "program_info" => service.program_info(program).map(drop),
            "test_run" => {
                service.test_run(program, &TestRequest { data: &PACKET, ctx: None, repeat: 20_000 }).map(drop)
            }
            "dump" => service.dump(program).map(drop),
            "pin" | "unpin" | "pinned" => {
                let id = service.map_create("m", &spec())?;
                let object = if n % 2 == 1 { ObjectId::Program(program) } else { ObjectId::Map(id) };
                let _ = service.pin(object, path);
                match kind {
                    "pinned" => drop(service.pinned(path)?),
                    "unpin" => service.unpin(path)?,
                    _ => {}
                }
                service.release(ObjectId::Map(id))
            }
            "attach" | "detach" | "link_detach" => {
                let objects = service.load(self.image, &LoadRequest::default())?;
                let (alone, queue) = (n % 3 == 2, (n % 2 == 1).then_some(0));
                let replace = if alone { Replace::Any } else { Replace::Never };
                let request = AttachRequest { chain: !alone, replace, queue, ..AttachRequest::new(port, program) };
                service.attach(&AttachRequest { program: objects.programs[0].1, ..request })?;
                if kind == "link_detach" {
                    let new = |a: &AttachmentInfo| a.program.id == objects.programs[0].1;
                    let link = service.attachments(Some(port))?.iter().find(|a| new(a)).and_then(|a| a.link);
                    service.link_detach(link.expect("what was attached has a number"))?;
                } else if kind == "detach" || n % 8 == 7 {
                    service.detach(port, None)?;
                }
                give_up(service, &objects)
            }
            "attachments" => service.attachments(None).map(drop),
            "features" => service.features(port).map(drop),
            "statistics" => service.statistics(port).map(drop),
            "events" => service.events(MOMENT).map(drop),
            "trace_log" => service.trace_log(MOMENT).map(drop),
            "capture" | "captured" => {
                service.capture(&CaptureRequest::default())?;
                if kind == "captured" { service.captured(MOMENT).map(drop) } else { Ok(()) }
            }
            "about" => service.about().map(drop),
            "ports" => service.ports().map(drop),
            "open_port" | "close_port" => {
                let own = format!("{}{}{}", on.own.0, n % 3, on.own.1);
                service.open_port(&own)?;
                service.close_port(&own)
            }
            "steer" if n % 4 == 3 => service.steer(port, "off").map(drop),
            "steer" if n % 4 == 2 => service.steer(port, "equal 1 hkey symmetric").map(drop),
            "steer" => service.steer(port, &format!("flow-type ether action 0 loc {}", n % 50)).map(drop),
            "serve" | "unserve" => {
                let at = self.dir.path(&format!("xsk{}.sock", n % 3));
                service.serve(&serving(on, &at))?;
                service.unserve(&at)
            }
            "sockets" => service.sockets().map(drop),
            "map_events" => service.map_events(self.ring, MOMENT).map(drop),
            "share" => service.share(map, n % 2 == 1).map(drop),
            "upgrade" => {
                service.upgrade(Path::new(env!("CARGO_BIN_EXE_xway")), false)?;
                // The other executable answers at the same socket, unless it was killed.
                let gone = |_| HookError::new(Blame::Machine, "nobody is there any more");
                self.service = Service::connect(Path::new(&self.socket)).map_err(gone)?;
                self.service.ports().map(drop)
            }
            "apply" => {
                let more = if n.is_multiple_of(2) {
                    "[[port]]\nname = \"sim:x?count=1\"\nsteer = [\"equal 1\"]\n"
                } else {
                    ""
                };
                service.apply(&format!("{}{more}", on.file()), false).map(drop)
            }
            // What comes behind it is answered by nobody.
            "down" => {
                service.down()?;
                Err(HookError::new(Blame::Machine, "it ends"))
            }
            new => panic!("{new}: a kind of request in the middle of which no service was killed yet"),
        }
    }
}

/// An array of four words, whose values other processes may map.
fn shown() -> MapSpec {
    MapSpec { flags: map_flags::MMAPABLE, ..MapSpec::new(MapType::Array, 4, 8, 4) }
}

fn spec() -> MapSpec {
    MapSpec::new(MapType::Hash, 4, 4, 1024)
}

fn give_up(service: &mut Service, objects: &xway_hook::Objects) -> Result<(), HookError> {
    let maps = objects.maps.iter().map(|(_, id)| ObjectId::Map(*id));
    let programs = objects.programs.iter().map(|(_, id)| ObjectId::Program(*id));
    maps.chain(programs).try_for_each(|object| service.release(object))
}

/// A place for sockets, with what a file that says no more has.
fn serving(on: On<'_>, at: &Path) -> xway_control::config::Socket {
    let text = format!("{}[[socket]]\npath = \"{}\"\n", on.file(), at.display());
    Config::parse(&text).unwrap().sockets.remove(0)
}

#[test]
fn killed_in_the_middle_of_each_kind_of_request_it_comes_back_whole() {
    if !common::clang("xway::killed::killed_in_the_middle_of_each_kind_of_request_it_comes_back_whole") {
        return;
    }
    let dir = Dir::new();
    let bytes = std::fs::read(common::compiled(&dir, "sort", KINDS, &[])).unwrap();
    let image = Image::parse(&bytes, &Default::default()).unwrap();
    let left = Mutex::new(kinds());
    // Starts of a process are most of it: several at a time.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(kind) = { left.lock().unwrap().pop() } {
                    killed(SIM, &kind, &image);
                }
            });
        }
    });
}

/// The same with devices of the host, in the kinds of requests that open, close or use them: a TAP that goes with whoever holds it, and
/// comes back; a packet socket on an interface that stays.
#[test]
fn killed_with_devices_it_comes_back_whole() {
    let needs = Needs::of("xway::killed::killed_with_devices_it_comes_back_whole").root().command("ip").clang();
    if !needs.met() {
        return;
    }
    let dir = Dir::new();
    let bytes = std::fs::read(common::compiled(&dir, "sort", KINDS, &[])).unwrap();
    let image = Image::parse(&bytes, &Default::default()).unwrap();
    let lab = Lab::new("killed").unwrap();
    // A namespace for each: the services run at the same time.
    let tap = lab.namespace("tap").unwrap();
    let (packet, other) = (lab.namespace("packet").unwrap(), lab.namespace("other").unwrap());
    lab.veth(&packet, "r0", &other, "l0").unwrap();
    for n in 0..3 {
        lab.veth(&packet, &format!("s{n}"), &other, &format!("m{n}")).unwrap();
    }
    let all = [
        On { port: "tap:xwk?queues=2", own: ("tap:xwl", ""), space: Some(&tap) },
        On { port: "packet:r0", own: ("packet:s", ""), space: Some(&packet) },
    ];
    std::thread::scope(|scope| {
        for on in all {
            let image = &image;
            scope.spawn(move || {
                for kind in ["attach", "detach", "open_port", "close_port", "steer", "apply", "upgrade", "statistics"] {
                    killed(on, kind, image);
                }
            });
        }
    });
    assert!(tap.ifindex("xwk").is_err(), "the interface went with the last service");
}

fn killed(on: On<'_>, kind: &str, image: &Image) {
    let dir = Dir::new();
    let file = dir.file("port.toml", on.file());
    let mut up = Up::new(&dir, Some(&file), on.space);
    let mut asking = Asking::new(on, &dir, &up, image);
    let (done, counted) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || {
            let mut n = 0;
            loop {
                match asking.once(kind, n) {
                    Ok(()) => done.send(n).unwrap_or_default(),
                    Err(e) => break e,
                }
                n += 1;
            }
        });
        // Some are done, then it dies somewhere in those that follow; it ends only once.
        for _ in 0..if kind == "down" { 0 } else { 3 } {
            let Ok(_) = counted.recv_timeout(Duration::from_secs(60)) else {
                up.kill();
                panic!("{kind}: nothing is done: {}", asked.join().unwrap());
            };
        }
        // Another place each time; whatever it is, what comes back must be whole.
        std::thread::sleep(Duration::from_millis(u64::from(std::process::id()) % 40));
        up.kill();
        let last = asked.join().unwrap();
        // The connection broke; a request that was refused would be another story.
        assert!(last.errno.is_none(), "{kind}: {last}");
    });
    drop(up);
    consistent(on, kind, &dir, &file);
}

/// It starts without a complaint, everything that its state names is there, and it takes new requests.
fn consistent(on: On<'_>, kind: &str, dir: &Dir, file: &str) {
    let text = &on.file();
    let state: Value = serde_json::from_slice(&std::fs::read(dir.path("state/state.json")).unwrap()).unwrap();
    let up = Up::new(dir, Some(file), on.space);
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
    assert_eq!(service.ports().unwrap(), [on.name()], "{kind}");
    assert_eq!(
        (service.maps().unwrap().len(), service.programs().unwrap().len()),
        (0, 0),
        "{kind}: nothing is left over"
    );
    // Objects that nobody names any more have gone.
    let left = std::fs::read_dir(dir.path("state/objects")).unwrap().count();
    assert_eq!(left, 0, "{kind}: object files");
}
