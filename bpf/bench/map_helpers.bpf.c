// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Helpers of maps that no program of the suite calls, each in a program that does little else. Keys and values have 8 bytes, an array's
 * key 4. Nobody reads the rings.
 */
#include "flow.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} numbers_by_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16);
	__type(key, __u64);
	__type(value, __u64);
} table_by_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 64);
	__type(value, __u64);
} queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 1024);
	__type(value, __u64);
} filter SEC(".maps");

struct long_value {
	__u64 word[9];
};

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 1024);
	__type(value, struct long_value);
} long_filter SEC(".maps");

/* A page, which the first few hundred records fill. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} full SEC(".maps");

/* The benchmark makes it so large that its packets do not fill it. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} events SEC(".maps");

struct prefix {
	__u32 length;
	__be32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u64);
} routes SEC(".maps");

struct block {
	__u8 byte[256];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct block);
} block SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u64);
	__type(value, struct block);
} blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

struct alarm {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct alarm);
} alarms SEC(".maps");

/* 10.0.0.0/8, the only prefix of the trie. */
#define PREFIX ((struct prefix){ .length = 8, .address = bpf_htonl(0x0a000000) })

static long step(void *map, const void *key, __u64 *value, __u64 *sum)
{
	*sum += *value;
	return 0;
}

/*
 * Drops where there are others than `elements`; the sum's lowest bit decides about the rest: even passes, odd goes back. The helper counts
 * them, because a number that the function counted up to would be another state for each turn in the kernel's verifier.
 */
static __always_inline int walked(void *map, long elements)
{
	__u64 sum = 0;

	if (bpf_for_each_map_elem(map, step, &sum, 0) != elements)
		return XDP_DROP;
	return XDP_PASS + (sum & 1);
}

SEC("xdp")
int each_of_array(struct xdp_md *ctx)
{
	return walked(&numbers, 16);
}

SEC("xdp")
int each_of_percpu_array(struct xdp_md *ctx)
{
	return walked(&numbers_by_cpu, 16);
}

/* The table is empty: what costs are its buckets. */
SEC("xdp")
int each_of_empty_hash(struct xdp_md *ctx)
{
	return walked(&table, 0);
}

/* The value that CPU 0 has for number 7: even passes, odd goes back. */
SEC("xdp")
int percpu_array_elem(struct xdp_md *ctx)
{
	__u32 key = 7;
	__u64 *value = bpf_map_lookup_percpu_elem(&numbers_by_cpu, &key, 0);

	return value ? XDP_PASS + (*value & 1) : XDP_DROP;
}

SEC("xdp")
int percpu_hash_elem(struct xdp_md *ctx)
{
	__u64 key = 7;
	__u64 *value = bpf_map_lookup_percpu_elem(&table_by_cpu, &key, 0);

	return value ? XDP_PASS + (*value & 1) : XDP_DROP;
}

/* Passes where what comes out is what went in. */
SEC("xdp")
int queue_push_pop(struct xdp_md *ctx)
{
	__u64 in = 0x9e3779b97f4a7c15, out = 0;

	if (bpf_map_push_elem(&queue, &in, BPF_ANY) || bpf_map_pop_elem(&queue, &out))
		return XDP_DROP;
	return in == out ? XDP_PASS : XDP_TX;
}

/* Passes where there is nothing in the queue, sends back where there is. */
SEC("xdp")
int queue_pop_empty(struct xdp_md *ctx)
{
	__u64 out;

	return bpf_map_pop_elem(&queue, &out) ? XDP_PASS : XDP_TX;
}

SEC("xdp")
int queue_peek_empty(struct xdp_md *ctx)
{
	__u64 out;

	return bpf_map_peek_elem(&queue, &out) ? XDP_PASS : XDP_TX;
}

/* Passes what the filter does not hold, sends back what it may. */
SEC("xdp")
int bloom_miss(struct xdp_md *ctx)
{
	__u64 value = 0x9e3779b97f4a7c15;

	return bpf_map_peek_elem(&filter, &value) ? XDP_PASS : XDP_TX;
}

SEC("xdp")
int bloom_miss_72(struct xdp_md *ctx)
{
	struct long_value value = { { 1, 2, 3, 4, 5, 6, 7, 8, 9 } };

	return bpf_map_peek_elem(&long_filter, &value) ? XDP_PASS : XDP_TX;
}

