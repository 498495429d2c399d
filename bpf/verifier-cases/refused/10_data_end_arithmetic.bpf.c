// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Arithmetic on data_end with a number that is not constant.
// hint: `ptr + n > data_end`, not `ptr > data_end - n`
#include "refused.h"

SEC("xdp")
int data_end_arithmetic(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u64 queue = ctx->rx_queue_index & 15;
	__u8 *trailer;

	// refused: pointer-arithmetic
	trailer = data_end - queue;
	if ((void *)trailer < data)
		return XDP_PASS;
	return *trailer ? XDP_DROP : XDP_PASS;
}
