// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What a look-up in a large table costs at least: lines of memory asked for 64 at once, then read. One line a packet, and a second
 * one that is asked for when the first ones have come, as buckets and elements are; of tables as large as those of a hash map with
 * a million entries (8 and 16 MiB), of one table as large as both, and of tables that fit the cache.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BURST 64
#define BURSTS 20000
#define ROUNDS 25
#define LINE 64

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static char *huge(size_t bytes)
{
	const size_t page = 2 << 20;
	char *memory = mmap(0, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("memory for lines");
		exit(3);
	}
	memory += -(unsigned long)memory & (page - 1);
	madvise(memory, bytes, MADV_HUGEPAGE);
	memset(memory, 1, bytes);
	return memory;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A burst's lines of one table. */
static inline __attribute__((always_inline)) uint32_t read_all(const char *table, const uint32_t *lines)
{
	uint32_t sum = 0;
	int i;

	for (i = 0; i < BURST; i++)
		__builtin_prefetch(table + (size_t)lines[i] * LINE);
	for (i = 0; i < BURST; i++)
		sum += *(volatile const uint32_t *)(table + (size_t)lines[i] * LINE);
	return sum;
}

static void measure(size_t first, size_t second)
{
	char *a = huge(first), *b = second ? huge(second) : 0;
	uint32_t in_a[BURST], in_b[BURST], sum = 0;
	double samples[ROUNDS];
	uint64_t seed = 1;
	int round, n, i;

	for (round = 0; round < ROUNDS; round++) {
		double start = now();

		for (n = 0; n < BURSTS; n++) {
			for (i = 0; i < BURST; i++) {
				seed = seed * 6364136223846793005u + 1442695040888963407u;
				in_a[i] = (seed >> 33) * (first / LINE) >> 31;
				in_b[i] = (seed >> 20 & 0x7fffffff) * (second / LINE) >> 31;
			}
			sum += read_all(a, in_a);
			if (b)
				sum += read_all(b, in_b);
		}
		samples[round] = (now() - start) / BURSTS / BURST;
	}
	/* Every byte is a one. */
	if (sum != (uint32_t)ROUNDS * BURSTS * BURST * (b ? 2 : 1) * 0x01010101u) {
		fprintf(stderr, "what was read is not what is there\n");
		exit(1);
	}
	qsort(samples, ROUNDS, sizeof(double), compare);
	printf("lines of %zu + %zu KiB: %5.2f ns a packet, numbers of the lines included\n", first >> 10, second >> 10,
	       samples[ROUNDS / 2]);
}

int main(int argc, char **argv)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(argc > 1 ? atoi(argv[1]) : 1, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		perror("not pinned");
	measure(16 << 10, 16 << 10);
	measure(8 << 20, 16 << 20);
	measure(24 << 20, 0);
	return 0;
}
