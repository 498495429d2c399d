//! Views into the kernel and its tasks: processes, cgroups, kernel memory.

use super::row::*;

pub(super) const ROWS: &[HelperProto] = &[
    xdp(14, "bpf_get_current_pid_tgid", &[], Ret::Integer),
    xdp(15, "bpf_get_current_uid_gid", &[], Ret::Integer),
    xdp(16, "bpf_get_current_comm", &[MEM_OUT, SIZE], Ret::Integer),
    xdp(17, "bpf_get_cgroup_classid", &[], Ret::Integer),
    xdp(35, "bpf_get_current_task", &[], Ret::Integer).gpl(),
    xdp(80, "bpf_get_current_cgroup_id", &[], Ret::Integer),
    xdp(109, "bpf_send_signal", &[ANY], Ret::Integer),
    xdp(112, "bpf_probe_read_user", &[MEM_OUT, SIZE_OR_ZERO, ANY], Ret::Integer).gpl(),
    xdp(113, "bpf_probe_read_kernel", &[MEM_OUT, SIZE_OR_ZERO, ANY], Ret::Integer).gpl(),
    xdp(114, "bpf_probe_read_user_str", &[MEM_OUT, SIZE_OR_ZERO, ANY], Ret::LengthOrError).gpl(),
    xdp(115, "bpf_probe_read_kernel_str", &[MEM_OUT, SIZE_OR_ZERO, ANY], Ret::LengthOrError).gpl(),
    xdp(117, "bpf_send_signal_thread", &[ANY], Ret::Integer),
    xdp(120, "bpf_get_ns_current_pid_tgid", &[ANY, ANY, MEM_OUT, SIZE], Ret::Integer),
    xdp(123, "bpf_get_current_ancestor_cgroup_id", &[ANY], Ret::Integer),
    xdp(141, "bpf_get_task_stack", &[TASK, MEM_OUT, SIZE_OR_ZERO, ANY], Ret::LengthOrError),
    xdp(148, "bpf_copy_from_user", &[MEM_OUT, SIZE_OR_ZERO, ANY], Ret::Integer).sleeps(),
    xdp(149, "bpf_snprintf_btf", &[MEM_BUF, SIZE, MEM_IN, SIZE, ANY], Ret::Integer),
    xdp(153, "bpf_per_cpu_ptr", &[PERCPU, ANY], Ret::PercpuBtfPtr { nullable: true }),
    xdp(154, "bpf_this_cpu_ptr", &[PERCPU], Ret::PercpuBtfPtr { nullable: false }),
    xdp(158, "bpf_get_current_task_btf", &[], Ret::BtfPtr { name: "task_struct", nullable: false, trusted: true })
        .gpl(),
    xdp(175, "bpf_task_pt_regs", &[TASK], Ret::BtfPtr { name: "pt_regs", nullable: false, trusted: false }).gpl(),
    xdp(176, "bpf_get_branch_snapshot", &[MEM_OUT, SIZE_OR_ZERO, ANY], Ret::Integer).gpl(),
    xdp(180, "bpf_find_vma", &[TASK, ANY, func(Callback::Vma), CALLBACK_CTX, ANY], Ret::Integer),
    xdp(191, "bpf_copy_from_user_task", &[MEM_OUT, SIZE_OR_ZERO, ANY, TASK, ANY], Ret::Integer).sleeps().gpl(),
];
