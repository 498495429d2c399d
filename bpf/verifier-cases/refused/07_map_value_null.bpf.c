// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The result of a look-up is used without a check.
// hint: `count` may be null (bpf_map_lookup_elem at line
// hint: if (!count) return XDP_PASS;
#include "refused.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

SEC("xdp")
int value_null(struct xdp_md *ctx)
{
	__u32 key = ctx->ingress_ifindex;
	__u64 *count = bpf_map_lookup_elem(&counts, &key);

	// refused: null-pointer
	*count += 1;
	return XDP_PASS;
}
