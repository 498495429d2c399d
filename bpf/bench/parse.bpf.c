// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Parse Ethernet, IPv4, TCP or UDP with all checks, and count packets and bytes by protocol in a per-CPU array. */
#include "counter.h"
#include "parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct counter);
} protocols SEC(".maps");

SEC("xdp")
int parse_count(struct xdp_md *ctx)
{
	struct cursor c;
	struct iphdr *ip;
	__be16 ethertype;
	int tags;

	cursor_init(&c, ctx);
	if (!parse_eth(&c, &ethertype, &tags))
		return XDP_DROP;
	if (ethertype != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	ip = parse_ipv4(&c);
	if (!ip)
		return XDP_DROP;
	if (ip->protocol == IPPROTO_UDP && !parse_udp(&c))
		return XDP_DROP;
	if (ip->protocol == IPPROTO_TCP && !parse_tcp(&c))
		return XDP_DROP;
	count(&protocols, ip->protocol, ctx->data_end - ctx->data);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
