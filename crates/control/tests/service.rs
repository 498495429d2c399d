//! The service behind its socket: the same body as the other hooks, hostile peers, a restart.

#[path = "../../hook/tests/body/mod.rs"]
mod body;
mod running;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use running::{Running, answer, ask, pipe};
use serde_json::{Value, json};
use xway_abi::{MapSpec, MapType};
use xway_control::{Config, Server, ServerError, Service};
use xway_engine::Stop;
use xway_hook::{Blame, Hook, ObjectId};
use xway_object::LoadOptions;
use xway_testkit::traffic::patient;
use xway_testkit::{Needs, Rng};

#[test]
fn the_service_conforms() {
    if !Needs::of("control::the_service_conforms").clang().met() {
        return;
    }
    let running = Running::start(&Running::dir("body"), "");
    for round in 0..2 {
        let mut service = running.connect();
        body::run(&mut service, Path::new("/conformance"));
        assert_eq!(service.ports().unwrap(), [""; 0], "round {round}");
    }
    // On a port that packets come to by themselves.
    let mut service = running.connect();
    service.open_port("sim:body?flows=16").unwrap();
    body::attachments(&mut service, "sim:body", &mut || ());
    service.close_port("sim:body").unwrap();
    drop(service);
    // Nothing is left of those who have gone.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut service = running.connect();
    while !(service.maps().unwrap().is_empty() && service.programs().unwrap().is_empty()) {
        assert!(Instant::now() < deadline, "{:?}", service.maps());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_a_connection_holds_goes_with_it() {
    let running = Running::start(&Running::dir("holds"), "[limits]\nobjects = 3\n");
    let (mut one, mut two) = (running.connect(), running.connect());
    let spec = MapSpec::new(MapType::Array, 4, 4, 1);
    let kept = one.map_create("kept", &spec).unwrap();
    let gone = one.map_create("gone", &spec).unwrap();
    one.pin(ObjectId::Map(kept), Path::new("/kept")).unwrap();
    two.map_update(gone, &[0; 4], &[7; 4], 0).unwrap();
    one.map_create("third", &spec).unwrap();
    assert!(one.map_create("fourth", &spec).unwrap_err().message.contains("3 are the most"));
    assert!(two.release(ObjectId::Map(gone)).is_err(), "nobody gives up what another one holds");
    drop(one);
    let deadline = Instant::now() + Duration::from_secs(20);
    while two.map_info(gone).is_ok() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(two.pinned(Path::new("/kept")).unwrap(), ObjectId::Map(kept));
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let running = Running::start(&Running::dir("refuse"), "[limits]\nmessage_bytes = 4096\nmessage_seconds = 1\n");
    let mut socket = running.raw();
    let refused = |answer: Value, words: &str| {
        let message = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(words), "{words}: {answer}");
    };
    refused(ask(&mut socket, &json!({"do": "teleport"})), "teleport");
    refused(ask(&mut socket, &json!({"do": "map_info"})), "id");
    refused(ask(&mut socket, &json!({"do": "map_info", "id": 1, "colour": "red"})), "unknown field colour");
    refused(ask(&mut socket, &json!({"do": "map_info", "id": 7, "later": 0})), "no map with id 7");
    assert_eq!(ask(&mut socket, &json!({"do": "ports"})), json!({"ok": []}), "the connection stands");
    // A message that is too long, of another version, without an end.
    for (header, words) in [
        ([255, 255, 0, 0, 1, 0, 0, 0], "field length"),
        ([2, 0, 0, 0, 9, 0, 0, 0], "field version"),
        ([2, 0, 0, 0, 1, 0, 1, 0], "field reserved"),
        ([9, 0, 0, 0, 1, 0, 0, 0], "was not complete within"),
    ] {
        let mut socket = running.raw();
        socket.write_all(&header).unwrap();
        refused(answer(&mut socket), words);
        assert_eq!(patient(|| socket.read(&mut [0; 1])).unwrap(), 0, "and the connection is closed");
    }
}

#[test]
fn counters_are_given_out_where_the_file_says() {
    let dir = Running::dir("metrics");
    let mut config = Config::parse("[service]\nmetrics = \"127.0.0.1:0\"\n").unwrap();
    config.service.socket = dir.join("control.sock");
    let stop = Stop::new().unwrap();
    let server = Server::start(&config, "", LoadOptions::default(), &stop).unwrap();
    let at = server.metrics().unwrap();
    let thread = std::thread::spawn(move || drop(server.run().unwrap()));
    let get = |line: &str| -> String {
        let mut socket = std::net::TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).unwrap();
        said
    };
    let mut service = Service::connect(&dir.join("control.sock")).unwrap();
    service.map_create("seen", &MapSpec::new(MapType::Array, 4, 4, 1)).unwrap();
    let page = get("GET /metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("xway_up 1\n"), "{page}");
    assert!(page.contains("xway_map_bytes{map=\"seen\""), "{page}");
    assert!(get("GET /").starts_with("HTTP/1.1 404"));
    stop.ask();
    thread.join().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn random_messages_change_nothing() {
    let running = Running::start(&Running::dir("fuzz"), "");
    let mut honest = running.connect();
    let map = honest.map_create("honest", &MapSpec::new(MapType::Hash, 4, 4, 4)).unwrap();
    honest.map_update(map, &[1; 4], &[2; 4], 0).unwrap();
    let mut rng = Rng::new(11);
    // Requests of every kind, cut, bent and mixed; none of them names the map above by a good key.
    let kinds = [
        json!({"do": "map_create", "name": "x", "spec": {"type": 1, "key_size": 4, "value_size": 4, "max_entries": 4}}),
        json!({"do": "map_lookup", "id": 3, "key": "AAAA", "flags": 0}),
        json!({"do": "map_update_batch", "id": 3, "entries": [["AAAA", "AAAA"]], "flags": 1}),
        json!({"do": "load", "object": "f0VMRg==", "programs": [], "pins": null}),
        json!({"do": "attach", "request": {"port": "p", "queue": 1, "program": 1, "priority": 1, "chain_on": 4,
            "replace": "id:1", "chain": true}}),
        json!({"do": "test_run", "id": 1, "data": "", "ctx": null, "repeat": 4_000_000_000_u32}),
        json!({"do": "apply", "config": "[[port]]\nname = 1", "dry_run": false}),
        json!({"do": "events", "wait_ms": 0}),
    ];
    let mut socket = running.raw();
    for round in 0..3000 {
        let mut bytes = kinds[rng.below(kinds.len() as u64) as usize].to_string().into_bytes();
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.below(256) as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b"\"{}[],:0-e"[rng.below(10) as usize]),
            }
        }
        let mut message = (bytes.len() as u32).to_le_bytes().to_vec();
        message.extend_from_slice(&[1, 0, 0, 0]);
        message.extend_from_slice(&bytes);
        socket.write_all(&message).unwrap();
        let said = answer(&mut socket);
        assert!(said.get("ok").is_some() || said["error"]["message"].is_string(), "round {round}: {said}");
    }
    assert_eq!(honest.map_lookup(map, &[1; 4], 0).unwrap(), [2; 4]);
}

