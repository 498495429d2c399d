// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * tuple.bpf.c compiled for the machine itself, with a hash table of four million connections that is written for it alone: one
 * thread, nothing is ever removed, keys of 16 bytes, huge pages. A bucket is a cache line of tags and element numbers, as in
 * Expressway's maps, and an element lies in one line; a look-up is inlined. Nothing is fetched ahead: that is what it is compared for.
 * Verdicts are checked.
 */
#define _GNU_SOURCE
#define NATIVE_LOOKUP
#include <linux/types.h>

static void *bpf_map_lookup_elem(void *map, const void *key) __attribute__((always_inline));

#include "../tuple.bpf.c"

#define NATIVE_PROGRAM tuple_lookup
#define FLOWS 4000000
#define RING (1 << 22)
#include "harness.h"

#include <emmintrin.h>

#define BUCKETS (1 << 19)
#define SLOTS 12

struct bucket {
	__u8 tags[16];
	__u32 numbers[SLOTS];
};

struct element {
	__u64 key[2];
	__u64 value;
	__u64 unused;
};

static struct bucket *buckets;
static struct element *elements;

static __always_inline __u64 hash(const __u64 *key)
{
	unsigned __int128 m = (unsigned __int128)(key[0] ^ 0x9e3779b97f4a7c15u) * (key[1] ^ 0xbf58476d1ce4e5b9u);
	__u64 state = (__u64)m ^ (__u64)(m >> 64);

	m = (unsigned __int128)state * 0x94d049bb133111ebu;
	return (__u64)m ^ (__u64)(m >> 64);
}

static __always_inline void *bpf_map_lookup_elem(void *map, const void *key)
{
	__u64 words[2], h;
	__u8 tag;

	memcpy(words, key, sizeof(words));
	h = hash(words);
	tag = (h >> 56) | 1;
	for (;; h += 1) {
		const struct bucket *b = &buckets[h & (BUCKETS - 1)];
		__m128i tags = _mm_load_si128((const __m128i *)b->tags);
		unsigned int found = _mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(tag))) & ((1 << SLOTS) - 1);

		for (; found; found &= found - 1) {
			struct element *e = &elements[b->numbers[__builtin_ctz(found)]];

			if (e->key[0] == words[0] && e->key[1] == words[1])
				return &e->value;
		}
		/* A bucket with room has had nothing that went on to the next. */
		if (!b->tags[SLOTS - 1])
			return 0;
	}
}

static void insert(const struct flow *flow, __u32 number, __u64 value)
{
	__u64 h;
	int slot;

	memcpy(elements[number].key, flow, sizeof(*flow));
	elements[number].value = value;
	h = hash(elements[number].key);
	for (;; h += 1) {
		struct bucket *b = &buckets[h & (BUCKETS - 1)];

		for (slot = 0; slot < SLOTS && b->tags[slot]; slot++)
			;
		if (slot < SLOTS) {
			b->tags[slot] = (h >> 56) | 1;
			b->numbers[slot] = number;
			return;
		}
	}
}

static void *huge(size_t bytes)
{
	const size_t page = 2 << 20;
	char *memory = mmap(0, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("memory for the table");
		exit(3);
	}
	memory += -(unsigned long)memory & (page - 1);
	madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

int main(int argc, char **argv)
{
	__u64 verdicts[8] = { 0 }, expected[8] = { 0 };
	__u32 out[BURST];
	int i, n;

	pin(argc, argv);
	make_packets();
	buckets = huge(BUCKETS * sizeof(struct bucket));
	elements = huge(FLOWS * sizeof(struct element));
	for (i = 0; i < FLOWS; i++) {
		struct flow flow = { .protocol = IPPROTO_UDP };

		memcpy(&flow, ring[0].bytes, 12);
		flow.source = source_of(i);
		insert(&flow, i, flow.source & 1 ? XDP_DROP : XDP_TX);
	}
	for (i = 0; i < RING; i++)
		expected[ring[i].bytes[0] & 1 ? XDP_DROP : XDP_TX] += 1;
	for (i = 0; i < RING / BURST; i++) {
		burst(PROGRAM, out);
		for (n = 0; n < BURST; n++)
			verdicts[out[n] & 7] += 1;
	}
	if (memcmp(verdicts, expected, sizeof(verdicts))) {
		fprintf(stderr, "the program does not compute what it should\n");
		return 1;
	}
	measure("5-tuple table, 4 M");
	return 0;
}
