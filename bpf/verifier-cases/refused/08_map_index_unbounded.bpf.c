// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// An index from the packet into an array inside a value.
// hint: `i` makes the offset 0 to 255 in a value of map tables, which has 64 bytes
// hint: if (i >= 64) return XDP_PASS;
// packet:
#include "refused.h"

struct table {
	__u8 entry[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} tables SEC(".maps");

SEC("xdp")
int index_unbounded(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u32 key = 0;
	struct table *table = bpf_map_lookup_elem(&tables, &key);

	if (!table || (void *)(data + 1) > data_end)
		return XDP_PASS;
	__u64 i = data[0];

	// refused: map-value-bounds
	return table->entry[i] ? XDP_DROP : XDP_PASS;
}
