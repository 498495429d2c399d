// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Helpers that no program of the suite calls, each in a program that does little else. Those of maps are in map_helpers.bpf.c.
 *
 * Verdicts prove what the helper said; where they cannot, because it is this process's or this machine's affair, `answer` has it,
 * and the benchmark compares that on both sides. A look-up of a route that is forwarded needs a network that is set up for it, and has
 * no program here.
 */
#include "flow.h"

/* As in <sys/socket.h>, which is none for BPF. */
#define AF_INET 2

/* The loop-back interface, in every name space. */
#define LOOP_BACK 1

/* What a helper said last. */
__u64 answer;

/* Texts may be changed before the program is loaded, and not afterwards: the kernel takes the second of strncmp from nowhere else. */
const char number[] = "-1234567";
const char format[] = "%u";
const char given_5[] = "hello";
const char wanted_5[] = "hello";
const char given_23[] = "x-forwarded-for: client";
const char wanted_23[] = "x-forwarded-for: client";

struct guarded {
	struct bpf_spin_lock lock;
	__u32 packets;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guarded);
} guarded SEC(".maps");

/* Counts behind a lock. */
SEC("xdp")
int spin_lock(struct xdp_md *ctx)
{
	struct guarded *value;
	__u32 zero = 0;

	value = bpf_map_lookup_elem(&guarded, &zero);
	if (!value)
		return XDP_ABORTED;
	bpf_spin_lock(&value->lock);
	value->packets++;
	bpf_spin_unlock(&value->lock);
	return XDP_PASS;
}

/* The length's lowest bit decides: even passes, odd goes back. */
SEC("xdp")
int buff_len(struct xdp_md *ctx)
{
	return XDP_PASS + (bpf_xdp_get_buff_len(ctx) & 1);
}

/* Passes what fits, sends back what is too long; there is always such an interface. */
SEC("xdp")
int check_mtu(struct xdp_md *ctx)
{
	__u32 mtu = 0;
	long result;

	result = bpf_check_mtu(ctx, LOOP_BACK, &mtu, 0, 0);
	answer = mtu;
	if (result < 0)
		return XDP_DROP;
	return XDP_PASS + (result == BPF_MTU_CHK_RET_FRAG_NEEDED);
}

/* The route to the destination. Passes where the interface that the packet came from does not forward, sends back what else there is to say. */
SEC("xdp")
int fib_lookup(struct xdp_md *ctx)
{
	struct bpf_fib_lookup route = {};
	struct iphdr *ip = ipv4_of(ctx);
	long result;

	if (!ip)
		return XDP_DROP;
	route.family = AF_INET;
	route.tos = ip->tos;
	route.l4_protocol = ip->protocol;
	route.tot_len = bpf_ntohs(ip->tot_len);
	route.ipv4_src = ip->saddr;
	route.ipv4_dst = ip->daddr;
	route.ifindex = ctx->ingress_ifindex;
	result = bpf_fib_lookup(ctx, &route, sizeof(route), 0);
	if (result < 0)
		return XDP_DROP;
	return result == BPF_FIB_LKUP_RET_FWD_DISABLED ? XDP_PASS : XDP_TX;
}

/* Passes where both texts are the same. */
SEC("xdp")
int strncmp_5(struct xdp_md *ctx)
{
	return bpf_strncmp(given_5, 5, wanted_5) ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int strncmp_23(struct xdp_md *ctx)
{
	return bpf_strncmp(given_23, 23, wanted_23) ? XDP_TX : XDP_PASS;
}

/* Both numbers of the thread; no thread has a process 0. */
SEC("xdp")
int pid_tgid(struct xdp_md *ctx)
{
	answer = bpf_get_current_pid_tgid();
	return answer >> 32 ? XDP_PASS : XDP_DROP;
}

/* The user that the thread belongs to, and its group: 0 is one. */
SEC("xdp")
int uid_gid(struct xdp_md *ctx)
{
	answer = bpf_get_current_uid_gid();
	return XDP_PASS;
}

SEC("xdp")
int cgroup_id(struct xdp_md *ctx)
{
	answer = bpf_get_current_cgroup_id();
	return answer ? XDP_PASS : XDP_DROP;
}

/* The thread's name, of which the first eight bytes are kept. */
SEC("xdp")
int comm(struct xdp_md *ctx)
{
	__u64 name[2];

	if (bpf_get_current_comm(name, sizeof(name)))
		return XDP_DROP;
	answer = name[0];
	return XDP_PASS;
}

SEC("xdp")
int numa_node(struct xdp_md *ctx)
{
	answer = bpf_get_numa_node_id();
	return XDP_PASS;
}

/* Passes where the text is all of the number -1,234,567. */
SEC("xdp")
int text_to_number(struct xdp_md *ctx)
{
	long value = 0, length;

	length = bpf_strtol(number, sizeof(number) - 1, 10, &value);
	if (length < 0)
		return XDP_DROP;
	return length == sizeof(number) - 1 && value == -1234567 ? XDP_PASS : XDP_TX;
}

/* The last two bytes of the source address as a number in decimal: its first digit's lowest bit decides, even passes, odd goes back. */
SEC("xdp")
int number_to_text(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);
	char text[16] = {};
	__u64 value;

	if (!ip)
		return XDP_DROP;
	value = bpf_ntohl(ip->saddr) & 0xffff;
	if (bpf_snprintf(text, sizeof(text), format, &value, sizeof(value)) < 2)
		return XDP_DROP;
	return XDP_PASS + (text[0] & 1);
}

char _license[] SEC("license") = "Dual BSD/GPL";
