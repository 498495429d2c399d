// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Packets as they come to the kernel's hook, for `xdpdump`. Where another program is attached already, this one takes its place for as
 * long as the capture lasts, and hands every packet on to it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Written before the program is loaded; crates/tools/src/capture.rs has the same fields. */
struct settings {
	/* Most bytes of a packet. */
	__u32 snap;
	__u32 unused;
};
volatile const struct settings settings = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
} packets SEC(".maps");

/* Who was there before, in slot 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} behind SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

/* In front of each packet. */
struct about {
	__u64 time;
	__u64 number;
	__u32 ifindex;
	__u32 queue;
	__u32 len;
	__u32 captured;
};

static __always_inline void captured(struct xdp_md *ctx)
{
	struct about about = {};
	__u32 zero = 0, snap = settings.snap;
	__u64 *last = bpf_map_lookup_elem(&numbers, &zero);

	if (!last)
		return;
	about.time = bpf_ktime_get_ns();
	about.number = __sync_fetch_and_add(last, 1) + 1;
	about.ifindex = ctx->ingress_ifindex;
	about.queue = ctx->rx_queue_index;
	about.len = ctx->data_end - ctx->data;
	about.captured = about.len < snap ? about.len : snap;
	bpf_perf_event_output(ctx, &packets, (__u64)(about.captured & 0xfffff) << 32 | BPF_F_CURRENT_CPU, &about,
			      sizeof(about));
}

SEC("xdp")
int xdpdump(struct xdp_md *ctx)
{
	captured(ctx);
	bpf_tail_call(ctx, &behind, 0);
	return XDP_PASS;
}

/* For programs that take packets of several buffers: the two kinds do not call each other. */
SEC("xdp.frags")
int xdpdump_frags(struct xdp_md *ctx)
{
	captured(ctx);
	bpf_tail_call(ctx, &behind, 0);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
