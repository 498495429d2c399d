// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The comparison stands the wrong way round: what is read is not there.
// hint: the way to
// hint: is the one on which the packet is too short: turn the check round
// packet:
#include "refused.h"

SEC("xdp")
int check_reversed(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) <= data_end)
		return XDP_PASS;
	// refused: packet-bounds
	return eth->h_dest[0] & 1 ? XDP_DROP : XDP_PASS;
}
