// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/gamemann/XDP-TCP-Header-Options/issues/2
// class: walking TCP options, each with a length of its own
#include "annoying.h"

SEC("xdp")
int options(struct xdp_md *ctx)
{
	START(ctx);
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct tcphdr *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > data_end || ip->protocol != IPPROTO_TCP)
		return XDP_PASS;
	__u64 off = 20, end = tcp->doff * 4;

	for (int i = 0; i < 40; i++) {
		__u8 *p = (void *)tcp + off;

		if (off >= end || (void *)(p + 2) > data_end)
			return XDP_PASS;
		if (p[0] == 0)
			return XDP_PASS;
		if (p[0] == 8)
			return XDP_DROP;
		off += p[0] == 1 ? 1 : p[1];
	}
	return XDP_PASS;
}
