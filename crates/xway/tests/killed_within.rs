//! The service killed with SIGKILL while it carries out a request: what comes back is the state before that request or the one behind it,
//! and behind it when the request was answered.
//!
//! ```text
//! state ── copy ──> service ── request ──┬─ answer                the time that it takes, and the state behind it
//!       ── copy ──> service ── request ──┴─┐ killed a little later each time, over all of that time
//!       ── copy ──> service ── request ────┴─┐
//! ```

mod common;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::Dir;
use common::service::{KINDS, Up};
use serde_json::Value;
use xway_abi::{MapSpec, MapType};
use xway_control::message::{Attach, Bytes, Request};
use xway_control::{Config, Service, wire};
use xway_hook::{AttachRequest, Hook, Image, LoadRequest, MapId, ObjectId, ProgId, Replace};
use xway_testkit::{Lab, Namespace, Needs};

/// Kinds of requests behind which something else comes back than before, those that end the process, and two that change nothing which
/// lasts: a write into a map, and a start.
const ALL: [&str; 17] = [
    "load",
    "attach",
    "replace",
    "detach",
    "pin",
    "unpin",
    "steer",
    "serve",
    "unserve",
    "open_port",
    "close_port",
    "apply",
    "apply less",
    "map_update_batch",
    "upgrade",
    "down",
    "start",
];
/// Places in the time of a request at which it is killed, in one round.
const STEPS: u32 = 12;
/// Rounds at most: more than one when too few kills came before the answer.
const ROUNDS: u32 = 6;
/// Kills of one kind that must come before the answer.
const BEFORE_ANSWER: usize = 4;
/// Entries of each map whose contents are looked at.
const ENTRIES: u32 = 400;
/// Maps that have them.
const MAPS: [&str; 2] = ["/base/a", "/base/b"];
const LONG: Duration = Duration::from_secs(120);

/// What the services of one test have for a port, another one, and where they run.
#[derive(Clone, Copy)]
struct On<'a> {
    port: &'a str,
    more: &'a str,
    space: Option<&'a Namespace>,
}

/// An object file, and one whose program has another name.
struct Objects {
    sort: Vec<u8>,
    other: Vec<u8>,
}

impl Objects {
    fn new(dir: &Dir) -> Objects {
        let read = |name, text: &str| std::fs::read(common::compiled(dir, name, text, &[])).unwrap();
        Objects { sort: read("sort", KINDS), other: read("other", &KINDS.replace("int sort(", "int other(")) }
    }
}

/// Services that begin with the same state.
struct Bench<'a> {
    on: On<'a>,
    dir: Dir,
    file: String,
    objects: &'a Objects,
}

/// What comes back: words for everything but contents, and how many entries each map has.
#[derive(PartialEq, Debug)]
struct Seen {
    words: Vec<String>,
    entries: Vec<usize>,
}

/// A request, and the connection that holds what it is about.
struct Prepared {
    request: Request,
    _holds: Service,
}

