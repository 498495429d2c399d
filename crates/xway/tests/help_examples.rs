//! The examples that `--help` shows are not only commands: each of them runs, as it stands there, in a shell.

mod common;
#[path = "examples/fields.rs"]
mod fields;
#[path = "examples/world.rs"]
mod world;

use common::{Dir, xway};
use fields::Fields;
use world::{World, files, shell};
use xway_testkit::Needs;

/// What a verb's examples need.
#[derive(Clone, Copy, PartialEq)]
enum On {
    /// Files.
    Files,
    /// Interfaces, namespaces, BPF file system.
    World,
    /// The same with a service.
    Service,
    /// Only a processor: lines are shortened.
    Bench,
}

/// How the examples of a verb run.
struct Row {
    verb: &'static str,
    on: On,
    /// Run before each line.
    before: &'static str,
    /// Run after each line; may fail.
    after: &'static str,
    /// Goes on until Ctrl-C, or waits for what may not come.
    endless: bool,
    /// Texts of the lines that are replaced: real numbers for ids, small ones for sizes.
    instead: &'static [(&'static str, &'static str)],
    /// Exit codes that are answers.
    codes: &'static [i32],
    /// Stands in what at least one line prints.
    prints: &'static str,
}

const fn row(verb: &'static str, on: On, prints: &'static str) -> Row {
    Row { verb, on, before: "", after: "", endless: false, instead: &[], codes: &[0], prints }
}

/// Loads the program that the examples speak of, where they say it is.
const LOADED: &str = "xway load eth0 filter.o -n drop_udp -p /sys/fs/bpf/filter";
/// The same with an entry in each map that an example reads.
const FILLED: &str = "xway load eth0 filter.o -n drop_udp -p /sys/fs/bpf/filter && cd /sys/fs/bpf/filter && \
                      xway map update pinned counts key 0x0a 0 0 1 value '{\"packets\": 5}' && \
                      xway map update pinned blocked key ip:10.0.0.1 value 1 && xway map push pinned line value 1";
