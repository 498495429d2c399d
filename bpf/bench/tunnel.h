/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* IPv4 in IPv4 (RFC 2003). */
#ifndef XWAY_BENCH_TUNNEL_H
#define XWAY_BENCH_TUNNEL_H

#include "parse.h"

/* Where a tunnel leads: its end, and the Ethernet address of the next hop. */
struct tunnel {
	__be32 destination;
	__u8 next_hop[ETH_ALEN];
	__u8 zero[2];
};

/* Our end of all tunnels. */
#define TUNNEL_SOURCE bpf_htonl(0xc6120001) /* 198.18.0.1 */

/* RFC 1071 over a header of 20 bytes whose checksum field is zero. */
static __always_inline __u16 ipv4_checksum(const struct iphdr *ip)
{
	const __u16 *word = (const void *)ip;
	__u32 sum = 0;
	int i;

#pragma unroll
	for (i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	return ~sum;
}

/* Puts an outer header with checksum in front of an IPv4 packet; 0 when there is no room. */
static __always_inline int encapsulate(struct xdp_md *ctx, const struct tunnel *tunnel, __u16 inner_length)
{
	static const __u8 own[ETH_ALEN] = { 2, 0, 0, 0, 0, 2 };
	struct ethhdr *eth;
	struct iphdr *outer;
	struct cursor c;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*outer)))
		return 0;
	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	outer = eth ? take(&c, sizeof(*outer)) : 0;
	if (!outer)
		return 0;
	__builtin_memcpy(eth->h_dest, tunnel->next_hop, ETH_ALEN);
	__builtin_memcpy(eth->h_source, own, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IP);
	outer->version = 4;
	outer->ihl = sizeof(*outer) / 4;
	outer->tos = 0;
	outer->tot_len = bpf_htons(inner_length + sizeof(*outer));
	outer->id = 0;
	outer->frag_off = bpf_htons(0x4000); /* do not fragment */
	outer->ttl = 64;
	outer->protocol = IPPROTO_IPIP;
	outer->check = 0;
	outer->saddr = TUNNEL_SOURCE;
	outer->daddr = tunnel->destination;
	outer->check = ipv4_checksum(outer);
	return 1;
}

#endif
