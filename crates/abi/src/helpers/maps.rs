//! Maps and tail calls.

use super::row::*;

pub(super) const ROWS: &[HelperProto] = &[
    xdp(1, "bpf_map_lookup_elem", &[MAP, KEY], Ret::MapValueOrNull).reads_packet().with(Effect::Finds),
    xdp(2, "bpf_map_update_elem", &[MAP, KEY, VALUE_IN, ANY], Ret::Integer).reads_packet().with(Effect::ChangesMap),
    xdp(3, "bpf_map_delete_elem", &[MAP, KEY], Ret::Integer).reads_packet().with(Effect::ChangesMap),
    xdp(12, "bpf_tail_call", &[CTX, MAP, ANY], Ret::Void).with(Effect::TailCall),
    xdp(37, "bpf_current_task_under_cgroup", &[MAP, ANY], Ret::Integer),
    xdp(51, "bpf_redirect_map", &[MAP, ANY, ANY], Ret::Integer).with(Effect::RedirectsOr(2)),
    xdp(87, "bpf_map_push_elem", &[MAP, VALUE_IN, ANY], Ret::Integer).reads_packet().with(Effect::ChangesMap),
    xdp(88, "bpf_map_pop_elem", &[MAP, VALUE_OUT], Ret::Integer).with(Effect::ChangesMap),
    xdp(89, "bpf_map_peek_elem", &[MAP, VALUE_OUT], Ret::Integer).with(Effect::Peeks),
    xdp(156, "bpf_task_storage_get", &[MAP, TASK_OR_NULL, VALUE_IN_OR_NULL, ANY], Ret::MapValueOrNull),
    xdp(157, "bpf_task_storage_delete", &[MAP, TASK_OR_NULL], Ret::Integer),
    xdp(164, "bpf_for_each_map_elem", &[MAP, func(Callback::MapElem), CALLBACK_CTX, ANY], Ret::Integer),
    xdp(194, "bpf_kptr_xchg", &[KPTR_DEST, KPTR_IN], Ret::KptrOrNull),
    xdp(195, "bpf_map_lookup_percpu_elem", &[MAP, KEY, ANY], Ret::MapValueOrNull).reads_packet(),
    xdp(210, "bpf_cgrp_storage_get", &[MAP, CGROUP_OR_NULL, VALUE_IN_OR_NULL, ANY], Ret::MapValueOrNull),
    xdp(211, "bpf_cgrp_storage_delete", &[MAP, CGROUP_OR_NULL], Ret::Integer),
];
