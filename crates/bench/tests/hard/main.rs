//! Inputs that make an analysis work: every one gets its answer within the limits on work and memory, and the memory that is
//! counted is the memory that is taken. One test, because the allocator counts for the whole process.

mod counting;

use counting::Counting;
use xway_bench::hard;
use xway_verifier::{Config, Kind, MapsView, verify};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

#[test]
fn hard_inputs() {
    every_input_stays_within_work_and_memory_and_memory_is_counted();
    limits_refuse_by_name();
}

/// The default is eight million; a fifth of it is enough to reach every limit, and soon done.
const BUDGET: u64 = 1_600_000;
/// [`xway_verifier::Stats::work`] for each instruction of the budget, as `Config::budget` says.
const WORK: u64 = BUDGET * 14 + 200_000;

fn every_input_stays_within_work_and_memory_and_memory_is_counted() {
    let mut worst = 0;
    for input in hard::inputs() {
        let program = &input.object.programs[0];
        let config = Config { budget: BUDGET, explain: 0, ..Config::default() };
        ALLOCATOR.begin();
        let answer = verify(program, &MapsView::from(&input.object), &config);
        let real = ALLOCATOR.peak() as u64;
        let (stats, refusal) = match answer {
            Ok(proof) => (*proof.stats(), None),
            Err(refusal) => (refusal.stats, Some(refusal.errors[0].kind)),
        };
        println!(
            "{:<30} {:>9} visited {:>10} work, {:>4} MiB counted, {:>4} taken, {refusal:?}",
            input.name,
            stats.visited,
            stats.work,
            stats.peak_bytes >> 20,
            real >> 20
        );
        // What is done between two looks at the limits may come on top.
        assert!(stats.work <= WORK + WORK / 20, "{}: {stats:?}", input.name);
        // Counted is taken, up to what lists keep in reserve and what an instruction is estimated at.
        assert!(real <= stats.peak_bytes + stats.peak_bytes / 8 + (1 << 20), "{}: {real} {stats:?}", input.name);
        assert!(stats.peak_bytes <= 2 * real + (1 << 20), "{}: {real} {stats:?}", input.name);
        worst = worst.max(real);
    }
    assert!(worst < 1 << 30, "{worst}");
}

/// The limits are named when they are reached.
fn limits_refuse_by_name() {
    let inputs = hard::inputs();
    let refusal = |name: &str, config: &Config| {
        let input = inputs.iter().find(|i| i.name == name).expect("an input of this name");
        let refusal = verify(&input.object.programs[0], &MapsView::from(&input.object), config).expect_err(name);
        assert_eq!(refusal.errors[0].kind, Kind::Budget, "{refusal}");
        assert!(refusal.errors[0].hint.is_some(), "{refusal}");
        refusal.to_string()
    };
    let config = Config { budget: 400_000, explain: 0, ..Config::default() };
    assert!(refusal("straight line", &config).contains("instructions, did as much work as"));
    assert!(refusal("many open branches", &config).contains("instructions, did as much work as"));
    // Small budgets count instructions alone.
    let few = Config { budget: 10_000, ..config };
    assert!(refusal("straight line", &few).contains("visited 10000 instructions and is not done"));
    assert!(refusal("open references", &config).contains("256 references"));
    let little = Config { memory: 2 << 20, ..config };
    assert!(refusal("many open branches", &little).contains("2 MiB of memory"));
}
