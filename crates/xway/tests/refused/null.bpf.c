// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A look-up that is not checked, in one program; a good program beside it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 16);
} seen SEC(".maps");

SEC("xdp")
int forgotten(struct xdp_md *ctx)
{
	__u32 key = ctx->rx_queue_index;
	__u64 *value = bpf_map_lookup_elem(&seen, &key);

	*value += 1;
	return XDP_PASS;
}

SEC("xdp")
int checked(struct xdp_md *ctx)
{
	__u32 key = ctx->rx_queue_index;
	__u64 *value = bpf_map_lookup_elem(&seen, &key);

	if (value)
		*value += 1;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
