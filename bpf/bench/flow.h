/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the benchmark's programs read from a packet: Ethernet, IPv4 without options in front of them, TCP or UDP. */
#ifndef XWAY_BENCH_FLOW_H
#define XWAY_BENCH_FLOW_H

#include "parse.h"

/* A connection's five numbers, in network byte order; 16 bytes without holes, so that all of them can be a key. */
struct flow {
	__be32 source;
	__be32 destination;
	__be16 source_port;
	__be16 destination_port;
	__u32 protocol;
};

/* Fills `flow`; 0 when the packet is not TCP or UDP over IPv4. */
static __always_inline int parse_flow(const struct xdp_md *ctx, struct flow *flow)
{
	struct cursor c;
	struct ethhdr *eth;
	struct iphdr *ip;
	__be16 *ports;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	ip = take(&c, sizeof(*ip));
	if (!ip || ip->ihl != 5)
		return 0;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return 0;
	/* Source and destination port stand first in both headers. */
	ports = take(&c, 4);
	if (!ports)
		return 0;
	flow->source = ip->saddr;
	flow->destination = ip->daddr;
	flow->source_port = ports[0];
	flow->destination_port = ports[1];
	flow->protocol = ip->protocol;
	return 1;
}

/* The IPv4 header of a packet, null when it has none. */
static __always_inline struct iphdr *ipv4_of(const struct xdp_md *ctx)
{
	struct cursor c;
	struct ethhdr *eth;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	return take(&c, sizeof(struct iphdr));
}

#endif
