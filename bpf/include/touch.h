/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What is done to a packet before its verdict, and the two ways to reach it. Whoever includes this defines
 * PROGRAM(name, op, load, store, verdict), and gets one program for each combination from OPERATIONS(name, verdict).
 */
#ifndef XWAY_TOUCH_H
#define XWAY_TOUCH_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
} __attribute__((packed));

/* The first `len` bytes: in place, or copied to the stack by a helper. */
#define IN_PLACE(ctx, at, len)                                                                                         \
	({                                                                                                             \
		void *start = (void *)(long)(ctx)->data;                                                               \
		(void)(at);                                                                                            \
		start + (len) > (void *)(long)(ctx)->data_end ? (void *)0 : start;                                          \
	})
#define COPIED(ctx, at, len) (bpf_xdp_load_bytes(ctx, 0, at, len) ? (void *)0 : (at))

/* What is done to the packet; each says 0 when it is too short. */
#define no_touch(ctx, at, load, store) ((at) != (void *)0)
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

#define OPERATIONS(name, verdict)                                                                                      \
	PROGRAM(name##_no_touch, no_touch, IN_PLACE, STAYS, verdict)                                                   \
	PROGRAM(name##_read_data, read_data, IN_PLACE, STAYS, verdict)                                                 \
	PROGRAM(name##_parse_ip, parse_ip, IN_PLACE, STAYS, verdict)                                                   \
	PROGRAM(name##_swap_macs, swap_macs, IN_PLACE, STAYS, verdict)                                                 \
	PROGRAM(name##_read_data_load_bytes, read_data, COPIED, GOES_BACK, verdict)                                    \
	PROGRAM(name##_parse_ip_load_bytes, parse_ip, COPIED, GOES_BACK, verdict)                                      \
	PROGRAM(name##_swap_macs_load_bytes, swap_macs, COPIED, GOES_BACK, verdict)

#endif
