// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The convention of programs older than libbpf: a longer map structure, sections named anything, a version section,
 * several programs in one section, tail calls whose targets user space puts into the array.
 */
#include "counter.h"
#include "parse.h"

struct bpf_map_def {
	unsigned int type;
	unsigned int key_size;
	unsigned int value_size;
	unsigned int max_entries;
	unsigned int map_flags;
	unsigned int inner_map_idx;
	unsigned int numa_node;
};

struct bpf_map_def SEC("maps") totals = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct counter),
	.max_entries = 4,
};

struct bpf_map_def SEC("maps") jumps = {
	.type = BPF_MAP_TYPE_PROG_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u32),
	.max_entries = 8,
};

SEC("entry")
int first(struct xdp_md *ctx)
{
	count(&totals, 0, ctx->data_end - ctx->data);
	bpf_tail_call(ctx, &jumps, 1);
	count(&totals, 1, ctx->data_end - ctx->data);
	return XDP_PASS;
}

/* Two programs in one section. */
SEC("leaves")
int odd_length(struct xdp_md *ctx)
{
	count(&totals, 2, ctx->data_end - ctx->data);
	return (ctx->data_end - ctx->data) & 1 ? XDP_DROP : XDP_PASS;
}

SEC("leaves")
int long_packet(struct xdp_md *ctx)
{
	count(&totals, 3, ctx->data_end - ctx->data);
	return ctx->data_end - ctx->data > 100 ? XDP_TX : XDP_PASS;
}

__u32 _version SEC("version") = 0x041000;
char _license[] SEC("license") = "GPL";
