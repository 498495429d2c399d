// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// An address that was kept in a map comes back as a number.
// hint: was loaded from memory at line
// hint: Keep an index or an offset instead
#include "refused.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} kept SEC(".maps");

SEC("xdp")
int address_from_memory(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 *slot = bpf_map_lookup_elem(&kept, &key);

	if (!slot)
		return XDP_PASS;
	__u8 *p = (__u8 *)*slot;

	// refused: not-a-pointer
	return *p ? XDP_DROP : XDP_PASS;
}
