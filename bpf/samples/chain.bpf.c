// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A chain of tail calls: each program looks at one layer and jumps to the next through a PROG_ARRAY that the object
 * fills itself. What a program knows is handed on in the room for metadata in front of the packet.
 *
 * A slot that is empty ends the chain in the program that tried it: `steps` shows how far packets came.
 */
#include "counter.h"
#include "parse.h"

enum stage { STAGE_IPV4, STAGE_IPV6, STAGE_UDP, STAGE_TCP, STAGE_EMPTY, STAGES };

int stage_ipv4(struct xdp_md *ctx);
int stage_ipv6(struct xdp_md *ctx);
int stage_udp(struct xdp_md *ctx);
int stage_tcp(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STAGES);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} stages SEC(".maps") = {
	.values = {
		[STAGE_IPV4] = &stage_ipv4,
		[STAGE_IPV6] = &stage_ipv6,
		[STAGE_UDP] = &stage_udp,
		[STAGE_TCP] = &stage_tcp,
	},
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STAGES + 1);
	__type(key, __u32);
	__type(value, struct counter);
} steps SEC(".maps");

/* What one stage tells the next; four bytes, as metadata grows in such steps. */
struct handover {
	__u16 transport; /* offset of the transport header from the packet's start */
	__u16 stages;    /* stages passed so far */
};

/* The hand-over record, null when there is none. It lies between data_meta and data. */
static __always_inline struct handover *handover(struct xdp_md *ctx)
{
	struct handover *h = (void *)(long)ctx->data_meta;

	return (void *)(h + 1) > (void *)(long)ctx->data ? 0 : h;
}

static __always_inline int next(struct xdp_md *ctx, __u32 stage)
{
	bpf_tail_call(ctx, &stages, stage);
	/* Reached only when the slot is empty. */
	count(&steps, STAGE_EMPTY, ctx->data_end - ctx->data);
	return XDP_PASS;
}

static __always_inline int to_transport(struct xdp_md *ctx, __u8 protocol, __u16 offset)
{
	struct handover *h = handover(ctx);

	if (!h)
		return XDP_ABORTED;
	h->transport = offset;
	h->stages += 1;
	switch (protocol) {
	case IPPROTO_UDP:
		return next(ctx, STAGE_UDP);
	case IPPROTO_TCP:
		return next(ctx, STAGE_TCP);
	default:
		return next(ctx, STAGE_EMPTY);
	}
}

SEC("xdp")
int chain(struct xdp_md *ctx)
{
	struct handover *h;
	struct ethhdr *eth;
	struct cursor c;

	count(&steps, STAGES, ctx->data_end - ctx->data);
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*h)))
		return XDP_ABORTED;
	h = handover(ctx);
	if (!h)
		return XDP_ABORTED;
	h->transport = 0;
	h->stages = 0;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return XDP_DROP;
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return next(ctx, STAGE_IPV4);
	case bpf_htons(ETH_P_IPV6):
		return next(ctx, STAGE_IPV6);
	default:
		return XDP_PASS;
	}
}

SEC("xdp")
int stage_ipv4(struct xdp_md *ctx)
{
	struct iphdr *ip;
	struct cursor c;

	count(&steps, STAGE_IPV4, ctx->data_end - ctx->data);
	cursor_init(&c, ctx);
	if (!take(&c, sizeof(struct ethhdr)))
		return XDP_DROP;
	ip = parse_ipv4(&c);
	if (!ip)
		return XDP_DROP;
	if (is_later_fragment(ip))
		return XDP_PASS;
	return to_transport(ctx, ip->protocol, sizeof(struct ethhdr) + ip->ihl * 4);
}

SEC("xdp")
int stage_ipv6(struct xdp_md *ctx)
{
	struct ipv6hdr *ip6;
	struct cursor c;

	count(&steps, STAGE_IPV6, ctx->data_end - ctx->data);
	cursor_init(&c, ctx);
	if (!take(&c, sizeof(struct ethhdr)))
		return XDP_DROP;
	ip6 = parse_ipv6(&c);
	if (!ip6)
		return XDP_DROP;
	return to_transport(ctx, ip6->nexthdr, sizeof(struct ethhdr) + sizeof(*ip6));
}

/* Discard protocol (RFC 863): port 9 of UDP is dropped. */
SEC("xdp")
int stage_udp(struct xdp_md *ctx)
{
	struct handover *h = handover(ctx);
	struct udphdr *udp;
	struct cursor c;

	count(&steps, STAGE_UDP, ctx->data_end - ctx->data);
	if (!h)
		return XDP_ABORTED;
	cursor_init(&c, ctx);
	/* The mask is what the verifier goes by; the largest offset is Ethernet and a full IPv4 header, 74 bytes. */
	c.pos += h->transport & 0x7f;
	udp = take(&c, sizeof(*udp));
	if (!udp)
		return XDP_DROP;
	return udp->dest == bpf_htons(9) ? XDP_DROP : XDP_PASS;
}

/* Connections to port 23 are not wanted. */
SEC("xdp")
int stage_tcp(struct xdp_md *ctx)
{
	struct handover *h = handover(ctx);
	struct tcphdr *tcp;
	struct cursor c;

	count(&steps, STAGE_TCP, ctx->data_end - ctx->data);
	if (!h)
		return XDP_ABORTED;
	cursor_init(&c, ctx);
	c.pos += h->transport & 0x7f;
	tcp = take(&c, sizeof(*tcp));
	if (!tcp)
		return XDP_DROP;
	return tcp->dest == bpf_htons(23) ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
