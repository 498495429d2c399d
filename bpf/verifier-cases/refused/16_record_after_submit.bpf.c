// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A record is written after it was given away.
// hint: `event` was given away by bpf_ringbuf_submit at line
#include "refused.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

SEC("xdp")
int record_after_submit(struct xdp_md *ctx)
{
	volatile __u32 *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		return XDP_PASS;
	bpf_ringbuf_submit((void *)event, 0);
	// refused: not-a-pointer
	*event = ctx->ingress_ifindex;
	return XDP_PASS;
}