const FILTERED: &str = "xway filter load eth0 && xway filter add eth0 --ip 192.0.2.0/24 --tcp-dport 23";
const UNFILTERED: &str = "xway filter unload eth0";
const UNLOADED: &str = "xway unload eth0 -a; rm -rf /sys/fs/bpf/*";
/// Rows with what differs from [`row`].
fn rows() -> Vec<Row> {
    let program = |verb, prints| Row { before: LOADED, after: UNLOADED, ..row(verb, On::Service, prints) };
    let map = |verb, instead, prints| Row { instead, ..program(verb, prints) };
    let counts: &[_] = &[("id 7", "id {map counts}")];
    let line: &[_] = &[("id 7", "id {map line}")];
    let link: &[_] = &[("id 3", "id {link}")];
    let prog: &[_] = &[("id 42", "id {prog}")];
    let mut rows = vec![
        row("prog inspect", On::Files, "count_kinds"),
        row("verify", On::Files, "accepted"),
        row("test", On::Files, "passed"),
        row("completions", On::Files, ""),
        row("man", On::Files, ""),
        row("conformance", On::Files, ""),
        Row { endless: true, instead: &[("sim:load --top", "sim:load")], ..row("run", On::World, "PASS") },
        Row {
            instead: &[("id 42", "id {prog}"), ("name count_kinds --hook", "name drop_udp --hook")],
            ..program("prog run", "PASS")
        },
        Row { instead: prog, ..program("prog dump", "exit") },
        Row { instead: prog, ..program("prog show", "drop_udp") },
        // Names in the service stay until it ends: each run has its own.
        Row {
            instead: &[
                ("id 42 /sys/fs/bpf/filter", "id {prog} /sys/fs/bpf/pinned"),
                (" /filter --hook", " /filter$$ --hook"),
            ],
            ..program("prog pin", "")
        },
        Row {
            before: "xway load eth0 filter.o -n drop_udp && xway prog pin name drop_udp /sys/fs/bpf/filter && \
                     xway prog pin name drop_udp /unpinned$$ --hook user",
            instead: &[(" /filter --hook", " $(xway prog show -f -j --hook user | grep -o '/unpinned[0-9]*') --hook")],
            after: "for pin in $(xway prog show -f -j --hook user | grep -o '/unpinned[0-9]*'); do \
                    xway prog unpin $pin --hook user; done; xway unload eth0 -a; rm -rf /sys/fs/bpf/*",
            ..program("prog unpin", "")
        },
        Row { instead: prog, ..program("prog profile", "drop_udp") },
        Row { endless: true, ..program("prog tracelog", "packet for") },
        Row {
            endless: true,
            before: "",
            after: "rm -rf /run/xway /tmp/xway.sock",
            ..row("up", On::World, "listening")
        },
        Row { instead: &[("/tmp/xway.sock", "/run/xway/control.sock")], ..row("down", On::Service, "") },
        Row { instead: &[("/usr/bin/xway", "\"$(command -v xway)\"")], ..row("upgrade", On::Service, "") },
        row("apply", On::Service, ""),
        Row { codes: &[0, 1], ..row("diff", On::Service, "") },
        Row {
            after: "xway unload eth0 -a --hook user; xway unload eth0 -a; rm -rf /sys/fs/bpf/*",
            instead: &[(
                "-p /sys/fs/bpf/filter --replace",
                "-n drop_udp > /dev/null && xway load eth0 filter.o -p /sys/fs/bpf/filter --replace",
            )],
            ..row("load", On::Service, "drop_udp")
        },
        Row {
            before: "xway unload eth0 -a --hook user; xway load eth0 filter.o -n drop_udp -p /sys/fs/bpf/filter && \
                     xway load eth0 filter.o --hook user",
            after: "xway unload eth0 -a --hook user; xway unload eth0 -a; rm -rf /sys/fs/bpf/*",
            instead: &[("-i 42", "-i {prog}")],
            ..row("unload", On::Service, "")
        },
        program("status", "drop_udp"),
        Row { codes: &[0, 1], ..row("features", On::Service, "native") },
        Row {
            endless: true,
            instead: &[("-i 5", "-i 0.2"), ("stats eth0", "stats eth0 -i 0.2")],
            ..row("stats", On::Service, "")
        },
        row("sock show", On::Service, ""),
        Row { after: "xway sock end /run/xway/xsk.sock", ..row("sock serve", On::Service, "") },
        Row { before: "xway sock serve /run/xway/xsk.sock", ..row("sock end", On::Service, "") },
        Row {
            before: "xway steer tap:xw0 flow-type udp4 dst-port 54 action 2 loc 7",
            after: "xway steer tap:xw0 off",
            ..row("steer", On::Service, "")
        },
        Row { endless: true, ..row("dump", On::Service, "") },
        Row { endless: true, instead: &[("-i 5", "-i 0.2")], ..row("monitor", On::Service, "") },
        Row { endless: true, instead: &[("/tmp/xway.sock", "/run/xway/control.sock")], ..row("top", On::Service, "") },
        Row {
            before: "xway map create /config/unused type hash key 4 value 4 entries 1 name unused --hook user",
            after: "xway down",
            ..row("clean", On::Service, "/config/unused")
        },
        map("map show", counts, "blocked"),
        Row { before: FILLED, ..map("map dump", counts, "packets") },
        Row { before: FILLED, ..map("map lookup", counts, "packets") },
        map("map update", counts, ""),
        Row { before: FILLED, ..map("map delete", counts, "") },
        Row { before: FILLED, codes: &[0, 1], ..map("map getnext", counts, "") },
        map("map pin", counts, ""),
        Row {
            before: "xway map create /sys/fs/bpf/blocked type hash key 4 value 8 entries 1 name blocked && \
                     xway map create /config/filter/old type hash key 4 value 8 entries 1 name old --hook user",
            after: "rm -rf /sys/fs/bpf/*; xway map unpin /config/filter/old --hook user",
            ..row("map unpin", On::Service, "")
        },
        map("map freeze", counts, ""),
        map("map create", counts, ""),
        map("map push", line, ""),
        Row { before: FILLED, ..map("map pop", line, "") },
        Row { before: FILLED, ..map("map peek", line, "") },
        Row { endless: true, ..map("map event_pipe", &[("id 7", "id {map samples}")], "") },
        map("link show", link, "xdp"),
        map("link detach", link, ""),
        map("link pin", link, ""),
        Row {
            before: "xway load eth0 filter.o -n drop_udp && \
                     xway link pin id $(xway status eth0 -j | grep -o '\"link_id\":[0-9]*' | head -n 1 | cut -d: -f2) /sys/fs/bpf/link",
            ..program("link unpin", "")
        },
        Row { codes: &[0], ..program("btf show", "") },
        program("btf dump", "struct"),
        Row {
            after: "xway forward unload eth0 eth1; xway down",
            instead: &[("afxdp:eth0 afxdp:eth1", "afxdp:eth1 afxdp:veth0")],
            ..row("forward load", On::Service, "")
        },
        Row { before: "xway forward load eth0 eth1", ..row("forward unload", On::World, "") },
        Row {
            before: "xway forward load eth0 eth1",
            after: "xway forward unload eth0 eth1",
            ..row("forward status", On::World, "eth0")
        },
        Row {
            before: "xway unload eth0 -a --hook user || true",
            after: "for port in eth0 eth1 'eth0 --hook user'; do xway filter unload $port; done; rm -rf /sys/fs/bpf/*",
            ..row("filter load", On::Service, "xway_filter")
        },
        Row {
            before: "xway filter load eth0 -p /sys/fs/bpf/filter",
            after: "xway filter unload eth0; rm -rf /sys/fs/bpf/*",
            ..row("filter unload", On::World, "removed /sys/fs/bpf/filter/filter_net4")
        },
        Row { before: FILTERED, after: UNFILTERED, ..row("filter add", On::World, "192.0.2.7: on the list (pass)") },
        Row { before: FILTERED, after: UNFILTERED, ..row("filter del", On::World, "off the list") },
        Row { before: FILTERED, after: UNFILTERED, ..row("filter list", On::World, "tcp:23") },
        Row {
            before: FILTERED,
            after: UNFILTERED,
            endless: true,
            instead: &[("-i 5", "-i 0.2")],
            ..row("filter stats", On::World, "")
        },
        Row {
            instead: &[("1000000", "1000"), ("--rate 100000", "--rate 100000 -n 100")],
            ..row("trafficgen", On::World, "")
        },
        Row { codes: &[0, 1], ..row("doctor", On::World, "kernel") },
        Row { after: "xway lab down; xway lab down edge", ..row("lab up", On::World, "") },
        Row {
            before: "xway lab up && xway lab up edge",
            after: "xway lab down; xway lab down edge",
            ..row("lab down", On::World, "")
        },
        Row { before: "xway lab up", after: "xway lab down", ..row("lab show", On::World, "lab0") },
    ];
    rows.extend(BENCHES.iter().map(|(verb, _)| row(verb, On::Bench, "")));
    rows
}

