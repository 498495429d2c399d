// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/parttimenerd/ebpf-verifier-errors/issues/11
// class: ptr > data_end - n
#include "annoying.h"

SEC("xdp")
int end_minus_n(struct xdp_md *ctx)
{
	START(ctx);
	void *limit = data_end;

	opaque(limit);
	limit -= sizeof(struct ethhdr) + sizeof(struct iphdr);
	if (data > limit)
		return XDP_PASS;
	struct iphdr *ip = data + sizeof(struct ethhdr);

	return ip->protocol == IPPROTO_UDP ? XDP_DROP : XDP_PASS;
}
