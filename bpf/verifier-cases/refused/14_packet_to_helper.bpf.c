// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Packet memory for a helper that does not take it.
// hint: points into the packet, which this call does not take: copy the bytes into a variable on the stack
#include "refused.h"

SEC("xdp")
int packet_to_helper(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	// refused: argument
	bpf_trace_printk(data, 14);
	return XDP_PASS;
}