#[test]
fn the_socket_is_for_owner_and_group_and_one_service() {
    let dir = Running::dir("owner");
    let running = Running::start(&dir, "");
    let mode = std::fs::metadata(dir.join("control.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let config = Config {
        service: xway_control::config::ServiceConfig { socket: dir.join("control.sock"), ..Default::default() },
        ..Config::default()
    };
    let second = Server::start(&config, "", LoadOptions::default(), &Stop::new().unwrap());
    assert!(second.err().unwrap().to_string().contains("a service answers there already"));
    drop(running);
    assert!(!dir.join("control.sock").exists(), "it is taken away at the end");
}

/// A filter that is in the file sees the first packet, at a start, when a port comes by an applied file, and when it is opened again.
#[test]
fn no_packet_passes_before_the_programs_of_the_file() {
    if !Needs::of("control::no_packet_passes_before_the_programs_of_the_file").clang().met() {
        return;
    }
    let dir = Running::dir("first");
    let text = "#include <linux/bpf.h>\n__attribute__((section(\"xdp\"), used)) int drops(struct xdp_md *c) { return XDP_DROP; }\n";
    let object = dir.join("drops.o");
    std::fs::write(&object, xway_testkit::clang::compile_text("first", text, &[]).unwrap()).unwrap();
    // A port that has everything to give at once.
    let file = |port: &str, more: &str| {
        let object = object.display();
        format!(
            "[[port]]\nname = \"sim:{port}?count=5000\"\n{more}\n\
             [[program]]\nname = \"{port}\"\nport = \"sim:{port}\"\nobject = \"{object}\"\n"
        )
    };
    let running = Running::start(&dir, &file("one", ""));
    let mut service = running.connect();
    let all_dropped = |service: &mut Service, port: &str, round: &str| {
        running::until("5,000 packets have their verdicts", || {
            let counted = service.statistics(port).unwrap();
            assert_eq!(counted.get("verdicts.pass"), 0, "{port} {round}");
            counted.get("verdicts.drop") == 5000
        });
    };
    all_dropped(&mut service, "sim:one", "at the start");
    let both = file("one", "") + &file("two", "");
    service.apply(&both, false).unwrap();
    all_dropped(&mut service, "sim:two", "applied");
    service.apply(&(file("one", "") + &file("two", "chunk = 2048")), false).unwrap();
    all_dropped(&mut service, "sim:two", "opened again");

    // What cannot be is refused before anything is touched, also when it is only asked.
    let ports = service.ports().unwrap();
    for (wrong, words) in [
        ("[[port]]\nname = \"packet:nosuch\"\n", "there is no interface nosuch, which port packet:nosuch is on"),
        ("[[port]]\nname = \"pcap:/no/such.pcap\"\n", "port pcap:/no/such.pcap: /no/such.pcap: no such file"),
        ("[[port]]\nname = \"pcap:/no/such.pcap?loop=2\"\n", "/no/such.pcap: no such file"),
        ("[[port]]\nname = \"sim:three\"\nqueues = [[1, 0]]\n", "queue 1; the port has 1"),
        ("[[port]]\nname = \"pcap:/dev/zero\"\n", "port pcap:/dev/zero: /dev/zero: is a device, and a file is wanted"),
        ("[[port]]\nname = \"pcap:/etc/passwd\"\n", "port pcap:/etc/passwd: /etc/passwd: not a capture"),
        ("[service]\ncpus = [999]\n", "service.cpus: no worker can be bound to CPU 999"),
        (
            "[[program]]\nname = \"q\"\nport = \"sim:one\"\nqueue = 17\nobject = \"/o\"\n",
            "program q: queue 17; the port sim:one has 1",
        ),
        ("[[program]]\nname = \"z\"\nport = \"sim:one\"\nobject = \"/dev/zero\"\n", "/dev/zero: is a device"),
        (
            "[[program]]\nname = \"z\"\nport = \"sim:one\"\nobject = \"/etc/passwd\"\n",
            "program z: /etc/passwd: not an ELF file",
        ),
    ] {
        for dry_run in [true, false] {
            let said = service.apply(&(file("one", "chunk = 2048") + wrong), dry_run).unwrap_err();
            assert!(said.message.contains(words), "{}", said.message);
        }
        assert_eq!(service.ports().unwrap(), ports);
    }
    drop(service);
    drop(running);
}

/// A file that fails half way leaves what it made until then. The next start makes what stood whole before.
#[test]
fn half_an_applied_file_is_not_what_a_start_makes() {
    let dir = Running::dir("half");
    let good = "[[port]]\nname = \"sim:one\"\n";
    let mut running = Running::start(&dir, good);
    let mut service = running.connect();
    // A directory in which nobody can make anything, which is seen only when it is tried.
    let broken = "[[port]]\nname = \"sim:two\"\n[[socket]]\npath = \"/proc/xway-half.sock\"\n";
    let said = service.apply(broken, false).unwrap_err();
    assert!(said.message.contains("the steps before it are done"), "{}", said.message);
    assert_eq!(service.ports().unwrap(), ["sim:two"]);
    drop(service);
    running.end();
    let again = Running::start(&dir, good);
    assert_eq!(again.connect().ports().unwrap(), ["sim:one"]);
}

/// Who would start it, and why nobody can.
fn refused(dir: &Path, text: &str) -> (Option<Blame>, String) {
    let mut config = Config::parse(text).unwrap();
    config.service.socket = dir.join("other.sock");
    config.service.state.get_or_insert_with(|| dir.join("state"));
    match Server::start(&config, text, LoadOptions::default(), &Stop::new().unwrap()) {
        Ok(_) => panic!("it starts"),
        Err(ServerError::Hook(e)) => (Some(e.blame), e.to_string()),
        Err(e) => (None, e.to_string()),
    }
}

#[test]
fn a_state_that_cannot_be_read_is_told_with_what_to_do() {
    let dir = Running::dir("damaged");
    let mut running = Running::start(&dir, "");
    running.end();
    let state = dir.join("state");
    for (name, goes) in
        [("state.json", "pins, what was attached by hand"), ("contents.json", "the contents of pinned maps")]
    {
        let path = state.join(name);
        let whole = std::fs::read(&path).unwrap();
        for damage in [&b"{"[..], b"[1]", &whole[..whole.len() / 2]] {
            std::fs::write(&path, damage).unwrap();
            let (blame, said) = refused(&dir, "");
            assert_eq!(blame, Some(Blame::Input), "{said}");
            let hint = format!("; try: mv {0} {0}.damaged: the service starts without {goes}", path.display());
            assert!(said.starts_with(&format!("{}: ", path.display())) && said.contains(&hint), "{said}");
            assert_eq!(std::fs::read(&path).unwrap(), damage, "it is left as it is");
        }
        // Nobody ever writes to it.
        std::fs::remove_file(&path).unwrap();
        pipe(&path);
        let (blame, said) = refused(&dir, "");
        assert!(blame == Some(Blame::Input) && said.contains("is a pipe, and a file is wanted"), "{said}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, whole).unwrap();
    }
    let file = dir.join("file");
    std::fs::write(&file, "").unwrap();
    let (blame, said) = refused(&dir, &format!("[service]\nstate = \"{}\"\n", file.display()));
    assert!(
        blame == Some(Blame::Input) && said.contains("is no directory") && said.contains("service.state"),
        "{said}"
    );
    drop(Running::start(&dir, ""));
}

#[test]
fn a_cpu_that_is_not_there_is_refused_by_name() {
    let dir = Running::dir("cpu");
    let (_, said) = refused(&dir, "[service]\ncpus = [999]\n");
    assert!(said.contains("service.cpus: no worker can be bound to CPU 999"), "{said}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_state_belongs_to_one_service() {
    let dir = Running::dir("shared");
    let running = Running::start(&dir, "");
    let mut config = Config::default();
    config.service.socket = dir.join("other.sock");
    config.service.state = Some(dir.join("state"));
    let second = Server::start(&config, "", LoadOptions::default(), &Stop::new().unwrap());
    let said = second.err().unwrap().to_string();
    assert!(said.contains("another service keeps its state there"), "{said}");
    drop(running);
    let dir = Running::dir("shared");
    drop(Running::start(&dir, ""));
}

#[test]
fn pins_and_contents_outlive_a_clean_end() {
    let dir = Running::dir("restart");
    let text = "[service]\nkeep_contents = true\n";
    let mut running = Running::start(&dir, text);
    let mut service = running.connect();
    let id = service.map_create("counts", &MapSpec::new(MapType::Hash, 4, 8, 16)).unwrap();
    for n in 0..10u32 {
        service.map_update(id, &n.to_ne_bytes(), &u64::from(n * n).to_ne_bytes(), 0).unwrap();
    }
    service.pin(ObjectId::Map(id), Path::new("/counts")).unwrap();
    drop(service);
    running.end();
    let again = Running::start(&dir, text);
    let mut service = again.connect();
    let ObjectId::Map(id) = service.pinned(Path::new("/counts")).unwrap() else { panic!("not a map") };
    assert_eq!(service.map_info(id).unwrap().name, "counts");
    assert_eq!(service.map_lookup(id, &7u32.to_ne_bytes(), 0).unwrap(), 49u64.to_ne_bytes());
    service.unpin(Path::new("/counts")).unwrap();
}

/// The disk is full, or somebody has put something into the place of the state.
#[test]
fn what_became_of_a_request_is_told_also_where_it_cannot_be_written_down() {
    let running = Running::start(&Running::dir("unwritten"), "");
    let mut service = running.connect();
    let state = running.dir.join("state/state.json");
    let _ = std::fs::remove_file(&state);
    std::fs::create_dir_all(state.join("in the way")).unwrap();

    let id = service.map_create("counts", &MapSpec::new(MapType::Array, 4, 8, 1)).unwrap();
    let done = service.pin(ObjectId::Map(id), Path::new("/counts")).unwrap_err().message;
    assert!(done.starts_with("it was done, but a restart will not know of it: "), "{done}");
    assert_eq!(service.pinned(Path::new("/counts")).unwrap(), ObjectId::Map(id));

    // A refusal says that it is one, and why.
    let refused = service.pin(ObjectId::Map(id), Path::new("/counts")).unwrap_err();
    assert!(refused.message.contains("EEXIST"), "{}", refused.message);
    assert!(refused.message.contains("what stands now cannot be written down: "), "{}", refused.message);
    let refused = service.unpin(Path::new("/nobody")).unwrap_err();
    assert!(refused.message.starts_with("there is no pin at /nobody; what stands now"), "{}", refused.message);

    std::fs::remove_dir_all(&state).unwrap();
    service.unpin(Path::new("/counts")).unwrap();
}
