// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/xdp-project/xdp-tutorial/issues/218
// class: the last byte of the packet, at data_end - 1
#include "annoying.h"

SEC("xdp")
int last_byte(struct xdp_md *ctx)
{
	START(ctx);
	__u8 *end = data_end;

	if (data + 14 > data_end)
		return XDP_PASS;
	opaque(end);
	return end[-1] == 0xff ? XDP_DROP : XDP_PASS;
}
