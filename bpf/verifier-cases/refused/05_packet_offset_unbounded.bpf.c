// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The sum is compared, but the offset is so wide that the comparison proves nothing.
// hint: `off` may be as large as
// hint: proves something only for offsets below 2^32
#include "refused.h"

SEC("xdp")
int offset_unbounded(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u64 *word = data;

	if ((void *)(word + 1) > data_end)
		return XDP_PASS;
	__u64 off = *word & 0xfffffffffff;
	__u8 *p = data + off;

	if ((void *)(p + 1) > data_end)
		return XDP_PASS;
	// refused: packet-bounds
	return *p == 0 ? XDP_DROP : XDP_PASS;
}
