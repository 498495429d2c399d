// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The outer header is checked, the inner one is read.
// hint: checks `(void *)(eth + 1) > data_end`, which proves 14 bytes
// hint: check `(void *)(ip + 1) > data_end`
// packet:
#include "refused.h"

SEC("xdp")
int check_too_short(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	if (eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	struct iphdr *ip = (void *)(eth + 1);

	// refused: packet-bounds
	return ip->protocol == IPPROTO_UDP ? XDP_DROP : XDP_PASS;
}
