// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Tail-call targets that are static functions in sections of their own: the map's initial values refer to them by
 * section and offset, because a static function's symbol is not for others.
 */
#include "counter.h"
#include "parse.h"

static int tail_small(struct xdp_md *ctx);
static int tail_large(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 3);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} tails SEC(".maps") = {
	.values = {
		[0] = (void *)&tail_small,
		[2] = (void *)&tail_large,
	},
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct counter);
} seen SEC(".maps");

SEC("xdp/root")
int root(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data;

	bpf_tail_call(ctx, &tails, length < 64 ? 0 : length < 512 ? 1 : 2);
	count(&seen, 1, length);
	return XDP_PASS;
}

SEC("xdp/tail")
static int tail_small(struct xdp_md *ctx)
{
	count(&seen, 0, ctx->data_end - ctx->data);
	return XDP_DROP;
}

SEC("xdp/tail")
static int tail_large(struct xdp_md *ctx)
{
	count(&seen, 2, ctx->data_end - ctx->data);
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
