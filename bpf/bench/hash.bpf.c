// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One look-up of the source address; the value is the verdict. What is not listed passes. */
#include "flow.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10000);
	__type(key, __be32);
	__type(value, __u64);
} sources SEC(".maps");

SEC("xdp")
int hash_source(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u64 *verdict;
	__be32 source;

	if (!ip)
		return XDP_ABORTED;
	source = ip->saddr;
	verdict = bpf_map_lookup_elem(&sources, &source);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
