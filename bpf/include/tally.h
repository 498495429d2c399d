/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the tools count, one for each CPU and each place. The same structure is read by crates/tools/src/tally.rs. */
#ifndef XWAY_TALLY_H
#define XWAY_TALLY_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct tally {
	__u64 processed;
	__u64 dropped;
	/* What went wrong, or how often something happened: said where it is counted. */
	__u64 issue;
	__u64 pass;
	__u64 drop;
	__u64 redirect;
};

#define TALLIES(name, entries)                                                                                         \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                                               \
		__uint(max_entries, entries);                                                                          \
		__type(key, __u32);                                                                                    \
		__type(value, struct tally);                                                                           \
	} name SEC(".maps")

/*
 * The tally at `key`. No atomic operation is needed: each CPU has one of its own, and what counts there is not
 * interrupted by itself.
 */
static __always_inline struct tally *tally(void *map, __u32 key)
{
	return bpf_map_lookup_elem(map, &key);
}

#endif