/// What makes a measurement short: what is measured is not looked at here.
const BENCHES: &[(&str, &str)] = &[
    ("bench prog", "--rounds 1"),
    ("bench map", "--rounds 1 --entries 1000"),
    ("bench verify", "--rounds 1"),
    ("bench compile", "--rounds 1"),
    ("bench machine", ""),
    ("bench workers", "--rounds 1 --time 10"),
    ("bench path", "--rounds 1 --count 2000"),
    ("bench drop", "--rounds 1 --count 2000"),
    ("bench pass", "--rounds 1 --count 2000"),
    ("bench tx", "--rounds 1 --count 2000"),
    ("bench redirect", "--rounds 1 --count 2000"),
    ("bench redirect-map", "--rounds 1 --count 2000"),
    ("bench redirect-cpu", "--rounds 1 --count 2000"),
    ("bench redirect-multi", "--rounds 1 --count 2000"),
    ("bench xsk-drop", "--rounds 1 --count 2000"),
    ("bench xsk-push", "--rounds 1 --count 2000"),
    ("bench xsk-fwd", "--rounds 1 --count 2000"),
    ("bench latency", "--rounds 1 --count 1000"),
    ("bench levels", "--rounds 1 --count 2000"),
    ("bench wire", "--rounds 1 --time 20"),
    ("bench aborted", "--rounds 1 --count 2000"),
    ("bench dispatch", "--rounds 1"),
    ("bench pool", "--rounds 1 --count 2000"),
    ("bench ring", "--rounds 1 --count 2000"),
];

