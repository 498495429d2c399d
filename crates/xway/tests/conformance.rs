//! `xway conformance`: the plug-in protocol, and our own vectors through it.

mod common;

use common::{xway, xway_with};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct File {
    vector: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    asm: String,
    #[serde(default)]
    memory: String,
    r0: Option<toml::Value>,
    fault: Option<String>,
    /// What the verifier says of a program that runs well and that it cannot prove.
    refused: Option<String>,
}

const ENGINES: [&str; 2] = ["interp", "jit"];

/// As the runner prints them: two digits and two spaces for each byte.
fn runner_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}  ")).collect()
}

fn number(value: &toml::Value) -> u64 {
    match value {
        toml::Value::Integer(n) => *n as u64,
        toml::Value::String(s) => u64::from_str_radix(s.trim_start_matches("0x"), 16).unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn our_vectors() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let mut ran = 0;
    for file in std::fs::read_dir(dir).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for v in toml::from_str::<File>(&text).unwrap().vector {
            let slots = xway_isa::assemble(&v.asm).unwrap_or_else(|e| panic!("{}: {e}", v.name));
            let program = runner_hex(&xway_isa::slots_to_bytes(&slots)) + "\n";
            for engine in ENGINES {
                // The runner passes the memory first and an empty argument for its options.
                let args = ["conformance", &v.memory, "", "--engine", engine];
                let result = xway_with(&args, program.as_bytes());
                let name = format!("{} ({engine})", v.name);
                match (&v.r0, &v.fault) {
                    // What the verifier cannot prove is refused in words.
                    (Some(_), None) if engine == "jit" && v.refused.is_some() => {
                        assert_eq!((result.code, result.out.as_str()), (1, ""), "{name}");
                        assert!(result.err.contains(v.refused.as_deref().unwrap()), "{name}: {}", result.err);
                    }
                    (Some(r0), None) => {
                        assert_eq!(result.out, format!("{:x}\n", number(r0)), "{name}: {}", result.err);
                        assert_eq!(result.code, 0, "{name}");
                    }
                    (None, Some(words)) => {
                        assert_eq!((result.code, result.out.as_str()), (1, ""), "{name}");
                        let said = engine == "jit" || result.err.contains(words.as_str());
                        assert!(said && !result.err.is_empty(), "{name}: {}", result.err);
                    }
                    _ => panic!("{name}: give r0 or fault"),
                }
                ran += 1;
            }
        }
    }
    assert!(ran > 100, "{ran}");
}

/// The table that the kernel is asked about, too (`xway-testkit`, `isa_kernel`).
#[test]
fn every_instruction() {
    let path = xway_testkit::clang::repository().join("crates/testkit/tests/isa_kernel/instructions.txt");
    let table = std::fs::read_to_string(path).unwrap();
    let mut ran = 0;
    for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (text, r0) = line.split_once(" -> 0x").unwrap();
        let slots = xway_isa::assemble(&text.replace("; ", "\n")).unwrap_or_else(|e| panic!("{line}: {e}"));
        let program = runner_hex(&xway_isa::slots_to_bytes(&slots));
        for engine in ENGINES {
            let result = xway_with(&["conformance", "--engine", engine], program.as_bytes());
            assert_eq!((result.code, result.out), (0, format!("{r0}\n")), "{line} ({engine}): {}", result.err);
            ran += 1;
        }
    }
    assert!(ran > 600, "{ran}");
}

const RETURN_42: &str = "b7 00 00 00 2a 00 00 00 95 00 00 00 00 00 00 00";
const FIRST_BYTE: &str = "71 10 00 00 00 00 00 00 95 00 00 00 00 00 00 00";

#[test]
fn the_ways_to_pass_program_and_memory() {
    assert_eq!(xway_with(&["conformance"], RETURN_42.as_bytes()).exits(0).out, "2a\n");
    assert_eq!(xway(&["conformance", "--program", RETURN_42]).exits(0).out, "2a\n");
    assert_eq!(xway(&["conformance", "--program", FIRST_BYTE, "ab cd"]).exits(0).out, "ab\n");
    assert_eq!(xway(&["conformance", "ab cd", "--debug", "--program", FIRST_BYTE]).exits(0).out, "ab\n");
    assert_eq!(xway_with(&["conformance", "--engine", "interp", "AB", ""], FIRST_BYTE.as_bytes()).exits(0).out, "ab\n");
    assert_eq!(xway_with(&["conformance", "--engine", "jit", "ab", ""], FIRST_BYTE.as_bytes()).exits(0).out, "ab\n");
    let doc = xway(&["conformance", "-j", "--engine", "jit", "--program", RETURN_42]).exits(0).json();
    assert_eq!((doc["r0"].as_str(), doc["engine"].as_str(), &doc["insns"]), (Some("2a"), Some("jit"), &Value::Null));
    // Unproved code becomes no machine code: this byte may not be there.
    xway(&["conformance", "--engine", "jit", "--program", FIRST_BYTE]).exits(1).says("--engine interp");
    let doc = xway(&["conformance", "-j", "--program", RETURN_42]).exits(0).json();
    assert_eq!((doc["r0"].as_str(), doc["insns"].as_u64()), (Some("2a"), Some(2)));
}

#[test]
fn what_is_no_program_is_refused() {
    xway_with(&["conformance"], b"").exits(3).says("groups of 8");
    xway_with(&["conformance"], b"b7 00 00").exits(3).says("groups of 8");
    xway_with(&["conformance"], b"hello").exits(3).says("hexadecimal");
    xway_with(&["conformance", "0"], RETURN_42.as_bytes()).exits(2).says("MEMORY");
    xway_with(&["conformance", "00", "extra"], RETURN_42.as_bytes()).exits(2).says("extra");
    // No such instruction; a jump out of the program.
    xway_with(&["conformance"], b"ff 00 00 00 00 00 00 00").exits(1);
    xway_with(&["conformance"], b"05 00 ff 7f 00 00 00 00 95 00 00 00 00 00 00 00").exits(1);
}

#[test]
fn an_object_can_be_given_in_hexadecimal() {
    if !common::clang("conformance::an_object_can_be_given_in_hexadecimal") {
        return;
    }
    let text = "__attribute__((section(\"xdp\"))) int p(unsigned char *m) { return m[1] + 1; }\n";
    let elf = xway_testkit::clang::compile_text("conformance", text, &[]).unwrap();
    let hex = runner_hex(&elf);
    for engine in ENGINES {
        let args = ["conformance", "01 02", "--elf", "--engine", engine];
        assert_eq!(xway_with(&args, hex.as_bytes()).exits(0).out, "3\n");
    }
}
