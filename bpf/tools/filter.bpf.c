// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Lists of senders and of destination ports: what `xway filter` attaches.
 *
 * A packet's source address is looked up first, the longest prefix that holds it; then, for TCP and UDP, its
 * destination port. What is on a list is dropped, or passes whatever the other list says, as its entry has it; what
 * is on none passes. Up to two VLAN tags, IPv4 options and IPv6 extension headers are looked behind.
 *
 * `filter_net4`, `filter_net6`: prefixes of source addresses; `filter_ports`: protocols and destination ports. All
 *     three lead to an entry, which has the number of its rule.
 * `filter_rules`:  what each rule met, by its number.
 * `filter_counts`: what became of packets.
 *
 * The structures are read and written by crates/tools/src/filter.
 */
#include "counter.h"
#include "parse.h"

#define RULES_MAX 131072
/* IPv6 extension headers that are looked behind; hosts send two or three. */
#define EXTENSIONS 6

struct filter_net4 {
	__u32 length; /* bits */
	__be32 address;
};

struct filter_net6 {
	__u32 length; /* bits */
	__u8 address[16];
};

struct filter_port {
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

struct filter_entry {
	__u32 rule;
	__u8 pass;
	/* Bits of the prefix, so that whoever asks for one prefix knows whether he got another. */
	__u8 length;
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, RULES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct filter_net4);
	__type(value, struct filter_entry);
} filter_net4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, RULES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct filter_net6);
	__type(value, struct filter_entry);
} filter_net6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RULES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct filter_port);
	__type(value, struct filter_entry);
} filter_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, RULES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct counter);
} filter_rules SEC(".maps");

/* What became of packets; the names are in crates/tools/src/filter/mod.rs. */
enum outcome {
	UNLISTED,
	DROPPED,
	ALLOWED,
	NOT_IP,
	MALFORMED,
	TAGS,
	HEADERS,
	OUTCOMES,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, struct counter);
} filter_counts SEC(".maps");

/* What an entry says of a packet, counted where its rule stands. */
static __always_inline enum outcome listed(const struct filter_entry *entry, __u64 bytes)
{
	count(&filter_rules, entry->rule, bytes);
	return entry->pass ? ALLOWED : DROPPED;
}

/* The transport header begins at the cursor. */
static __always_inline enum outcome by_port(struct cursor *c, __u8 protocol, __u64 bytes)
{
	struct filter_port key = { .protocol = protocol };
	struct filter_entry *entry;
	__be16 *ports;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return UNLISTED;
	/* Both headers start with source and destination port. */
	ports = take(c, 2 * sizeof(*ports));
	if (!ports)
		return MALFORMED;
	key.port = ports[1];
	entry = bpf_map_lookup_elem(&filter_ports, &key);
	return entry ? listed(entry, bytes) : UNLISTED;
}

static __always_inline enum outcome by_ipv4(struct cursor *c, __u64 bytes)
{
	struct filter_net4 source = { .length = 32 };
	struct filter_entry *entry;
	struct iphdr *ip = parse_ipv4(c);

	if (!ip)
		return MALFORMED;
	source.address = ip->saddr;
	entry = bpf_map_lookup_elem(&filter_net4, &source);
	if (entry)
		return listed(entry, bytes);
	return is_later_fragment(ip) ? UNLISTED : by_port(c, ip->protocol, bytes);
}

/* What every extension header begins with; the fragment header has its offset behind it. */
struct extension {
	__u8 next;
	__u8 length;
	__be16 offset;
};

static __always_inline int is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS || next == IPPROTO_FRAGMENT ||
	       next == IPPROTO_AH;
}

static __always_inline enum outcome by_ipv6(struct cursor *c, __u64 bytes)
{
	struct filter_net6 source = { .length = 128 };
	struct ipv6hdr *ip6 = parse_ipv6(c);
	struct filter_entry *entry;
	__u8 next;
	int i;

	if (!ip6)
		return MALFORMED;
	__builtin_memcpy(source.address, &ip6->saddr, sizeof(source.address));
	entry = bpf_map_lookup_elem(&filter_net6, &source);
	if (entry)
		return listed(entry, bytes);
	next = ip6->nexthdr;
#pragma unroll
	for (i = 0; i < EXTENSIONS; i++) {
		struct extension *header = c->pos;
		__u32 length;

		if (!is_extension(next))
			break;
		if ((void *)(header + 1) > c->end)
			return MALFORMED;
		/* Eight bytes and eights of them behind; the authentication header counts fours, the first two not among them. */
		length = (header->length + 1) * 8;
		if (next == IPPROTO_AH)
			length = (header->length + 2) * 4;
		if (next == IPPROTO_FRAGMENT) {
			length = 8;
			if (header->offset & bpf_htons(0xfff8))
				return UNLISTED;
		}
		next = header->next;
		if (c->pos + length > c->end)
			return MALFORMED;
		c->pos += length;
	}
	return is_extension(next) ? HEADERS : by_port(c, next, bytes);
}

SEC("xdp")
int xway_filter(struct xdp_md *ctx)
{
	__u64 bytes = ctx->data_end - ctx->data;
	enum outcome outcome = NOT_IP;
	__be16 ethertype;
	struct cursor c;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags))
		outcome = MALFORMED;
	else if (ethertype == bpf_htons(ETH_P_IP))
		outcome = by_ipv4(&c, bytes);
	else if (ethertype == bpf_htons(ETH_P_IPV6))
		outcome = by_ipv6(&c, bytes);
	else if (is_vlan(ethertype))
		outcome = TAGS;
	count(&filter_counts, outcome, bytes);
	return outcome == DROPPED ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
