//! Strict alignment: every access of every size at every small offset, asked of both verifiers.

use xway_kernel::{KernelMap, KernelProg, ProgSpec};
use xway_object::Program;
use xway_testkit::Needs;
use xway_verifier::{Config, MapsView, verify};

use crate::{maps, shorthand};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// `BPF_F_STRICT_ALIGNMENT`.
const STRICT: u32 = 1;

fn programs() -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (memory, begin, base) in [
        ("packet", format!("{}\nr7 = r2", shorthand("@packet 64")), "r7"),
        // An offset of which only the low bits are known.
        ("packet at a multiple of four", format!("{}\n{VARIABLE}", shorthand("@packet")), "r7"),
        ("map value", format!("{}\nif r0 == 0 goto out\nr7 = r0", shorthand("@value 0")), "r7"),
    ] {
        for (bytes, name) in [(1, "u8"), (2, "u16"), (4, "u32"), (8, "u64")] {
            for off in 0..=8 {
                for access in [format!("r1 = *({name} *)({base} +{off})"), format!("*({name} *)({base} +{off}) = 1")] {
                    let text = format!("{begin}\n{access}\n{}", shorthand("@out"));
                    out.push((format!("{bytes} bytes of the {memory} at {off}: {access}"), text));
                }
            }
        }
    }
    out
}

const VARIABLE: &str = "r5 = *(u32 *)(r6 +12)\nr5 &= 60\nr7 = r2\nr7 += r5\nr4 = r7\nr4 += 16\nif r4 > r3 goto out";

#[test]
fn strict_alignment_is_linuxs() {
    let asked = Needs::of("testkit::verifier_rules::strict_alignment_is_linuxs").root().kernel(6, 18).met();
    let defs = maps();
    let made: Vec<KernelMap> =
        if asked { defs.iter().map(|d| KernelMap::create(&d.name, &d.spec).unwrap()).collect() } else { vec![] };
    let fds: Vec<RawFd> = made.iter().map(|m| m.as_fd().as_raw_fd()).collect();
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for (name, text) in programs() {
        let insns =
            xway_isa::assemble_with(&text, &xway_object::HelperNames).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        let program = Program { insns, ..Program::default() };
        let config = Config { strict_alignment: true, ..Config::default() };
        let ours = verify(&program, &view, &config);
        assert!(verify(&program, &view, &Config::default()).is_ok(), "{name}");
        refused += u32::from(ours.is_err());
        if asked {
            let spec = ProgSpec { fd_array: &fds, flags: STRICT, ..ProgSpec::xdp("strict", &program.insns) };
            let theirs = KernelProg::load(&spec);
            if theirs.is_ok() != ours.is_ok() {
                wrong.push(format!("{name}: ours {}, Linux {}", ours.is_ok(), theirs.is_ok()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 50, "{refused} refused");
}
