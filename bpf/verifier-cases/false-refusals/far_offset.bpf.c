// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/cloudflare/cbpfc/issues/22
// class: a checked offset that may be above 65535
#include "annoying.h"

SEC("xdp")
int far_offset(struct xdp_md *ctx)
{
	START(ctx);

	if (data + 4 > data_end)
		return XDP_PASS;
	__u64 off = *(__u32 *)data & 0x1ffff;
	__u8 *p = data + off;

	if ((void *)(p + 1) > data_end)
		return XDP_PASS;
	return *p ? XDP_DROP : XDP_PASS;
}
