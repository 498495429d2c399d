// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/cloudflare/cbpfc/pull/47
// class: a 16-bit offset behind a header: the sum may be above 65535
#include "annoying.h"

SEC("xdp")
int start_and_far_offset(struct xdp_md *ctx)
{
	START(ctx);
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	__u64 off = eth->h_proto;
	__u8 *p = (void *)(eth + 1) + off;

	if ((void *)(p + 2) > data_end)
		return XDP_PASS;
	return p[1] ? XDP_DROP : XDP_PASS;
}
