// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/xdp-project/xdp-tutorial/issues/169
// class: a length is computed twice, checked once
#include "annoying.h"

SEC("xdp")
int length_twice(struct xdp_md *ctx)
{
	START(ctx);
	__u64 len = data_end - data;

	opaque(len);
	if (len < 14)
		return XDP_PASS;
	__u64 again = data_end - data;

	opaque(again);
	if (again > 1500)
		return XDP_DROP;
	__u8 *p = data;

	return p[13] ? XDP_DROP : XDP_PASS;
}
