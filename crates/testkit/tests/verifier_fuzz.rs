//! Short runs of the differential fuzzer, with a fixed seed and with one of their own: what we accept must not fault, and must do what the kernel does.
//! Bounded by count, so that a slow machine takes longer and finds the same.

// `main` and its options are used by the example only.
#[allow(dead_code)]
#[path = "../examples/fuzz-kernel/main.rs"]
mod fuzz_kernel;

use std::time::Duration;

use fuzz_kernel::generate;
use fuzz_kernel::tally::Origin;
use fuzz_kernel::world::World;
use xway_testkit::{Needs, Rng, clang};
use xway_verifier::{Config, Kind, MapsView, verify};

#[test]
fn accepted_programs_agree_with_the_kernel() {
    let needs = Needs::of("testkit::verifier_fuzz::accepted_programs_agree_with_the_kernel").root().kernel(6, 18);
    if !needs.met() {
        return;
    }
    let options = fuzz_kernel::Options {
        seed: 42,
        time: Duration::from_secs(600),
        count: 6000,
        show: 0,
        ..fuzz_kernel::Options::default()
    };
    let tally = fuzz_kernel::fuzz(&options);
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "{tally}");
    assert!(tally.both_accept() > 2000, "{tally}");
    // What Linux accepts is accepted, 98 of 100 at least.
    for (origin, c) in &tally.by_origin {
        assert!(c.both_accept * 100 >= (c.both_accept + c.only_we) * 98, "{origin:?}: {tally}");
    }
}

/// Other programs each time. `XWAY_FUZZ_SEED=N` repeats a run.
#[test]
fn programs_of_today_do_what_the_kernel_does() {
    if !Needs::of("testkit::verifier_fuzz::programs_of_today_do_what_the_kernel_does").root().kernel(6, 18).met() {
        return;
    }
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let seed = match std::env::var("XWAY_FUZZ_SEED") {
        Ok(n) => n.parse().expect("XWAY_FUZZ_SEED is a number"),
        Err(_) => now(),
    };
    println!("XWAY_FUZZ_SEED={seed}");
    let options = fuzz_kernel::Options {
        seed,
        time: Duration::from_secs(20),
        count: 3000,
        show: 0,
        ..fuzz_kernel::Options::default()
    };
    let tally = fuzz_kernel::fuzz(&options);
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "XWAY_FUZZ_SEED={seed} repeats this\n{tally}");
}

/// Mutants of the samples: four in ten stay acceptable, and the verdicts agree on 99 of 100.
#[test]
fn mutants_get_the_verdict_that_the_kernel_gives() {
    let needs = Needs::of("testkit::verifier_fuzz::mutants_get_the_verdict_that_the_kernel_gives");
    if !needs.root().kernel(6, 18).clang().met() {
        return;
    }
    let mut sources: Vec<_> = std::fs::read_dir(clang::repository().join("bpf/samples"))
        .expect("the samples are there")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    sources.sort();
    let objects = sources.iter().map(|source| {
        let bytes = clang::compile_file(source, &[]).unwrap_or_else(|e| panic!("{e}"));
        fuzz_kernel::corpus::from_bytes(&source.to_string_lossy(), &bytes).unwrap_or_else(|e| panic!("{e}"))
    });
    let options = fuzz_kernel::Options {
        seed: 7,
        time: Duration::from_secs(600),
        count: 1500,
        show: 0,
        objects: objects.collect(),
        only_mutants: true,
        only_mixes: false,
        read: None,
    };
    let tally = fuzz_kernel::fuzz(&options);
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "{tally}");
    let mutants = &tally.by_origin[&Origin::Mutant];
    assert!(mutants.agreement() >= 99.0, "{tally}");
    assert!(mutants.both_accept * 100 > mutants.programs * 20, "{tally}");
}

/// Going on behind an error changes nothing about the first one, and no instruction is told twice.
#[test]
fn further_errors_leave_the_first_one_alone() {
    let (world, mut rng) = (World::default(), Rng::new(20_262));
    let view = MapsView::from(&*world.object);
    let (mut refused, mut several) = (0u32, 0u32);
    for n in 0..3000 {
        let mut program = generate::grammar(&mut rng, &world);
        (0..1 + n % 3).for_each(|_| generate::mutate(&mut rng, &mut program));
        let all = Config { budget: 20_000, explain: 200, ..Config::default() };
        let first = Config { errors_max: 1, explain: 0, ..all.clone() };
        let (one, many) = (verify(&program, &view, &first), verify(&program, &view, &all));
        assert_eq!(one.is_ok(), many.is_ok(), "{program:?}");
        let (Err(one), Err(many)) = (one, many) else { continue };
        let place = |e: &xway_verifier::Diagnostic| (e.kind, e.insn);
        if one.errors[0].kind != Kind::Budget {
            assert_eq!(place(&many.errors[0]), place(&one.errors[0]), "{program:?}");
        }
        let mut places: Vec<usize> = many.errors.iter().map(|e| e.insn).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), many.errors.len(), "{:?}", many.errors);
        assert!(many.errors.len() <= all.errors_max && many.errors.iter().all(|e| !e.message.is_empty()));
        (refused, several) = (refused + 1, several + u32::from(many.errors.len() > 1));
    }
    println!("{several} of {refused} refused programs have several errors");
    assert!(refused > 1000 && several > 100, "{several} of {refused}");
}
