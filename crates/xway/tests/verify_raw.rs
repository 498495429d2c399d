//! `xway verify --raw`: programs by the line.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use common::{Dir, command, golden, xway, xway_with};
use serde_json::{Value, json};

fn insns(text: &str) -> String {
    let slots = xway_isa::assemble_with(text, &xway_object::HelperNames).unwrap_or_else(|e| panic!("{e}\n{text}"));
    xway_isa::slots_to_bytes(&slots).iter().map(|b| format!("{b:02x}")).collect()
}

/// The answers to these lines, one each.
fn ask(args: &[&str], lines: &str, code: i32) -> Vec<Value> {
    let ran = xway_with(&[&["verify", "--raw", "-"], args].concat(), lines.as_bytes()).exits(code);
    ran.out.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

/// Packet pointers in r2 (data), r3 (data_end).
const PACKET: &str = "r6 = r1\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\n";
/// r0 = look-up of key 0 in map 0.
const LOOK_UP: &str = "*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n";

/// One program for each kind of refusal that needs neither types nor objects.
fn refusals() -> Vec<(&'static str, String)> {
    let hash = |body: &str| format!("{LOOK_UP}{body}");
    let packet = |body: &str| format!("{PACKET}{body}");
    let done = "r0 = 2\nexit";
    vec![
        ("bad-jump", "goto pc+100\nexit".into()),
        ("unreachable", format!("goto pc+1\nr1 = 0\n{done}")),
        ("no-exit", "r0 = 2".into()),
        ("bad-call", format!("call #9999\n{done}")),
        ("bad-reference", format!("r1 = map[idx:7]\n{done}")),
        ("uninitialised", "r0 = r7\nexit".into()),
        ("frame-pointer", format!("r10 = 1\n{done}")),
        ("pointer-arithmetic", format!("r1 *= 2\n{done}")),
        ("null-pointer", hash("r0 = *(u64 *)(r0 +0)\nexit")),
        ("not-a-pointer", "r2 = 5\nr0 = *(u8 *)(r2 +0)\nexit".into()),
        ("packet-bounds", packet("r0 = *(u8 *)(r2 +0)\nexit")),
        (
            "stale-packet-pointer",
            packet(
                "r7 = r2\nr2 += 1\nif r2 > r3 goto out\nr1 = r6\nr2 = 0\ncall bpf_xdp_adjust_head\n\
                 r0 = *(u8 *)(r7 +0)\nexit\nout:\nr0 = 2\nexit",
            ),
        ),
        ("map-value-bounds", hash("if r0 == 0 goto pc+1\nr0 = *(u64 *)(r0 +8)\nexit")),
        ("stack-bounds", format!("*(u64 *)(r10 -520) = 0\n{done}")),
        ("context-access", "r0 = *(u32 *)(r1 +100)\nexit".into()),
        (
            "permission",
            format!("{}if r0 == 0 goto pc+1\n*(u32 *)(r0 +0) = 0\n{done}", LOOK_UP.replace("map[idx:0]", "map[idx:2]")),
        ),
        (
            "unbounded",
            hash("if r0 == 0 goto pc+4\nr1 = *(u64 *)(r0 +0)\nr2 = r10\nr2 += r1\nr0 = *(u8 *)(r2 -8)\nexit"),
        ),
        ("argument", format!("r2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\n{done}")),
        (
            "map-type",
            format!("*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:1]\ncall bpf_map_lookup_elem\n{done}"),
        ),
        ("unreleased-reference", format!("r1 = map[idx:1]\nr2 = 8\nr3 = 0\ncall bpf_ringbuf_reserve\n{done}")),
        (
            "memory-bounds",
            "r1 = map[idx:1]\nr2 = 8\nr3 = 0\ncall bpf_ringbuf_reserve\nif r0 == 0 goto pc+4\n*(u64 *)(r0 +8) = 0\n\
             r1 = r0\nr2 = 0\ncall bpf_ringbuf_discard\nr0 = 2\nexit"
                .into(),
        ),
        (
            "stack-depth",
            "*(u64 *)(r10 -400) = 0\ncall f\nr0 = 2\nexit\nf:\n*(u64 *)(r10 -400) = 0\nr0 = 0\nexit".into(),
        ),
        ("infinite-loop", "r0 = 0\nagain:\nr0 ^= 1\nif r0 != 5 goto again\nexit".into()),
        ("unsupported", format!("r2 = 0\ncall bpf_kptr_xchg\n{done}")),
    ]
}

fn maps() -> Value {
    json!([
        { "type": "hash", "key_size": 4, "value_size": 8, "max_entries": 1 },
        { "type": "ringbuf", "max_entries": 4096 },
        // BPF_F_RDONLY_PROG
        { "type": "array", "key_size": 4, "value_size": 4, "max_entries": 4, "flags": 128 },
    ])
}

#[test]
fn every_kind_of_refusal() {
    let mut lines: String = refusals()
        .iter()
        .map(|(kind, text)| json!({ "id": kind, "insns": insns(text), "maps": maps() }).to_string() + "\n")
        .collect();
    lines.push_str(&json!({ "id": "bad-instruction", "insns": "ff00000000000000" }).to_string());
    let answers = ask(&[], &lines, 1);
    for answer in &answers {
        assert_eq!(
            (answer["verdict"].as_str(), &answer["error"]["kind"]),
            (Some("rejected"), &answer["id"]),
            "{answer}"
        );
    }
    let kinds: BTreeSet<&str> = answers.iter().filter_map(|a| a["id"].as_str()).collect();
    assert_eq!((answers.len(), kinds.len()), (refusals().len() + 1, refusals().len() + 1));
    let shown = |a: &Value| format!("{}: {}\n", a["id"].as_str().unwrap(), a["error"]);
    golden("kinds.txt", &answers.iter().map(shown).collect::<String>());

    let long = json!({ "id": 0, "insns": insns("r0 = 9\nagain:\nr0 += -1\nif r0 != 0 goto again\nr0 = 2\nexit") });
    assert_eq!(ask(&["--budget", "10"], &long.to_string(), 1)[0]["error"]["kind"], "budget");
    let odd = json!({ "id": 0, "insns": insns("*(u64 *)(r10 -8) = 0\nr0 = *(u32 *)(r10 -7)\nexit") });
    assert_eq!(ask(&["--strict-alignment"], &odd.to_string(), 1)[0]["error"]["kind"], "alignment");
}

#[test]
fn accepted_programs_run_over_their_packet() {
    let lengths = format!("{PACKET}r0 = r3\nr0 -= r2\nexit");
    let count =
        format!("{LOOK_UP}if r0 == 0 goto pc+3\nr1 = 1\nlock *(u64 *)(r0 +0) += r1\nr0 = *(u64 *)(r0 +0)\nexit");
    let array = json!([{ "type": "array", "key_size": 4, "value_size": 8, "max_entries": 1, "at": [3] }]);
    // As a loader finds it: the reference by descriptor, at the slot that `at` names.
    let count = insns(&count).replacen("18510000", "18110000", 1);
    let lines = [
        json!({ "id": 1, "insns": insns(&lengths), "data_in": "ff".repeat(60) }),
        json!({ "id": 2, "insns": insns(&lengths) }),
        json!({ "id": 3, "insns": count, "maps": array, "data_in": "00".repeat(14) }),
        json!({ "id": 4, "insns": insns(&lengths), "data_in": "00" }),
        json!({ "id": 5, "insns": insns(&lengths), "data_in": "00".repeat(5000) }),
        json!({ "id": 6, "insns": count }),
    ];
    let answers = ask(&[], &lines.map(|l| l.to_string()).join("\n"), 1);
    let all: Vec<_> = answers.iter().map(|a| (a["verdict"].as_str().unwrap(), a["retval"].as_u64())).collect();
    assert_eq!(
        all,
        [
            ("accepted", Some(60)),
            ("accepted", None),
            ("accepted", Some(1)),
            ("accepted", None),
            ("accepted", None),
            ("rejected", None)
        ]
    );
    assert!(answers[3]["not_run"].as_str().unwrap().contains("14 bytes"), "{}", answers[3]);
    assert!(answers[4]["not_run"].as_str().is_some() && answers[1]["not_run"].is_null());
    assert_eq!(answers[5]["error"]["kind"], "bad-reference");
}

#[test]
fn every_type_of_map_has_its_name() {
    let line = |id: &str, map: Value| {
        let mut map = map;
        map["type"] = id.into();
        map["at"] = json!([0]);
        json!({ "id": id, "insns": insns("r1 = map[idx:0]\nr0 = 2\nexit"), "maps": [map], "data_in": "00".repeat(14) })
            .to_string()
    };
    let inner = json!({ "type": "array", "key_size": 4, "value_size": 4, "max_entries": 1 });
    let sized =
        |key: u32, value: u32, entries: u32| json!({ "key_size": key, "value_size": value, "max_entries": entries });
    let mut lines = Vec::new();
    for map_type in xway_abi::MapType::ALL.iter().filter(|t| xway_maps::is_supported(**t)) {
        let name = map_type.name();
        lines.push(match name {
            "array_of_maps" | "hash_of_maps" => {
                let mut map = sized(4, 4, 2);
                map["inner"] = inner.clone();
                line(name, map)
            }
            "ringbuf" | "user_ringbuf" => line(name, sized(0, 0, 4096)),
            "queue" | "stack" | "bloom_filter" => line(name, sized(0, 8, 2)),
            "lpm_trie" => {
                let mut map = sized(8, 8, 2);
                map["flags"] = 1.into();
                line(name, map)
            }
            "stack_trace" => line(name, sized(4, 8, 2)),
            "hash" | "percpu_hash" | "lru_hash" | "lru_percpu_hash" | "array" | "percpu_array" => {
                line(name, sized(4, 8, 2))
            }
            _ => line(name, sized(4, 4, 2)),
        });
    }
    for answer in ask(&[], &lines.join("\n"), 0) {
        assert_eq!((answer["verdict"].as_str(), answer["retval"].as_u64()), (Some("accepted"), Some(2)), "{answer}");
    }
    let answers = ask(&[], &[line("no_such", sized(4, 4, 1)), line("hash", sized(0, 4, 1))].join("\n"), 1);
    assert!(answers[0]["error"]["message"].as_str().unwrap().contains("no map type"), "{}", answers[0]);
    assert_eq!((answers[1]["error"]["kind"].as_str(), answers[1]["verdict"].as_str()), (Some("map"), Some("rejected")));
}

#[test]
fn a_line_that_is_no_program_does_not_end_the_run() {
    let good = json!({ "id": "good", "insns": insns("r0 = 2\nexit") }).to_string();
    let lines = [
        good.as_str(),
        "no json",
        "{\"id\":1}",
        "",
        "{\"id\":2,\"insns\":\"0\"}",
        "{\"id\":3,\"insns\":\"zz\"}",
        "[]",
        "\u{0}",
        &good,
    ];
    let ran =
        xway_with(&["verify", "--raw", "-"], lines.join("\n").as_bytes()).exits(2).says("standard input: 6 lines");
    let answers: Vec<Value> = ran.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), 8);
    let broken: Vec<_> =
        answers.iter().filter(|a| a["verdict"].is_null()).map(|a| a["line"].as_u64().unwrap()).collect();
    assert_eq!(broken, [2, 3, 5, 6, 7, 8]);
    assert_eq!((answers[7]["id"].as_str(), answers[3]["id"].as_u64()), (Some("good"), Some(2)));
    // Bytes that are no text, an end without a newline, nothing at all.
    xway_with(&["verify", "--raw", "-"], b"\xff\xfe\n").exits(2);
    assert_eq!(xway_with(&["verify", "--raw", "-"], b"").exits(0).out, "");
    let dir = Dir::new();
    let file = dir.file("one.jsonl", &good);
    assert_eq!(xway(&["verify", "--raw", &file]).exits(0).out.lines().count(), 1);
    xway(&["verify", "--raw", &dir.arg("none")]).exits(3).says("no such file");
    xway(&["verify", "--raw", &file, "object.o"]).exits(2);
}

