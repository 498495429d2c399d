// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/google/ghost-userspace/issues/31
// class: the check is on a copy that was shifted left and right again, as compilers do for 32-bit numbers
#include "annoying.h"

SEC("xdp")
int shifted_copy(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 4 > data_end)
		return XDP_PASS;
	__u64 i = *(__u32 *)data, copy = i;

	asm volatile("%0 <<= 32; %0 >>= 32" : "+r"(copy));
	if (copy > 63)
		return XDP_PASS;
	return table->entry[i] ? XDP_DROP : XDP_PASS;
}
