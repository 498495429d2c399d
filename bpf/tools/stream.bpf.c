// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * One TCP stream over IPv6, made in the kernel for `xdp-trafficgen tcp`. An ordinary socket opens the connection; `stream_in` on the
 * interface learns from its handshake what a segment needs. Then it keeps the receiver's answers to itself, and
 * `stream_out` fills the window that they leave, again and again, with segments whose content nobody looks at.
 *
 * There is no control of congestion. What is lost is noticed by three equal answers, or by two seconds without progress:
 * then everything behind the last byte that was acknowledged goes out once more.
 */
#include "parse.h"
#include "tally.h"

/* Written before the program is loaded; crates/tools/src/stream.rs has the same fields. */
struct settings {
	__u32 out;
	/* Bytes of a segment's content. */
	__u32 content;
	/* The receiver's port, in network byte order. */
	__u32 port;
};
volatile const struct settings settings = {};

/* crates/tools/src/stream.rs reads and writes it; sequence numbers are in host byte order. */
struct state {
	/* 0: nothing seen; 1: the handshake was; 2: segments are made; 3: the receiver has given up. */
	__u32 phase;
	/* Own port, network byte order. */
	__u32 own_port;
	/* The next byte to send, the first one that is not acknowledged, the receiver's own next byte. */
	__u32 next;
	__u32 acked;
	__u32 theirs;
	/* Bytes that the receiver takes behind `acked`, and by how many bits its words are shifted. */
	__u32 window;
	__u32 scale;
	__u32 equal;
	__u64 progress;
	__u64 sent;
	__u64 again;
	__u8 to[6];
	__u8 from[6];
	__u32 peer[4];
	__u32 own[4];
	__u32 option_bytes;
	/* Options of the receiver's SYN: what they mean is found out by whoever reads this. */
	__u8 options[40];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} stream SEC(".maps");

#define PATIENCE 2000000000ull
#define FIN 1
#define SYN 2
#define RST 4
#define ACK 16

static __always_inline struct state *the_stream(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&stream, &zero);
}

SEC("xdp")
int stream_in(struct xdp_md *ctx)
{
	struct state *s = the_stream();
	struct cursor c;
	struct ethhdr *eth;
	struct ipv6hdr *ip;
	struct tcphdr *tcp;
	__u32 ack, window, options;
	__u8 flags;
	int i;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!s || !eth || eth->h_proto != bpf_htons(ETH_P_IPV6))
		return XDP_PASS;
	ip = take(&c, sizeof(*ip));
	if (!ip || ip->nexthdr != IPPROTO_TCP)
		return XDP_PASS;
	tcp = take(&c, sizeof(*tcp));
	if (!tcp || tcp->source != (__be16)settings.port || tcp->dest != (__be16)s->own_port)
		return XDP_PASS;
	for (i = 0; i < 4; i++)
		if (ip->saddr.in6_u.u6_addr32[i] != s->peer[i])
			return XDP_PASS;
	flags = ((__u8 *)tcp)[13];
	ack = bpf_ntohl(tcp->ack_seq);
	window = bpf_ntohs(tcp->window);

	if (s->phase == 0 && (flags & (SYN | ACK)) == (SYN | ACK)) {
		s->next = s->acked = ack;
		s->theirs = bpf_ntohl(tcp->seq) + 1;
		/* The window of a SYN is not shifted; the next answer has the shifted one. */
		s->window = window;
		options = tcp->doff * 4 - sizeof(*tcp);
		if (options > 0 && options <= sizeof(s->options)) {
			__u32 at = (void *)(tcp + 1) - (void *)(long)ctx->data;

			if (!bpf_xdp_load_bytes(ctx, at, s->options, options))
				s->option_bytes = options;
		}
		__builtin_memcpy(s->to, eth->h_source, sizeof(s->to));
		__builtin_memcpy(s->from, eth->h_dest, sizeof(s->from));
		__builtin_memcpy(s->own, &ip->daddr, sizeof(s->own));
		s->progress = bpf_ktime_get_ns();
		s->phase = 1;
		return XDP_PASS;
	}
	if (s->phase != 2)
		return XDP_PASS;
	if (flags & (RST | FIN)) {
		s->phase = 3;
		return XDP_PASS;
	}
	if (!(flags & ACK))
		return XDP_DROP;
	if ((__s32)(ack - s->acked) > 0) {
		s->acked = ack;
		/* Answers to what was sent before it was sent once more. */
		if ((__s32)(ack - s->next) > 0)
			s->next = ack;
		s->equal = 0;
		s->progress = bpf_ktime_get_ns();
	} else if (ack == s->acked && window << s->scale == s->window) {
		s->equal += 1;
		if (s->equal == 3) {
			s->next = s->acked;
			s->again += 1;
		}
	}
	s->window = window << s->scale;
	/* The socket knows nothing of what is sent here: it must not see answers to it. */
	return XDP_DROP;
}

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Four bytes that a one's complement sum covers change (RFC 1624, equation 3). */
static __always_inline void put(__be32 *at, __be32 new, __u16 *check)
{
	__be32 old = *at;
	__u32 sum = (__u16)~*check;

	sum += (__u16)~(old & 0xffff) + (__u16)~(old >> 16);
	sum += (new & 0xffff) + (new >> 16);
	*check = ~folded(sum);
	*at = new;
}

SEC("xdp")
int stream_out(struct xdp_md *ctx)
{
	struct state *s = the_stream();
	struct cursor c;
	struct tcphdr *tcp;
	__u64 now;

	cursor_init(&c, ctx);
	if (!s || s->phase != 2 || !take(&c, sizeof(struct ethhdr)) || !take(&c, sizeof(struct ipv6hdr)))
		return XDP_DROP;
	tcp = take(&c, sizeof(*tcp));
	if (!tcp)
		return XDP_DROP;
	now = bpf_ktime_get_ns();
	if (s->next != s->acked && now - s->progress > PATIENCE) {
		s->next = s->acked;
		s->progress = now;
		s->again += 1;
	}
	if (s->next - s->acked + settings.content > s->window)
		return XDP_DROP;
	put(&tcp->seq, bpf_htonl(s->next), &tcp->check);
	s->next += settings.content;
	s->sent += 1;
	return bpf_redirect(settings.out, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
