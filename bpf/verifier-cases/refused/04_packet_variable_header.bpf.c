// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The length of the IPv4 header is added after the check.
// hint: adds a variable offset, and the sum was never compared with data_end
// hint: (void *)(udp + 1) > data_end
// packet:
#include "refused.h"

SEC("xdp")
int variable_header(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > data_end)
		return XDP_PASS;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	struct udphdr *udp = (void *)ip + ip->ihl * 4;

	// refused: packet-bounds
	return udp->dest == bpf_htons(53) ? XDP_DROP : XDP_PASS;
}
