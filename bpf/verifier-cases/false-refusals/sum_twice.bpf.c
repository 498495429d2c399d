// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/xdp-project/bpf-examples/pull/13
// class: pointer + offset is computed twice, checked once
#include "annoying.h"

SEC("xdp")
int sum_twice(struct xdp_md *ctx)
{
	START(ctx);
	struct iphdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > data_end)
		return XDP_PASS;
	__u64 off = ip->ihl * 4;
	void *first = ip, *second = ip;

	opaque(off);
	opaque(first);
	opaque(second);
	first += off;
	if (first + 8 > data_end)
		return XDP_PASS;
	second += off;
	return ((struct udphdr *)second)->dest ? XDP_DROP : XDP_PASS;
}
