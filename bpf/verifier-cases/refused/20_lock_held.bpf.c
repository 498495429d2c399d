// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// A program returns while it holds a spin lock.
// hint: the spin lock taken at line
// hint: bpf_spin_unlock
#include "refused.h"

struct cell {
	struct bpf_spin_lock lock;
	__u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cell);
} cells SEC(".maps");

SEC("xdp")
int lock_held(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct cell *cell = bpf_map_lookup_elem(&cells, &key);

	if (!cell)
		return XDP_PASS;
	bpf_spin_lock(&cell->lock);
	if (cell->count++ > 100)
		return XDP_DROP;
	bpf_spin_unlock(&cell->lock);
	return XDP_PASS;
	// refused: spin-lock
}
