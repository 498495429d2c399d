// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A length from the packet is handed to a helper.
// hint: `len` is 1 to 65536, and there is room for 64 bytes
// hint: if (len > sizeof(buf)) return XDP_PASS;
#include "refused.h"

SEC("xdp")
int length_unbounded(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	char buf[64] = {};

	if ((void *)(data + 16) > data_end)
		return XDP_PASS;
	__u64 len = *(__u16 *)data + 1;

	// refused: stack-bounds
	if (bpf_xdp_load_bytes(ctx, 0, buf, len))
		return XDP_DROP;
	return buf[0] ? XDP_DROP : XDP_PASS;
}
