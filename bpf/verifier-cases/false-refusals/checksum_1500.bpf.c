// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/iovisor/bcc/issues/2463
// class: a checksum of 16-bit words over at most 1500 bytes, with an odd last byte
#include "annoying.h"

SEC("xdp")
int checksum_1500(struct xdp_md *ctx)
{
	START(ctx);
	__u16 *p = data + sizeof(struct ethhdr);
	__u32 sum = 0;

	for (int i = 0; i < 750; i++) {
		if ((void *)(p + 1) > data_end)
			break;
		sum += *p++;
	}
	if ((void *)p + 1 <= data_end)
		sum += *(__u8 *)p;
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff ? XDP_DROP : XDP_PASS;
}
