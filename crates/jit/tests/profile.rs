//! What profilers are told. A process of its own, because it is one setting for all that is compiled in it.

use std::path::Path;
use std::sync::Arc;

use xway_jit::profile::{Profilers, tell, trouble};
use xway_jit::{Compiled, Link, Options, chain, compile};
use xway_object::Program as Image;
use xway_verifier::{Config, MapsView, Verified, verify};
use xway_vm::Program;

fn ready(name: &str, text: &str) -> (Arc<Program>, Verified) {
    let insns = xway_isa::assemble(text).unwrap();
    let image = Image { name: name.into(), section: "xdp".into(), insns, ..Image::default() };
    let view = MapsView { maps: &[], btf: None, kernel: None, license: Some("GPL") };
    (Program::link(&image, &[]).unwrap(), verify(&image, &view, &Config::default()).unwrap())
}

/// The functions in a dump, with their addresses and numbers. Panics where its records do not follow one another to its end.
fn functions(path: &Path) -> Vec<(String, u64, u64)> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((word(0), word(4), word(8), word(20)), (0x4A69_5444, 1, 40, std::process::id()));
    let (mut at, mut found) = (40, vec![]);
    while at < bytes.len() {
        assert_eq!(word(at), 0, "only code, because nothing here has source lines");
        let name = bytes[at + 56..].split(|b| *b == 0).next().unwrap();
        found.push((String::from_utf8(name.to_vec()).unwrap(), long(at + 24), long(at + 48)));
        at += word(at + 4) as usize;
    }
    assert_eq!(at, bytes.len());
    found
}

fn addresses(code: &Compiled) -> Vec<u64> {
    code.functions().iter().map(|f| code.address() + f.offset as u64).collect()
}

/// One test, because the files are the process's: before it is asked nothing is written, from then on everything is.
#[test]
fn all_that_is_compiled_is_told_from_then_on() {
    let options = Options::default();
    let (first, first_proof) = ready("first", "r0 = 2\nexit");
    let (second, second_proof) = ready("second", "r0 = 1\nexit");
    let before = compile(&first, &first_proof, &options).unwrap();

    let dir = std::env::temp_dir().join(format!("xway-profile-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // What another process of this number left is not kept.
    let dump = dir.join(format!("jit-{}.dump", std::process::id()));
    std::fs::write(&dump, [7; 4096]).unwrap();
    let wanted = Profilers { perf_map: true, jitdump: Some(dir.clone()) };
    let files = tell(&wanted).unwrap();
    assert_eq!(files[1], dump);
    assert_eq!(functions(&dump), []);

    let one = compile(&first, &first_proof, &options).unwrap();
    assert_eq!(tell(&wanted).unwrap(), files, "asked again, they go on");
    let two = compile(&second, &second_proof, &Options { single: false, ..options.clone() }).unwrap();
    let links =
        [(&first, &first_proof), (&second, &second_proof)].map(|(program, proof)| Link { program, proof, chain_on: 4 });
    let both = chain(&links, &options).unwrap();
    assert_eq!(trouble(), None);

    let all: Vec<u64> = [&one, &two, &both].into_iter().flat_map(|code| addresses(code)).collect();
    let told = functions(&dump);
    assert_eq!(told.iter().map(|f| f.1).collect::<Vec<_>>(), all);
    assert!(told.iter().zip(0..).all(|(f, n)| f.2 == n), "each has its number: {told:?}");
    let names: Vec<&str> = told.iter().map(|f| f.0.as_str()).collect();
    // By name and tag, as `prog show` has it.
    let hex = |program: &Program| program.tag().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (a, b) = (format!("first_{}", hex(&first)), format!("second_{}", hex(&second)));
    assert_ne!(hex(&first), hex(&second));
    assert_eq!(names[..2], [format!("xway:{a}:first.burst"), format!("xway:{a}:first.single")]);
    assert!(names.contains(&format!("xway:{b}:second.burst").as_str()), "{names:?}");
    assert!(names.last().unwrap().starts_with(&format!("xway:{a}+{b}:")), "{names:?}");

    let map = std::fs::read_to_string(&files[0]).unwrap();
    let lines: Vec<(u64, &str)> = map
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            (address, words.nth(1).unwrap())
        })
        .collect();
    assert_eq!(lines, told.iter().map(|f| (f.1, f.0.as_str())).collect::<Vec<_>>());
    assert!(!map.contains(&format!("{:x} ", before.address())), "made before it was asked");

    // perf notes the dump because it is mapped executable.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.lines().any(|l| l.contains(" r-xp ") && l.ends_with(dump.to_str().unwrap())), "{maps}");

    let elsewhere = Profilers { jitdump: Some(std::env::temp_dir()), ..Profilers::default() };
    assert!(tell(&elsewhere).unwrap_err().to_string().contains("is being written already"));
    std::fs::remove_file(&files[0]).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
