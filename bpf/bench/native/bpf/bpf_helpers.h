/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a program of the suite needs of bpf/bpf_helpers.h, for the machine itself: sections mean nothing, the one array map of
 * a program is an array. A program with another map brings its look-up and says so with NATIVE_LOOKUP.
 */
#ifndef XWAY_NATIVE_HELPERS_H
#define XWAY_NATIVE_HELPERS_H

#include <linux/types.h>

#define SEC(name)
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define __uint(name, value) int (*name)[value]
#define __type(name, value) value *name

#ifndef NATIVE_LOOKUP
#define NATIVE_ENTRIES 256
static struct { __u64 packets, bytes; } native_values[NATIVE_ENTRIES];

static __always_inline void *bpf_map_lookup_elem(void *map, const void *key)
{
	__u32 at = *(const __u32 *)key;

	return at < NATIVE_ENTRIES ? &native_values[at] : 0;
}
#endif

#endif
