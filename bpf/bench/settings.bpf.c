// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A filter with settings: whoever loads the program may change them before, and nobody afterwards. */
#include "flow.h"

struct settings {
	/* Only this protocol passes; 0: both. */
	__u32 protocol;
	/* Sources of this network drop; without a mask none do. */
	__u32 network;
	__u32 mask;
	/* Ports that pass. */
	__u16 first_port;
	__u16 last_port;
	/* Destination and source are looked at the other way round. */
	__u8 reversed;
	/* What becomes of packets of other kinds, and of those that are let through. */
	__u8 other;
	__u8 through;
};

const volatile struct settings settings = {
	.first_port = 1,
	.last_port = 65535,
	.other = XDP_PASS,
	.through = XDP_TX,
};

SEC("xdp")
int filter(struct xdp_md *ctx)
{
	__be32 address;
	struct flow flow;
	__u16 port;

	if (!parse_flow(ctx, &flow))
		return settings.other;
	if (settings.protocol && flow.protocol != settings.protocol)
		return XDP_DROP;
	address = settings.reversed ? flow.destination : flow.source;
	if (settings.mask && (bpf_ntohl(address) & settings.mask) == settings.network)
		return XDP_DROP;
	port = bpf_ntohs(settings.reversed ? flow.source_port : flow.destination_port);
	if (port < settings.first_port || port > settings.last_port)
		return XDP_DROP;
	return settings.through;
}

char _license[] SEC("license") = "Dual BSD/GPL";
