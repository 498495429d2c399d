// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/parttimenerd/ebpf-verifier-errors/issues/6
// class: row * width + column
#include "annoying.h"

SEC("xdp")
int product_index(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 2 > data_end)
		return XDP_PASS;
	__u8 *p = data;
	__u64 row = p[0], column = p[1];

	if (row >= 7 || column >= 9)
		return XDP_PASS;
	opaque(row);
	opaque(column);
	row = row * 9 + column;
	opaque(row);
	return table->entry[row] ? XDP_DROP : XDP_PASS;
}