/// A line of `bench` with small numbers in the place of its own, before what is explained behind it.
fn short(line: &str, small: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut of_option = false;
    for word in command(line).split(' ') {
        let dropped = ["--rounds", "--count", "--time", "--entries"].contains(&word);
        if !dropped && !of_option {
            words.push(word);
        }
        of_option = dropped;
    }
    let case = match line {
        line if line.contains("bench prog --vs kernel --filter hash") => "--flows 1000 --table 1000",
        line if line.contains("bench prog --vs kernel") && !line.contains("--filter") => "--filter empty",
        _ => "",
    };
    format!("{} {small} {case}", words.join(" "))
}

/// Verbs that have no verbs below them.
fn verbs() -> Vec<String> {
    let (mut found, mut left) = (Vec::new(), vec![Vec::<String>::new()]);
    while let Some(at) = left.pop() {
        let words: Vec<&str> = at.iter().map(String::as_str).chain(["--help"]).collect();
        let help = xway(&words).exits(0).out;
        let Some((_, below)) = help.split_once("\nCommands:\n") else {
            found.push(at.join(" "));
            continue;
        };
        // Names stand two spaces from the edge; what they do, further in.
        let names = below.lines().take_while(|l| !l.is_empty()).filter_map(|l| l.strip_prefix("  ")?.split(' ').next());
        left.extend(names.filter(|n| !n.is_empty() && *n != "help").map(|n| [at.clone(), vec![n.to_owned()]].concat()));
    }
    found
}

/// The commands under "Examples:" in a verb's help.
fn examples(verb: &str) -> Vec<String> {
    let help = xway(&verb.split(' ').chain(["--help"]).collect::<Vec<_>>()).exits(0).out;
    let (_, block) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{verb} --help has no example"));
    let lines: Vec<String> = block.lines().take_while(|l| l.starts_with("  ")).map(|l| l.trim().to_owned()).collect();
    for line in &lines {
        assert!(line.contains("xway "), "{verb} --help: `{line}` is no command; is the one before it too long?");
    }
    lines
}

#[test]
fn every_verb_has_examples_that_run() {
    let (mut have, mut want) = (rows().iter().map(|r| r.verb.to_owned()).collect::<Vec<_>>(), verbs());
    have.sort();
    want.sort();
    assert_eq!(have, want, "a verb without a row here has examples that nobody runs");
    assert!(want.iter().all(|verb| !examples(verb).is_empty()));
    // The page of documents has a section for each that prints one here, and for no other.
    let fields = Fields::read();
    // (Those that measure: `bench_json.rs`.)
    let described = fields.verbs().filter(|verb| !verb.starts_with("bench-"));
    let mut described: Vec<String> = described.map(str::to_owned).collect();
    let printed = rows().into_iter().filter(|row| row.on != On::Bench && !NO_JSON.contains(&row.verb));
    let mut printed: Vec<String> = printed.map(|row| row.verb.replace(' ', "-")).collect();
    described.sort();
    printed.sort();
    assert_eq!(described, printed, "sections of docs/json.md, and verbs that print documents");
}

/// Puts what is so on this machine in the place of names and numbers of the help.
fn filled(dir: &Dir, world: Option<&World>, line: &str, row: &Row, own: &str) -> String {
    let mut line = line.to_owned();
    for (from, to) in row.instead {
        line = line.replace(from, to);
    }
    for name in NAMES {
        line = line.replace(name, &format!("{name}{own}"));
    }
    let ids = |verb: &str, under: &str| {
        let ran = shell(dir, world, verb, 60).exits(0);
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()[under].clone()
    };
    while let Some((head, rest)) = line.split_once('{').filter(|(_, rest)| !rest.starts_with(['"', '}'])) {
        let (what, tail) = rest.split_once('}').unwrap();
        let attached = &ids("xway status eth0 -j", "attachments")[0];
        let id = match what.split_once(' ') {
            Some(("map", name)) => {
                ids(&format!("xway map show pinned /sys/fs/bpf/filter/{name} -j"), "maps")[0]["id"].clone()
            }
            None if what == "prog" => attached["program"]["id"].clone(),
            _ => attached["link_id"].clone(),
        };
        assert!(id.is_number(), "{what}: {attached}");
        line = format!("{head}{id}{tail}");
    }
    line
}

