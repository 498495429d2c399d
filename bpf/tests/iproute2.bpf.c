// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The convention of iproute2: a map structure with an id, the program in a section named "prog", tail-call targets in
 * sections named ID/KEY, which the loader puts into the array with that id.
 */
#include "counter.h"
#include "parse.h"

struct bpf_elf_map {
	__u32 type;
	__u32 size_key;
	__u32 size_value;
	__u32 max_elem;
	__u32 flags;
	__u32 id;
	__u32 pinning;
	__u32 inner_id;
	__u32 inner_idx;
};

struct bpf_elf_map SEC("maps") jumps = {
	.type = BPF_MAP_TYPE_PROG_ARRAY,
	.size_key = sizeof(__u32),
	.size_value = sizeof(__u32),
	.max_elem = 4,
	.id = 7,
};

struct bpf_elf_map SEC("maps") seen = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.size_key = sizeof(__u32),
	.size_value = sizeof(struct counter),
	.max_elem = 4,
};

SEC("prog")
int start(struct xdp_md *ctx)
{
	struct cursor c;
	__be16 ethertype;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags))
		return XDP_DROP;
	count(&seen, 0, ctx->data_end - ctx->data);
	if (ethertype == bpf_htons(ETH_P_IP))
		bpf_tail_call(ctx, &jumps, 0);
	if (ethertype == bpf_htons(ETH_P_IPV6))
		bpf_tail_call(ctx, &jumps, 2);
	return XDP_PASS;
}

SEC("7/0")
int on_ipv4(struct xdp_md *ctx)
{
	count(&seen, 1, ctx->data_end - ctx->data);
	return XDP_TX;
}

SEC("7/2")
int on_ipv6(struct xdp_md *ctx)
{
	count(&seen, 2, ctx->data_end - ctx->data);
	return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
