// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/cilium/cilium/issues/1620
// class: a signed length from the packet, only made non-negative, then the sum is checked
#include "annoying.h"

SEC("xdp")
int no_upper_bound(struct xdp_md *ctx)
{
	START(ctx);
	int *word = data;

	if ((void *)(word + 1) > data_end)
		return XDP_PASS;
	long size = *word;

	if (size < 0)
		size = 0;
	opaque(size);
	__u8 *p = data + size;

	if ((void *)(p + 14) > data_end)
		return XDP_PASS;
	return p[13] ? XDP_DROP : XDP_PASS;
}
