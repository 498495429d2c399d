// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A ring buffer record is forgotten on one way.
// hint: the record acquired at line
// hint: call bpf_ringbuf_submit or bpf_ringbuf_discard on this way too
#include "refused.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

SEC("xdp")
int record_not_released(struct xdp_md *ctx)
{
	__u32 *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		return XDP_PASS;
	*event = ctx->ingress_ifindex;
	if (*event == 0)
		return XDP_DROP;
	bpf_ringbuf_submit(event, 0);
	return XDP_PASS;
	// refused: unreleased-reference
}
