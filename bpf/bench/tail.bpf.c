// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Eight tail calls one after the other, through an array that the object fills itself. The last program passes. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

int step_1(struct xdp_md *ctx);
int step_2(struct xdp_md *ctx);
int step_3(struct xdp_md *ctx);
int step_4(struct xdp_md *ctx);
int step_5(struct xdp_md *ctx);
int step_6(struct xdp_md *ctx);
int step_7(struct xdp_md *ctx);
int step_8(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 9);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} steps SEC(".maps") = {
	.values = {
		[1] = &step_1,
		[2] = &step_2,
		[3] = &step_3,
		[4] = &step_4,
		[5] = &step_5,
		[6] = &step_6,
		[7] = &step_7,
		[8] = &step_8,
	},
};

/* Goes to the next program; reached the end of a missing one, the packet is ABORTED. */
#define STEP(name, next)                              \
	SEC("xdp")                                    \
	int name(struct xdp_md *ctx)                  \
	{                                             \
		bpf_tail_call(ctx, &steps, next);     \
		return XDP_ABORTED;                   \
	}

STEP(tail_8, 1)
STEP(step_1, 2)
STEP(step_2, 3)
STEP(step_3, 4)
STEP(step_4, 5)
STEP(step_5, 6)
STEP(step_6, 7)
STEP(step_7, 8)

SEC("xdp")
int step_8(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
