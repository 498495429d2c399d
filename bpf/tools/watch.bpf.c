// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The kernel's tracepoints about XDP, counted where they arise. Raw tracepoints hand over the arguments of the
 * kernel's own call; the fields of its structures are found through its type information.
 */
#include "tally.h"

/* Numbers of `redirect_errors`; crates/tools/src/watch.rs has their names. */
#define ERRORS 7
#define ACTIONS 6
#define CPUS 256

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct xdp_cpumap_stats {
	unsigned int redirect;
	unsigned int pass;
	unsigned int drop;
} __attribute__((preserve_access_index));

/*
 * Interfaces, by number, whose events count; number 0 stands for all of them. The value is the number of their network
 * namespace: numbers of interfaces begin anew in each.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} watched SEC(".maps");

/* CPUMAPs, by id, likewise. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} watched_maps SEC(".maps");

TALLIES(redirects, 1);
TALLIES(redirect_errors, ERRORS);
TALLIES(exceptions, ACTIONS);
TALLIES(enqueues, CPUS);
TALLIES(kthreads, 1);
TALLIES(xmits, 1);

struct link {
	__u32 from;
	__u32 to;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct link);
	__type(value, struct tally);
} links SEC(".maps");

static __always_inline __u32 number(const struct net_device *dev)
{
	int ifindex = 0;

	bpf_probe_read_kernel(&ifindex, sizeof(ifindex), &dev->ifindex);
	return ifindex;
}

static __always_inline __u32 namespace(const struct net_device *dev)
{
	struct net *net = 0;
	__u32 inum = 0;

	bpf_probe_read_kernel(&net, sizeof(net), &dev->nd_net.net);
	if (net)
		bpf_probe_read_kernel(&inum, sizeof(inum), &net->ns.inum);
	return inum;
}

static __always_inline int is_watched(const struct net_device *dev)
{
	__u32 all = 0, key = number(dev), *space;

	if (bpf_map_lookup_elem(&watched, &all))
		return 1;
	space = bpf_map_lookup_elem(&watched, &key);
	return space && *space == namespace(dev);
}

static __always_inline int is_watched_map(__u32 id)
{
	__u32 all = 0;

	return bpf_map_lookup_elem(&watched_maps, &id) || bpf_map_lookup_elem(&watched_maps, &all);
}

/* Errno by its place among the errors that have a name; 0 is every other one. */
static __always_inline __u32 place(int err)
{
	switch (err < 0 ? -err : err) {
	case 22: /* EINVAL */
		return 1;
	case 100: /* ENETDOWN */
		return 2;
	case 90: /* EMSGSIZE */
		return 3;
	case 95: /* EOPNOTSUPP */
		return 4;
	case 28: /* ENOSPC */
		return 5;
	case 11: /* EAGAIN */
		return 6;
	default:
		return 0;
	}
}

/* (device, program, target, errno, type of map, id of map, index) */
SEC("raw_tp/xdp_redirect_err")
int on_redirect_err(struct bpf_raw_tracepoint_args *ctx)
{
	struct tally *t;

	if (!is_watched((void *)ctx->args[0]))
		return 0;
	t = tally(&redirect_errors, place((int)ctx->args[3]));
	if (t) {
		t->processed += 1;
		t->dropped += 1;
	}
	return 0;
}

SEC("raw_tp/xdp_redirect")
int on_redirect(struct bpf_raw_tracepoint_args *ctx)
{
	struct tally *t;

	if (!is_watched((void *)ctx->args[0]))
		return 0;
	t = tally(&redirects, 0);
	if (t)
		t->processed += 1;
	return 0;
}

/* (device, program, action) */
SEC("raw_tp/xdp_exception")
int on_exception(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 action = ctx->args[2];
	struct tally *t;

	if (!is_watched((void *)ctx->args[0]))
		return 0;
	t = tally(&exceptions, action < ACTIONS ? action : ACTIONS - 1);
	if (t)
		t->dropped += 1;
	return 0;
}

/* (id of map, processed, drops, CPU): from this CPU to that one; `issue` counts the batches. */
SEC("raw_tp/xdp_cpumap_enqueue")
int on_enqueue(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 to = ctx->args[3];
	struct tally *t;

	if (!is_watched_map(ctx->args[0]) || to >= CPUS)
		return 0;
	t = tally(&enqueues, to);
	if (t) {
		t->processed += (__u32)ctx->args[1];
		t->dropped += (__u32)ctx->args[2];
		t->issue += (__u32)ctx->args[1] > 0;
	}
	return 0;
}

/* (id of map, processed, drops, times it gave the CPU up, what the map's program said) */
SEC("raw_tp/xdp_cpumap_kthread")
int on_kthread(struct bpf_raw_tracepoint_args *ctx)
{
	const struct xdp_cpumap_stats *said = (void *)ctx->args[4];
	unsigned int redirect = 0, pass = 0, drop = 0;
	struct tally *t;

	if (!is_watched_map(ctx->args[0]))
		return 0;
	bpf_probe_read_kernel(&redirect, sizeof(redirect), &said->redirect);
	bpf_probe_read_kernel(&pass, sizeof(pass), &said->pass);
	bpf_probe_read_kernel(&drop, sizeof(drop), &said->drop);
	t = tally(&kthreads, 0);
	if (t) {
		t->processed += (__u32)ctx->args[1];
		t->dropped += (__u32)ctx->args[2];
		t->issue += (int)ctx->args[3] != 0;
		t->redirect += redirect;
		t->pass += pass;
		t->drop += drop;
	}
	return 0;
}

static __always_inline void sent(struct tally *t, __u64 frames, __u64 drops, int err)
{
	t->processed += frames;
	t->dropped += drops;
	/* Batches, and in `drop` those in which the driver itself failed. */
	t->issue += 1;
	t->drop += err && !drops;
}

/* (from, to, sent, drops, errno) */
SEC("raw_tp/xdp_devmap_xmit")
int on_xmit(struct bpf_raw_tracepoint_args *ctx)
{
	struct link link = { number((void *)ctx->args[0]), number((void *)ctx->args[1]) };
	struct tally *t, none = {};

	if (!is_watched((void *)ctx->args[0]) && !is_watched((void *)ctx->args[1]))
		return 0;
	t = tally(&xmits, 0);
	if (t)
		sent(t, (__u32)ctx->args[2], (__u32)ctx->args[3], (int)ctx->args[4]);
	t = bpf_map_lookup_elem(&links, &link);
	if (!t) {
		bpf_map_update_elem(&links, &link, &none, BPF_NOEXIST);
		t = bpf_map_lookup_elem(&links, &link);
	}
	if (t)
		sent(t, (__u32)ctx->args[2], (__u32)ctx->args[3], (int)ctx->args[4]);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
