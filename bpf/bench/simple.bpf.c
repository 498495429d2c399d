// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs without maps: what a run, a packet access, a loop, a call and clocks cost.
 *
 * Those that compute something give its lowest bit as the difference between PASS and TX: the verdicts prove the result,
 * and no branch depends on it.
 */
#include "flow.h"

SEC("xdp")
int empty(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* Drops what is IPv4, passes the rest. */
SEC("xdp")
int read_drop(struct xdp_md *ctx)
{
	return ipv4_of(ctx) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int mac_swap(struct xdp_md *ctx)
{
	__u8 address[ETH_ALEN];
	struct ethhdr *eth;
	struct cursor c;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth)
		return XDP_DROP;
	__builtin_memcpy(address, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, address, ETH_ALEN);
	return XDP_TX;
}

/* The verdict stands in the lowest bit of the destination port: even drops, odd passes. */
SEC("xdp")
int by_port(struct xdp_md *ctx)
{
	struct flow flow;

	if (!parse_flow(ctx, &flow))
		return XDP_ABORTED;
	if (bpf_ntohs(flow.destination_port) & 1)
		return XDP_PASS;
	return XDP_DROP;
}

SEC("xdp")
int clock_read(struct xdp_md *ctx)
{
	return bpf_ktime_get_ns() ? XDP_PASS : XDP_DROP;
}

/* The clocks that go in steps: of a tick, and of the tick that the clock was last set at. */
SEC("xdp")
int clock_jiffies(struct xdp_md *ctx)
{
	return bpf_jiffies64() ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
int clock_coarse(struct xdp_md *ctx)
{
	return bpf_ktime_get_coarse_ns() ? XDP_PASS : XDP_DROP;
}

/* The clock that goes on while the machine sleeps. */
SEC("xdp")
int clock_boot(struct xdp_md *ctx)
{
	return bpf_ktime_get_boot_ns() ? XDP_PASS : XDP_DROP;
}

/* The IPv4 header through the helper: the source address's last bit is the verdict's. */
SEC("xdp")
int load_20(struct xdp_md *ctx)
{
	struct iphdr ip;

	if (bpf_xdp_load_bytes(ctx, sizeof(struct ethhdr), &ip, sizeof(ip)))
		return XDP_DROP;
	return XDP_PASS + ((bpf_ntohl(ip.saddr)) & 1);
}

/* The Ethernet addresses through the helper. */
SEC("xdp")
int store_12(struct xdp_md *ctx)
{
	__u8 addresses[2 * ETH_ALEN] = { 2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a };

	return bpf_xdp_store_bytes(ctx, 0, addresses, sizeof(addresses)) ? XDP_DROP : XDP_TX;
}

/* One's complement sum (RFC 1071) over the first `bytes`, a multiple of four, in 32-bit words. */
static __always_inline int summed(struct xdp_md *ctx, __u32 bytes)
{
	struct cursor c;
	__u64 sum = 0;
	__u32 *word;
	__u32 i;

	cursor_init(&c, ctx);
	word = take(&c, bytes);
	if (!word)
		return XDP_DROP;
	for (i = 0; i < bytes / 4; i++)
		sum += word[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return XDP_PASS + (sum & 1);
}

SEC("xdp")
int checksum_64(struct xdp_md *ctx)
{
	return summed(ctx, 64);
}

SEC("xdp")
int checksum_1400(struct xdp_md *ctx)
{
	return summed(ctx, 1400);
}

/* The same bytes through the helper. */
static __always_inline int summed_by_helper(struct xdp_md *ctx, __u32 length)
{
	struct cursor c;
	__s64 sum;
	void *bytes;

	cursor_init(&c, ctx);
	bytes = take(&c, length);
	if (!bytes)
		return XDP_DROP;
	sum = bpf_csum_diff(0, 0, bytes, length, 0);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return XDP_PASS + (sum & 1);
}

SEC("xdp")
int csum_diff_64(struct xdp_md *ctx)
{
	return summed_by_helper(ctx, 64);
}

SEC("xdp")
int csum_diff_1400(struct xdp_md *ctx)
{
	return summed_by_helper(ctx, 1400);
}

/* 64 steps, each of which needs the one before. */
SEC("xdp")
int loop_64(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u32 x, i;

	if (!ip)
		return XDP_DROP;
	x = ip->saddr;
#pragma clang loop unroll(disable)
	for (i = 0; i < 64; i++)
		x = (x ^ i) * 0x9e3779b1;
	return XDP_PASS + (x >> 31);
}

/* A step of the loop above, as a function that bpf_loop calls. */
static int step_of_64(__u32 i, __u32 *x)
{
	*x = (*x ^ i) * 0x9e3779b1;
	return 0;
}

SEC("xdp")
int bpf_loop_64(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u32 x;

	if (!ip)
		return XDP_DROP;
	x = ip->saddr;
	bpf_loop(64, step_of_64, &x, 0);
	return XDP_PASS + (x >> 31);
}

/* Two numbers in and a call that the compiler may neither inline nor merge. */
static __attribute__((noinline)) __u32 mix(__u32 x, __u32 step)
{
	asm volatile("" : "+r"(step));
	return (x ^ step) * 0x9e3779b1;
}

SEC("xdp")
int calls_8(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	__u32 x;

	if (!ip)
		return XDP_DROP;
	x = mix(ip->saddr, 1);
	x = mix(x, 2);
	x = mix(x, 3);
	x = mix(x, 4);
	x = mix(x, 5);
	x = mix(x, 6);
	x = mix(x, 7);
	x = mix(x, 8);
	return XDP_PASS + (x >> 31);
}

char _license[] SEC("license") = "Dual BSD/GPL";
