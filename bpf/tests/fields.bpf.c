// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Special fields of map values (a spin lock, a timer), helpers that ask about the running task, and text for the trace
 * pipe. Results go into a map, so that two sides can be compared.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define CLOCK_MONOTONIC 1

struct guarded {
	__u64 packets;
	struct bpf_spin_lock lock;
	__u32 longest;
};

struct timed {
	__u32 before;
	struct bpf_timer timer;
	__u64 after;
};

struct both {
	__u64 before;
	struct bpf_timer timer;
	struct bpf_spin_lock lock;
	__u32 after;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct guarded);
} guarded SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct timed);
} timed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, __s64);
} results SEC(".maps");

static __always_inline void result(__u32 slot, __s64 value)
{
	bpf_map_update_elem(&results, &slot, &value, BPF_ANY);
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct timed);
} timed_array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct both);
} both_array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct both);
} both_hash SEC(".maps");

/* What cannot hold a lock, or is for programs to read only: plain bytes, for a map without types. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct guarded);
} plain SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, __u32);
	__type(value, struct guarded);
} read_only SEC(".maps");

/* Counts under the lock, then writes and reads a whole value with BPF_F_LOCK. */
SEC("xdp")
int locked(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data, first = 0, second = 1;
	struct guarded *g = bpf_map_lookup_elem(&guarded, &first), copy = {};

	if (!g)
		return XDP_ABORTED;
	bpf_spin_lock(&g->lock);
	g->packets += 1;
	if (length > g->longest)
		g->longest = length;
	bpf_spin_unlock(&g->lock);
	copy.packets = 7;
	copy.longest = length;
	result(0, bpf_map_update_elem(&guarded, &second, &copy, BPF_F_LOCK));
	result(1, bpf_map_update_elem(&guarded, &second, &copy, BPF_F_LOCK | BPF_NOEXIST));
	return XDP_PASS;
}

static int fired(void *map, __u32 *key, struct timed *value)
{
	value->after += 1;
	return 0;
}

/* Linux allocates timers without waiting for a lock, so that now and then there is no memory for a moment. */
static __always_inline long init_in(struct bpf_timer *timer, void *map)
{
	const long enomem = -12;
	long error = enomem;

	for (int i = 0; i < 200 && error == enomem; i++)
		error = bpf_timer_init(timer, map, CLOCK_MONOTONIC);
	return error;
}

static __always_inline long init(struct bpf_timer *timer)
{
	return init_in(timer, &timed);
}

/* A timer that never comes to fire: every step's answer, also those out of order. */
SEC("xdp")
int timers(struct xdp_md *ctx)
{
	__u32 key = 1;
	struct timed empty = { .before = 5, .after = 6 };
	struct timed *t;

	bpf_map_update_elem(&timed, &key, &empty, BPF_NOEXIST);
	t = bpf_map_lookup_elem(&timed, &key);
	if (!t)
		return XDP_ABORTED;
	result(2, bpf_timer_start(&t->timer, 1, 0));
	result(3, bpf_timer_cancel(&t->timer));
	result(4, bpf_timer_set_callback(&t->timer, fired));
	result(5, bpf_timer_init(&t->timer, &timed, 77));
	result(6, init(&t->timer));
	result(7, bpf_timer_init(&t->timer, &timed, CLOCK_MONOTONIC));
	result(8, bpf_timer_start(&t->timer, 1ULL << 50, 0));
	result(9, bpf_timer_set_callback(&t->timer, fired));
	result(10, bpf_timer_start(&t->timer, 1ULL << 50, 1 << 20));
	result(11, bpf_timer_start(&t->timer, 1ULL << 50, 0));
	result(12, bpf_timer_cancel(&t->timer));
	result(13, bpf_timer_cancel(&t->timer));
	t->before += 1;
	/* Writing a value leaves its timer alone; deleting it takes the timer along. */
	result(14, bpf_map_update_elem(&timed, &key, &empty, BPF_EXIST));
	result(15, ctx->data_end - ctx->data > 100 ? bpf_map_delete_elem(&timed, &key) : 1);
	return XDP_PASS;
}

/* A timer in an element that is gone: allowed, and what it answers depends on who has the memory now. */
SEC("xdp")
int stale(struct xdp_md *ctx)
{
	__u32 key = 2;
	struct timed empty = {};
	struct timed *t;

	bpf_map_update_elem(&timed, &key, &empty, BPF_ANY);
	t = bpf_map_lookup_elem(&timed, &key);
	if (!t)
		return XDP_ABORTED;
	bpf_map_delete_elem(&timed, &key);
	bpf_timer_init(&t->timer, &timed, CLOCK_MONOTONIC);
	bpf_timer_cancel(&t->timer);
	return XDP_PASS;
}

