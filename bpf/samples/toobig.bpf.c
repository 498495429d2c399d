// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * XDP cannot fragment. A packet that is longer than `mtu` goes back as the ICMP error that says so, in the name of its
 * destination: "fragmentation needed" for IPv4 with DF (RFC 1191), "packet too big" for IPv6 (RFC 4443). Each quotes as
 * much of the packet as its RFC allows.
 *
 * Left to the stack (PASS): what is short enough, IPv4 without DF, later fragments, ICMP itself, groups, VLAN tags, IPv4
 * options.
 */
#include "parse.h"

/* Longest packet behind the Ethernet header; at least 1280. */
const volatile __u32 mtu = 1500;

struct icmp_error {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be32 mtu;
};

/* An IPv4 error has 576 bytes, an IPv6 error 1280. */
#define QUOTED4 (576 - sizeof(struct iphdr) - sizeof(struct icmp_error))
#define QUOTED6 (1280 - sizeof(struct ipv6hdr) - sizeof(struct icmp_error))

/* Helpers before Linux 6.13 add up at most this much at once. */
#define PIECE 512

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline void send_back(struct ethhdr *to, const struct ethhdr *from)
{
	__builtin_memcpy(to->h_dest, from->h_source, ETH_ALEN);
	__builtin_memcpy(to->h_source, from->h_dest, ETH_ALEN);
	to->h_proto = from->h_proto;
}

static __always_inline int too_big4(struct xdp_md *ctx, struct ethhdr *eth, struct iphdr *ip)
{
	const __u32 room = sizeof(struct iphdr) + sizeof(struct icmp_error);
	const __u32 length = sizeof(*eth) + room + QUOTED4;
	struct icmp_error *icmp;
	struct ethhdr old = *eth;
	struct iphdr answer = {
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(room + QUOTED4),
		.ttl = 64,
		.protocol = IPPROTO_ICMP,
		.saddr = ip->daddr,
		.daddr = ip->saddr,
	};
	struct cursor c;
	__u32 sum;

	answer.check = folded(bpf_csum_diff(0, 0, (__be32 *)&answer, sizeof(answer), 0));
	if (bpf_xdp_adjust_head(ctx, -(int)room))
		return XDP_ABORTED;
	if (bpf_xdp_adjust_tail(ctx, (int)length - (int)(ctx->data_end - ctx->data)))
		return XDP_ABORTED;
	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return XDP_ABORTED;
	ip = take(&c, sizeof(*ip));
	if (!ip)
		return XDP_ABORTED;
	icmp = take(&c, sizeof(*icmp) + QUOTED4);
	if (!icmp)
		return XDP_ABORTED;
	send_back(eth, &old);
	*ip = answer;
	*icmp = (struct icmp_error){ .type = 3, .code = 4, .mtu = bpf_htonl(mtu) };
	sum = bpf_csum_diff(0, 0, (__be32 *)icmp, PIECE, 0);
	sum = bpf_csum_diff(0, 0, (void *)icmp + PIECE, sizeof(*icmp) + QUOTED4 - PIECE, sum);
	icmp->checksum = folded(sum);
	return XDP_TX;
}

static __always_inline int too_big6(struct xdp_md *ctx, struct ethhdr *eth, struct ipv6hdr *ip6)
{
	const __u32 room = sizeof(struct ipv6hdr) + sizeof(struct icmp_error);
	const __u32 payload = sizeof(struct icmp_error) + QUOTED6;
	const __u32 length = sizeof(*eth) + room + QUOTED6;
	__be32 pseudo[2] = { bpf_htonl(payload), bpf_htonl(IPPROTO_ICMPV6) };
	struct icmp_error *icmp;
	struct ethhdr old = *eth;
	struct ipv6hdr answer = {
		.version = 6,
		.payload_len = bpf_htons(payload),
		.nexthdr = IPPROTO_ICMPV6,
		.hop_limit = 64,
		.saddr = ip6->daddr,
		.daddr = ip6->saddr,
	};
	struct cursor c;
	__u32 sum;

	if (bpf_xdp_adjust_head(ctx, -(int)room))
		return XDP_ABORTED;
	if (bpf_xdp_adjust_tail(ctx, (int)length - (int)(ctx->data_end - ctx->data)))
		return XDP_ABORTED;
	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return XDP_ABORTED;
	ip6 = take(&c, sizeof(*ip6));
	if (!ip6)
		return XDP_ABORTED;
	icmp = take(&c, payload);
	if (!icmp)
		return XDP_ABORTED;
	send_back(eth, &old);
	*ip6 = answer;
	*icmp = (struct icmp_error){ .type = 2, .mtu = bpf_htonl(mtu) };
	/* The addresses, as the pseudo header has them, and the rest of it. */
	sum = bpf_csum_diff(0, 0, (__be32 *)&answer.saddr, 32, 0);
	sum = bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), sum);
	sum = bpf_csum_diff(0, 0, (__be32 *)icmp, PIECE, sum);
	sum = bpf_csum_diff(0, 0, (void *)icmp + PIECE, PIECE, sum);
	sum = bpf_csum_diff(0, 0, (void *)icmp + 2 * PIECE, payload - 2 * PIECE, sum);
	icmp->checksum = folded(sum);
	return XDP_TX;
}

SEC("xdp")
int too_big(struct xdp_md *ctx)
{
	struct ethhdr *eth;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	struct cursor c;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return XDP_DROP;
	if ((eth->h_dest[0] & 1) || c.end - c.pos <= mtu)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		ip = parse_ipv4(&c);
		if (!ip)
			return XDP_DROP;
		if (ip->ihl != 5 || ip->protocol == IPPROTO_ICMP || is_later_fragment(ip) || !(ip->frag_off & bpf_htons(0x4000)))
			return XDP_PASS;
		return too_big4(ctx, eth, ip);
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		ip6 = parse_ipv6(&c);
		if (!ip6)
			return XDP_DROP;
		if (ip6->nexthdr == IPPROTO_ICMPV6)
			return XDP_PASS;
		return too_big6(ctx, eth, ip6);
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
