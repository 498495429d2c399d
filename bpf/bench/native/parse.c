// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* parse.bpf.c compiled for the machine itself. Results are checked. */
#define _GNU_SOURCE
#include "../parse.bpf.c"

#define NATIVE_PROGRAM parse_count
#define FLOWS (1 << 16)
#define RING (1 << 17)
#include "harness.h"

int main(int argc, char **argv)
{
	__u64 verdicts[8] = { 0 };
	__u32 out[BURST];
	int i, n;

	pin(argc, argv);
	make_packets();
	for (i = 0; i < RING / BURST; i++) {
		burst(PROGRAM, out);
		for (n = 0; n < BURST; n++)
			verdicts[out[n] & 7] += 1;
	}
	if (verdicts[XDP_PASS] != RING || native_values[IPPROTO_UDP].packets != RING ||
	    native_values[IPPROTO_UDP].bytes != (__u64)RING * LENGTH) {
		fprintf(stderr, "the program does not compute what it should\n");
		return 1;
	}
	measure("parse + counter");
	return 0;
}