impl<'a> Bench<'a> {
    fn new(on: On<'a>, objects: &'a Objects) -> Bench<'a> {
        let dir = Dir::new();
        std::fs::write(dir.path("other.o"), &objects.other).unwrap();
        let text = format!("[service]\nkeep_contents = true\n[[port]]\nname = \"{}\"\n", on.port);
        let file = dir.file("port.toml", text);
        let bench = Bench { on, dir, file, objects };
        let mut up = bench.up();
        let mut service = up.connect();
        let image = Image::parse(&objects.sort, &Default::default()).unwrap();
        let loaded = service.load(&image, &pinned("/base")).unwrap();
        let request = AttachRequest { chain: true, priority: 10, ..AttachRequest::new(on.port, loaded.programs[0].1) };
        service.attach(&request).unwrap();
        for path in MAPS {
            let id = service.map_create("m", &MapSpec::new(MapType::Hash, 4, 4, 2 * ENTRIES)).unwrap();
            service.pin(ObjectId::Map(id), Path::new(path)).unwrap();
        }
        service.steer(on.port, "flow-type ether action 0 loc 1").unwrap();
        service.serve(&bench.serving("first.sock")).unwrap();
        up.kill();
        copy(&bench.dir.path("state"), &bench.dir.path("base"));
        bench
    }

    fn up(&self) -> Up {
        Up::new(&self.dir, Some(&self.file), self.on.space)
    }

    /// A service over the state that all begin with.
    fn again(&self) -> Up {
        self.reset();
        self.up()
    }

    fn reset(&self) {
        std::fs::remove_dir_all(self.dir.path("state")).unwrap();
        copy(&self.dir.path("base"), &self.dir.path("state"));
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap()
    }

    fn serving(&self, name: &str) -> xway_control::config::Socket {
        let text = format!("{}[[socket]]\npath = \"{}\"\n", self.text(), self.dir.arg(name));
        Config::parse(&text).unwrap().sockets.remove(0)
    }

    /// What must be there for a request of a kind. Maps have contents, which only an end that is asked for keeps.
    fn prepare(&self, kind: &str, up: &Up) -> Prepared {
        let mut service = up.connect();
        let port = self.on.port.to_owned();
        let entries: Vec<_> =
            (0..ENTRIES).map(|k| (k.to_ne_bytes().to_vec(), (k * 7).to_ne_bytes().to_vec())).collect();
        let maps = MAPS.map(|path| map(&mut service, path));
        for id in maps {
            assert_eq!(service.map_update_batch(id, &entries, 0).unwrap(), ENTRIES);
        }
        let mut other = || -> ProgId {
            let image = Image::parse(&self.objects.other, &Default::default()).unwrap();
            service.load(&image, &LoadRequest::default()).unwrap().programs[0].1
        };
        let attach = |request: &AttachRequest| Request::Attach { request: Attach::from(request) };
        let request = match kind {
            "load" => {
                let object = Bytes(self.objects.other.clone());
                Request::Load { object, programs: Vec::new(), pins: Some("/new".into()) }
            }
            "attach" => {
                let request = AttachRequest { chain: true, ..AttachRequest::new(&port, other()) };
                attach(&request)
            }
            "replace" => attach(&AttachRequest { replace: Replace::Any, ..AttachRequest::new(&port, other()) }),
            "detach" => Request::Detach { port, program: None },
            "pin" => Request::Pin { object: ObjectId::Program(other()), path: "/new/program".into() },
            "unpin" => Request::Unpin { path: "/base/kinds".into() },
            "steer" => Request::Steer { port, words: "flow-type ether action 0 loc 7".into() },
            "serve" => Request::Serve { socket: self.serving("second.sock") },
            "unserve" => Request::Unserve { path: self.dir.path("first.sock") },
            "open_port" => Request::OpenPort { port: self.on.more.into() },
            "close_port" => Request::ClosePort { port },
            "apply" => Request::Apply { config: self.more(), dry_run: false },
            "apply less" => Request::Apply { config: String::new(), dry_run: false },
            "map_update_batch" => {
                let entries = (0..2 * ENTRIES).map(|k| (Bytes(k.to_ne_bytes().to_vec()), Bytes(vec![1; 4]))).collect();
                Request::MapUpdateBatch { id: maps[0].0, entries, flags: 0 }
            }
            "upgrade" => Request::Upgrade { executable: env!("CARGO_BIN_EXE_xway").into(), dry_run: false },
            "down" => Request::Down,
            other => panic!("{other}: no such kind"),
        };
        Prepared { request, _holds: service }
    }

    /// The same file with more of everything.
    fn more(&self) -> String {
        let (port, object) = (self.on.port, self.dir.arg("other.o"));
        let program = |name: &str, port: &str| {
            format!("[[program]]\nname = \"{name}\"\nport = \"{port}\"\nobject = \"{object}\"\npriority = 60\n")
        };
        format!(
            "{}steer = [\"flow-type ether action 0 loc 2\"]\n[[port]]\nname = \"{}\"\nsteer = [\"equal 1\"]\n{}{}[[socket]]\npath = \
             \"{}\"\n",
            self.text(),
            self.on.more,
            program("one", port),
            program("two", self.on.more),
            self.dir.arg("second.sock")
        )
    }

    /// Waits until a request of a kind is carried out to its end; whether it was answered.
    fn wait(&self, kind: &str, up: &mut Up, socket: &mut UnixStream) -> bool {
        let answered = wire::receive(socket, 1 << 20, Some(LONG), LONG).is_ok();
        let until = Instant::now() + LONG;
        match kind {
            "down" => drop(up.child.wait().unwrap()),
            // The other executable answers when everything is there again.
            "upgrade" => {
                while !Service::connect(Path::new(&up.socket)).is_ok_and(|mut s| s.ports().is_ok()) {
                    assert!(Instant::now() < until);
                }
            }
            _ => {}
        }
        answered
    }

    /// What a service finds that starts now.
    fn seen(&self) -> Seen {
        let up = self.up();
        let mut service = up.connect();
        // As it has written it down itself, everything being there again.
        let state: Value = serde_json::from_slice(&std::fs::read(self.dir.path("state/state.json")).unwrap()).unwrap();
        let mut words = vec![format!("ports {:?}", service.ports().unwrap())];
        for port in service.ports().unwrap() {
            words.push(format!("{port} {:?}", service.steer(&port, "").unwrap()));
        }
        for a in service.attachments(None).unwrap() {
            let (name, tag) = (a.program.name, a.program.tag);
            words.push(format!("{} {:?}: {name} {tag:?} {:?} {:?}", a.port, a.queue, a.priority, a.chain_on));
        }
        for pin in state["pins"].as_array().unwrap() {
            let path = pin["path"].as_str().unwrap();
            let what = match service.pinned(Path::new(path)).unwrap_or_else(|e| panic!("{path}: {e}")) {
                ObjectId::Map(id) => {
                    let info = service.map_info(id).unwrap();
                    format!("map {} {:?} {} {}", info.name, info.map_type, info.key_size, info.max_entries)
                }
                ObjectId::Program(id) => format!("program {:?}", service.program_info(id).unwrap().tag),
            };
            words.push(format!("{path}: {what}"));
        }
        words.extend(service.sockets().unwrap().into_iter().map(|served| format!("served: {:?}", served.path)));
        words.extend(
            service.apply(&self.text(), true).unwrap().into_iter().map(|step| format!("not as the file: {step}")),
        );
        words.sort();
        let pins = state["pins"].as_array().unwrap().iter().filter_map(|pin| pin["what"]["program"]["object"].as_str());
        let attached = state["attachments"].as_array().unwrap().iter().filter_map(|a| a["origin"]["object"].as_str());
        let named: std::collections::BTreeSet<&str> = pins.chain(attached).collect();
        let kept = std::fs::read_dir(self.dir.path("state/objects")).unwrap();
        let kept: std::collections::BTreeSet<_> = kept.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(kept, named.into_iter().map(str::to_owned).collect(), "object files");
        Seen { words, entries: MAPS.map(|path| entries(&mut service, path)).into() }
    }

    /// Before or behind the request, and contents of all maps or of none.
    fn is_one_of(&self, kind: &str, now: &Seen, answered: bool, (before, after): (&Seen, &Seen)) {
        let known = now.words == after.words || now.words == before.words && !answered;
        assert!(known, "{kind}, answered: {answered}\n{now:#?}\nis neither\n{before:#?}\nnor\n{after:#?}");
        let all = now.entries.iter().all(|n| *n == ENTRIES as usize) && ["upgrade", "down", "start"].contains(&kind);
        assert!(all || now.entries.iter().all(|n| *n == 0), "{kind}: {:?} entries", now.entries);
    }
}

