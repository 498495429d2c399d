// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What `xway bench drop` and its siblings attach: one program for each verdict, each thing that is done to a packet before it,
 * and each way to reach the packet. The interfaces have fixed numbers: packets come in on 10, and 12 is where
 * they are redirected; the CPU is number 0.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define TARGET 12

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
} __attribute__((packed));

/* The first `len` bytes: in place, or copied to the stack by a helper. */
#define IN_PLACE(ctx, at, len)                                                                                         \
	({                                                                                                             \
		void *start = (void *)(long)(ctx)->data;                                                               \
		(void)(at);                                                                                            \
		start + (len) > (void *)(long)(ctx)->data_end ? NULL : start;                                          \
	})
#define COPIED(ctx, at, len) (bpf_xdp_load_bytes(ctx, 0, at, len) ? NULL : (at))

/* What is done to the packet; each says 0 when it is too short. */
#define no_touch(ctx, at, load, store) ((at) != NULL)
#define read_data(ctx, at, load, store)                                                                                \
	({                                                                                                             \
		struct headers *h = load(ctx, at, sizeof(h->eth));                                                     \
		h ? (h->eth.h_proto != 0xffff) : 0;                                                                    \
	})
#define parse_ip(ctx, at, load, store)                                                                                 \
	({                                                                                                             \
		struct headers *h = load(ctx, at, sizeof(*h));                                                         \
		h && h->eth.h_proto == bpf_htons(ETH_P_IP) && h->ip.version == 4 && h->ip.ihl >= 5;                    \
	})
#define swap_macs(ctx, at, load, store)                                                                                \
	({                                                                                                             \
		struct headers *h = load(ctx, at, sizeof(h->eth));                                                     \
		if (h) {                                                                                               \
			__u16 *mac = (__u16 *)h;                                                                       \
			__u16 a = mac[0], b = mac[1], c = mac[2];                                                      \
			mac[0] = mac[3], mac[1] = mac[4], mac[2] = mac[5];                                             \
			mac[3] = a, mac[4] = b, mac[5] = c;                                                            \
			store(ctx, h);                                                                                 \
		}                                                                                                      \
		h ? 1 : 0;                                                                                             \
	})

#define STAYS(ctx, h) ((void)0)
#define GOES_BACK(ctx, h) bpf_xdp_store_bytes(ctx, 0, h, sizeof((h)->eth))

#define PROGRAM(name, op, load, store, verdict)                                                                        \
	SEC("xdp")                                                                                                     \
	int name(struct xdp_md *ctx)                                                                                   \
	{                                                                                                              \
		struct headers copy = {};                                                                              \
		if (!op(ctx, &copy, load, store))                                                                      \
			return XDP_ABORTED;                                                                            \
		return verdict;                                                                                        \
	}

#define OPERATIONS(name, verdict)                                                                                      \
	PROGRAM(name##_no_touch, no_touch, IN_PLACE, STAYS, verdict)                                                   \
	PROGRAM(name##_read_data, read_data, IN_PLACE, STAYS, verdict)                                                 \
	PROGRAM(name##_parse_ip, parse_ip, IN_PLACE, STAYS, verdict)                                                   \
	PROGRAM(name##_swap_macs, swap_macs, IN_PLACE, STAYS, verdict)                                                 \
	PROGRAM(name##_read_data_load_bytes, read_data, COPIED, GOES_BACK, verdict)                                    \
	PROGRAM(name##_parse_ip_load_bytes, parse_ip, COPIED, GOES_BACK, verdict)                                      \
	PROGRAM(name##_swap_macs_load_bytes, swap_macs, COPIED, GOES_BACK, verdict)

OPERATIONS(drop, XDP_DROP)
OPERATIONS(pass, XDP_PASS)
OPERATIONS(tx, XDP_TX)
OPERATIONS(redirect, bpf_redirect(TARGET, 0))
OPERATIONS(redirect_map, bpf_redirect_map(&ports, 0, 0))
OPERATIONS(redirect_cpu, bpf_redirect_map(&cpus, 0, 0))
OPERATIONS(redirect_multi, bpf_redirect_map(&ports, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS))

/* Behind the kernel's end of a wire: what arrives is counted and dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

static __always_inline int count_and_drop(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&arrived, &zero);

	if (count)
		*count += 1;
	return XDP_DROP;
}

SEC("xdp")
int far_end(struct xdp_md *ctx)
{
	return count_and_drop();
}

/* The same on the other side of the CPUMAP. */
SEC("xdp/cpumap")
int far_cpu(struct xdp_md *ctx)
{
	return count_and_drop();
}

char _license[] SEC("license") = "Dual BSD/GPL";
