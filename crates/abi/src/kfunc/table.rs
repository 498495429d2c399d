//! The rows.

use super::{KfuncClass, KfuncProto, KfuncRet, KfuncRules, Region};
use crate::helpers::row::*;

pub(super) static TABLE: [KfuncProto; 182] = [
    known(
        KfuncClass::Metadata,
        "bpf_xdp_metadata_rx_hash",
        &[CTX, mem(MemAccess::ReadWrite, MemSize::Fixed(4)), mem(MemAccess::ReadWrite, MemSize::Fixed(4))],
        KfuncRet::Integer,
    ),
    known(
        KfuncClass::Metadata,
        "bpf_xdp_metadata_rx_timestamp",
        &[CTX, mem(MemAccess::ReadWrite, MemSize::Fixed(8))],
        KfuncRet::Integer,
    ),
    known(
        KfuncClass::Metadata,
        "bpf_xdp_metadata_rx_vlan_tag",
        &[CTX, mem(MemAccess::ReadWrite, MemSize::Fixed(2)), mem(MemAccess::ReadWrite, MemSize::Fixed(2))],
        KfuncRet::Integer,
    ),
    known(
        KfuncClass::Packet,
        "bpf_dynptr_from_xdp",
        &[CTX, SCALAR, dynptr(DynptrKind::Xdp, FuncAccess::Init)],
        KfuncRet::Integer,
    ),
    known(KfuncClass::Packet, "bpf_xdp_pull_data", &[CTX, SCALAR], KfuncRet::Integer).moves_packet(),
    known(KfuncClass::Dynptr, "bpf_dynptr_adjust", &[DYNPTR, SCALAR, SCALAR], KfuncRet::Integer),
    known(
        KfuncClass::Dynptr,
        "bpf_dynptr_clone",
        &[DYNPTR, dynptr(DynptrKind::Any, FuncAccess::Init)],
        KfuncRet::Integer,
    ),
    known(KfuncClass::Dynptr, "bpf_dynptr_copy", &[DYNPTR, SCALAR, DYNPTR, SCALAR, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Dynptr, "bpf_dynptr_is_null", &[DYNPTR], KfuncRet::Integer),
    known(KfuncClass::Dynptr, "bpf_dynptr_is_rdonly", &[DYNPTR], KfuncRet::Integer),
    known(KfuncClass::Dynptr, "bpf_dynptr_memset", &[DYNPTR, SCALAR, SCALAR, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Dynptr, "bpf_dynptr_size", &[DYNPTR], KfuncRet::Integer),
    known(
        KfuncClass::Dynptr,
        "bpf_dynptr_slice",
        &[DYNPTR, SCALAR, MEM_BUF_OR_NULL, CONST_SIZE],
        KfuncRet::SliceOrNull { writable: false },
    ),
    known(
        KfuncClass::Dynptr,
        "bpf_dynptr_slice_rdwr",
        &[DYNPTR, SCALAR, MEM_BUF_OR_NULL, CONST_SIZE],
        KfuncRet::SliceOrNull { writable: true },
    ),
    known(KfuncClass::Iterator, "bpf_iter_bits_destroy", &[iter(IterKind::Bits, FuncAccess::Release)], KfuncRet::Void),
    known(
        KfuncClass::Iterator,
        "bpf_iter_bits_new",
        &[iter(IterKind::Bits, FuncAccess::Init), IGNORED, SCALAR],
        KfuncRet::Integer,
    ),
    known(
        KfuncClass::Iterator,
        "bpf_iter_bits_next",
        &[iter(IterKind::Bits, FuncAccess::Use)],
        KfuncRet::ElementOrNull(4),
    ),
    known(KfuncClass::Iterator, "bpf_iter_num_destroy", &[iter(IterKind::Num, FuncAccess::Release)], KfuncRet::Void),
    known(
        KfuncClass::Iterator,
        "bpf_iter_num_new",
        &[iter(IterKind::Num, FuncAccess::Init), SCALAR, SCALAR],
        KfuncRet::Integer,
    ),
    known(
        KfuncClass::Iterator,
        "bpf_iter_num_next",
        &[iter(IterKind::Num, FuncAccess::Use)],
        KfuncRet::ElementOrNull(4),
    ),
    known(KfuncClass::Region, "bpf_local_irq_restore", &[irq(FuncAccess::Release)], KfuncRet::Void),
    known(KfuncClass::Region, "bpf_local_irq_save", &[irq(FuncAccess::Init)], KfuncRet::Void),
    known(KfuncClass::Region, "bpf_preempt_disable", &[], KfuncRet::Void).region(Region::PreemptEnter),
    known(KfuncClass::Region, "bpf_preempt_enable", &[], KfuncRet::Void).region(Region::PreemptLeave),
    known(KfuncClass::Region, "bpf_rcu_read_lock", &[], KfuncRet::Void).region(Region::RcuEnter),
    known(KfuncClass::Region, "bpf_rcu_read_unlock", &[], KfuncRet::Void).region(Region::RcuLeave),
    known(KfuncClass::Region, "bpf_res_spin_lock", &[RES_SPIN_LOCK], KfuncRet::Integer),
    known(KfuncClass::Region, "bpf_res_spin_lock_irqsave", &[RES_SPIN_LOCK, irq(FuncAccess::Init)], KfuncRet::Integer),
    known(KfuncClass::Region, "bpf_res_spin_unlock", &[RES_SPIN_LOCK], KfuncRet::Void),
    known(
        KfuncClass::Region,
        "bpf_res_spin_unlock_irqrestore",
        &[RES_SPIN_LOCK, irq(FuncAccess::Release)],
        KfuncRet::Void,
    ),
    named(KfuncClass::Object, "bpf_list_back").rules(NULLABLE),
    named(KfuncClass::Object, "bpf_list_front").rules(NULLABLE),
    named(KfuncClass::Object, "bpf_list_pop_back").rules(ACQUIRED),
    named(KfuncClass::Object, "bpf_list_pop_front").rules(ACQUIRED),
    named(KfuncClass::Object, "bpf_list_push_back_impl"),
    named(KfuncClass::Object, "bpf_list_push_front_impl"),
    named(KfuncClass::Object, "bpf_obj_drop_impl").rules(RELEASED),
    named(KfuncClass::Object, "bpf_obj_new_impl").rules(ACQUIRED),
    named(KfuncClass::Object, "bpf_percpu_obj_drop_impl").rules(RELEASED),
    named(KfuncClass::Object, "bpf_percpu_obj_new_impl").rules(ACQUIRED),
    named(KfuncClass::Object, "bpf_rbtree_add_impl"),
    named(KfuncClass::Object, "bpf_rbtree_first").rules(NULLABLE),
    named(KfuncClass::Object, "bpf_rbtree_left").rules(NULLABLE),
    named(KfuncClass::Object, "bpf_rbtree_remove").rules(ACQUIRED),
    named(KfuncClass::Object, "bpf_rbtree_right").rules(NULLABLE),
    named(KfuncClass::Object, "bpf_rbtree_root").rules(NULLABLE),
    named(KfuncClass::Object, "bpf_refcount_acquire_impl").rules(ACQUIRED_RCU),
    known(
        KfuncClass::Cast,
        "bpf_cast_to_kern_ctx",
        &[CTX],
        KfuncRet::BtfPtr { name: "xdp_buff", nullable: false, trusted: true, acquire: false },
    ),
    known(
        KfuncClass::Cast,
        "bpf_rdonly_cast",
        &[IGNORED, CONST_SCALAR],
        KfuncRet::BtfPtr { name: "", nullable: false, trusted: false, acquire: false },
    ),
    known(KfuncClass::Text, "bpf_strcasecmp", &[IGNORED, IGNORED], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strchr", &[IGNORED, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strchrnul", &[IGNORED, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strcmp", &[IGNORED, IGNORED], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strcspn", &[IGNORED, IGNORED], KfuncRet::Integer),
    named(KfuncClass::Text, "bpf_stream_vprintk_impl"),
    known(KfuncClass::Text, "bpf_strlen", &[IGNORED], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strnchr", &[IGNORED, SCALAR, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strnlen", &[IGNORED, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strnstr", &[IGNORED, IGNORED, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strrchr", &[IGNORED, SCALAR], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strspn", &[IGNORED, IGNORED], KfuncRet::Integer),
    known(KfuncClass::Text, "bpf_strstr", &[IGNORED, IGNORED], KfuncRet::Integer),
    known(KfuncClass::Map, "bpf_map_sum_elem_count", &[MAP], KfuncRet::Integer),
    known(KfuncClass::Exception, "__bpf_trap", &[], KfuncRet::Void),
    known(KfuncClass::Exception, "bpf_throw", &[SCALAR], KfuncRet::Void),
    named(KfuncClass::Deferred, "bpf_task_work_schedule_resume_impl"),
    named(KfuncClass::Deferred, "bpf_task_work_schedule_signal_impl"),
    named(KfuncClass::Deferred, "bpf_wq_init"),
    named(KfuncClass::Deferred, "bpf_wq_set_callback_impl"),
    named(KfuncClass::Deferred, "bpf_wq_start"),
    named(KfuncClass::Kernel, "bpf_cgroup_acquire").rules(ACQUIRED_RCU),
    named(KfuncClass::Kernel, "bpf_cgroup_ancestor").rules(ACQUIRED_RCU),
    named(KfuncClass::Kernel, "bpf_cgroup_from_id").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_cgroup_read_xattr").rules(RCU),
    named(KfuncClass::Kernel, "bpf_cgroup_release").rules(RELEASED),
    named(KfuncClass::Kernel, "bpf_crypto_decrypt").rules(RCU),
    named(KfuncClass::Kernel, "bpf_crypto_encrypt").rules(RCU),
    named(KfuncClass::Kernel, "bpf_ct_change_status").rules(TRUSTED),
    named(KfuncClass::Kernel, "bpf_ct_change_timeout").rules(TRUSTED),
    named(KfuncClass::Kernel, "bpf_ct_insert_entry").rules(KfuncRules { release: true, ..ACQUIRED }),
    named(KfuncClass::Kernel, "bpf_ct_release").rules(RELEASED),
    named(KfuncClass::Kernel, "bpf_ct_set_nat_info").rules(TRUSTED),
    named(KfuncClass::Kernel, "bpf_ct_set_status").rules(TRUSTED),
    named(KfuncClass::Kernel, "bpf_ct_set_timeout").rules(TRUSTED),
    named(KfuncClass::Kernel, "bpf_get_kmem_cache"),
    named(KfuncClass::Kernel, "bpf_iter_css_destroy"),
    named(KfuncClass::Kernel, "bpf_iter_css_new"),
    named(KfuncClass::Kernel, "bpf_iter_css_next"),
    named(KfuncClass::Kernel, "bpf_iter_css_task_destroy"),
    named(KfuncClass::Kernel, "bpf_iter_css_task_new"),
    named(KfuncClass::Kernel, "bpf_iter_css_task_next"),
    named(KfuncClass::Kernel, "bpf_iter_task_destroy"),
    named(KfuncClass::Kernel, "bpf_iter_task_new"),
    named(KfuncClass::Kernel, "bpf_iter_task_next"),
    named(KfuncClass::Kernel, "bpf_iter_task_vma_destroy"),
    named(KfuncClass::Kernel, "bpf_iter_task_vma_new"),
    named(KfuncClass::Kernel, "bpf_iter_task_vma_next"),
    named(KfuncClass::Kernel, "bpf_key_put").rules(RELEASED),
    named(KfuncClass::Kernel, "bpf_lookup_system_key").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_modify_return_test_tp"),
    named(KfuncClass::Kernel, "bpf_probe_read_kernel_dynptr"),
    named(KfuncClass::Kernel, "bpf_probe_read_kernel_str_dynptr"),
    named(KfuncClass::Kernel, "bpf_probe_read_user_dynptr"),
    named(KfuncClass::Kernel, "bpf_probe_read_user_str_dynptr"),
    named(KfuncClass::Kernel, "bpf_send_signal_task").rules(TRUSTED),
    named(KfuncClass::Kernel, "bpf_skb_ct_alloc").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_skb_ct_lookup").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_task_acquire").rules(ACQUIRED_RCU),
    named(KfuncClass::Kernel, "bpf_task_from_pid").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_task_from_vpid").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_task_get_cgroup1").rules(ACQUIRED_RCU),
    named(KfuncClass::Kernel, "bpf_task_release").rules(RELEASED),
    named(KfuncClass::Kernel, "bpf_task_under_cgroup").rules(RCU),
    named(KfuncClass::Kernel, "bpf_xdp_ct_alloc").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_xdp_ct_lookup").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_xdp_get_xfrm_state").rules(ACQUIRED),
    named(KfuncClass::Kernel, "bpf_xdp_xfrm_state_release").rules(RELEASED),
    named(KfuncClass::Sleepable, "bpf_arena_alloc_pages"),
    named(KfuncClass::Sleepable, "bpf_arena_free_pages"),
    named(KfuncClass::Sleepable, "bpf_arena_reserve_pages"),
    named(KfuncClass::Sleepable, "bpf_copy_from_user_dynptr"),
    named(KfuncClass::Sleepable, "bpf_copy_from_user_str"),
    named(KfuncClass::Sleepable, "bpf_copy_from_user_str_dynptr"),
    named(KfuncClass::Sleepable, "bpf_copy_from_user_task_dynptr"),
    named(KfuncClass::Sleepable, "bpf_copy_from_user_task_str"),
    named(KfuncClass::Sleepable, "bpf_copy_from_user_task_str_dynptr"),
    named(KfuncClass::Sleepable, "bpf_iter_dmabuf_destroy"),
    named(KfuncClass::Sleepable, "bpf_iter_dmabuf_new"),
    named(KfuncClass::Sleepable, "bpf_iter_dmabuf_next"),
    named(KfuncClass::Sleepable, "bpf_iter_kmem_cache_destroy"),
    named(KfuncClass::Sleepable, "bpf_iter_kmem_cache_new"),
    named(KfuncClass::Sleepable, "bpf_iter_kmem_cache_next"),
    named(KfuncClass::Sleepable, "bpf_lookup_user_key"),
    named(KfuncClass::Foreign, "bpf_cpumask_acquire"),
    named(KfuncClass::Foreign, "bpf_cpumask_and"),
    named(KfuncClass::Foreign, "bpf_cpumask_any_and_distribute"),
    named(KfuncClass::Foreign, "bpf_cpumask_any_distribute"),
    named(KfuncClass::Foreign, "bpf_cpumask_clear"),
    named(KfuncClass::Foreign, "bpf_cpumask_clear_cpu"),
    named(KfuncClass::Foreign, "bpf_cpumask_copy"),
    named(KfuncClass::Foreign, "bpf_cpumask_create"),
    named(KfuncClass::Foreign, "bpf_cpumask_empty"),
    named(KfuncClass::Foreign, "bpf_cpumask_equal"),
    named(KfuncClass::Foreign, "bpf_cpumask_first"),
    named(KfuncClass::Foreign, "bpf_cpumask_first_and"),
    named(KfuncClass::Foreign, "bpf_cpumask_first_zero"),
    named(KfuncClass::Foreign, "bpf_cpumask_full"),
    named(KfuncClass::Foreign, "bpf_cpumask_intersects"),
    named(KfuncClass::Foreign, "bpf_cpumask_or"),
    named(KfuncClass::Foreign, "bpf_cpumask_populate"),
    named(KfuncClass::Foreign, "bpf_cpumask_release"),
    named(KfuncClass::Foreign, "bpf_cpumask_set_cpu"),
    named(KfuncClass::Foreign, "bpf_cpumask_setall"),
    named(KfuncClass::Foreign, "bpf_cpumask_subset"),
    named(KfuncClass::Foreign, "bpf_cpumask_test_and_clear_cpu"),
    named(KfuncClass::Foreign, "bpf_cpumask_test_and_set_cpu"),
    named(KfuncClass::Foreign, "bpf_cpumask_test_cpu"),
    named(KfuncClass::Foreign, "bpf_cpumask_weight"),
    named(KfuncClass::Foreign, "bpf_cpumask_xor"),
    named(KfuncClass::Foreign, "bpf_crypto_ctx_acquire"),
    named(KfuncClass::Foreign, "bpf_crypto_ctx_create"),
    named(KfuncClass::Foreign, "bpf_crypto_ctx_release"),
    named(KfuncClass::Foreign, "bpf_dynptr_from_skb"),
    named(KfuncClass::Foreign, "bpf_dynptr_from_skb_meta"),
    named(KfuncClass::Foreign, "bpf_fentry_test1"),
    named(KfuncClass::Foreign, "bpf_get_dentry_xattr"),
    named(KfuncClass::Foreign, "bpf_get_file_xattr"),
    named(KfuncClass::Foreign, "bpf_get_task_exe_file"),
    named(KfuncClass::Foreign, "bpf_kfunc_call_memb_release"),
    named(KfuncClass::Foreign, "bpf_kfunc_call_test_release"),
    named(KfuncClass::Foreign, "bpf_modify_return_test"),
    named(KfuncClass::Foreign, "bpf_modify_return_test2"),
    named(KfuncClass::Foreign, "bpf_path_d_path"),
    named(KfuncClass::Foreign, "bpf_put_file"),
    named(KfuncClass::Foreign, "bpf_remove_dentry_xattr"),
    named(KfuncClass::Foreign, "bpf_session_cookie"),
    named(KfuncClass::Foreign, "bpf_session_is_return"),
    named(KfuncClass::Foreign, "bpf_set_dentry_xattr"),
    named(KfuncClass::Foreign, "bpf_sk_assign_tcp_reqsk"),
    named(KfuncClass::Foreign, "bpf_sock_addr_set_sun_path"),
    named(KfuncClass::Foreign, "bpf_sock_destroy"),
    named(KfuncClass::Foreign, "bpf_sock_ops_enable_tx_tstamp"),
];

/// Functions of the engine that Linux does not have. An object declares them weak (`extern u32 xway_pool_pressure(struct xdp_md *)
/// __ksym __weak;`) and asks `bpf_ksym_exists` first: in the kernel it is loaded without them.
pub(super) static OWN: [KfuncProto; 1] = [known(KfuncClass::Engine, "xway_pool_pressure", &[CTX], KfuncRet::Integer)];

const fn known(class: KfuncClass, name: &'static str, args: &'static [Arg], ret: KfuncRet) -> KfuncProto {
    KfuncProto { args: Some(args), ret, ..named(class, name) }
}

const fn named(class: KfuncClass, name: &'static str) -> KfuncProto {
    KfuncProto { name, class, args: None, ret: KfuncRet::Integer, region: None, changes_packet: false, rules: NO_RULES }
}

const NO_RULES: KfuncRules =
    KfuncRules { acquire: false, release: false, ret_null: false, trusted_args: false, rcu: false };
const ACQUIRED: KfuncRules = KfuncRules { acquire: true, ret_null: true, ..NO_RULES };
const ACQUIRED_RCU: KfuncRules = KfuncRules { rcu: true, ..ACQUIRED };
const RELEASED: KfuncRules = KfuncRules { release: true, ..NO_RULES };
const NULLABLE: KfuncRules = KfuncRules { ret_null: true, ..NO_RULES };
const TRUSTED: KfuncRules = KfuncRules { trusted_args: true, ..NO_RULES };
const RCU: KfuncRules = KfuncRules { rcu: true, ..NO_RULES };

impl KfuncProto {
    const fn rules(mut self, rules: KfuncRules) -> Self {
        self.rules = rules;
        self
    }

    const fn region(mut self, region: Region) -> Self {
        self.region = Some(region);
        self
    }

    const fn moves_packet(mut self) -> Self {
        self.changes_packet = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kfunc;

    #[test]
    fn names_are_unique_and_rows_consistent() {
        for k in &TABLE {
            assert!(std::ptr::eq(kfunc(k.name).unwrap(), k), "{} stands twice", k.name);
            let args = k.args.unwrap_or(&[]);
            for (n, a) in args.iter().enumerate() {
                let sized = n > 0 && matches!(args[n - 1].kind, ArgKind::Mem(_, MemSize::NextArg));
                let is_size = matches!(a.kind, ArgKind::Size { .. } | ArgKind::ConstSize);
                assert_eq!(sized, is_size, "{} argument {}", k.name, n + 1);
            }
        }
    }
}
