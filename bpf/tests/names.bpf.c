// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Packet memory under another name: to a global function that gets it for an argument it is memory like any other. It may
 * be changed atomically there, wherever it lies, and handed to helpers that take no packet memory by its own name.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sums SEC(".maps");

__attribute__((noinline)) int bumped(__u64 *p)
{
	if (!p)
		return 0;
	__sync_fetch_and_add(p, 0x1234567);
	return *p & 0x7f;
}

__attribute__((noinline)) int bumped_half(__u32 *p)
{
	if (!p)
		return 0;
	__sync_fetch_and_add(p, 7);
	return *p & 0x7f;
}

/* Bytes of the packet, to others of it: apart, because Linux does not say in which order it copies. */
__attribute__((noinline)) int copied(struct xdp_md *ctx, __u64 *to)
{
	return to ? bpf_xdp_load_bytes(ctx, 1, to, 8) : -1;
}

SEC("xdp")
int atomics(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + 40 > end)
		return XDP_DROP;
	data[0] = bumped((void *)(data + 16));
	data[1] = bumped((void *)(data + 29));
	data[2] = bumped_half((void *)(data + 24));
	return XDP_TX;
}

SEC("xdp")
int helpers(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	if (data + 40 > end)
		return XDP_DROP;
	int apart = copied(ctx, (void *)(data + 16));
	int odd = copied(ctx, (void *)(data + 27));
	__u64 *sum = bpf_map_lookup_elem(&sums, &zero);
	if (sum)
		*sum += apart + odd + data[18] + data[30];
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
