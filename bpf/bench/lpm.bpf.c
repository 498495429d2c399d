// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A route look-up: the longest prefix that the destination address lies in; its value is the verdict.
 *
 * The one for IPv6 reads the same packets: it looks for the address that lies behind 2001:db8::/32.
 */
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

struct prefix6 {
	__u32 length;
	__be32 address[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 100000);
	__type(key, struct prefix6);
	__type(value, __u64);
} routes6 SEC(".maps");

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

SEC("xdp")
int route6(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	struct prefix6 key = { .length = 128, .address = { bpf_htonl(0x20010db8) } };
	__u64 *verdict;

	if (!ip)
		return XDP_ABORTED;
	key.address[1] = ip->daddr;
	verdict = bpf_map_lookup_elem(&routes6, &key);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
