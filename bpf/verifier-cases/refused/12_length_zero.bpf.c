// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A length that may be 0 for a helper that takes none.
// hint: may be 0, which the call does not take
// hint: `len`
#include "refused.h"

SEC("xdp")
int length_zero(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	char buf[64] = {};

	if ((void *)(data + 16) > data_end)
		return XDP_PASS;
	__u64 len = data[0] & 63;

	// refused: unbounded
	if (bpf_xdp_load_bytes(ctx, 0, buf, len))
		return XDP_DROP;
	return buf[0] ? XDP_DROP : XDP_PASS;
}
