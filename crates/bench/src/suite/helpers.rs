//! Helpers that no program of the suite calls: `bpf/bench/helpers.bpf.c` and `map_helpers.bpf.c`. They are a suite of their own, which is
//! measured where it is asked for.

use super::Case;
use crate::fill::Fill;

/// Object files that are this suite's and not the other's.
pub(super) const OBJECTS: [&str; 2] = ["helpers", "map_helpers"];

/// Bytes of the ring that is not to be full: 16 million records.
const LARGE_RING: u32 = 256 << 20;

/// All object files: name and bytes.
pub fn objects() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    super::embedded().filter(|(name, _)| OBJECTS.contains(name))
}

/// Every case, in the order of the table. How many times as fast as the kernel they are meant to be nobody has said.
pub fn cases() -> Vec<Case> {
    let mut all = plain();
    all.extend(maps());
    all
}

fn plain() -> Vec<Case> {
    let case = |name, program| Case::new(name, "helpers", program);
    vec![
        case("bpf_spin_lock and unlock, array", "spin_lock"),
        case("bpf_xdp_get_buff_len", "buff_len"),
        case("bpf_check_mtu", "check_mtu"),
        case("bpf_fib_lookup, no forwarding", "fib_lookup"),
        case("bpf_strncmp, 5 bytes", "strncmp_5"),
        case("bpf_strncmp, 23 bytes", "strncmp_23"),
        case("bpf_get_current_pid_tgid", "pid_tgid"),
        case("bpf_get_current_uid_gid", "uid_gid"),
        case("bpf_get_current_cgroup_id", "cgroup_id"),
        case("bpf_get_current_comm", "comm"),
        case("bpf_get_numa_node_id", "numa_node"),
        case("bpf_strtol", "text_to_number"),
        case("bpf_snprintf, one number", "number_to_text"),
    ]
}

fn maps() -> Vec<Case> {
    let case = |name, program| Case::new(name, "map_helpers", program);
    let filled = |name, program| case(name, program).fill(Fill::Few);
    let large = |name, program| Case { sizes: vec![("records".to_owned(), LARGE_RING)], ..case(name, program) };
    vec![
        filled("bpf_for_each_map_elem, array of 16", "each_of_array"),
        filled("bpf_for_each_map_elem, per-CPU array of 16", "each_of_percpu_array"),
        case("bpf_for_each_map_elem, hash of 1,024, empty", "each_of_empty_hash"),
        filled("bpf_map_lookup_percpu_elem, array", "percpu_array_elem"),
        filled("bpf_map_lookup_percpu_elem, hash", "percpu_hash_elem"),
        case("queue, pushed and popped", "queue_push_pop"),
        case("queue, empty, popped", "queue_pop_empty"),
        case("queue, empty, peeked", "queue_peek_empty"),
        case("Bloom filter, asked for what it does not hold", "bloom_miss"),
        case("Bloom filter, the same of 72 bytes", "bloom_miss_72"),
        case("Bloom filter, pushed again", "bloom_push"),
        case("Bloom filter, pushed and asked", "bloom_push_peek"),
        case("ring buffer, full, record reserved", "ring_full_reserve"),
        case("ring buffer, full, put out", "ring_full_output"),
        large("ring buffer of 256 MiB, reserved and submitted", "ring_reserve"),
        large("ring buffer of 256 MiB, put out", "ring_output"),
        case("ring buffer, asked how much waits", "ring_query"),
        case("bpf_perf_event_output, no reader", "perf_output"),
        case("trie, prefix overwritten", "trie_update"),
        case("trie, prefix put in and taken out", "trie_insert_delete"),
        filled("hash update, 256 bytes of an array's value", "hash_update_256"),
        case("bpf_redirect_map, DEVMAP_HASH without the key", "redirect_without_port"),
        case("bpf_timer_init and bpf_timer_cancel", "timer_init_cancel"),
    ]
}
