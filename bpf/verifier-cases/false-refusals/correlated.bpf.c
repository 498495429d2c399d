// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/microsoft/ebpf-for-windows/issues/3193
// class: the same condition decides the check and later the access
#include "annoying.h"

SEC("xdp")
int correlated(struct xdp_md *ctx)
{
	START(ctx);
	struct iphdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > data_end)
		return XDP_PASS;
	__u64 need = ip->protocol == IPPROTO_TCP ? 20 : ip->protocol == IPPROTO_UDP ? 8 : 0;

	opaque(need);
	void *l4 = ip + 1;

	if (l4 + need > data_end)
		return XDP_PASS;
	if (need == 20)
		return ((struct tcphdr *)l4)->urg_ptr ? XDP_DROP : XDP_PASS;
	if (need == 8)
		return ((struct udphdr *)l4)->check ? XDP_DROP : XDP_PASS;
	return XDP_PASS;
}
