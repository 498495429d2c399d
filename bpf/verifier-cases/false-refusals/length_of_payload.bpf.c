// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/parttimenerd/ebpf-verifier-errors/issues/11
// class: the length behind a header, in 32 bits
#include "annoying.h"

SEC("xdp")
int length_of_payload(struct xdp_md *ctx)
{
	START(ctx);
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	__u8 *payload = (void *)(eth + 1);
	__u32 left = data_end - (void *)payload;

	opaque(left);
	if (left < 20)
		return XDP_PASS;
	return payload[19] ? XDP_DROP : XDP_PASS;
}
