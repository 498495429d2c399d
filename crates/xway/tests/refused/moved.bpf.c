// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A pointer is used after the packet was moved, in a function of its own and in a loop.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __attribute__((noinline)) int sum(struct xdp_md *ctx, __u32 turns)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *bytes = data;
	int total = 0;

	if (data + 16 > end)
		return 0;
	for (__u32 i = 0; i < 16 && i < turns; i++)
		total += bytes[i];
	if (bpf_xdp_adjust_head(ctx, 4))
		return 0;
	return total + bytes[0];
}

SEC("xdp")
int moved(struct xdp_md *ctx)
{
	return sum(ctx, ctx->rx_queue_index) > 100 ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
