// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/parttimenerd/ebpf-verifier-errors/issues/11
// class: arithmetic on data_end, compared with data
#include "annoying.h"

SEC("xdp")
int trailer(struct xdp_md *ctx)
{
	START(ctx);
	__u8 *tail = data_end;

	opaque(tail);
	tail -= 4;
	if ((void *)tail < data)
		return XDP_PASS;
	return tail[0] ^ tail[3] ? XDP_PASS : XDP_DROP;
}
