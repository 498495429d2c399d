// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A header is read before anything was compared with data_end.
// hint: nothing on this way compares `eth` with data_end
// hint: if ((void *)(eth + 1) > data_end) return XDP_PASS;
// packet:
#include "refused.h"

SEC("xdp")
int packet_unchecked(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct ethhdr *eth = data;

	// refused: packet-bounds
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return XDP_DROP;
	return XDP_PASS;
}
