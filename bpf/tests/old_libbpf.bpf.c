// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The convention of libbpf before 1.0: maps as plain structures of five numbers in the section "maps", program sections
 * that begin with "xdp".
 */
#include "counter.h"
#include "parse.h"

struct bpf_map_def {
	unsigned int type;
	unsigned int key_size;
	unsigned int value_size;
	unsigned int max_entries;
	unsigned int map_flags;
};

struct bpf_map_def SEC("maps") by_protocol = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct counter),
	.max_entries = 256,
};

struct bpf_map_def SEC("maps") flows = {
	.type = BPF_MAP_TYPE_LRU_HASH,
	.key_size = 8,
	.value_size = sizeof(__u64),
	.max_entries = 1024,
};

struct bpf_map_def SEC("maps") prefixes = {
	.type = BPF_MAP_TYPE_LPM_TRIE,
	.key_size = 8,
	.value_size = sizeof(__u32),
	.max_entries = 16,
	.map_flags = BPF_F_NO_PREALLOC,
};

/* Counts IPv4 by protocol and remembers how often each pair of addresses came by. */
SEC("xdp_protocols")
int protocols(struct xdp_md *ctx)
{
	struct {
		__be32 source, destination;
	} flow;
	__u64 first = 1, *times;
	struct iphdr *ip;
	struct cursor c;
	__be16 ethertype;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags) || ethertype != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	ip = parse_ipv4(&c);
	if (!ip)
		return XDP_DROP;
	count(&by_protocol, ip->protocol, ctx->data_end - ctx->data);
	flow.source = ip->saddr;
	flow.destination = ip->daddr;
	times = bpf_map_lookup_elem(&flows, &flow);
	if (times)
		__sync_fetch_and_add(times, 1);
	else
		bpf_map_update_elem(&flows, &flow, &first, BPF_NOEXIST);
	return XDP_PASS;
}

/* The verdict that the longest prefix of the source address names. */
SEC("xdp_by_prefix")
int by_prefix(struct xdp_md *ctx)
{
	struct {
		__u32 length;
		__be32 address;
	} key = { .length = 32 };
	struct iphdr *ip;
	struct cursor c;
	__be16 ethertype;
	__u32 *verdict;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags) || ethertype != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	ip = parse_ipv4(&c);
	if (!ip)
		return XDP_DROP;
	key.address = ip->saddr;
	verdict = bpf_map_lookup_elem(&prefixes, &key);
	return verdict ? *verdict : XDP_PASS;
}

char _license[] SEC("license") = "GPL";
