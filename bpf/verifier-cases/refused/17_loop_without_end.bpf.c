// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A loop whose end nothing brings nearer.
// hint: nothing in the loop at line
// hint: bpf_loop
#include "refused.h"

SEC("xdp")
int loop_without_end(struct xdp_md *ctx)
{
	volatile __u32 *queue = &ctx->rx_queue_index;

	// refused: infinite-loop
	while (*queue != 7)
		;
	return XDP_PASS;
}
