// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Puts IPv4 packets into an IPv4 tunnel (RFC 2003) and sends them back out of the port: the data path of a load
 * balancer with direct server return, reduced to one server.
 *
 * `config` entry 0 names the tunnel's ends and the next hop. While its destination is 0 everything passes.
 */
#include "counter.h"
#include "parse.h"

struct tunnel {
	__be32 source;
	__be32 destination;
	__u8 source_mac[ETH_ALEN];
	__u8 next_hop_mac[ETH_ALEN];
	__u8 ttl;
	__u8 zero[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tunnel);
} config SEC(".maps");

enum { SENT, NO_ROOM, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

/* RFC 1071 over a header of 20 bytes whose checksum field is zero. */
static __always_inline __u16 header_checksum(const struct iphdr *ip)
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

SEC("xdp")
int encapsulate(struct xdp_md *ctx)
{
	struct tunnel *tunnel;
	struct iphdr *inner, *outer;
	struct ethhdr *eth;
	struct cursor c;
	__u16 inner_length;
	__u32 zero = 0;
	__u8 tos;

	tunnel = bpf_map_lookup_elem(&config, &zero);
	if (!tunnel || !tunnel->destination)
		return XDP_PASS;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return XDP_DROP;
	if (eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	inner = take(&c, sizeof(*inner));
	if (!inner)
		return XDP_DROP;
	inner_length = bpf_ntohs(inner->tot_len);
	tos = inner->tos;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*outer))) {
		count(&counters, NO_ROOM, ctx->data_end - ctx->data);
		return XDP_DROP;
	}

	/* The packet has moved: every pointer into it is taken again. */
	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	outer = eth ? take(&c, sizeof(*outer)) : 0;
	if (!outer)
		return XDP_DROP;

	__builtin_memcpy(eth->h_source, tunnel->source_mac, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, tunnel->next_hop_mac, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IP);

	outer->version = 4;
	outer->ihl = sizeof(*outer) / 4;
	outer->tos = tos;
	outer->tot_len = bpf_htons(inner_length + sizeof(*outer));
	outer->id = 0;
	outer->frag_off = bpf_htons(0x4000); /* do not fragment */
	outer->ttl = tunnel->ttl;
	outer->protocol = IPPROTO_IPIP;
	outer->check = 0;
	outer->saddr = tunnel->source;
	outer->daddr = tunnel->destination;
	outer->check = header_checksum(outer);

	count(&counters, SENT, ctx->data_end - ctx->data);
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
