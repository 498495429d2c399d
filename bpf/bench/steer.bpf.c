// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Where packets go: to a port, to a port of a map, by chance. */
#include "flow.h"

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

SEC("xdp")
int to_port(struct xdp_md *ctx)
{
	return bpf_redirect(1, 0);
}

/* Half of the sources have no port: theirs pass. */
SEC("xdp")
int by_map(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);

	if (!ip)
		return XDP_DROP;
	return bpf_redirect_map(&ports, ip->saddr & 7, XDP_PASS);
}

/* Two numbers, of which the second is asked for once in four thousand million packets: nothing drops. */
SEC("xdp")
int by_chance(struct xdp_md *ctx)
{
	if (bpf_get_prandom_u32() == 0x9e3779b9 && bpf_get_prandom_u32() == 0x7f4a7c15)
		return XDP_DROP;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
