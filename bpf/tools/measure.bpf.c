// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What `xdp-bench` attaches: a program for each thing that the kernel's hook can do with a packet, each counting
 * what it sees. What is asked for once is constant when the program is loaded, so that nothing is decided for a
 * packet but by the packet.
 */
#include "spread.h"
#include "tally.h"
#include "touch.h"

#define CPUS 64
#define QUEUES 64
#define DEVICES 32

/* Written before the program is loaded; crates/tools/src/measure.rs has the same fields. */
struct settings {
	/* Count for each receive queue too. */
	__u32 by_queue;
	/* Interface that redirected packets leave by. */
	__u32 target;
	/* CPUs in `chosen`. */
	__u32 cpus;
	/* Verdict of the programs behind maps: XDP_DROP, XDP_PASS or XDP_REDIRECT. */
	__u32 behind;
};
volatile const struct settings settings = {};

TALLIES(received, 1);
TALLIES(received_by_queue, QUEUES);

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, DEVICES);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, CPUS);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

/* CPUs that packets are sent to, in the order in which they were asked for. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS);
	__type(key, __u32);
	__type(value, __u32);
} chosen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} turn SEC(".maps");

/* Addresses of the interfaces in `devices`, by their numbers. */
struct mac {
	__u8 bytes[8];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DEVICES);
	__type(key, __u32);
	__type(value, struct mac);
} addresses SEC(".maps");

static __always_inline void counted(struct xdp_md *ctx, int verdict, int failed)
{
	struct tally *t = tally(&received, 0);

	if (t) {
		t->processed += 1;
		t->issue += failed;
		if (verdict == XDP_DROP)
			t->dropped += 1;
	}
	if (!settings.by_queue || ctx->rx_queue_index >= QUEUES)
		return;
	t = tally(&received_by_queue, ctx->rx_queue_index);
	if (t) {
		t->processed += 1;
		t->issue += failed;
		if (verdict == XDP_DROP)
			t->dropped += 1;
	}
}

/* What cannot be touched as asked (too short, or not IPv4) is counted as an error, and goes the way of the others. */
#define PROGRAM(name, op, load, store, verdict)                                                                        \
	SEC("xdp")                                                                                                     \
	int name(struct xdp_md *ctx)                                                                                   \
	{                                                                                                              \
		struct headers copy = {};                                                                              \
		int touched = op(ctx, &copy, load, store);                                                             \
		counted(ctx, WAY, !touched);                                                                           \
		return verdict;                                                                                        \
	}

#define WAY XDP_DROP
OPERATIONS(drop, XDP_DROP)
#undef WAY
#define WAY XDP_PASS
OPERATIONS(pass, XDP_PASS)
OPERATIONS(tx, XDP_TX)
OPERATIONS(redirect, bpf_redirect(settings.target, 0))
OPERATIONS(redirect_map, bpf_redirect_map(&devices, 0, 0))
OPERATIONS(redirect_multi, bpf_redirect_map(&devices, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS))

static __always_inline int to_cpu(struct xdp_md *ctx, __u32 index, int failed)
{
	__u32 *cpu = bpf_map_lookup_elem(&chosen, &index);

	counted(ctx, XDP_PASS, failed || !cpu);
	return cpu ? bpf_redirect_map(&cpus, *cpu, 0) : XDP_ABORTED;
}

SEC("xdp")
int cpu_no_touch(struct xdp_md *ctx)
{
	return to_cpu(ctx, 0, 0);
}

SEC("xdp")
int cpu_touch(struct xdp_md *ctx)
{
	struct headers copy = {};

	return to_cpu(ctx, 0, !read_data(ctx, &copy, IN_PLACE, STAYS));
}

SEC("xdp")
int cpu_round_robin(struct xdp_md *ctx)
{
	__u32 zero = 0, index = 0;
	__u32 *next = bpf_map_lookup_elem(&turn, &zero);

	if (next) {
		index = *next;
		*next = index + 1 >= settings.cpus ? 0 : index + 1;
	}
	return to_cpu(ctx, index, 0);
}

static __always_inline __u32 within(__u32 index)
{
	return settings.cpus ? index % settings.cpus : 0;
}

SEC("xdp")
int cpu_l4_proto(struct xdp_md *ctx)
{
	struct flow flow = {};
	int known = flow_of(ctx, &flow);

	return to_cpu(ctx, within(by_protocol(&flow)), !known);
}

/* The same, without datagrams to port 9, which generators of traffic send. */
SEC("xdp")
int cpu_l4_filter(struct xdp_md *ctx)
{
	struct flow flow = {};
	int known = flow_of(ctx, &flow);

	if (flow.protocol == IPPROTO_UDP && flow.dport == 9) {
		counted(ctx, XDP_DROP, 0);
		return XDP_DROP;
	}
	return to_cpu(ctx, within(by_protocol(&flow)), !known);
}

SEC("xdp")
int cpu_l4_hash(struct xdp_md *ctx)
{
	struct flow flow = {};
	int known = flow_of(ctx, &flow);

	return to_cpu(ctx, within(mixed(flow.addresses + flow.protocol)), !known);
}

SEC("xdp")
int cpu_l4_sport(struct xdp_md *ctx)
{
	struct flow flow = {};
	int known = flow_of(ctx, &flow);

	return to_cpu(ctx, within(flow.sport), !known);
}

SEC("xdp")
int cpu_l4_dport(struct xdp_md *ctx)
{
	struct flow flow = {};
	int known = flow_of(ctx, &flow);

	return to_cpu(ctx, within(flow.dport), !known);
}

/* On the CPU that a packet was sent to. */
SEC("xdp/cpumap")
int behind_cpu(struct xdp_md *ctx)
{
	if (settings.behind == XDP_REDIRECT)
		return bpf_redirect_map(&devices, 0, 0);
	return settings.behind;
}

/* Behind the device that a packet leaves by: it leaves with that device's own address. */
SEC("xdp/devmap")
int behind_device(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 out = ctx->egress_ifindex;
	struct ethhdr *eth = data;
	struct mac *mac;

	if (settings.behind == XDP_DROP)
		return XDP_DROP;
	mac = bpf_map_lookup_elem(&addresses, &out);
	if (mac && data + sizeof(*eth) <= end)
		__builtin_memcpy(eth->h_source, mac->bytes, sizeof(eth->h_source));
	return XDP_PASS;
}

/* On interfaces that packets leave by, for drivers that send redirected frames only while they have a program. */
SEC("xdp")
int idle(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
