// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A function returns on one way without a value.
// hint: without one
// hint: `return`
#include "refused.h"

SEC("xdp")
int no_return_value(struct xdp_md *ctx)
{
	int verdict;

	if (ctx->rx_queue_index == 3)
		asm volatile("%0 = 1" : "=r"(verdict));
	else
		// refused: uninitialised
		asm volatile("exit" ::);
	return verdict;
}
