/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A program of the suite compiled for the machine itself, in a loop over bursts of 64 packets: what the same C costs without BPF.
 *
 * Packets as `xway bench prog` has them: a ring of flows in random order, from which packets are made anew in the same way (the
 * addresses come from another generator). The same three loops: packets made, packets made and an empty program, packets made
 * and the program.
 *
 * Whoever includes this defines NATIVE_PROGRAM, FLOWS and RING, and calls pin(), make_packets() and measure().
 */
#ifndef XWAY_NATIVE_HARNESS_H
#define XWAY_NATIVE_HARNESS_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BURST 64
#define CHUNK (4096 + 64)
#define HEADROOM 256
#define LENGTH 64
#define FIELDS_AT 26
#define ROUNDS 1001
#define BURSTS 64

struct fields {
	__u8 bytes[12];
	__u32 unused;
};

static struct fields ring[RING];
static struct xdp_md frames[BURST];
static unsigned int at;

enum what { NOTHING, EMPTY, PROGRAM };

static int nothing(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* One burst: packets are made, then the program runs over all of them. */
static __always_inline void burst(enum what what, __u32 *out)
{
	int i;

	for (i = 0; i < BURST; i++)
		memcpy((void *)(long)frames[i].data + FIELDS_AT, ring[(at + i) & (RING - 1)].bytes, 12);
	at += BURST;
	asm volatile("" ::: "memory");
	for (i = 0; i < BURST && what != NOTHING; i++)
		out[i] = what == EMPTY ? nothing(&frames[i]) : NATIVE_PROGRAM(&frames[i]);
	asm volatile("" : : "r"(out) : "memory");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static __attribute__((noinline)) double pass(enum what what)
{
	__u32 out[BURST];
	double start = now();
	int i;

	if (what == NOTHING)
		for (i = 0; i < BURSTS; i++)
			burst(NOTHING, out);
	else if (what == EMPTY)
		for (i = 0; i < BURSTS; i++)
			burst(EMPTY, out);
	else
		for (i = 0; i < BURSTS; i++)
			burst(PROGRAM, out);
	return (now() - start) / BURSTS / BURST;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The source address of a flow; destination and ports are the same for all. */
static __u32 source_of(__u32 flow)
{
	return flow * 0x9e3779b1u;
}

static void make_packets(void)
{
	/* Addresses of packets are 32 bits wide in struct xdp_md. */
	char *memory = mmap(0, BURST * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	static const __u8 headers[42] = {
		2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, LENGTH - 14, 0, 0, 0x40, 0, 64, IPPROTO_UDP, 0, 0,
		10, 0, 0, 1, 198, 18, 1, 1, 4, 0, 0, 80, 0, LENGTH - 34, 0, 0,
	};
	__u64 seed = 1;
	int i;

	if (memory == MAP_FAILED) {
		perror("memory for packets");
		exit(3);
	}
	for (i = 0; i < BURST; i++) {
		frames[i].data = (long)memory + i * CHUNK + HEADROOM;
		frames[i].data_end = frames[i].data + LENGTH;
		memcpy((void *)(long)frames[i].data, headers, sizeof(headers));
	}
	for (i = 0; i < RING; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		memcpy(ring[i].bytes, headers + FIELDS_AT, 12);
		__u32 source = source_of((seed >> 33) % FLOWS);
		memcpy(ring[i].bytes, &source, 4);
	}
}

static void pin(int argc, char **argv)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(argc > 1 ? atoi(argv[1]) : 1, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		perror("not pinned");
}

static void measure(const char *name)
{
	static const char *const names[] = { "loop", "empty", "program" };
	static double samples[3][ROUNDS], median[3];
	int i, what;

	for (i = 0; i < ROUNDS; i++)
		for (what = NOTHING; what <= PROGRAM; what++)
			samples[what][i] = pass(what);
	for (what = NOTHING; what <= PROGRAM; what++) {
		qsort(samples[what], ROUNDS, sizeof(double), compare);
		median[what] = samples[what][ROUNDS / 2];
		printf("%-8s %6.2f ns\n", names[what], median[what]);
	}
	printf("%s, native: run %.2f ns, net %.2f ns a packet\n", name, median[PROGRAM] - median[NOTHING],
	       median[PROGRAM] - median[EMPTY]);
}

#endif
