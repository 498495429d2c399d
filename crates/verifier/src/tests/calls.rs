//! Functions, callbacks, references, locks.

use xway_abi::{MapSpec, MapType};
use xway_object::MapDef;

use crate::Kind;
use crate::testing::check;

fn ring() -> Vec<MapDef> {
    vec![MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096))]
}

#[track_caller]
fn refused(text: &str, maps: &[MapDef], kind: Kind) {
    match check(text, maps) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(r) => assert_eq!(r.errors[0].kind, kind, "{}\n{text}", r.errors[0].message),
    }
}

#[track_caller]
fn accepted(text: &str, maps: &[MapDef]) -> crate::Verified {
    check(text, maps).unwrap_or_else(|r| panic!("{:#?}\n{text}", r.errors))
}

#[test]
fn functions_get_arguments_and_return_results() {
    accepted("r2 = 5\ncall f\nexit\nf: r0 = *(u32 *)(r1 +12)\nr0 += r2\nexit", &[]);
    refused("call f\nr0 = r1\nexit\nf: r0 = 0\nexit", &[], Kind::Uninitialised);
    refused("call f\nexit\nf: r0 = r6\nexit", &[], Kind::Uninitialised);
    accepted("r6 = r1\ncall f\nr0 = *(u32 *)(r6 +12)\nexit\nf: r6 = 0\nr0 = 0\nexit", &[]);
    refused("call f\nr0 = *(u8 *)(r0 +0)\nexit\nf: r0 = r10\nexit", &[], Kind::ReturnValue);
}

#[test]
fn functions_may_use_the_callers_stack() {
    accepted("r1 = r10\nr1 += -8\ncall f\nr0 = *(u64 *)(r10 -8)\nexit\nf: *(u64 *)(r1 +0) = 2\nr0 = 0\nexit", &[]);
    refused("r1 = r10\nr1 += -8\ncall f\nexit\nf: *(u64 *)(r1 +8) = 2\nr0 = 0\nexit", &[], Kind::StackBounds);
    refused("r1 = r10\nr1 += -8\ncall f\nexit\nf: *(u64 *)(r1 +0) = r10\nr0 = 0\nexit", &[], Kind::Argument);
}

#[test]
fn chains_share_512_bytes_and_eight_frames() {
    let chain =
        |a: u32, b: u32| format!("*(u64 *)(r10 -{a}) = 1\ncall f\nexit\nf: *(u64 *)(r10 -{b}) = 1\nr0 = 0\nexit");
    let v = accepted(&chain(256, 256), &[]);
    assert_eq!(v.facts().stack_chain, 512);
    refused(&chain(264, 256), &[], Kind::StackDepth);
    refused("call f\nexit\nf: call g\nexit\ng: call f\nexit", &[], Kind::StackDepth);
}

#[test]
fn records_must_be_released_once_on_every_path() {
    let reserve = "r1 = map[idx:0]\nr2 = 16\nr3 = 0\ncall bpf_ringbuf_reserve\n";
    let submit = "r1 = r0\nr2 = 0\ncall bpf_ringbuf_submit\n";
    refused(&format!("{reserve}r0 = 0\nexit"), &ring(), Kind::Leak);
    accepted(&format!("{reserve}if r0 == 0 goto out\n*(u64 *)(r0 +8) = 1\n{submit}out: r0 = 0\nexit"), &ring());
    refused(&format!("{reserve}{submit}r0 = 0\nexit"), &ring(), Kind::Null);
    refused(
        &format!("{reserve}if r0 == 0 goto out\n*(u64 *)(r0 +16) = 1\n{submit}out: r0 = 0\nexit"),
        &ring(),
        Kind::MemoryBounds,
    );
    refused(
        &format!("{reserve}if r0 == 0 goto out\nr6 = r0\n{submit}*(u64 *)(r6 +0) = 1\nout: r0 = 0\nexit"),
        &ring(),
        Kind::NotAPointer,
    );
    refused(
        &format!(
            "{reserve}if r0 == 0 goto out\nr6 = r0\n{submit}r1 = r6\nr2 = 0\ncall bpf_ringbuf_submit\nout: r0 = 0\nexit"
        ),
        &ring(),
        Kind::Argument,
    );
    refused(
        &format!("{reserve}if r0 == 0 goto out\nr1 = r0\nr1 += 8\nr2 = 0\ncall bpf_ringbuf_submit\nout: r0 = 0\nexit"),
        &ring(),
        Kind::Argument,
    );
}

