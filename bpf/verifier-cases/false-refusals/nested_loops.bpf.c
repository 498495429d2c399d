// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// from: https://github.com/gamemann/xdp-firewall/issues/52
// class: rules times fields: a hundred rules, each with some branches, inside a loop
#include "annoying.h"

struct rule {
	__u32 enabled, source, mask, port;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 100);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

SEC("xdp")
int nested_loops(struct xdp_md *ctx)
{
	START(ctx);
	__u32 *words = data, hits = 0;

	if (data + 64 > data_end)
		return XDP_PASS;
	for (__u32 i = 0; i < 100; i++) {
		__u32 key = i;
		struct rule *rule = bpf_map_lookup_elem(&rules, &key);

		if (!rule || !rule->enabled)
			continue;
		for (int w = 0; w < 12; w++) {
			if ((words[w] & rule->mask) == rule->source)
				hits += w;
			if (words[w + 1] == rule->port)
				hits ^= i;
			if (words[w + 2] == rule->source + w)
				hits += 3;
		}
	}
	return hits > 7 ? XDP_DROP : XDP_PASS;
}
