// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A connection table: known connections are counted and pass, new ones are entered and sent back. When the table is full
 * the least recently used connection makes room.
 */
#include "flow.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 100000);
	__type(key, struct flow);
	__type(value, __u64);
} connections SEC(".maps");

SEC("xdp")
int track(struct xdp_md *ctx)
{
	struct flow flow;
	__u64 *packets;
	__u64 one = 1;

	if (!parse_flow(ctx, &flow))
		return XDP_DROP;
	packets = bpf_map_lookup_elem(&connections, &flow);
	if (packets) {
		*packets += 1;
		return XDP_PASS;
	}
	if (bpf_map_update_elem(&connections, &flow, &one, BPF_ANY))
		return XDP_ABORTED;
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