/// Names that other tests on this machine may use as well: each run has its own.
const NAMES: &[&str] = &["blocked", "drop_udp", "samples"];

/// Runs all lines of these rows, each part of them in a world of its own: most of them wait.
fn in_parts(on: On, labels: [&str; 2]) {
    let parts = labels.len();
    std::thread::scope(|scope| {
        for (part, label) in labels.into_iter().enumerate() {
            scope.spawn(move || run(on, (part, parts), Some(label)));
        }
    });
}

/// Runs all lines of one part of so many of these rows; what failed, at the end.
fn run(on: On, (part, parts): (usize, usize), label: Option<&str>) {
    // A name in the kernel is short: 15 bytes.
    let own = &if label.is_some() { format!("_{}{part}", std::process::id() % 10_000) } else { String::new() };
    let dir = files(NAMES, own);
    let mut world = label.map(|label| World::new(label, &dir));
    let (mut failed, mut ran_lines, fields) = (Vec::new(), 0, Fields::read());
    for row in rows().iter().filter(|r| r.on == on).skip(part).step_by(parts) {
        let mut printed = false;
        // Each as it stands there, and once more for its document where it is not asked for one already.
        let documented = on != On::Bench && !NO_JSON.contains(&row.verb);
        let mut lines: Vec<(String, bool)> = Vec::new();
        for line in examples(row.verb) {
            let json = Some(as_json(&line)).filter(|json| documented && *json != command(&line) && has_document(json));
            lines.push((line.clone(), documented && asks(&line)));
            lines.extend(json.map(|json| (json, true)));
        }
        let mut all_ran = true;
        for (line, wants_json) in lines {
            if let Some(why) = cannot(&line) {
                println!("not run: help_examples, `{line}` needs {why}");
                (printed, all_ran) = (true, false);
                continue;
            }
            if on == On::Service {
                world.as_mut().unwrap().serve(&dir);
            }
            let here = world.as_ref();
            let silent = |text: &str| (!text.is_empty()).then(|| shell(&dir, here, text, 60));
            let before = silent(&filled(&dir, here, row.before, row, own));
            if let Some(before) = before.as_ref().filter(|b| b.code != 0) {
                failed.push(format!("before `{line}`: {}{}", before.err, before.out));
                silent(&filled(&dir, None, row.after, row, own));
                continue;
            }
            let mut text = filled(&dir, here, &line, row, own);
            if let Some((_, small)) = BENCHES.iter().find(|(verb, _)| *verb == row.verb) {
                text = short(&text, small);
            }
            if row.verb == "top" {
                text = format!("script -qec \"{text}\" /dev/null");
            }
            // A measurement beside the kernel may share two processors with everything else that is tested.
            let ran = shell(&dir, here, &text, if row.endless { 1 } else { 240 });
            silent(&filled(&dir, None, row.after, row, own));
            let ends = row.verb == "down" || row.after.contains("xway down");
            if let Some(world) = world.as_mut().filter(|_| ends) {
                world.ended();
            }
            ran_lines += 1;
            printed |= ran.out.contains(row.prints);
            let ended = row.codes.contains(&ran.code) || row.endless && ran.code == 124;
            let expected = line.split_once("  # ").filter(|_| row.verb == "conformance");
            let right = expected.is_none_or(|(_, printed)| ran.out.trim() == printed)
                && (!wants_json || is_json(&ran.out, row));
            if wants_json && right {
                let documents = documents(&ran.out);
                failed.extend(documents.iter().flat_map(|doc| fields.complaints(row.verb, doc)));
            }
            if !ended || !right || ran.err.contains("panicked") {
                failed.push(format!("`{text}` ({}): {}{}", ran.code, ran.err, ran.out));
            }
        }
        if !printed {
            failed.push(format!("{}: no example printed {:?}", row.verb, row.prints));
        }
        // Documents of measurements are compared in `bench_json.rs`.
        let all_ran = all_ran && on != On::Bench;
        let never = fields.never(row.verb).into_iter().filter(|at| all_ran && !SELDOM.contains(&at.as_str()));
        failed.extend(never.map(|at| format!("docs/json.md, {at}: no example prints it")));
    }
    // What is wrong with a document is wrong with all of them.
    failed.sort();
    failed.dedup();
    assert!(failed.is_empty(), "{} of {ran_lines}:\n{}", failed.len(), failed.join("\n"));
}

