// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * One CPU receives, others do the work: six ways to choose who gets a packet, over a CPUMAP.
 *
 * On Linux an entry of the map is a CPU with a queue of `qsize` packets and a thread that takes them out; in Expressway it is a worker
 * with a ring of that size. Which CPUs there are stands in the map alone: user space fills keys 0 to `cpu_count` - 1. A packet for a
 * CPU that is not there passes where it is.
 */
#include "counter.h"
#include "spread.h"

#define CPUS 64

/* CPUs to spread over. Set before loading. */
const volatile __u32 cpu_count = 1;

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, CPUS);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

/* Packets by the CPU that was chosen for them. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CPUS);
	__type(key, __u32);
	__type(value, struct counter);
} chosen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} turn SEC(".maps");

static __always_inline int send_to(struct xdp_md *ctx, __u32 index)
{
	__u32 cpu = cpu_count ? index % cpu_count : 0;

	count(&chosen, cpu, ctx->data_end - ctx->data);
	/* The low bits of the flags are the verdict where there is no such entry. */
	return bpf_redirect_map(&cpus, cpu, XDP_PASS);
}

/* All to the first CPU, untouched. */
SEC("xdp")
int spread_fixed(struct xdp_md *ctx)
{
	return send_to(ctx, 0);
}

/* The same after a look at the packet: its first line is in this CPU's cache and must move to the other one. */
SEC("xdp")
int spread_touch(struct xdp_md *ctx)
{
	struct cursor c;
	struct ethhdr *eth;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth || bpf_ntohs(eth->h_proto) < ETH_P_802_3_MIN)
		return XDP_PASS;
	return send_to(ctx, 0);
}

/* One after the other; packets of a flow may overtake each other. */
SEC("xdp")
int spread_round_robin(struct xdp_md *ctx)
{
	__u32 zero = 0, index = 0;
	__u32 *next = bpf_map_lookup_elem(&turn, &zero);

	if (next) {
		index = *next;
		*next = index + 1 >= cpu_count ? 0 : index + 1;
	}
	return send_to(ctx, index);
}

/* A CPU for each protocol. */
SEC("xdp")
int spread_protocol(struct xdp_md *ctx)
{
	struct flow flow = {};

	flow_of(ctx, &flow);
	return send_to(ctx, by_protocol(&flow));
}

/* The same, and what generators of traffic send (UDP port 9, discard) goes no further. */
SEC("xdp")
int spread_filter(struct xdp_md *ctx)
{
	struct flow flow = {};

	flow_of(ctx, &flow);
	if (flow.protocol == IPPROTO_UDP && flow.dport == 9)
		return XDP_DROP;
	return send_to(ctx, by_protocol(&flow));
}

/* Both directions of a pair of hosts to one CPU. */
SEC("xdp")
int spread_flow(struct xdp_md *ctx)
{
	struct flow flow = {};

	if (!flow_of(ctx, &flow))
		return XDP_PASS;
	return send_to(ctx, mixed(flow.addresses + flow.protocol));
}

char _license[] SEC("license") = "Dual BSD/GPL";
