//! What a signal interrupts is asked again. Alone in its process, which it stops.

use std::process::Command;

use xway_kernel::{KernelProg, ProgSpec, TestInput};
use xway_testkit::Needs;

/// Linux ends a test run of many repetitions when the process is stopped and goes on, though it handles no signal.
#[test]
fn a_test_run_survives_that_its_process_is_stopped() {
    if !Needs::of("kernel::a_test_run_survives_that_its_process_is_stopped").root().command("sh").met() {
        return;
    }
    let insns = xway_isa::assemble("r0 = 2\nexit").unwrap();
    let program = KernelProg::load(&ProgSpec::xdp("interrupted", &insns)).unwrap();
    let input = TestInput { repeat: 100_000, ..TestInput::packet(&[0; 64]) };
    let jolts = "n=0; while [ $n -lt 50 ]; do kill -STOP $PPID; kill -CONT $PPID; n=$((n + 1)); done";
    let mut child = Command::new("sh").args(["-c", jolts]).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        assert_eq!(program.test_run(&input).unwrap().ret, 2);
    }
}