/// Verbs whose output is no document: a terminal's picture. (Documents of measurements: `bench_json.rs`; here they would take
/// as long again.)
const NO_JSON: &[&str] = &["top"];

/// Members that a document has only when something happens that need not happen here.
const SELDOM: &[&str] = &[
    "map dump.entries_left_out",
    "map lookup.values",
    "monitor.event",
    "monitor.packets",
    "monitor.port",
    "monitor.program",
    "monitor.queue",
    "monitor.suppressed",
    "monitor.text",
    "monitor.time_ns",
    "stats.counters.gauge",
    "stats.samples.counters.gauge",
];

/// A line without what is explained behind it, and without what its output goes to.
fn command(line: &str) -> &str {
    let begin = line.find("xway ").unwrap_or(0);
    let ends = [" # ", " | ", " > "].iter().filter_map(|mark| line[begin..].find(mark));
    line[..ends.min().map_or(line.len(), |end| begin + end)].trim_end()
}

/// It asks for JSON.
fn asks(line: &str) -> bool {
    command(line).split(' ').any(|word| word == "-j" || word == "--ndjson")
}

/// The same command, asked for JSON.
fn as_json(line: &str) -> String {
    match command(line) {
        line if asks(line) => line.to_owned(),
        // Its words go on to the end of the line.
        line if line.contains("xway steer ") => line.replace("xway steer ", "xway -j steer "),
        line => format!("{line} -j"),
    }
}

/// Not where packets, lines of another kind or a file were asked for.
fn has_document(line: &str) -> bool {
    ![" -w - ", " --raw ", " file code.bin"].iter().any(|other| line.contains(other))
}

/// The documents of an output: one, or one on each line.
fn documents(text: &str) -> Vec<serde_json::Value> {
    match serde_json::from_str(text) {
        Ok(one) => vec![one],
        Err(_) => text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    }
}

/// Whether it is one document, or, of verbs that go on, one on each line, and each says how it is to be read.
fn is_json(text: &str, row: &Row) -> bool {
    let versioned = |doc: &serde_json::Value| doc["schema_version"] == 1 && doc["command"].is_string();
    let parsed = |text: &str| serde_json::from_str(text).is_ok_and(|doc| versioned(&doc));
    parsed(text) || row.endless && text.lines().all(parsed)
}

/// What a line needs that is not here.
fn cannot(line: &str) -> Option<&'static str> {
    let there = xway_testkit::has_command;
    if line.contains("--hard") {
        return Some("a minute; cargo test -p xway-bench --test hard goes through the same inputs");
    }
    if line.contains("/usr/lib/x86_64-linux-gnu/bpf") && !std::path::Path::new("/usr/lib/x86_64-linux-gnu/bpf").is_dir()
    {
        return Some("the objects of xdp-tools");
    }
    [("tshark", "tshark"), ("xway top", "script"), ("tcpdump", "tcpdump"), ("man -l", "man")]
        .iter()
        .find(|(part, command)| line.contains(part) && !there(command))
        .map(|(_, command)| *command)
}

#[test]
fn on_files() {
    if Needs::of("help_examples::on_files").clang().command("gzip").met() {
        run(On::Files, (0, 1), None);
    }
}

#[test]
fn of_measurements() {
    if Needs::of("help_examples::of_measurements").root().kernel(6, 12).clang().command("gzip").met() {
        run(On::Bench, (0, 1), None);
    }
}

#[test]
fn on_interfaces() {
    let needs = Needs::of("help_examples::on_interfaces").root().kernel(6, 12).clang().command("gzip").command("ip");
    if needs.command("unshare").command("nsenter").command("timeout").met() {
        in_parts(On::World, ["helpworld0", "helpworld1"]);
    }
}

#[test]
fn in_a_service() {
    let needs = Needs::of("help_examples::in_a_service").root().kernel(6, 12).clang().command("gzip").command("ip");
    if needs.command("unshare").command("nsenter").command("timeout").met() {
        in_parts(On::Service, ["helpservice0", "helpservice1"]);
    }
}
