// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * One look-up of the source address; the value is the verdict. What is not listed passes. `hash_called` does it in functions,
 * `hash_summed` behind a loop.
 * `hash_update`: one update of it. The value becomes DROP for even addresses and TX for odd ones, and so does the verdict.
 *
 * Longer keys, of as many bytes as an IPv6 address with a port, or a connection over IPv6, have it in each word, with a number added.
 */
#include "flow.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10000);
	__type(key, __be32);
	__type(value, __u64);
} sources SEC(".maps");

SEC("xdp")
int hash_source(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u64 *verdict;
	__be32 source;

	if (!ip)
		return XDP_ABORTED;
	source = ip->saddr;
	verdict = bpf_map_lookup_elem(&sources, &source);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

SEC("xdp")
int hash_update(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__be32 source;
	__u64 verdict;

	if (!ip)
		return XDP_ABORTED;
	source = ip->saddr;
	verdict = bpf_ntohl(source) & 1 ? XDP_TX : XDP_DROP;
	if (bpf_map_update_elem(&sources, &source, &verdict, BPF_ANY))
		return XDP_PASS;
	return verdict;
}

/* The look-up in functions that stay functions: one is told where the key lies, the other looks up. */
static __noinline int source_of(struct xdp_md *ctx, __be32 *source)
{
	struct iphdr *ip = ipv4_of(ctx);

	if (!ip)
		return 0;
	*source = ip->saddr;
	return 1;
}

static __noinline __u64 *verdict_on(const __be32 *source)
{
	return bpf_map_lookup_elem(&sources, source);
}

SEC("xdp")
int hash_called(struct xdp_md *ctx)
{
	__u64 *verdict;
	__be32 source;

	if (!source_of(ctx, &source))
		return XDP_ABORTED;
	verdict = verdict_on(&source);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

/* The look-up behind a loop over the words of the header, of which the header itself says how many there are: their sum is not nothing. */
SEC("xdp")
int hash_summed(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = ipv4_of(ctx);
	__u64 *verdict, sum = 0;
	__u32 *word, i;
	__be32 source;

	if (!ip)
		return XDP_ABORTED;
	word = (__u32 *)ip;
#pragma clang loop unroll(disable)
	for (i = 0; i < 15; i++) {
		if (i >= ip->ihl)
			break;
		if ((void *)(word + 1) > end)
			return XDP_ABORTED;
		sum += *word++;
	}
	if (!sum)
		return XDP_ABORTED;
	source = ip->saddr;
	verdict = bpf_map_lookup_elem(&sources, &source);
	if (!verdict)
		return XDP_PASS;
	return *verdict;
}

#define LONG_KEYS(name, words)							\
struct key_##name {								\
	__u32 word[words];							\
};										\
										\
struct {									\
	__uint(type, BPF_MAP_TYPE_HASH);					\
	__uint(max_entries, 10000);						\
	__type(key, struct key_##name);						\
	__type(value, __u64);							\
} sources_##name SEC(".maps");							\
										\
SEC("xdp")									\
int hash_##name(struct xdp_md *ctx)						\
{										\
	struct iphdr *ip = ipv4_of(ctx);					\
	struct key_##name key;							\
	__u64 *verdict;								\
	__u32 i;								\
										\
	if (!ip)								\
		return XDP_ABORTED;						\
	for (i = 0; i < words; i++)						\
		key.word[i] = ip->saddr + i * 0x9e3779b9;			\
	verdict = bpf_map_lookup_elem(&sources_##name, &key);			\
	if (!verdict)								\
		return XDP_PASS;						\
	return *verdict;							\
}

LONG_KEYS(20, 5)
LONG_KEYS(40, 10)

char _license[] SEC("license") = "Dual BSD/GPL";
