/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which CPU a packet's flow belongs to. */
#ifndef XWAY_SPREAD_H
#define XWAY_SPREAD_H

#include "parse.h"

/* What a packet says of its flow, as far as it says anything. */
struct flow {
	__u32 addresses;
	__u8 protocol;
	__u16 sport;
	__u16 dport;
};

static __always_inline int flow_of(struct xdp_md *ctx, struct flow *flow)
{
	struct cursor c;
	__be16 ethertype, *ports;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags))
		return 0;
	if (ethertype == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = parse_ipv4(&c);

		if (!ip)
			return 0;
		flow->addresses = ip->saddr + ip->daddr;
		flow->protocol = ip->protocol;
		if (is_later_fragment(ip))
			return 1;
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6 = parse_ipv6(&c);
		int i;

		if (!ip6)
			return 0;
#pragma unroll
		for (i = 0; i < 4; i++)
			flow->addresses += ip6->saddr.in6_u.u6_addr32[i] + ip6->daddr.in6_u.u6_addr32[i];
		flow->protocol = ip6->nexthdr;
	} else {
		return 0;
	}
	if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP)
		return 1;
	ports = take(&c, 2 * sizeof(*ports));
	if (ports) {
		flow->sport = bpf_ntohs(ports[0]);
		flow->dport = bpf_ntohs(ports[1]);
	}
	return 1;
}

/* TCP and what is not known goes to the first CPU, UDP to the second, ICMP to the third. */
static __always_inline __u32 by_protocol(const struct flow *flow)
{
	switch (flow->protocol) {
	case IPPROTO_UDP:
		return 1;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 2;
	default:
		return 0;
	}
}

/* Multiplication spreads, the upper half mixes; both directions of a flow have the same sum of addresses. */
static __always_inline __u32 mixed(__u32 value)
{
	return (__u32)(((__u64)value * 0x9e3779b97f4a7c15ull) >> 32);
}

#endif
