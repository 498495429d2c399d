// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The room around a packet: metadata in front of it, and bytes taken off its end. */
#include "parse.h"

/* What a card or an earlier program found out, for whoever comes later. */
struct mark {
	__u32 queue;
	__u32 magic;
};

#define MAGIC 0x786d6172

SEC("xdp")
int mark(struct xdp_md *ctx)
{
	struct mark *mark;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*mark)))
		return XDP_DROP;
	mark = (void *)(long)ctx->data_meta;
	if ((void *)(mark + 1) > (void *)(long)ctx->data)
		return XDP_DROP;
	mark->queue = ctx->rx_queue_index;
	mark->magic = MAGIC;
	return XDP_PASS;
}

/* Takes a trailer of four bytes off. */
SEC("xdp")
int trim(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_tail(ctx, -4) ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
