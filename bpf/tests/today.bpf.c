// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The convention of libbpf today, with what it adds: data sections of several names, subprograms static and global, maps
 * of maps with initial values, a queue, a bloom filter, a bounded loop with a callback.
 */
#include "counter.h"
#include "parse.h"

struct inner {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
};

struct inner by_length_v4 SEC(".maps");
struct inner by_length_other SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, __u32);
	__array(values, struct inner);
} by_length SEC(".maps") = {
	.values = { [0] = &by_length_v4, [2] = &by_length_other },
};

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 8);
	__uint(value_size, sizeof(__u32));
} last_lengths SEC(".maps");

struct {
	/* So large that a wrong "yes" does not happen in a test: hash seeds differ from map to map. */
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 65536);
	__uint(value_size, sizeof(__u32));
	__uint(map_extra, 3);
} sources SEC(".maps");

const volatile __u32 weights[4] = { 3, 5, 7, 11 };
__u64 packets;
__u64 repeated = 100;
__u32 sums[4] SEC(".data.sums");
static __u32 checks;

/* Folds the first bytes of a packet; not inlined, so that a call stays. */
static __attribute__((noinline)) __u32 fold(const __u8 *bytes, const void *end)
{
	__u32 sum = 0, i;

	for (i = 0; i < 14; i++) {
		if ((const void *)(bytes + i + 1) > end)
			break;
		sum = sum * 31 + bytes[i];
	}
	return sum;
}

/* A global function: verified on its own, so its argument is a number. */
__attribute__((noinline)) int weigh(__u32 sum)
{
	return sum % 13 + weights[sum % 4];
}

struct loop {
	__u32 acc;
};

static long step(__u32 index, void *data)
{
	struct loop *loop = data;

	loop->acc = loop->acc * 7 + index;
	return loop->acc % 97 == 0;
}

SEC("xdp")
int everything(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 length = end - data, slot, sum, drop;
	struct loop loop;
	__u64 one = 1, *times;
	void *inner;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	__sync_fetch_and_add(&packets, 1);

	slot = eth->h_proto == bpf_htons(ETH_P_IP) ? 0 : eth->h_proto == bpf_htons(ETH_P_ARP) ? 1 : 2;
	inner = bpf_map_lookup_elem(&by_length, &slot);
	if (inner) {
		times = bpf_map_lookup_elem(inner, &length);
		if (times)
			*times += 1;
		else
			bpf_map_update_elem(inner, &length, &one, BPF_ANY);
	}

	if (bpf_map_push_elem(&last_lengths, &length, 0)) {
		bpf_map_pop_elem(&last_lengths, &drop);
		bpf_map_push_elem(&last_lengths, &length, 0);
	}

	sum = fold(data, end);
	if (bpf_map_peek_elem(&sources, &sum) == 0)
		repeated += 1;
	else
		bpf_map_push_elem(&sources, &sum, 0);

	loop.acc = sum;
	checks += bpf_loop(8, step, &loop, 0);
	sums[sum & 3] += loop.acc;
	return weigh(loop.acc) & 1 ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "GPL";
