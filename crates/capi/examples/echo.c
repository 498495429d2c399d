/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sends every packet of a queue back with its addresses exchanged: echo SOCKET INTERFACE QUEUE COUNT.
 *
 *   cc echo.c $(pkg-config --cflags --libs xway) -o echo
 *   xway sock serve /run/xway/xsk.sock && ./echo /run/xway/xsk.sock eth0 0 1000
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xway.h"

#define BATCH 64

static void swap_addresses(uint8_t *packet)
{
	uint8_t address[6];

	memcpy(address, packet, 6);
	memcpy(packet, packet + 6, 6);
	memcpy(packet + 6, address, 6);
}

int main(int argc, char **argv)
{
	struct xway_xsk_options options = { 0 };
	struct xway_xsk_packet packets[BATCH];
	struct xway_xsk_counters counted;
	unsigned long count, done = 0, short_ones = 0, idle = 0;
	struct xway_xsk *xsk;

	if (argc != 5) {
		fprintf(stderr, "usage: %s SOCKET INTERFACE QUEUE COUNT\n", argv[0]);
		return 2;
	}
	count = strtoul(argv[4], NULL, 10);
	options.interface = argv[2];
	options.queue = (uint32_t)strtoul(argv[3], NULL, 10);
	options.direct = 1;
	xsk = xway_xsk_open(argv[1], &options);
	if (!xsk) {
		fprintf(stderr, "%s\n", xway_error());
		return 1;
	}
	printf("open\n");
	fflush(stdout);
	while (done < count) {
		int got = xway_xsk_receive(xsk, packets, BATCH), sent = 0;

		/* Woken for nothing now and then, as any event loop is. */
		idle = got ? 0 : idle + 1;
		if (idle > 0 && (xway_xsk_wait(xsk, 1000) < 0 || idle > 60)) {
			fprintf(stderr, "nothing came: %s\n", xway_error());
			return 1;
		}
		for (int n = 0; n < got; n++) {
			if (packets[n].len >= 14)
				swap_addresses(packets[n].data);
			else
				short_ones++;
		}
		while (sent < got) {
			int taken = xway_xsk_send(xsk, packets + sent, (uint32_t)(got - sent));

			if (taken < 0) {
				fprintf(stderr, "%s\n", xway_error());
				return 1;
			}
			sent += taken;
		}
		done += (unsigned long)got;
	}
	/* A number that is not in our hands is refused, and harms nobody. */
	packets[0].number = 1u << 30;
	if (xway_xsk_release(xsk, packets, 1) >= 0 || xway_xsk_send(xsk, packets, 1) >= 0)
		return 1;
	while (xway_xsk_sending(xsk))
		xway_xsk_wait(xsk, 1);
	if (xway_xsk_statistics(xsk, &counted)) {
		fprintf(stderr, "%s\n", xway_error());
		return 1;
	}
	printf("%lu packets, %lu short, %u lost, %llu invalid\n", done, short_ones, xway_xsk_lost(xsk),
	       (unsigned long long)(counted.tx_invalid_descs + counted.rx_invalid_descs));
	xway_xsk_close(xsk);
	return 0;
}
