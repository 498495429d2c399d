//! A short, seeded run of the differential fuzzer: what we accept must not fault, and must do what the kernel does.

// `main` and its options are used by the example only.
#[allow(dead_code)]
#[path = "../examples/fuzz-kernel/main.rs"]
mod fuzz_kernel;

use std::time::Duration;

use xway_testkit::Needs;

#[test]
fn accepted_programs_agree_with_the_kernel() {
    let needs = Needs::of("testkit::verifier_fuzz::accepted_programs_agree_with_the_kernel").root().kernel(6, 18);
    if !needs.met() {
        return;
    }
    let options = fuzz_kernel::Options {
        seed: 42,
        time: Duration::from_secs(20),
        count: 3000,
        show: 0,
        ..fuzz_kernel::Options::default()
    };
    let tally = fuzz_kernel::fuzz(&options);
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "{tally}");
    assert!(tally.both_accept > 100, "{tally}");
}
