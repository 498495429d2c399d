// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/iovisor/bcc/issues/2391
// class: what is left of a buffer bounds the next copy
#include "annoying.h"

SEC("xdp")
int rest_of_buffer(struct xdp_md *ctx)
{
	START(ctx);
	struct table *table = the_table();

	if (!table || data + 34 > data_end)
		return XDP_PASS;
	__u64 first = *(__u8 *)data, second = *(__u8 *)(data + 1);

	if (first < 1 || first > 40)
		return XDP_PASS;
	if (bpf_xdp_load_bytes(ctx, 0, table->entry, first))
		return XDP_PASS;
	__u64 left = sizeof(table->entry) - first;

	opaque(left);
	if (second > left)
		second = left;
	if (second < 1)
		return XDP_PASS;
	return bpf_xdp_load_bytes(ctx, 0, table->entry + first, second) ? XDP_DROP : XDP_PASS;
}
