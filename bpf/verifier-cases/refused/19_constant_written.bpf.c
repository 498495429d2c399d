// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A const variable is written.
// hint: writes a `const` variable
#include "refused.h"

const volatile __u32 limit = 7;

SEC("xdp")
int constant_written(struct xdp_md *ctx)
{
	// refused: permission
	*(volatile __u32 *)&limit = ctx->ingress_ifindex;
	return XDP_PASS;
}
