/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Programs that are safe and that a verifier refuses, or refused, although their authors could not see why. Each was made
 * from a public thread, whose address it names; the code is our own. `from:` is the thread, `class:` what is hard about it.
 */
#ifndef ANNOYING_H
#define ANNOYING_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Keeps the compiler from knowing what it knows: the value stays, its history goes. */
#define opaque(x) asm volatile("" : "+r"(x))

#define START(ctx)                                         \
	void *data = (void *)(long)(ctx)->data;            \
	void *data_end = (void *)(long)(ctx)->data_end;    \
	(void)data, (void)data_end

struct table {
	__u8 entry[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table);
} tables SEC(".maps");

static __always_inline struct table *the_table(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&tables, &key);
}

#endif
