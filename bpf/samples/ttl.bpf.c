// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How far away senders are, and who is not where it always was.
 *
 * A packet leaves its sender with a time to live of 64, 128 or 255, and each router takes one off, so what is left tells how
 * many hops it came. Of each source the number is learned; a packet that says it is from there and came another way by far is
 * a stray: perhaps its route has changed, perhaps its address is borrowed. Strays are counted and, where `enforce` is set,
 * dropped once the source is known well.
 */
#include "counter.h"
#include "parse.h"

/* Set before loading. */
const volatile __u8 enforce = 0;   /* drop strays */
const volatile __u8 learn = 1;     /* new sources are remembered, and small changes of known ones */
const volatile __u8 tolerance = 2; /* hops that a route may become longer or shorter */
const volatile __u32 trust = 3;    /* packets after which a source is known well */

/* What was left of the time to live of packets that came, IPv4 and IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct counter);
} ttl_v4 SEC(".maps"), ttl_v6 SEC(".maps");

/* An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d. */
struct source {
	__u8 address[16];
};

struct known {
	__u8 hops;
	__u32 packets; /* that came this way */
	__u32 strays;  /* that did not */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct source);
	__type(value, struct known);
} sources SEC(".maps");

/* Hops since the sender, if it started with the next of the usual numbers. */
static __always_inline __u8 hops_of(__u8 ttl)
{
	if (ttl <= 64)
		return 64 - ttl;
	if (ttl <= 128)
		return 128 - ttl;
	return 255 - ttl;
}

static __always_inline int judge(const struct source *source, __u8 ttl)
{
	struct known *known = bpf_map_lookup_elem(&sources, source);
	struct known first = { .hops = hops_of(ttl), .packets = 1 };
	__u8 near, far;

	if (!known) {
		if (learn)
			bpf_map_update_elem(&sources, source, &first, BPF_NOEXIST);
		return XDP_PASS;
	}
	near = known->hops < first.hops ? known->hops : first.hops;
	far = known->hops < first.hops ? first.hops : known->hops;
	if (far - near <= tolerance) {
		if (learn)
			known->hops = first.hops;
		__sync_fetch_and_add(&known->packets, 1);
		return XDP_PASS;
	}
	__sync_fetch_and_add(&known->strays, 1);
	return enforce && known->packets >= trust ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int ttl(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data;
	struct source source = {};
	struct cursor c;
	__be16 ethertype;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags))
		return XDP_PASS;
	if (ethertype == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = parse_ipv4(&c);

		if (!ip)
			return XDP_PASS;
		count(&ttl_v4, ip->ttl, length);
		source.address[10] = source.address[11] = 0xff;
		__builtin_memcpy(&source.address[12], &ip->saddr, 4);
		return judge(&source, ip->ttl);
	}
	if (ethertype == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6 = parse_ipv6(&c);

		if (!ip6)
			return XDP_PASS;
		count(&ttl_v6, ip6->hop_limit, length);
		__builtin_memcpy(&source.address, &ip6->saddr, 16);
		return judge(&source, ip6->hop_limit);
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
