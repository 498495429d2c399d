// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One look-up of the five numbers of a connection; the value is the verdict. What is not listed passes. */
#include "flow.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4000000);
	__type(key, struct flow);
	__type(value, __u64);
} flows SEC(".maps");

SEC("xdp")
int tuple_lookup(struct xdp_md *ctx)
{
	struct flow flow;
	__u64 *verdict;

	if (!parse_flow(ctx, &flow))
		return XDP_ABORTED;
	verdict = bpf_map_lookup_elem(&flows, &flow);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
