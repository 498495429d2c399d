// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A look-up in the array that a map of maps holds: an array of maps at a slot that the compiler knows, or a hash of maps by a key.
 * `nested_by_cpu`: in the hash table of the CPU that has the packet. The value is the verdict, and what is not listed passes. Here all
 * CPUs have the same table.
 */
#include "flow.h"

struct numbers {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct numbers);
} tables SEC(".maps") = {
	.values = { [1] = &numbers },
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct numbers);
} tables_by_key SEC(".maps") = {
	.values = { [1] = &numbers },
};

struct sources {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10000);
	__type(key, __be32);
	__type(value, __u64);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct sources);
} tables_by_cpu SEC(".maps") = {
	.values = { [0] = &sources, [1] = &sources, [2] = &sources, [3] = &sources },
};

static __always_inline int number_of(struct xdp_md *ctx, void *outer)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u32 slot = 1, key;
	__u64 *number;
	void *table;

	if (!ip)
		return XDP_DROP;
	table = bpf_map_lookup_elem(outer, &slot);
	if (!table)
		return XDP_ABORTED;
	key = ip->saddr & 63;
	number = bpf_map_lookup_elem(table, &key);
	if (!number)
		return XDP_ABORTED;
	return XDP_PASS + (*number & 1);
}

SEC("xdp")
int nested(struct xdp_md *ctx)
{
	return number_of(ctx, &tables);
}

SEC("xdp")
int nested_by_key(struct xdp_md *ctx)
{
	return number_of(ctx, &tables_by_key);
}

SEC("xdp")
int nested_by_cpu(struct xdp_md *ctx)
{
	__u32 slot = bpf_get_smp_processor_id() & 3;
	struct iphdr *ip = ipv4_of(ctx);
	__be32 source;
	__u64 *verdict;
	void *table;

	if (!ip)
		return XDP_ABORTED;
	table = bpf_map_lookup_elem(&tables_by_cpu, &slot);
	if (!table)
		return XDP_ABORTED;
	source = ip->saddr;
	verdict = bpf_map_lookup_elem(table, &source);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
