// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Counts what goes by: packets and bytes per kind, in a per-CPU array. Every packet is counted once, under the innermost
 * header that was recognised, so the rows add up to the total.
 *
 * Verdicts: DROP for frames whose headers are cut off or contradict themselves, PASS for the rest.
 */
#include "parse.h"

enum kind {
	KIND_MALFORMED,
	KIND_ARP,
	KIND_OTHER,
	KIND_IPV4, /* something else in IPv4 */
	KIND_IPV4_ICMP,
	KIND_IPV4_TCP,
	KIND_IPV4_UDP,
	KIND_IPV6, /* something else in IPv6 */
	KIND_IPV6_ICMP,
	KIND_IPV6_TCP,
	KIND_IPV6_UDP,
	KIND_FRAGMENT, /* of IPv4, but not the first: there is no transport header in it */
	KIND_MAX,
};

/* What IP carries, as a distance from KIND_IPV4 and KIND_IPV6. */
enum { CARRIES_ICMP = 1, CARRIES_TCP, CARRIES_UDP };

struct traffic {
	__u64 packets;
	__u64 bytes;
	__u64 tagged; /* of the packets, those with a VLAN tag */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KIND_MAX);
	__type(key, __u32);
	__type(value, struct traffic);
} counters SEC(".maps");

static __always_inline __u32 transport(struct cursor *c, __u8 protocol, __u32 family)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return parse_tcp(c) ? family + CARRIES_TCP : KIND_MALFORMED;
	case IPPROTO_UDP:
		return parse_udp(c) ? family + CARRIES_UDP : KIND_MALFORMED;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return take(c, 8) ? family + CARRIES_ICMP : KIND_MALFORMED;
	default:
		return family;
	}
}

static __always_inline __u32 network(struct cursor *c, __be16 ethertype)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	switch (ethertype) {
	case bpf_htons(ETH_P_ARP):
		return take(c, 28) ? KIND_ARP : KIND_MALFORMED;
	case bpf_htons(ETH_P_IP):
		ip = parse_ipv4(c);
		if (!ip)
			return KIND_MALFORMED;
		if (is_later_fragment(ip))
			return KIND_FRAGMENT;
		return transport(c, ip->protocol, KIND_IPV4);
	case bpf_htons(ETH_P_IPV6):
		ip6 = parse_ipv6(c);
		if (!ip6)
			return KIND_MALFORMED;
		return transport(c, ip6->nexthdr, KIND_IPV6);
	default:
		return KIND_OTHER;
	}
}

SEC("xdp")
int count_kinds(struct xdp_md *ctx)
{
	__u32 kind = KIND_MALFORMED;
	struct traffic *row;
	struct cursor c;
	__be16 ethertype;
	int tags = 0;

	cursor_init(&c, ctx);
	if (parse_eth(&c, &ethertype, &tags))
		kind = network(&c, ethertype);

	/* No atomic operation is needed: each CPU has a row of its own. */
	row = bpf_map_lookup_elem(&counters, &kind);
	if (row) {
		row->packets += 1;
		row->bytes += ctx->data_end - ctx->data;
		row->tagged += tags > 0;
	}
	return kind == KIND_MALFORMED ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
