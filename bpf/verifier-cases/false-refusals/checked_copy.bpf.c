// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/google/ghost-userspace/issues/31
// class: the check is on a 32-bit copy, the use on the original
#include "annoying.h"

SEC("xdp")
int checked_copy(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 4 > data_end)
		return XDP_PASS;
	__u64 i = *(__u32 *)data;
	__u32 copy = i;

	opaque(copy);
	if (copy > 63)
		return XDP_PASS;
	return table->entry[i] ? XDP_DROP : XDP_PASS;
}
