// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Hands one packet in `every` to user space through a ring buffer: its length, where it came in, its first bytes.
 * Everything passes; when the ring is full the sample is lost and `lost` says how often.
 */
#include "parse.h"

#define SNAP 64

struct sample {
	__u32 packet_length;
	__u32 captured;
	__u32 ifindex;
	__u32 queue;
	__u8 bytes[SNAP];
};

/* Set before loading: a constant that a loader may patch in .rodata. */
const volatile __u32 every = 4;

/* Global variables: user space reads them as the map of .bss. */
__u64 seen;
__u64 lost;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} samples SEC(".maps");

SEC("xdp")
int sample(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data;
	__u8 *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct sample *record;
	__u32 i;

	if (every == 0 || __sync_fetch_and_add(&seen, 1) % every)
		return XDP_PASS;
	record = bpf_ringbuf_reserve(&samples, sizeof(*record), 0);
	if (!record) {
		__sync_fetch_and_add(&lost, 1);
		return XDP_PASS;
	}
	record->packet_length = length;
	record->ifindex = ctx->ingress_ifindex;
	record->queue = ctx->rx_queue_index;
	/* A record is not zeroed when it is handed out. */
	__builtin_memset(record->bytes, 0, SNAP);
	for (i = 0; i < SNAP; i++) {
		if ((void *)(data + i + 1) > end)
			break;
		record->bytes[i] = data[i];
	}
	record->captured = i;
	bpf_ringbuf_submit(record, 0);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
