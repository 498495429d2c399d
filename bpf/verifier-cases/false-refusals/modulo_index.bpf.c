// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/foniod/redbpf/issues/220
// class: x % n as an index
#include "annoying.h"

SEC("xdp")
int modulo_index(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 8 > data_end)
		return XDP_PASS;
	__u64 i = *(__u64 *)data % 10;

	opaque(i);
	return table->entry[i] ? XDP_DROP : XDP_PASS;
}
