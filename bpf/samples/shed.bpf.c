// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Sheds load before packet memory runs out: what matters least goes first, so that there is room for the rest.
 *
 * On Expressway the engine writes into `xway_pressure` how close each receive queue's packet memory is to its limit: 0, 1 from 75 %
 * on, 2 from 90 % on. Programs read it and cannot write it. On Linux nobody writes there, the map stays empty, and nothing is shed.
 */
#include "parse.h"

struct queue {
	__u32 ifindex;
	__u32 queue;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, struct queue);
	__type(value, __u32);
} xway_pressure SEC(".maps");

/* Datagrams from this port on are bulk traffic, which can be sent again. Set before loading. */
const volatile __u16 bulk_from = 32768;

/* Packets that were shed, by level. */
__u64 shed[3];

static __always_inline __u32 level_of(const struct xdp_md *ctx)
{
	struct queue at = { .ifindex = ctx->ingress_ifindex, .queue = ctx->rx_queue_index };
	__u32 *level = bpf_map_lookup_elem(&xway_pressure, &at);

	return level ? *level : 0;
}

SEC("xdp")
int shed_load(struct xdp_md *ctx)
{
	__u32 level = level_of(ctx);
	struct cursor c;
	struct ethhdr *eth;
	struct iphdr *ip;
	struct udphdr *udp;
	__be16 ethertype;
	int tags;

	if (level == 0)
		return XDP_PASS;
	if (level > 2)
		level = 2;
	cursor_init(&c, ctx);
	eth = parse_eth(&c, &ethertype, &tags);
	if (!eth || ethertype != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	ip = parse_ipv4(&c);
	if (!ip || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	udp = parse_udp(&c);
	if (!udp)
		return XDP_PASS;
	/* Almost full: all datagrams go. Half way there: only those that somebody will send again. */
	if (level < 2 && bpf_ntohs(udp->dest) < bulk_from)
		return XDP_PASS;
	__sync_fetch_and_add(&shed[level], 1);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
