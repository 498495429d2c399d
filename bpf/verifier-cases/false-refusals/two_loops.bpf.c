// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/parttimenerd/ebpf-verifier-errors/issues/5
// class: two loops in a row over the packet
#include "annoying.h"

SEC("xdp")
int two_loops(struct xdp_md *ctx)
{
	START(ctx);
	__u8 *p = data;
	int found = 0;

	for (int i = 0; i < 500; i++) {
		if ((void *)(p + 6) > data_end)
			return XDP_PASS;
		if (p[0] == 'H' && p[1] == 'o' && p[2] == 's' && p[3] == 't' && p[4] == ':' && p[5] == ' ') {
			found = 1;
			p += 6;
			break;
		}
		p++;
	}
	if (!found)
		return XDP_PASS;
	int length = 0;

	for (int i = 0; i < 250; i++) {
		if ((void *)(p + 1) > data_end)
			return XDP_PASS;
		if (*p == '\r')
			break;
		length++;
		p++;
	}
	return length > 20 ? XDP_DROP : XDP_PASS;
}
