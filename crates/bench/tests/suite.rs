//! The built-in suite against the kernel: every case is accepted by both verifiers, and both sides compute the same. The
//! figures that come along are thrown away.

use std::sync::Arc;

use xway_bench::fill::Fill;
use xway_bench::flows::{Pattern, Ring, Space};
use xway_bench::packet::{Renew, template};
use xway_bench::user::UserSide;
use xway_bench::{Case, Options, Shape, Way, measure, suite};
use xway_object::{LoadOptions, Object};
use xway_testkit::Needs;
use xway_verifier::{Config, MapsView, verify};

/// The last CPU: what else runs usually starts on the first.
fn options() -> Options {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    Options {
        kernel: true,
        rounds: 1,
        ways: vec![Way::Compiled, Way::Staged, Way::Plain, Way::Interpreter],
        cpu: cpus - 1,
        counters: false,
        flows: None,
        table: None,
        pattern: None,
    }
}

/// The case with tables that are quickly filled, in the same proportion to the flows.
fn small(mut case: Case) -> Case {
    let factor = case.flows.div_ceil(4000);
    case.frames = case.frames.min(256);
    case.flows /= factor;
    if let Some((_, entries)) = &mut case.table {
        *entries /= factor;
    }
    // Rings as small as their object has them: both sides' are full before anything is timed.
    case.sizes.clear();
    case
}

#[test]
fn both_sides_compute_the_same() {
    let needs = Needs::of("bench::suite::both_sides_compute_the_same").root().kernel(6, 0);
    if !needs.that(suite::missing().is_none(), "clang when it was built").met() {
        return;
    }
    for case in suite::cases().into_iter().chain(suite::helpers::cases()).map(small) {
        let row = measure(&case, None, &options()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let checked = row.checked;
        assert_eq!(checked.differences, [""; 0], "{}", case.name);
        assert_eq!(checked.ours.iter().sum::<u64>(), row.ring as u64, "{}", case.name);
        if case.frames > 64 {
            continue; // The kernel has no such frames.
        }
        assert!(checked.packets >= 256, "{}", case.name);
        let theirs = checked.kernel.expect("the kernel's verdicts");
        assert_eq!(theirs.iter().sum::<u64>(), row.ring as u64, "{}", case.name);
        // Only a table that is too small lets the two sides differ, and only a little.
        let evicts = case.name.starts_with("LRU churn") || case.name == "load balancer, flood";
        assert_eq!(checked.exact, !evicts, "{}", case.name);
        // Nothing of the suite gives up.
        assert_eq!((checked.ours[0], theirs[0]), (0, 0), "{}", case.name);
        // Maps of ports are not compared: what they hold are each side's own objects.
        if !matches!(case.fill, Fill::None | Fill::Ports) {
            assert!(checked.elements > 0, "{}: no map was compared", case.name);
        }
    }
}

/// Hits and misses are what the names say, and not by luck the other way round.
#[test]
fn tables_hit_and_miss() {
    let needs = Needs::of("bench::suite::tables_hit_and_miss");
    if !needs.that(suite::missing().is_none(), "clang when it was built").met() {
        return;
    }
    let options = Options { kernel: false, ..options() };
    let passed = |name: &str| {
        let case = suite::cases().into_iter().find(|c| c.name == name).expect("a case");
        let row = measure(&small(case), None, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        row.checked.ours[2] as f64 / row.ring as f64
    };
    // A listed address never passes, an unlisted one always does.
    assert_eq!(passed("hash hit, 10 k"), 0.0);
    assert_eq!(passed("hash miss, 10 k"), 1.0);
    assert_eq!(passed("5-tuple table, 4 M"), 0.0);
    assert_eq!(passed("LPM, 100 k prefixes"), 0.0);
    // A known connection passes; in a table that is a quarter of what comes, hardly any is known.
    assert!(passed("LRU hit, 1 k flows") > 0.98);
    assert!(passed("LRU churn, 1 k entries") < 0.05);
}

/// Compiled twice a program is the same code, whatever addresses are in it, and with every pass off another one.
#[test]
fn the_same_code_is_told_from_other_code() {
    let needs = Needs::of("bench::suite::the_same_code_is_told_from_other_code");
    if !needs.that(suite::missing().is_none(), "clang when it was built").met() {
        return;
    }
    let ways = [Way::Compiled, Way::Compiled, Way::Plain, Way::Single, Way::Interpreter];
    let (ring, template) = (Arc::new(Ring::new(64, Space::Sources, Pattern::Uniform, 1)), template(64));
    let shape = Shape { ring, template: &template, renew: Renew::Fields, frames: 64, runs: 1 };
    for (name, bytes) in suite::objects().chain(suite::helpers::objects()) {
        let object = Object::parse(bytes, &LoadOptions::default()).expect("the suite loads");
        for program in object.programs.iter().filter_map(|program| program.as_xdp().ok()) {
            let proof = verify(&program, &MapsView::from(&object), &Config::default()).expect("a proof");
            let side = UserSide::new(&object, &program, &proof, &shape, &ways, 1).expect("engines");
            let same = |way: usize| side.engines[way].same_as(&side.engines[0]);
            assert!(same(1), "{name}: {}", program.name);
            // Of a program that does nothing every pass leaves the same.
            assert!(!same(2) || program.insns.len() == 2, "{name}: {}", program.name);
            assert!(!same(3) && !same(4), "{name}: {}", program.name);
        }
    }
}
