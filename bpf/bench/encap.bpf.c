// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Every IPv4 packet into the same tunnel, and back out of the port. */
#include "flow.h"
#include "tunnel.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tunnel);
} tunnels SEC(".maps");

SEC("xdp")
int encap(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	struct tunnel *tunnel;
	__u32 zero = 0;

	if (!ip)
		return XDP_PASS;
	tunnel = bpf_map_lookup_elem(&tunnels, &zero);
	if (!tunnel)
		return XDP_ABORTED;
	return encapsulate(ctx, tunnel, bpf_ntohs(ip->tot_len)) ? XDP_TX : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
