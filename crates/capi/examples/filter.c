/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program over packets in one's own memory: filter OBJECT [PROGRAM]
 *
 *   cc filter.c $(pkg-config --cflags --libs xway) -o filter
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xway.h>

enum { PACKETS = 100, BUFFER = 2048, HEADROOM = 256, LENGTH = 60 };

static unsigned char buffers[PACKETS][BUFFER];

int main(int argc, char **argv)
{
	static unsigned char object[4 << 20];
	struct xway_packet packets[PACKETS];
	unsigned int verdicts[5] = { 0 };
	xway_filter *filter;
	size_t size;
	FILE *file;
	int i;

	if (argc < 2 || !(file = fopen(argv[1], "rb"))) {
		fprintf(stderr, "usage: filter OBJECT [PROGRAM]\n");
		return 2;
	}
	size = fread(object, 1, sizeof(object), file);
	fclose(file);

	filter = xway_filter_load(object, size, argc > 2 ? argv[2] : NULL, 1);
	if (!filter) {
		fprintf(stderr, "%s: %s\n", argv[1], xway_error());
		return 1;
	}
	memset(packets, 0, sizeof(packets));
	for (i = 0; i < PACKETS; i++) {
		packets[i].buffer = buffers[i];
		packets[i].size = BUFFER;
		packets[i].data = HEADROOM;
		packets[i].data_end = HEADROOM + LENGTH;
	}
	if (xway_filter_run(filter, packets, PACKETS)) {
		fprintf(stderr, "%s\n", xway_error());
		return 1;
	}
	for (i = 0; i < PACKETS; i++)
		verdicts[packets[i].verdict]++;
	printf("%s (%s): aborted %u, drop %u, pass %u, tx %u, redirect %u\n", xway_filter_name(filter),
	       xway_filter_engine(filter), verdicts[0], verdicts[1], verdicts[2], verdicts[3], verdicts[4]);

	if (xway_filter_map(filter, "counters")) {
		const xway_map *map = xway_filter_map(filter, "counters");
		void *key = malloc(xway_map_key_size(map)), *value = malloc(xway_map_value_size(map));
		unsigned long long first;
		int entries = 0, error;

		for (error = xway_map_next_key(map, NULL, key); !error; error = xway_map_next_key(map, key, key)) {
			if (xway_map_lookup(map, key, value))
				continue;
			memcpy(&first, value, sizeof(first));
			entries += first != 0;
		}
		printf("counters: %d in use\n", entries);
		free(key);
		free(value);
	}
	if (xway_filter_map(filter, ".bss")) {
		/* Global variables, as they lie in memory: another process could have them too. */
		size_t bytes;
		int fd = xway_map_memory(xway_filter_map(filter, ".bss"), 0, &bytes, NULL);
		const unsigned long long *bss = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

		if (bss == MAP_FAILED) {
			fprintf(stderr, "%s\n", xway_error());
			return 1;
		}
		printf(".bss: %llu\n", bss[0]);
		munmap((void *)bss, bytes);
		close(fd);
	}
	xway_filter_free(filter);
	return 0;
}
