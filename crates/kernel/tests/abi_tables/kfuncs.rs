//! The kfunc table.

use xway_abi::{KfuncClass, kfunc, kfuncs};
use xway_testkit::Needs;

use crate::load::{KernelNames, load, load_with, reason};
use crate::maps::Maps;

fn met(name: &str) -> bool {
    Needs::of(name).root().kernel(6, 18).file("/sys/kernel/btf/vmlinux").met()
}

#[test]
fn every_kfunc_of_the_kernel_has_its_row_and_class() {
    if !met("every_kfunc_of_the_kernel_has_its_row_and_class") {
        return;
    }
    let names = KernelNames::new();
    let mut wrong = Vec::new();
    for name in names.kfuncs().into_iter().filter(|n| n.starts_with("bpf_")) {
        let log = load(&format!("call kfunc {name}\nr0 = 2\nexit"), "GPL").err().unwrap_or_default();
        let foreign = log.contains("is not allowed");
        let sleepable = log.contains("program must be sleepable");
        let bound = log.contains("require device-bound program");
        let Some(row) = kfunc(name) else {
            wrong.push(format!("{name}: not in the table"));
            continue;
        };
        let agrees = foreign == (row.class == KfuncClass::Foreign)
            && sleepable == (row.class == KfuncClass::Sleepable)
            && bound == (row.class == KfuncClass::Metadata);
        if !agrees {
            wrong.push(format!("{name}: {:?}, but Linux: {}", row.class, reason(&log)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kfuncs_need_the_gpl() {
    if !met("kfuncs_need_the_gpl") {
        return;
    }
    for k in kfuncs().iter().filter(|k| k.xdp() && k.args.is_some() && k.class != KfuncClass::Exception) {
        let log = load(&format!("call kfunc {}\nr0 = 2\nexit", k.name), "MIT").expect_err(k.name);
        assert!(log.contains("GPL"), "{}: {}", k.name, reason(&log));
    }
}

/// Programs as their authors write them, and where Linux finds fault with a changed one.
#[test]
fn prototypes_are_what_linux_takes() {
    if !met("prototypes_are_what_linux_takes") {
        return;
    }
    let maps = Maps::create().expect("maps");
    let end = "r0 = 2\nexit\n";
    let dynptr = "r6 = r1\nr2 = 0\nr3 = r10\nr3 += -16\ncall kfunc bpf_dynptr_from_xdp\n";
    let slice = |size: &str| {
        format!(
            "{dynptr}r1 = r10\nr1 += -16\nr2 = 0\nr3 = r10\nr3 += -32\nr4 = {size}\n\
             call kfunc bpf_dynptr_slice\nif r0 == 0 goto out\nr7 = r0\n"
        )
    };
    let numbers = "r1 = r10\nr1 += -8\nr2 = 0\nr3 = 9\ncall kfunc bpf_iter_num_new\n\
                   again:\nr1 = r10\nr1 += -8\ncall kfunc bpf_iter_num_next\nif r0 == 0 goto done\n";
    let destroy = "done:\nr1 = r10\nr1 += -8\ncall kfunc bpf_iter_num_destroy\n";
    let packet = "r6 = r1\nr7 = *(u32 *)(r6 +0)\nr2 = *(u32 *)(r6 +4)\nr1 = r7\nr1 += 8\nif r1 > r2 goto out\n";
    let rows = [
        (format!("{dynptr}{end}"), None),
        (format!("{}r1 = *(u64 *)(r7 +8)\nout:\n{end}", slice("16")), None),
        (format!("{}r1 = *(u64 *)(r7 +9)\nout:\n{end}", slice("16")), Some("invalid access to memory")),
        (format!("{}*(u64 *)(r7 +0) = 1\nout:\n{end}", slice("16")), Some("cannot write into rdonly_mem")),
        (format!("{}out:\n{end}", slice("0")), None),
        (
            format!("{}r1 = r6\nr2 = 4\ncall #44\nr1 = *(u64 *)(r7 +0)\nout:\n{end}", slice("16")),
            Some("R7 invalid mem access 'scalar'"),
        ),
        (format!("{numbers}r1 = *(s32 *)(r0 +0)\ngoto again\n{destroy}{end}"), None),
        (format!("{numbers}*(u32 *)(r0 +0) = 1\ngoto again\n{destroy}{end}"), Some("cannot write into rdonly_mem")),
        (format!("{numbers}r1 = *(u64 *)(r0 +0)\ngoto again\n{destroy}{end}"), Some("invalid access to memory")),
        (format!("{numbers}goto again\ndone:\n{end}"), Some("Unreleased reference")),
        (format!("{packet}r1 = r6\nr2 = 8\ncall kfunc bpf_xdp_pull_data\nout:\n{end}"), None),
        (
            format!("{packet}r1 = r6\nr2 = 8\ncall kfunc bpf_xdp_pull_data\nr1 = *(u8 *)(r7 +0)\nout:\n{end}"),
            Some("R7 invalid mem access 'scalar'"),
        ),
        ("call kfunc bpf_rcu_read_lock\ncall kfunc bpf_rcu_read_unlock\nr0 = 2\nexit".to_owned(), None),
        ("call kfunc bpf_rcu_read_lock\nr0 = 2\nexit".to_owned(), Some("inside bpf_rcu_read_lock-ed region")),
        ("call kfunc bpf_rcu_read_lock\ncall kfunc bpf_rcu_read_lock\nexit".to_owned(), Some("nested rcu read lock")),
        (
            "call kfunc bpf_preempt_disable\ncall kfunc bpf_preempt_disable\ncall kfunc bpf_preempt_enable\n\
             call kfunc bpf_preempt_enable\nr0 = 2\nexit"
                .to_owned(),
            None,
        ),
        (
            "r1 = r10\nr1 += -8\ncall kfunc bpf_local_irq_save\nr1 = r10\nr1 += -8\ncall kfunc bpf_local_irq_restore\n\
          r0 = 2\nexit"
                .to_owned(),
            None,
        ),
        ("call kfunc bpf_cast_to_kern_ctx\nr1 = *(u64 *)(r0 +0)\nr0 = 2\nexit".to_owned(), None),
        (format!("r1 = map[fd:{}]\ncall kfunc bpf_map_sum_elem_count\n{end}", maps.for_helper(1)), None),
        ("r1 = 1\ncall kfunc bpf_throw\nr0 = 2\nexit".to_owned(), None),
        ("call kfunc bpf_strlen\nr0 = 2\nexit".to_owned(), None),
    ];
    for (text, refusal) in rows {
        let answer = load_with(&text, "GPL", Some(&maps));
        match refusal {
            None => assert!(answer.is_ok(), "{}\n{text}", reason(&answer.unwrap_err())),
            Some(why) => {
                let log = answer.expect_err(&text);
                assert!(log.contains(why), "{}\n{text}", reason(&log));
            }
        }
    }
}
