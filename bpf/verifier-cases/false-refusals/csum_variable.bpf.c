// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/aya-rs/aya/issues/1562
// class: bpf_csum_diff over what is left of the packet
#include "annoying.h"

SEC("xdp")
int csum_variable(struct xdp_md *ctx)
{
	START(ctx);
	struct iphdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > data_end)
		return XDP_PASS;
	__u32 *l4 = (void *)(ip + 1);
	__u64 len = data_end - (void *)l4;

	opaque(len);
	if (len > 1480 || len & 3)
		return XDP_PASS;
	return bpf_csum_diff(0, 0, l4, len, 0) == 0xffff ? XDP_DROP : XDP_PASS;
}
