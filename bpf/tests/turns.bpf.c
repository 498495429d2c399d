// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Kernel functions: turns of an open-coded iterator over numbers, from and to what the packet says behind its Ethernet header, and
 * dynptrs of packets. What returns `int` is declared with 64 bits, to see all of the register.
 */
#include "parse.h"

struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

extern long bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;
extern long bpf_dynptr_from_xdp(struct xdp_md *x, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern long bpf_dynptr_adjust(const struct bpf_dynptr *p, __u32 start, __u32 end) __ksym;
extern long bpf_dynptr_clone(const struct bpf_dynptr *p, struct bpf_dynptr *clone) __ksym;
extern long bpf_dynptr_size(const struct bpf_dynptr *p) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __s64);
} results SEC(".maps");

static __always_inline void result(__u32 slot, __s64 value)
{
	bpf_map_update_elem(&results, &slot, &value, BPF_ANY);
}

SEC("xdp")
int turns(struct xdp_md *ctx)
{
	__s64 sum = 0, count = 0;
	struct bpf_iter_num it;
	struct cursor c;
	__u32 *in;
	int *n;

	cursor_init(&c, ctx);
	take(&c, sizeof(struct ethhdr));
	in = take(&c, 2 * sizeof(*in));
	if (!in)
		return XDP_ABORTED;
	result(0, bpf_iter_num_new(&it, in[0], in[1]));
	while ((n = bpf_iter_num_next(&it))) {
		sum += *n;
		count++;
	}
	bpf_iter_num_destroy(&it);
	result(1, count);
	result(2, sum);
	return XDP_PASS;
}

/* Dynptrs that fail, with what they leave in all 64 bits. */
SEC("xdp")
int dynptrs(struct xdp_md *ctx)
{
	struct bpf_dynptr packet, clone;
	struct cursor c;
	__u32 *in, from, to, flags;

	cursor_init(&c, ctx);
	take(&c, sizeof(struct ethhdr));
	in = take(&c, 3 * sizeof(*in));
	if (!in)
		return XDP_ABORTED;
	from = in[0] & 63;
	to = in[1] & 63;
	flags = in[2] & 1;
	result(3, bpf_dynptr_from_xdp(ctx, flags, &packet));
	result(4, bpf_dynptr_adjust(&packet, from, to));
	result(5, bpf_dynptr_clone(&packet, &clone));
	result(6, bpf_dynptr_size(&clone));
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
