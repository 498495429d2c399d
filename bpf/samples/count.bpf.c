// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Counts what goes by: packets and bytes per kind, in a per-CPU array. A packet is counted once for every layer that
 * it is recognised at, so the rows of one layer (IPv4, IPv6, ARP, other) add up to the total.
 *
 * Verdicts: DROP for frames whose headers are cut off or contradict themselves, PASS for the rest.
 */
#include "counter.h"
#include "parse.h"

enum kind {
	KIND_TOTAL,
	KIND_VLAN,
	KIND_ARP,
	KIND_IPV4,
	KIND_IPV6,
	KIND_OTHER,
	KIND_TCP,
	KIND_UDP,
	KIND_ICMP,
	KIND_FRAGMENT,
	KIND_MALFORMED,
	KIND_MAX,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KIND_MAX);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

/* The layer above IP; 0 when its header does not hold together. */
static __always_inline int transport(struct cursor *c, __u8 protocol, __u64 bytes)
{
	switch (protocol) {
	case IPPROTO_TCP:
		if (!parse_tcp(c))
			return 0;
		count(&counters, KIND_TCP, bytes);
		return 1;
	case IPPROTO_UDP:
		if (!parse_udp(c))
			return 0;
		count(&counters, KIND_UDP, bytes);
		return 1;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (!take(c, 8))
			return 0;
		count(&counters, KIND_ICMP, bytes);
		return 1;
	default:
		return 1;
	}
}

static __always_inline int network(struct cursor *c, __be16 ethertype, __u64 bytes)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	switch (ethertype) {
	case bpf_htons(ETH_P_ARP):
		count(&counters, KIND_ARP, bytes);
		return take(c, 28) != 0;
	case bpf_htons(ETH_P_IP):
		count(&counters, KIND_IPV4, bytes);
		ip = parse_ipv4(c);
		if (!ip)
			return 0;
		if (is_later_fragment(ip)) {
			count(&counters, KIND_FRAGMENT, bytes);
			return 1;
		}
		return transport(c, ip->protocol, bytes);
	case bpf_htons(ETH_P_IPV6):
		count(&counters, KIND_IPV6, bytes);
		ip6 = parse_ipv6(c);
		if (!ip6)
			return 0;
		return transport(c, ip6->nexthdr, bytes);
	default:
		count(&counters, KIND_OTHER, bytes);
		return 1;
	}
}

SEC("xdp")
int count_kinds(struct xdp_md *ctx)
{
	__u64 bytes = ctx->data_end - ctx->data;
	struct cursor c;
	__be16 ethertype;
	int tags;

	cursor_init(&c, ctx);
	count(&counters, KIND_TOTAL, bytes);
	if (!parse_eth(&c, &ethertype, &tags))
		goto malformed;
	if (tags)
		count(&counters, KIND_VLAN, bytes);
	if (!network(&c, ethertype, bytes))
		goto malformed;
	return XDP_PASS;

malformed:
	count(&counters, KIND_MALFORMED, bytes);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
