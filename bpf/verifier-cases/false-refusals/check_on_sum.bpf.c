// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/iovisor/bcc/issues/2391
// class: the check is on the number plus a constant
#include "annoying.h"

SEC("xdp")
int check_on_sum(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 2 > data_end)
		return XDP_PASS;
	__u64 i = *(__u16 *)data, sum = i + 8;

	opaque(sum);
	if (sum > 64)
		return XDP_PASS;
	return table->entry[i + 7] ? XDP_DROP : XDP_PASS;
}
