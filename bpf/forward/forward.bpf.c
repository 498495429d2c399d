// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What `xway bench drop` and its siblings attach: one program for each verdict, each thing that is done to a packet before it,
 * and each way to reach the packet. The interfaces have fixed numbers: packets come in on 10, and 12 is where
 * they are redirected; the CPU is number 0.
 */
#include "touch.h"

#define TARGET 12

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

#define PROGRAM(name, op, load, store, verdict)                                                                        \
	SEC("xdp")                                                                                                     \
	int name(struct xdp_md *ctx)                                                                                   \
	{                                                                                                              \
		struct headers copy = {};                                                                              \
		if (!op(ctx, &copy, load, store))                                                                      \
			return XDP_ABORTED;                                                                            \
		return verdict;                                                                                        \
	}

OPERATIONS(drop, XDP_DROP)
OPERATIONS(pass, XDP_PASS)
OPERATIONS(tx, XDP_TX)
OPERATIONS(redirect, bpf_redirect(TARGET, 0))
OPERATIONS(redirect_map, bpf_redirect_map(&ports, 0, 0))
OPERATIONS(redirect_cpu, bpf_redirect_map(&cpus, 0, 0))
OPERATIONS(redirect_multi, bpf_redirect_map(&ports, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS))

/* To the socket of the queue that the packet came in on. */
SEC("xdp")
int redirect_xsk(struct xdp_md *ctx)
{
	return bpf_redirect_map(&xsks, ctx->rx_queue_index, 0);
}

/*
 * Passes a packet on as it was made. The kernel uses the frames of a test-run again as they were left, and a host that has sent a
 * packet on has changed its addresses and its time to live.
 */
struct start {
	__u16 words[sizeof(struct headers) / 2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct start);
} fresh SEC(".maps");

SEC("xdp")
int pass_fresh(struct xdp_md *ctx)
{
	struct start *to = (void *)(long)ctx->data, *from;
	__u32 zero = 0;

	from = bpf_map_lookup_elem(&fresh, &zero);
	if (!from || (void *)(to + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	*to = *from;
	return XDP_PASS;
}

/* Behind the kernel's end of a wire: what arrives is counted and dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

static __always_inline int count_and_drop(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&arrived, &zero);

	if (count)
		*count += 1;
	return XDP_DROP;
}

SEC("xdp")
int far_end(struct xdp_md *ctx)
{
	return count_and_drop();
}

/* The same on the other side of the CPUMAP. */
SEC("xdp/cpumap")
int far_cpu(struct xdp_md *ctx)
{
	return count_and_drop();
}

/* A filter: who sends this, and is it one of those whose packets are not wanted. Here, or on the other side of the CPUMAP. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} denied SEC(".maps");

static __always_inline int is_denied(struct xdp_md *ctx)
{
	struct headers *h = IN_PLACE(ctx, 0, sizeof(*h));
	__u32 from;

	if (!h || h->eth.h_proto != bpf_htons(ETH_P_IP) || h->ip.version != 4)
		return 0;
	from = h->ip.saddr;
	return bpf_map_lookup_elem(&denied, &from) != 0;
}

SEC("xdp")
int drop_filter(struct xdp_md *ctx)
{
	return is_denied(ctx) ? XDP_ABORTED : XDP_DROP;
}

SEC("xdp/cpumap")
int far_filter(struct xdp_md *ctx)
{
	return is_denied(ctx) ? XDP_ABORTED : count_and_drop();
}

char _license[] SEC("license") = "Dual BSD/GPL";
