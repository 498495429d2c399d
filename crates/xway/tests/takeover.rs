//! Another executable takes over; a service manager opens the socket; what is said in the log.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use common::service::{KINDS, Up};
use common::{Dir, xway};
use serde_json::{Value, json};
use xway_abi::{MapSpec, MapType};
use xway_control::Service;
use xway_hook::{Hook, ObjectId};
use xway_testkit::{Lab, Needs};

#[test]
fn another_executable_takes_over() {
    if !common::clang("xway::takeover::another_executable_takes_over") {
        return;
    }
    let dir = Dir::new();
    let object = common::compiled(&dir, "sort", KINDS, &[]);
    let file = dir.file("xway.toml", "[[port]]\nname = \"sim:u?count=1\"\n");
    let mut up = Up::new(&dir, Some(&file), None);
    let at = ["--socket", &up.socket];
    let run = |words: &[&str]| xway(&[words, &at[..], &["-j"]].concat());
    let mut service = up.connect();
    let map = service.map_create("kept", &MapSpec::new(MapType::Hash, 4, 4, 8)).unwrap();
    service.map_update(map, &[1; 4], &[7; 4], 0).unwrap();
    service.pin(ObjectId::Map(map), Path::new("/kept")).unwrap();
    let gone = MapSpec::new(MapType::Array, 4, 4, 1).with_flags(xway_abi::map_flags::MMAPABLE);
    let gone = service.map_create("gone", &gone).unwrap();
    let window = service.map_window(gone, true).unwrap();
    run(&["load", "sim:u", &object, "-P", "10", "--hook", "user"]).exits(0);

    // What it would cost, in words; what is no xway is refused before anything ends.
    let says = |doc: &Value, list: &str, words: &str| {
        let all = doc["expected"][list].to_string();
        assert!(all.contains(words), "{list}: {words}: {doc}");
    };
    for dry in [&["--dry-run"][..], &[]] {
        let doc = run(&[&["upgrade", env!("CARGO_BIN_EXE_xway")], dry].concat()).exits(0).json();
        says(&doc, "kept", "control socket");
        says(&doc, "kept", "map kept");
        says(&doc, "made_again", "port sim:u");
        says(&doc, "made_again", "program sort on sim:u");
        says(&doc, "lost", "map gone");
        says(&doc, "lost", "its memory in other processes");
        assert_eq!((&doc["requested"], &doc["dry_run"]), (&json!("handover"), &json!(!dry.is_empty())));
    }
    run(&["upgrade", "/bin/true"]).exits(1);
    // A second one in the same process: descriptors do not pile up.
    let open = || std::fs::read_dir(format!("/proc/{}/fd", up.child.id())).unwrap().count();
    let before = open();
    run(&["upgrade", env!("CARGO_BIN_EXE_xway")]).exits(0);
    assert!(open() <= before + 1, "{before} descriptors, then {}", open());

    // (What was mapped is still there, and nobody's.)
    window.store(0, 0, 4, 1).unwrap();
    // The same process, its socket, pins with what they hold, the port and its program; the old connection has ended.
    assert!(up.child.try_wait().unwrap().is_none());
    assert!(service.ports().is_err());
    let mut service = up.connect();
    let ObjectId::Map(map) = service.pinned(Path::new("/kept")).unwrap() else { panic!("it is a map") };
    assert_eq!(service.map_lookup(map, &[1; 4], 0).unwrap(), [7; 4]);
    let attached = service.attachments(None).unwrap();
    assert_eq!((attached.len(), attached[0].priority, attached[0].program.name.as_str()), (1, Some(10), "sort"));
    assert!(service.maps().unwrap().iter().all(|m| m.name != "gone"));
    drop(service);
    run(&["down"]).exits(0);
    assert!(up.child.wait().unwrap().success());
    assert!(!Path::new(&up.socket).exists(), "the socket's file goes with its last owner");
}

