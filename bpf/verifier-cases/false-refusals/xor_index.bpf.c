// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/vbpf/prevail/issues/223
// class: the exclusive or of two small numbers as an index
#include "annoying.h"

SEC("xdp")
int xor_index(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 2 > data_end)
		return XDP_PASS;
	__u8 *p = data;
	__u64 a = p[0], b = p[1];

	if (a > 63 || b > 63)
		return XDP_PASS;
	opaque(a);
	opaque(b);
	a ^= b;
	opaque(a);
	return table->entry[a] ? XDP_DROP : XDP_PASS;
}
