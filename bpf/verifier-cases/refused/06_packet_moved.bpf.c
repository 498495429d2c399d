// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A pointer is used after the call that moved the packet.
// hint: `(void *)(eth + 1) > data_end` is checked on `data` at line
// hint: goes through `data2`, which bpf_xdp_adjust_head invalidated at line
// hint: after the call load data and data_end from the context again
#include "refused.h"

SEC("xdp")
int packet_moved(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	__u8 *data2 = data;

	if (bpf_xdp_adjust_head(ctx, -8))
		return XDP_DROP;
	// refused: stale-packet-pointer
	data2[0] = 0;
	return XDP_TX;
}