#[test]
fn a_service_manager_opens_the_socket() {
    let dir = Dir::new();
    let socket = dir.path("managed.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    // A manager keeps it.
    let kept = listener.try_clone().unwrap();
    // What a manager opens without SocketMode= and SocketGroup= of its own: everybody may connect.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let gid = std::fs::metadata(&socket).unwrap().gid();
    // A group of this machine that is not the socket's.
    let groups = std::fs::read_to_string("/etc/group").unwrap();
    let other = groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        Some((fields.first()?.to_string(), fields.get(2)?.parse::<u32>().ok()?)).filter(|(_, number)| *number != gid)
    });
    let (group, number) = other.into_iter().next().expect("a second group");
    let file = dir.file("managed.toml", format!("[service]\ngroup = \"{group}\"\n"));
    // Somebody connects before there is a service, and waits.
    let early = {
        let socket = socket.clone();
        std::thread::spawn(move || Service::connect(&socket).unwrap().ports().unwrap())
    };
    let binary = env!("CARGO_BIN_EXE_xway");
    let script = format!("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {binary} up -c {file} --log json");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening at {}\n", socket.display()));
    assert_eq!(early.join().unwrap(), [""; 0]);
    let at = ["--socket", socket.to_str().unwrap()];
    xway(&[&["unload", "nowhere", "-a", "--hook", "user"], &at[..]].concat()).exits(4);
    let ended = xway(&[&["down"], &at[..]].concat()).exits(0);
    assert!(ended.err.ends_with("the next client starts the service again\n"), "{}", ended.err);
    kept.set_nonblocking(true).unwrap();
    assert!(kept.accept().is_err(), "and the one that asked for the end is no such client");
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success());
    // A line for each thing that happened, each a document.
    let said: Vec<Value> =
        String::from_utf8(done.stderr).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let events: Vec<&str> = said.iter().map(|v| v["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["started", "not as asked", "not as asked", "refused", "done", "ended"], "{said:?}");
    // Who may connect is the manager's word, and where the file says otherwise it is told.
    let told = |at: usize, member: &str| said[at][member].as_str().unwrap().to_owned();
    let words = |at| ["what", "requested", "effective"].map(|member| told(at, member));
    assert_eq!(words(1), ["mode", "0660", "0666"]);
    assert_eq!(words(2), ["group".into(), format!("{group} ({number})"), gid.to_string()]);
    assert!(told(1, "reason").contains("SocketMode=") && told(2, "reason").contains("SocketGroup="), "{said:?}");
    assert_eq!((&said[3]["request"], &said[3]["level"]), (&json!("detach"), &json!("warning")));
    assert!(said.iter().all(|v| v["time"].as_f64().is_some_and(|t| t > 1e9)), "{said:?}");
    // The file is the manager's.
    assert!(socket.exists());
}

#[test]
fn a_descriptor_that_is_no_socket_is_told() {
    let script = format!("exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {} up", env!("CARGO_BIN_EXE_xway"));
    let done = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("LISTEN_FDS: descriptor 3 is not a UNIX socket"), "{said}");
    assert_eq!(done.status.code(), Some(3));
}

#[test]
fn the_units_of_systemd_start_what_there_is() {
    let unit = |name: &str| {
        std::fs::read_to_string(xway_testkit::clang::repository().join("packaging/systemd").join(name)).unwrap()
    };
    let (service, socket) = (unit("xway.service"), unit("xway.socket"));
    let line = service.lines().find_map(|l| l.strip_prefix("ExecStart=/usr/bin/xway ")).expect("what is started");
    let help = xway(&["up", "--help"]).exits(0).out;
    assert!(line.starts_with("up "), "{line}");
    for flag in line.split_whitespace().filter(|w| w.starts_with('-')) {
        assert!(help.contains(flag), "{flag} is no option of xway up");
    }
    assert!(service.contains("Type=notify"));
    // systemd takes the folder away at each stop otherwise, and the socket that it holds open there with it.
    let lies = Path::new(xway_control::SOCKET).parent().unwrap();
    let folder = lies.strip_prefix("/run").unwrap().display();
    let has = |line: &str| service.lines().any(|l| l == line);
    assert!(has(&format!("RuntimeDirectory={folder}")) && has("RuntimeDirectoryPreserve=yes"), "{service}");
    assert!(socket.contains(&format!("ListenStream={}", xway_control::SOCKET)) && socket.contains("SocketMode=0660"));
    if xway_testkit::Needs::of("xway::takeover::the_units_of_systemd").command("systemd-analyze").met() {
        // With a binary where the units look for it; systemd reads the rest as it does when it starts them.
        let dir = Dir::new();
        for (name, text) in [("xway.service", &service), ("xway.socket", &socket)] {
            dir.file(name, text.replace("/usr/bin/xway", env!("CARGO_BIN_EXE_xway")));
        }
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no", "--recursive-errors=no", &dir.arg("xway.service"), &dir.arg("xway.socket")]);
        let done = verify.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.is_empty(), "{said}");
    }
    let reload = service.lines().find_map(|l| l.strip_prefix("ExecReload=/usr/bin/xway ")).expect("what reloads");
    assert!(reload.starts_with("apply "), "{reload}");
}

