/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets and bytes, counted together. */
#ifndef XWAY_COUNTER_H
#define XWAY_COUNTER_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct counter {
	__u64 packets;
	__u64 bytes;
};

/*
 * Adds one packet of `bytes` at `key` of a per-CPU array. No atomic operation is needed: each CPU has a value of its
 * own, and nothing interrupts a program with another run on the same CPU that would touch it.
 */
static __always_inline void count(void *map, __u32 key, __u64 bytes)
{
	struct counter *c = bpf_map_lookup_elem(map, &key);

	if (!c)
		return;
	c->packets += 1;
	c->bytes += bytes;
}

#endif
