// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/xdp-project/xdp-tutorial/issues/169
// class: the length is computed once and compared as a number
#include "annoying.h"

SEC("xdp")
int length_first(struct xdp_md *ctx)
{
	START(ctx);
	__u64 len = data_end - data;

	opaque(len);
	if (len < sizeof(struct ethhdr) + sizeof(struct iphdr))
		return XDP_PASS;
	struct iphdr *ip = data + sizeof(struct ethhdr);

	return ip->ttl == 1 ? XDP_DROP : XDP_PASS;
}
