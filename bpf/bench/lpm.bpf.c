// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A route look-up: the longest prefix that the destination address lies in; its value is the verdict. */
#include "flow.h"

struct prefix {
	__u32 length;
	__be32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 100000);
	__type(key, struct prefix);
	__type(value, __u64);
} routes SEC(".maps");

SEC("xdp")
int route(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	struct prefix key = { .length = 32 };
	__u64 *verdict;

	if (!ip)
		return XDP_ABORTED;
	key.address = ip->daddr;
	verdict = bpf_map_lookup_elem(&routes, &key);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
