//! The targets.

mod btf;
mod capture;
mod isa;
mod message;
mod object;
mod program;
mod ring;

/// Something that hostile bytes are thrown at.
pub struct Target {
    /// Name, also that of the file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Takes any bytes. A panic is a finding.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "isa", what: "decoder, encoder, disassembler, assembler", run: isa::run, seeds: isa::seeds },
    Target { name: "object", what: "object reader", run: object::run, seeds: object::seeds },
    Target { name: "btf", what: "type information reader", run: btf::run, seeds: btf::seeds },
    Target { name: "capture", what: "capture reader", run: capture::run, seeds: capture::seeds },
    Target {
        name: "message",
        what: "messages and configuration of the service",
        run: message::run,
        seeds: message::seeds,
    },
    Target {
        name: "program",
        what: "linker, verifier and checked interpreter",
        run: program::run,
        seeds: program::seeds,
    },
    Target { name: "ring", what: "rings whose other side is hostile", run: ring::run, seeds: ring::seeds },
];

/// Object files compiled from this repository's BPF sources; none where no clang is.
fn compiled_objects() -> Vec<Vec<u8>> {
    let root = xway_testkit::clang::repository();
    if xway_testkit::clang::available().is_err() {
        return Vec::new();
    }
    let sources =
        ["bpf/samples/count.bpf.c", "bpf/samples/chain.bpf.c", "bpf/tests/today.bpf.c", "bpf/tests/iproute2.bpf.c"];
    sources.iter().filter_map(|s| xway_testkit::clang::compile_file(&root.join(s), &[]).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_do_not_fall() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            seeds.iter().for_each(|s| (target.run)(s));
        }
    }

    #[test]
    fn the_small_object_is_an_object() {
        let object = xway_object::Object::parse(&object::small(), &Default::default()).expect("readable");
        assert_eq!((object.programs.len(), object.maps.len()), (1, 1), "{:?}", object.rejected);
        assert_eq!(object.programs[0].insns.len(), 9);
        assert!(object.btf.is_some());
    }
}
