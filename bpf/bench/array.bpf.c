// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Ten look-ups in an array: with keys that the compiler knows, and with keys that the packet names. One update with such a key. */
#include "flow.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

/* The value at `key`; 0 where there is none. */
static __always_inline __u64 number(__u32 key)
{
	__u64 *value = bpf_map_lookup_elem(&numbers, &key);

	return value ? *value : 0;
}

SEC("xdp")
int array_constant(struct xdp_md *ctx)
{
	__u64 sum = 0;
	__u32 i;

#pragma unroll
	for (i = 0; i < 10; i++)
		sum += number(i);
	return XDP_PASS + (sum & 1);
}

SEC("xdp")
int array_packet(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u64 sum = 0;
	__u32 i;

	if (!ip)
		return XDP_DROP;
#pragma unroll
	for (i = 0; i < 10; i++)
		sum += number((ip->saddr >> (2 * i)) & 63);
	return XDP_PASS + (sum & 1);
}

/* The number at the lowest six bits of the source address becomes that address. */
SEC("xdp")
int array_update(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u64 value;
	__u32 key;

	if (!ip)
		return XDP_DROP;
	value = bpf_ntohl(ip->saddr);
	key = value & 63;
	if (bpf_map_update_elem(&numbers, &key, &value, BPF_ANY))
		return XDP_DROP;
	return XDP_PASS + (value & 1);
}

char _license[] SEC("license") = "Dual BSD/GPL";
