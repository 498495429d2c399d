// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/iovisor/bcc/pull/5008
// class: an index counted from 1, both bounds checked before 1 is taken away
#include "annoying.h"

SEC("xdp")
int index_from_one(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 1 > data_end)
		return XDP_PASS;
	__u64 i = *(__u8 *)data;

	if (i < 1 || i >= 65)
		return XDP_PASS;
	opaque(i);
	return table->entry[i - 1] ? XDP_DROP : XDP_PASS;
}