/* The same value with every packet. */
SEC("xdp")
int bloom_push(struct xdp_md *ctx)
{
	__u64 value = 0x9e3779b97f4a7c15;

	return bpf_map_push_elem(&filter, &value, BPF_ANY) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int bloom_push_peek(struct xdp_md *ctx)
{
	__u64 value = 0x9e3779b97f4a7c15;

	if (bpf_map_push_elem(&filter, &value, BPF_ANY))
		return XDP_DROP;
	return bpf_map_peek_elem(&filter, &value) ? XDP_PASS : XDP_TX;
}

/* A record of the ring, reserved and submitted; 0 where there is no room. */
static __always_inline int submitted(void *ring)
{
	__u64 *record = bpf_ringbuf_reserve(ring, sizeof(*record), 0);

	if (!record)
		return 0;
	*record = 0x9e3779b97f4a7c15;
	bpf_ringbuf_submit(record, 0);
	return 1;
}

/* The same by a copy. */
static __always_inline int put_out(void *ring)
{
	__u64 record = 0x9e3779b97f4a7c15;

	return !bpf_ringbuf_output(ring, &record, sizeof(record), 0);
}

/* Passes where the ring is full, sends back where it has taken the record. */
SEC("xdp")
int ring_full_reserve(struct xdp_md *ctx)
{
	return submitted(&full) ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int ring_full_output(struct xdp_md *ctx)
{
	return put_out(&full) ? XDP_TX : XDP_PASS;
}

/*
 * The verdict is the same whether there was room or not: of two sides that were measured for as long, one has had more packets, and its ring
 * may be full before the other's.
 */
SEC("xdp")
int ring_reserve(struct xdp_md *ctx)
{
	submitted(&records);
	return XDP_PASS;
}

SEC("xdp")
int ring_output(struct xdp_md *ctx)
{
	put_out(&records);
	return XDP_PASS;
}

/* Passes where no record waits in the ring. */
SEC("xdp")
int ring_query(struct xdp_md *ctx)
{
	return bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) ? XDP_TX : XDP_PASS;
}

/* Passes where nobody reads, sends back where somebody gets the event. */
SEC("xdp")
int perf_output(struct xdp_md *ctx)
{
	__u64 event = 0x9e3779b97f4a7c15;

	return bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &event, sizeof(event)) ? XDP_PASS : XDP_TX;
}

/* A prefix that is there, but for the first packet. */
SEC("xdp")
int trie_update(struct xdp_md *ctx)
{
	struct prefix key = PREFIX;
	__u64 value = XDP_PASS;

	return bpf_map_update_elem(&routes, &key, &value, BPF_ANY) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int trie_insert_delete(struct xdp_md *ctx)
{
	struct prefix key = PREFIX;
	__u64 value = XDP_PASS;

	if (bpf_map_update_elem(&routes, &key, &value, BPF_NOEXIST) || bpf_map_delete_elem(&routes, &key))
		return XDP_DROP;
	return XDP_PASS;
}

/* 256 bytes of one map into another. */
SEC("xdp")
int hash_update_256(struct xdp_md *ctx)
{
	struct block *from;
	__u32 zero = 0;
	__u64 key = 7;

	from = bpf_map_lookup_elem(&block, &zero);
	if (!from)
		return XDP_ABORTED;
	return bpf_map_update_elem(&blocks, &key, from, BPF_ANY) ? XDP_DROP : XDP_PASS;
}

/* No port has the number: the packet passes. */
SEC("xdp")
int redirect_without_port(struct xdp_md *ctx)
{
	return bpf_redirect_map(&ports, 7, XDP_PASS);
}

/* Of the first packet the timer is made, and is there for the others. Passes where it was not running. */
SEC("xdp")
int timer_init_cancel(struct xdp_md *ctx)
{
	struct alarm *alarm;
	__u32 zero = 0;

	alarm = bpf_map_lookup_elem(&alarms, &zero);
	if (!alarm)
		return XDP_ABORTED;
	bpf_timer_init(&alarm->timer, &alarms, 1 /* CLOCK_MONOTONIC */);
	return bpf_timer_cancel(&alarm->timer) ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