fn pinned(at: &str) -> LoadRequest {
    LoadRequest { pins: Some(at.into()), ..LoadRequest::default() }
}

fn map(service: &mut Service, path: &str) -> MapId {
    match service.pinned(Path::new(path)).unwrap() {
        ObjectId::Map(id) => id,
        ObjectId::Program(_) => panic!("{path}: a program"),
    }
}

/// How many entries a map has, all of them as they were written.
fn entries(service: &mut Service, path: &str) -> usize {
    let id = map(service, path);
    let all = service.map_lookup_batch(id, None, 2 * ENTRIES).unwrap().entries;
    for (key, value) in &all {
        let key = u32::from_ne_bytes(key[..].try_into().unwrap());
        assert_eq!(value[..], (key * 7).to_ne_bytes(), "{path}: entry {key}");
    }
    all.len()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// Kills services within a request of one kind until enough of them died before they answered.
fn swept(bench: &Bench<'_>, kind: &str) {
    if kind == "start" {
        return started(bench);
    }
    let begin = || {
        let up = bench.again();
        let prepared = bench.prepare(kind, &up);
        let socket = UnixStream::connect(&up.socket).unwrap();
        (up, prepared, socket)
    };
    let (mut up, ..) = begin();
    up.kill();
    let before = bench.seen();
    let (mut up, prepared, mut socket) = begin();
    let since = Instant::now();
    wire::send(&mut socket, &prepared.request).unwrap();
    assert!(bench.wait(kind, &mut up, &mut socket), "{kind}: no answer");
    let took = since.elapsed();
    up.kill();
    let after = bench.seen();
    let lasting = !["map_update_batch", "upgrade", "down"].contains(&kind);
    assert_eq!(before.words != after.words, lasting, "{kind}:\n{before:#?}\n{after:#?}");
    let (mut unanswered, mut found) = (0, [0; 2]);
    for step in 0..STEPS * ROUNDS {
        let (mut up, prepared, mut socket) = begin();
        wire::send(&mut socket, &prepared.request).unwrap();
        let until = Instant::now() + took * (step % STEPS) / STEPS;
        // (A sleep is longer than the shortest requests.)
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        up.kill();
        let answered = wire::receive(&socket, 1 << 20, Some(LONG), LONG).is_ok();
        let now = bench.seen();
        bench.is_one_of(kind, &now, answered, (&before, &after));
        found[usize::from(now.words == after.words)] += 1;
        unanswered += usize::from(!answered);
        // These answer first.
        let most = if ["upgrade", "down"].contains(&kind) { 0 } else { BEFORE_ANSWER };
        if step + 1 >= STEPS && unanswered >= most {
            println!(
                "{kind}: {took:?}; killed before the answer: {unanswered}, found as before: {}, as after: {}",
                found[0], found[1]
            );
            return;
        }
    }
    panic!("{kind}: only {unanswered} kills came before the answer ({took:?})");
}

/// A start is none of the requests, and the longest time in which state is read and written.
fn started(bench: &Bench<'_>) {
    let mut up = bench.again();
    bench.prepare("down", &up);
    up.connect().down().unwrap();
    up.child.wait().unwrap();
    std::fs::remove_dir_all(bench.dir.path("base")).unwrap();
    copy(&bench.dir.path("state"), &bench.dir.path("base"));
    let since = Instant::now();
    let after = bench.seen();
    let took = since.elapsed();
    assert_eq!(after.entries, MAPS.map(|_| ENTRIES as usize), "contents are there after a clean end");
    for step in 0..STEPS {
        bench.reset();
        let mut up = Up::starting(&bench.dir, Some(&bench.file), bench.on.space);
        std::thread::sleep(took * step / STEPS);
        up.kill();
        let now = bench.seen();
        bench.is_one_of("start", &now, true, (&after, &after));
    }
}

fn all(on: On<'_>, kinds: &[&str], objects: &Objects) {
    let left = Mutex::new(kinds.to_vec());
    // Starts of a process are most of it: several at a time.
    std::thread::scope(|scope| {
        for _ in 0..if on.space.is_some() { 1 } else { 3 } {
            scope.spawn(|| {
                while let Some(kind) = { left.lock().unwrap().pop() } {
                    swept(&Bench::new(on, objects), kind);
                }
            });
        }
    });
}

#[test]
fn killed_within_a_request_it_comes_back_as_before_it_or_behind_it() {
    if !common::clang("xway::killed_within::killed_within_a_request_it_comes_back_as_before_it_or_behind_it") {
        return;
    }
    let dir = Dir::new();
    all(On { port: "sim:h?count=1", more: "sim:p?count=1", space: None }, &ALL, &Objects::new(&dir));
}

/// The same with devices of the host, in the kinds that open, close or hand them over.
#[test]
fn killed_within_a_request_about_devices_it_comes_back_as_before_it_or_behind_it() {
    const NAME: &str =
        "xway::killed_within::killed_within_a_request_about_devices_it_comes_back_as_before_it_or_behind_it";
    if !Needs::of(NAME).root().command("ip").clang().met() {
        return;
    }
    let dir = Dir::new();
    let objects = &Objects::new(&dir);
    let lab = Lab::new("within").unwrap();
    let (tap, packet, other) =
        (lab.namespace("tap").unwrap(), lab.namespace("packet").unwrap(), lab.namespace("other").unwrap());
    for name in ["r0", "s0"] {
        lab.veth(&packet, name, &other, &format!("{name}o")).unwrap();
    }
    std::thread::scope(|scope| {
        for on in [
            On { port: "tap:xwk?queues=2", more: "tap:xwl", space: Some(&tap) },
            On { port: "packet:r0", more: "packet:s0", space: Some(&packet) },
        ] {
            scope.spawn(move || all(on, &["apply", "close_port", "open_port", "upgrade", "start"], objects));
        }
    });
}