#[test]
fn malformed_programs_are_refused() {
    let mut rng = xway_testkit::Rng::new(7);
    let mut lines = String::new();
    for id in 0..3000 {
        let len = 8 * (1 + rng.index(12));
        let mut bytes = rng.bytes(len);
        if rng.one_in(2) {
            // Opcodes that exist, registers that mostly do: these get farther than noise.
            for slot in bytes.chunks_mut(8) {
                slot[0] = *rng.pick(&[0xb7, 0xbf, 0x07, 0x61, 0x63, 0x85, 0x95, 0x05, 0x15, 0x18, 0x2d, 0xdb, 0xe5]);
                slot[1] &= 0x77;
                slot[2..4].copy_from_slice(&(rng.below(8) as i16 - 4).to_le_bytes());
            }
        }
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        lines += &(json!({ "id": id, "insns": hex, "maps": maps(), "data_in": "00".repeat(64) }).to_string() + "\n");
    }
    let answers = ask(&["--budget", "10000"], &lines, 1);
    assert_eq!(answers.len(), 3000);
    assert!(answers.iter().all(|a| a["verdict"].is_string() && a["trap"].is_null()), "{answers:?}");
    assert!(answers.iter().all(|a| a["error"]["kind"] != "internal"), "{answers:?}");
}

#[test]
fn an_answer_comes_before_the_next_question() {
    let mut child =
        command(&["verify", "--raw", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("xway");
    let mut questions = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    for id in 0..3 {
        writeln!(questions, "{}", json!({ "id": id, "insns": insns("r0 = 2\nexit") })).unwrap();
        questions.flush().unwrap();
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], id);
    }
    drop(questions);
    assert!(child.wait().unwrap().success());
}
