//! Where a test runs.
//!
//! The running kernel shows a program the per-CPU values of the CPU that it runs on, and ours those of the CPU number that
//! the test gives. A thread that compares both and moves to another CPU between two runs compares two sets of values.

/// Keeps this thread on CPU 0 for the rest of its life.
///
/// # Panics
/// Where CPU 0 is not among the CPUs that this process may use.
pub fn stay_on_cpu_0() {
    stay_on(0);
}

/// Keeps this thread on the CPU where it runs now: for tests that never look at per-CPU values by CPU number.
pub fn stay_on_this_cpu() {
    stay_on(rustix::thread::sched_getcpu());
}

fn stay_on(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap_or_else(|e| panic!("CPU {cpu} may not be used: {e}"));
}
