// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/xdp-project/xdp-tutorial/issues/153
// class: a loop that data_end alone bounds
#include "annoying.h"

SEC("xdp")
int until_the_end(struct xdp_md *ctx)
{
	START(ctx);
	__u16 *p = data;
	__u32 sum = 0;

	while ((void *)(p + 1) <= data_end) {
		sum += *p;
		p++;
	}
	return sum == 0xffff ? XDP_DROP : XDP_PASS;
}