/* Who runs, and what is said of it. */
SEC("xdp")
int task(struct xdp_md *ctx)
{
	char name[16] = {};

	result(17, bpf_get_current_pid_tgid());
	result(18, bpf_get_current_uid_gid());
	result(19, bpf_get_current_comm(name, sizeof(name)));
	result(20, *(__s64 *)name);
	result(21, *(__s64 *)(name + 8));
	result(22, bpf_get_current_comm(name, 5));
	result(23, *(__s64 *)name);
	result(24, bpf_get_numa_node_id());
	result(25, bpf_get_smp_processor_id());
	result(26, bpf_get_current_cgroup_id());
	result(27, bpf_get_current_ancestor_cgroup_id(0));
	result(28, bpf_get_current_ancestor_cgroup_id(99));
	return XDP_PASS;
}

/* How long the lines for the trace pipe are, and what is no format. */
SEC("xdp")
int trace(struct xdp_md *ctx)
{
	static const char bad[] = "%d %y";
	static const char many[] = "%d %s %llx %c %pI4|";
	__u32 length = ctx->data_end - ctx->data;
	__u32 address = 0x0100007f;
	char word[8] = "seven";
	__u64 data[5] = { length, (__u64)(long)word, 0xabcdefULL << 20, 'x', (__u64)(long)&address };

	result(29, bpf_trace_printk("length %d of %s\n", 17, length, word));
	result(30, bpf_trace_printk(bad, sizeof(bad), length));
	result(31, bpf_trace_vprintk(many, sizeof(many), data, sizeof(data)));
	return XDP_PASS;
}

static int never(void *map, __u32 *key, void *value)
{
	return 0;
}

/* An element is overwritten: what becomes of its timer. */
#define OVERWRITTEN(at, map, type, flags)                                                       \
	do {                                                                                    \
		__u32 key = 1;                                                                  \
		type fresh = { .after = at }, *v = bpf_map_lookup_elem(&map, &key);             \
                                                                                                \
		if (!v && !bpf_map_update_elem(&map, &key, &fresh, BPF_ANY))                    \
			v = bpf_map_lookup_elem(&map, &key);                                    \
		if (!v)                                                                         \
			break;                                                                  \
		result(at, init_in(&v->timer, &map));                                           \
		result(at + 1, bpf_timer_set_callback(&v->timer, never));                       \
		result(at + 2, bpf_timer_start(&v->timer, 1ULL << 50, 0));                      \
		result(at + 3, bpf_map_update_elem(&map, &key, &fresh, flags));                 \
		v = bpf_map_lookup_elem(&map, &key);                                            \
		if (!v)                                                                         \
			break;                                                                  \
		result(at + 4, bpf_timer_start(&v->timer, 1ULL << 50, 0));                      \
		result(at + 5, bpf_timer_cancel(&v->timer));                                    \
	} while (0)

SEC("xdp")
int overwritten(struct xdp_md *ctx)
{
	/* A few times only: what timers are allocated from runs dry. */
	if (ctx->data_end - ctx->data < 1000)
		return XDP_PASS;
	OVERWRITTEN(0, timed_array, struct timed, BPF_ANY);
	OVERWRITTEN(6, both_array, struct both, BPF_EXIST);
	OVERWRITTEN(12, both_array, struct both, BPF_F_LOCK);
	OVERWRITTEN(18, timed, struct timed, BPF_ANY);
	OVERWRITTEN(24, both_hash, struct both, BPF_F_LOCK);
	return XDP_PASS;
}

/* Bytes that look like a lock and are none. */
SEC("xdp")
int without_types(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data, key = length & 3;
	struct guarded fresh = { .packets = length, .lock = { length }, .longest = 7 }, *g;

	result(0, bpf_map_update_elem(&plain, &key, &fresh, BPF_ANY));
	g = bpf_map_lookup_elem(&plain, &key);
	if (!g)
		return XDP_ABORTED;
	*(volatile __u32 *)&g->lock += 1;
	result(1, *(volatile __u32 *)&g->lock);
	key &= 1;
	g = bpf_map_lookup_elem(&read_only, &key);
	if (!g)
		return XDP_ABORTED;
	result(2, *(volatile __u32 *)&g->lock);
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
