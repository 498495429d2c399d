// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Forwarding by the host's own routes: what `xway forward` and `xdp-forward` attach.
 *
 * A packet that the host would only forward leaves here at once: its next hop is asked for with bpf_fib_lookup(),
 * addresses and hop limit are changed as a router does it, and it is redirected. Everything else goes to the host's
 * stack, untouched: what is for the host itself, what needs an answer (hop limit at its end, too long for the next
 * link), a neighbour that must be asked for first, fragments and options, tags, and routes that leave by an
 * interface which is not in the set.
 */
#include "parse.h"

#ifndef AF_INET
#define AF_INET 2
#endif
#ifndef AF_INET6
#define AF_INET6 10
#endif

/* The interfaces of the set, by their number. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} forward_ports SEC(".maps");

/* What became of the packets; the names are in crates/tools/src/forward.rs. */
enum outcome {
	FORWARDED,
	NOT_IP,
	TAGGED,
	GROUP,
	MALFORMED,
	OPTIONS,
	FRAGMENT,
	HOP_LIMIT,
	NO_ROUTE,
	NO_NEIGHBOUR,
	TOO_LONG,
	OTHER_PORT,
	ADDRESS,
	OUTCOMES,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} forward_counts SEC(".maps");

static __always_inline int done(__u32 outcome, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&forward_counts, &outcome);

	if (count)
		*count += 1;
	return verdict;
}

/* Ports of TCP and UDP, which rules and multipath routes may look at; without them a route is found as well. */
static __always_inline void ports(struct cursor *c, __u8 protocol, struct bpf_fib_lookup *fib)
{
	__be16 *both;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return;
	both = take(c, 2 * sizeof(*both));
	if (!both)
		return;
	fib->sport = both[0];
	fib->dport = both[1];
}

/* One hop less, and the checksum as RFC 1624 has it: the word with the hop limit in its upper byte falls by 0x100. */
static __always_inline void one_hop_less(struct iphdr *ip)
{
	__u32 sum = ip->check + (__u32)bpf_htons(0x0100);

	ip->check = (__be16)(sum + (sum >= 0xffff));
	ip->ttl -= 1;
}

/*
 * Addresses that no router forwards (RFC 1812, 5.3.7; RFC 4291, 2.5.6): this host and network, groups as senders, the link's own.
 * What groups as destinations are is asked of the routes.
 */
static __always_inline int stays4(const struct iphdr *ip)
{
	__u8 from = *(const __u8 *)&ip->saddr, to = *(const __u8 *)&ip->daddr;

	return from == 0 || from == 127 || from >= 224 || to == 127;
}

static __always_inline int on_link(const struct in6_addr *address)
{
	return (address->in6_u.u6_addr16[0] & bpf_htons(0xffc0)) == bpf_htons(0xfe80);
}

static __always_inline int stays6(const struct ipv6hdr *ip6)
{
	return on_link(&ip6->saddr) || on_link(&ip6->daddr) || ip6->saddr.in6_u.u6_addr8[0] == 0xff;
}

static __always_inline int route(struct xdp_md *ctx, __u32 flags)
{
	struct bpf_fib_lookup fib = {};
	struct ipv6hdr *ip6 = 0;
	struct iphdr *ip = 0;
	struct ethhdr *eth;
	struct cursor c;
	__u32 out;
	long answer;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return done(MALFORMED, XDP_PASS);
	if (eth->h_dest[0] & 1)
		return done(GROUP, XDP_PASS);

	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		ip = take(&c, sizeof(*ip));
		if (!ip || ip->version != 4 || ip->ihl < 5 || bpf_ntohs(ip->tot_len) > (void *)c.end - (void *)ip)
			return done(MALFORMED, XDP_PASS);
		if (stays4(ip))
			return done(ADDRESS, XDP_PASS);
		if (ip->ihl > 5)
			return done(OPTIONS, XDP_PASS);
		/* More fragments, or not the first one. */
		if (ip->frag_off & bpf_htons(0x3fff))
			return done(FRAGMENT, XDP_PASS);
		if (ip->ttl <= 1)
			return done(HOP_LIMIT, XDP_PASS);
		fib.family = AF_INET;
		fib.tos = ip->tos;
		fib.l4_protocol = ip->protocol;
		fib.tot_len = bpf_ntohs(ip->tot_len);
		fib.ipv4_src = ip->saddr;
		fib.ipv4_dst = ip->daddr;
		ports(&c, ip->protocol, &fib);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		ip6 = take(&c, sizeof(*ip6));
		if (!ip6 || ip6->version != 6 || bpf_ntohs(ip6->payload_len) > c.end - c.pos)
			return done(MALFORMED, XDP_PASS);
		if (stays6(ip6))
			return done(ADDRESS, XDP_PASS);
		if (ip6->nexthdr == IPPROTO_HOPOPTS || ip6->nexthdr == IPPROTO_ROUTING)
			return done(OPTIONS, XDP_PASS);
		if (ip6->nexthdr == IPPROTO_FRAGMENT)
			return done(FRAGMENT, XDP_PASS);
		if (ip6->hop_limit <= 1)
			return done(HOP_LIMIT, XDP_PASS);
		fib.family = AF_INET6;
		fib.flowinfo = *(__be32 *)ip6 & bpf_htonl(0x0fffffff);
		fib.l4_protocol = ip6->nexthdr;
		fib.tot_len = bpf_ntohs(ip6->payload_len) + sizeof(*ip6);
		__builtin_memcpy(fib.ipv6_src, &ip6->saddr, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &ip6->daddr, sizeof(fib.ipv6_dst));
		ports(&c, ip6->nexthdr, &fib);
	} else {
		return done(is_vlan(eth->h_proto) ? TAGGED : NOT_IP, XDP_PASS);
	}

	fib.ifindex = ctx->ingress_ifindex;
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), flags);
	if (answer == BPF_FIB_LKUP_RET_NO_NEIGH)
		return done(NO_NEIGHBOUR, XDP_PASS);
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return done(TOO_LONG, XDP_PASS);
	/* Also what the host must refuse with a message: blackholes, prohibitions, unreachable nets. */
	if (answer != BPF_FIB_LKUP_RET_SUCCESS)
		return done(NO_ROUTE, XDP_PASS);

	/* A copy: what the map is asked for must not change behind the question. */
	out = fib.ifindex;
	if (!bpf_map_lookup_elem(&forward_ports, &out))
		return done(OTHER_PORT, XDP_PASS);

	if (ip)
		one_hop_less(ip);
	else if (ip6)
		ip6->hop_limit -= 1;
	__builtin_memcpy(eth->h_dest, fib.dmac, sizeof(eth->h_dest));
	__builtin_memcpy(eth->h_source, fib.smac, sizeof(eth->h_source));
	done(FORWARDED, 0);
	return bpf_redirect_map(&forward_ports, out, XDP_DROP);
}

/* All rules and tables, as the host itself would look. */
SEC("xdp")
int forward_full(struct xdp_md *ctx)
{
	return route(ctx, 0);
}

/* One table, no rules: faster, where there are none. */
SEC("xdp")
int forward_direct(struct xdp_md *ctx)
{
	return route(ctx, BPF_FIB_LOOKUP_DIRECT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
