// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The mirror: unicast frames go back out of the port that they came in on, source and destination address exchanged.
 * What was sent to a group is for others too and goes on to the stack, where ARP needs it.
 */
#include "parse.h"

SEC("xdp")
int swap_macs(struct xdp_md *ctx)
{
	__u8 address[ETH_ALEN];
	struct ethhdr *eth;
	struct cursor c;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return XDP_DROP;
	/* The lowest bit of the first byte marks a group address. */
	if (eth->h_dest[0] & 1)
		return XDP_PASS;
	__builtin_memcpy(address, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, address, ETH_ALEN);
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
