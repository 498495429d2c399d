// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Slices of dynptrs, of packets of several buffers too: where they lie, and what is left of those whose packet has become shorter. Behind
 * its Ethernet header the packet says where to look and how much shorter it becomes; answers go to its front.
 */
#include "parse.h"

extern int bpf_dynptr_from_xdp(struct xdp_md *x, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *p, __u32 offset, void *buffer, __u32 buffer__szk) __ksym;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *p, __u32 offset, void *buffer, __u32 buffer__szk) __ksym;

#define SLICE 16

/* What there is of a slice, by a sum of its bytes; whether it lies in the packet itself: a write to it is seen there. */
static __always_inline __s64 seen(struct bpf_dynptr *packet, __u32 at, int write)
{
	__u8 room[SLICE];
	__s64 sum = 0;
	__u8 *bytes;

	__builtin_memset(room, 0x5a, sizeof(room));
	bytes = write ? bpf_dynptr_slice_rdwr(packet, at, room, SLICE) : bpf_dynptr_slice(packet, at, room, SLICE);
	if (!bytes)
		return -1;
	for (int i = 0; i < SLICE; i++)
		sum = sum * 7 + bytes[i];
	if (write) {
		bytes[0] ^= 0x33;
		sum = 2 * sum + (room[0] == bytes[0]);
	}
	return sum;
}

SEC("xdp.frags")
int slices(struct xdp_md *ctx)
{
	struct bpf_dynptr packet;
	__s64 out[5] = {};
	__u32 in[3];
	__u8 *bytes;

	if (bpf_xdp_load_bytes(ctx, sizeof(struct ethhdr), in, sizeof(in)) || bpf_dynptr_from_xdp(ctx, 0, &packet))
		return XDP_ABORTED;
	out[0] = bpf_xdp_adjust_tail(ctx, -(int)in[1]);
	out[1] = seen(&packet, in[0], 0);
	out[2] = seen(&packet, in[0], 1);
	bytes = bpf_dynptr_slice(&packet, in[0], 0, SLICE);
	out[3] = bytes ? bytes[0] : -1;
	bytes = bpf_dynptr_slice_rdwr(&packet, in[2], 0, SLICE);
	if (bytes)
		bytes[SLICE - 1] = 0x77;
	out[4] = bytes ? bytes[0] : -1;
	bpf_xdp_store_bytes(ctx, 0, out, sizeof(out));
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
