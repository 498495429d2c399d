// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A look-up in the array that an array of maps holds at a slot that the compiler knows. */
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

SEC("xdp")
int nested(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u32 slot = 1, key;
	__u64 *number;
	void *table;

	if (!ip)
		return XDP_DROP;
	table = bpf_map_lookup_elem(&tables, &slot);
	if (!table)
		return XDP_ABORTED;
	key = ip->saddr & 63;
	number = bpf_map_lookup_elem(table, &key);
	if (!number)
		return XDP_ABORTED;
	return XDP_PASS + (*number & 1);
}

char _license[] SEC("license") = "Dual BSD/GPL";
