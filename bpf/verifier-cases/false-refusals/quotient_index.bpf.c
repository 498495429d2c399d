// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/foniod/redbpf/issues/220
// class: x / n as an index
#include "annoying.h"

SEC("xdp")
int quotient_index(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 2 > data_end)
		return XDP_PASS;
	__u64 i = *(__u16 *)data / 1100;

	opaque(i);
	return table->entry[i] ? XDP_DROP : XDP_PASS;
}
