// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Three mistakes on three paths.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 4);
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

SEC("xdp")
int several(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index, *record;
	__u64 *value;

	switch (queue) {
	case 1:
		return *(volatile __u8 *)(long)ctx->data;
	case 2:
		value = bpf_map_lookup_elem(&table, &queue);
		return value ? value[1] : XDP_DROP;
	case 3:
		record = bpf_ringbuf_reserve(&events, 4, 0);
		if (record)
			*record = queue;
		return XDP_PASS;
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
