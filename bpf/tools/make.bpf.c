// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Making traffic in the kernel: these programs run over frames that the kernel makes for a test run, and send them
 * out of an interface. The frames come back and are used again as they were left, so what changes is written over
 * what was there.
 */
#include "parse.h"
#include "tally.h"

/* Written before the program is loaded; crates/tools/src/traffic.rs has the same fields. */
struct settings {
	/* Interface that the packets leave by. */
	__u32 out;
	/* Destination ports in turn, from `first` on. */
	__u32 flows;
	__u32 first;
	/* Where in the packet the port and the checksum that covers it lie. */
	__u32 port_at;
	__u32 checksum_at;
};
volatile const struct settings settings = {};

TALLIES(made, 1);

static __always_inline void count(void)
{
	struct tally *t = tally(&made, 0);

	if (t)
		t->processed += 1;
}

/* The packet as it is. */
SEC("xdp")
int make_same(struct xdp_md *ctx)
{
	count();
	return bpf_redirect(settings.out, 0);
}

/* One word of a packet that a one's complement sum covers changes (RFC 1624, equation 3). */
static __always_inline __u16 mended(__u16 check, __u16 old, __u16 new)
{
	__u32 sum = (__u16)~check + (__u32)(__u16)~old + new;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The next flow. */
SEC("xdp")
int make_flows(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tally *t = tally(&made, 0);
	__u32 port_at = settings.port_at, checksum_at = settings.checksum_at;
	__be16 *port, *check, to;

	if (!t || port_at > 256 || checksum_at > 256)
		return XDP_ABORTED;
	port = data + port_at;
	check = data + checksum_at;
	if ((void *)(port + 1) > end || (void *)(check + 1) > end)
		return XDP_ABORTED;
	to = bpf_htons(settings.first + (settings.flows ? t->processed % settings.flows : 0));
	t->processed += 1;
	/* 0 says that there is none (UDP over IPv4). */
	if (*check)
		*check = mended(*check, *port, to);
	*port = to;
	return bpf_redirect(settings.out, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
