// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/aya-rs/aya/issues/1562
// class: a variable length is added to the pointer and the sum is checked
#include "annoying.h"

SEC("xdp")
int csum_checked_sum(struct xdp_md *ctx)
{
	START(ctx);
	struct iphdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > data_end)
		return XDP_PASS;
	void *l4 = ip + 1;
	__u64 len = bpf_ntohs(ip->tot_len) & 0x7fc;

	opaque(len);
	if (l4 + len > data_end)
		return XDP_PASS;
	return bpf_csum_diff(0, 0, l4, len, 0) == 0xffff ? XDP_DROP : XDP_PASS;
}