/// The service's file that is installed, as it is and with each of its examples, and what the documentation shows of it.
#[test]
fn the_installed_file_and_the_documented_ones_are_read() {
    let text = |name: &str| std::fs::read_to_string(xway_testkit::clang::repository().join(name)).unwrap();
    let read = |text: &str| xway_control::Config::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let file = text("packaging/xway.toml");
    let plain = read(&file);
    assert!(plain.ports.is_empty() && plain.service.keep_contents);
    // Prose has a space behind its mark, an example has none.
    let bare = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    let full = read(&file.lines().map(bare).collect::<String>());
    assert_eq!((full.ports.len(), full.programs.len(), full.sockets.len()), (1, 1, 1));
    assert_eq!((full.service.group.as_deref(), full.service.workers), (Some("xway"), 2));
    // It lies where the units look for it, below the same place.
    assert!(text("packaging/systemd/xway.service").contains(" -c /etc/xway/xway.toml "));
    let shown = text("docs/service.md");
    let blocks: Vec<&str> = shown.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!blocks.is_empty());
    blocks.into_iter().for_each(|block| drop(read(block)));
}

/// With what the unit leaves it, the service opens a port of each kind, and its manager hears when they are open and when they end.
#[test]
fn the_units_capabilities_suffice_and_the_manager_hears() {
    let needs = Needs::of("xway::takeover::the_units_capabilities_suffice_and_the_manager_hears");
    if !needs.root().command("ip").command("setpriv").kernel(5, 18).met() {
        return;
    }
    let unit =
        std::fs::read_to_string(xway_testkit::clang::repository().join("packaging/systemd/xway.service")).unwrap();
    let left = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).expect("what is left to it");
    let left: Vec<String> = left.split(' ').map(|c| c.to_lowercase().replacen("cap_", "+", 1)).collect();
    let lab = Lab::new("unitcaps").unwrap();
    let (space, other) = (lab.namespace("near").unwrap(), lab.namespace("far").unwrap());
    lab.veth(&space, "r0", &other, "l0").unwrap();
    lab.veth(&space, "r1", &other, "l1").unwrap();
    let dir = Dir::new();
    let ports = ["afxdp:r0", "packet:r1", "tap:xwunit", "sim:a"];
    let text: String = ports.map(|name| format!("[[port]]\nname = \"{name}\"\n")).concat();
    let (config, socket, heard) = (dir.file("xway.toml", text), dir.arg("control.sock"), dir.path("notify"));
    let manager = std::os::unix::net::UnixDatagram::bind(&heard).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let next = || {
        let mut buffer = [0; 256];
        let len = xway_testkit::traffic::patient(|| manager.recv(&mut buffer)).expect("a word to the manager");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let child = space
        .command("setpriv")
        .args(["--no-new-privs", "--bounding-set", &format!("-all,{}", left.join(","))])
        .arg(env!("CARGO_BIN_EXE_xway"))
        .args(["up", "-c", &config, "--socket", &socket, "--state", &dir.arg("state"), "--log", "off"])
        .env("NOTIFY_SOCKET", &heard)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut up = Up { child, socket };
    assert_eq!(next(), "READY=1");
    // It is true when it is said.
    let mut service = up.connect();
    assert_eq!(service.ports().unwrap().len(), ports.len());
    drop(service);
    xway(&["down", "--socket", &up.socket]).exits(0);
    assert_eq!(next(), "STOPPING=1");
    assert!(up.child.wait().unwrap().success());
}

#[test]
fn a_hangup_makes_it_read_its_file_again() {
    let dir = Dir::new();
    let (file, socket) = (dir.file("xway.toml", "[[port]]\nname = \"sim:h?count=1\"\n"), dir.arg("control.sock"));
    let log = dir.path("log");
    let mut child = common::command(&["up", "-c", &file, "--socket", &socket, "--log", "json"])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut up = Up { child, socket };
    let told = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["request"] == "reload").collect()
    };
    let hang_up = |count: usize| {
        let pid = up.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while told().len() < count {
            assert!(std::time::Instant::now() < until, "nothing is said of the reload");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        told().pop().unwrap()
    };
    let ports = || Service::connect(Path::new(&up.socket)).unwrap().ports().unwrap();
    assert_eq!(hang_up(1)["steps"], json!([]), "the file is the same");
    std::fs::write(&file, "[[port]]\nname = \"sim:h?count=1\"\n[[port]]\nname = \"sim:i?count=1\"\n").unwrap();
    let said = hang_up(2);
    assert_eq!((&said["event"], &said["steps"]), (&json!("done"), &json!(["open port sim:i?count=1"])), "{said}");
    assert_eq!(ports(), ["sim:h", "sim:i"]);
    // One that makes no sense changes nothing.
    std::fs::write(&file, "[[port]]\nnome = 1\n").unwrap();
    let said = hang_up(3);
    assert!(said["event"] == "refused" && said["why"].as_str().unwrap().contains("nome"), "{said}");
    assert_eq!(ports(), ["sim:h", "sim:i"]);
    assert!(up.child.try_wait().unwrap().is_none(), "it goes on");
    // Ctrl-C and SIGTERM end it as before.
    assert!(Command::new("kill").args(["-TERM", &up.child.id().to_string()]).status().unwrap().success());
    assert!(up.child.wait().unwrap().success());
}