#[test]
fn callbacks_run_any_number_of_times() {
    let text = |body: &str| {
        format!(
            "*(u64 *)(r10 -8) = 0\nr1 = 100\nr2 = subprog[f]\nr3 = r10\nr3 += -8\nr4 = 0\ncall bpf_loop\n\
             r1 = *(u64 *)(r10 -8)\nr0 = 0\nexit\nf: {body}\nexit"
        )
    };
    accepted(&text("r3 = *(u64 *)(r2 +0)\nr3 += 1\n*(u64 *)(r2 +0) = r3\nr0 = 0"), &[]);
    refused(&text("r0 = 2"), &[], Kind::ReturnValue);
    refused(&text("r0 = *(u64 *)(r2 +8)\nr0 = 0"), &[], Kind::StackBounds);
    refused(&text("r0 = r3\nr0 = 0"), &[], Kind::Uninitialised);
}

#[test]
fn what_a_callback_counts_is_not_known_behind_it() {
    // The stack cell is 0, 8, 16 ...: it must not be taken for the index of a value of eight bytes.
    let text = "*(u64 *)(r10 -8) = 0\nr1 = 100\nr2 = subprog[f]\nr3 = r10\nr3 += -8\nr4 = 0\ncall bpf_loop\n\
                r1 = *(u64 *)(r10 -8)\nr2 = r10\nr2 += -16\nr2 += r1\nr0 = *(u8 *)(r2 +0)\nexit\n\
                f: r3 = *(u64 *)(r2 +0)\nr3 += 8\n*(u64 *)(r2 +0) = r3\nr0 = 0\nexit";
    assert!(check(text, &[]).is_err());
}

#[test]
fn helpers_check_their_arguments() {
    refused("r1 = 5\ncall bpf_xdp_adjust_head\nexit", &[], Kind::Argument);
    refused("r0 = 0\ncall 4\nexit", &[], Kind::BadCall);
    refused("call 9999\nexit", &[], Kind::BadCall);
    refused("r1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\nr0 = 0\nexit", &ring(), Kind::MapType);
    // In code that no path reaches, too.
    refused("r0 = 0\nif r0 == 0 goto +2\nr1 = map[idx:3]\nexit", &ring(), Kind::BadReference);
    refused("r1 = map[idx:3]\nr0 = 0\nexit", &ring(), Kind::BadReference);
}

#[test]
fn a_pointer_that_ends_and_is_kept_tells_where_memory_lies() {
    let maps = [MapDef::new("data", MapSpec::new(MapType::Array, 4, 64, 1))];
    let told = |text: &str| accepted(text, &maps).facts().addresses;
    let move_packet = "r1 = r6\nr2 = 0\ncall bpf_xdp_adjust_head\n";
    let spilled = |end: &str| format!("r6 = r1\nr7 = *(u32 *)(r1 +0)\n*(u64 *)(r10 -8) = r7\n{move_packet}{end}\nexit");
    assert!(told(&spilled("r0 = *(u64 *)(r10 -8)")));
    // In a function that the pointer's holder calls.
    let held = |end: &str| format!("r6 = *(u32 *)(r1 +0)\ncall f\n{end}\nexit\nf: r6 = r1\n{move_packet}r0 = 0\nexit");
    assert!(told(&held("r0 = r6")) && !told(&held("r0 = 0")));
    // A slice of a dynptr that is overwritten.
    let slice = |end: &str| {
        format!(
            "r1 = map[idx:0][0]+0\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -16\ncall bpf_dynptr_from_mem\nr1 = r10\nr1 += -16\nr2 = 0\n\
             r3 = 8\ncall bpf_dynptr_data\nif r0 == 0 goto out\nr6 = r0\n*(u64 *)(r10 -8) = 0\n{end}\nexit\nout: r0 = 0\nexit"
        )
    };
    assert!(told(&slice("r0 = r6")) && !told(&slice("r0 = 0")));
}
