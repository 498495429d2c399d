/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walking a packet from the outside in.
 *
 * A cursor holds the next byte to read and the packet's end. Each parse function checks that its header lies wholly
 * inside the packet, moves the cursor behind it and returns a pointer to it; a null pointer says that the packet ends
 * too early or the header lies about its length. The checks are written so that a verifier can follow them: pointer
 * plus constant, compared with the end.
 */
#ifndef XWAY_PARSE_H
#define XWAY_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct cursor {
	void *pos;
	void *end;
};

/* The four bytes that an 802.1Q or 802.1ad tag puts between the addresses and the real EtherType. */
struct vlan_tag {
	__be16 tci;
	__be16 ethertype;
};

/* Tags that parse_eth() looks behind. */
#define VLAN_DEPTH 2

static __always_inline void cursor_init(struct cursor *c, const struct xdp_md *ctx)
{
	c->pos = (void *)(long)ctx->data;
	c->end = (void *)(long)ctx->data_end;
}

/* Takes `size` bytes, a constant: their address, or null when the packet has fewer. */
static __always_inline void *take(struct cursor *c, __u32 size)
{
	void *start = c->pos;

	if (start + size > c->end)
		return 0;
	c->pos = start + size;
	return start;
}

static __always_inline int is_vlan(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

/*
 * Ethernet and up to VLAN_DEPTH tags behind it. `ethertype` gets the type behind the last tag read (network byte order),
 * `tags` how many there were.
 */
static __always_inline struct ethhdr *parse_eth(struct cursor *c, __be16 *ethertype, int *tags)
{
	struct ethhdr *eth = take(c, sizeof(*eth));
	int i;

	if (!eth)
		return 0;
	*ethertype = eth->h_proto;
	*tags = 0;
#pragma unroll
	for (i = 0; i < VLAN_DEPTH; i++) {
		struct vlan_tag *tag;

		if (!is_vlan(*ethertype))
			break;
		tag = take(c, sizeof(*tag));
		if (!tag)
			return 0;
		*ethertype = tag->ethertype;
		*tags += 1;
	}
	return eth;
}

/* IPv4 with its options. */
static __always_inline struct iphdr *parse_ipv4(struct cursor *c)
{
	struct iphdr *ip = take(c, sizeof(*ip));
	__u32 length;

	if (!ip || ip->version != 4)
		return 0;
	length = ip->ihl * 4;
	if (length < sizeof(*ip) || (void *)ip + length > c->end)
		return 0;
	c->pos = (void *)ip + length;
	return ip;
}

/* True for every fragment but the first: there is no transport header in it. */
static __always_inline int is_later_fragment(const struct iphdr *ip)
{
	return (ip->frag_off & bpf_htons(0x1fff)) != 0;
}

/* The fixed IPv6 header; extension headers are left to the caller. */
static __always_inline struct ipv6hdr *parse_ipv6(struct cursor *c)
{
	struct ipv6hdr *ip6 = take(c, sizeof(*ip6));

	if (!ip6 || ip6->version != 6)
		return 0;
	return ip6;
}

/* TCP with its options. */
static __always_inline struct tcphdr *parse_tcp(struct cursor *c)
{
	struct tcphdr *tcp = take(c, sizeof(*tcp));
	__u32 length;

	if (!tcp)
		return 0;
	length = tcp->doff * 4;
	if (length < sizeof(*tcp) || (void *)tcp + length > c->end)
		return 0;
	c->pos = (void *)tcp + length;
	return tcp;
}

/* UDP; a length below the header's own is a lie. */
static __always_inline struct udphdr *parse_udp(struct cursor *c)
{
	struct udphdr *udp = take(c, sizeof(*udp));

	if (!udp || bpf_ntohs(udp->len) < sizeof(*udp))
		return 0;
	return udp;
}

#endif
