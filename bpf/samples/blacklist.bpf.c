// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Drops IPv4 packets from listed prefixes and to listed ports, and counts the drops where the rule stands.
 *
 * `prefixes`: longest prefix match on the source address; the value counts what the rule dropped.
 * `ports`:    hash keyed by protocol and destination port (network byte order).
 * `verdicts`: packets and bytes per verdict.
 */
#include "counter.h"
#include "parse.h"

struct prefix {
	__u32 length; /* bits */
	__be32 address;
};

struct port {
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 10000);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u64);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct port);
	__type(value, __u64);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XDP_REDIRECT + 1);
	__type(key, __u32);
	__type(value, struct counter);
} verdicts SEC(".maps");

static __always_inline int listed_port(struct cursor *c, __u8 protocol)
{
	struct port key = { .protocol = protocol };
	/* Both headers start with source and destination port. */
	__be16 *header;
	__u64 *drops;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	header = take(c, 2 * sizeof(*header));
	if (!header)
		return 0;
	key.port = header[1];
	drops = bpf_map_lookup_elem(&ports, &key);
	if (!drops)
		return 0;
	__sync_fetch_and_add(drops, 1);
	return 1;
}

static __always_inline int judge(struct xdp_md *ctx)
{
	struct prefix source = { .length = 32 };
	struct cursor c;
	__be16 ethertype;
	struct iphdr *ip;
	__u64 *drops;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags))
		return XDP_DROP;
	if (ethertype != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	ip = parse_ipv4(&c);
	if (!ip)
		return XDP_DROP;
	source.address = ip->saddr;
	drops = bpf_map_lookup_elem(&prefixes, &source);
	if (drops) {
		__sync_fetch_and_add(drops, 1);
		return XDP_DROP;
	}
	if (!is_later_fragment(ip) && listed_port(&c, ip->protocol))
		return XDP_DROP;
	return XDP_PASS;
}

SEC("xdp")
int blacklist(struct xdp_md *ctx)
{
	__u64 bytes = ctx->data_end - ctx->data;
	int verdict = judge(ctx);

	count(&verdicts, verdict, bytes);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
