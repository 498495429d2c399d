/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libxway: XDP programs over packets in your own memory. */

#ifndef XWAY_H
#define XWAY_H

#include <stddef.h>
#include <stdint.h>

/*
 Where a program wants a packet to go: `redirect_kind` of `xway_packet`.
 */
#define XWAY_REDIRECT_NONE 0

/*
 To the interface in `redirect_target`.
 */
#define XWAY_REDIRECT_IFINDEX 1

/*
 To the interface in `redirect_target`, which the device map with id `redirect_map` holds.
 */
#define XWAY_REDIRECT_DEVMAP 2

/*
 To every interface of the device map with id `redirect_map`; `redirect_target` is 1 when the packet's own is left out.
 */
#define XWAY_REDIRECT_BROADCAST 3

/*
 To the CPU in `redirect_target`, by the CPU map with id `redirect_map`.
 */
#define XWAY_REDIRECT_CPUMAP 4

/*
 To the socket at key `redirect_target` of the socket map with id `redirect_map`.
 */
#define XWAY_REDIRECT_XSKMAP 5

/*
 A verified, compiled program with its maps. One thread uses it at a time.
 */
typedef struct xway_filter xway_filter;

/*
 A map of a filter.
 */
typedef struct xway_map xway_map;

/*
 A packet in a buffer. Fields up to `rx_queue` are read and, where the program moved them, written; the others are written.
 */
typedef struct xway_packet {
  /*
   The buffer. Buffers of the packets of one call must not overlap.
   */
  uint8_t *buffer;
  /*
   Length of the buffer, bytes.
   */
  uint32_t size;
  /*
   Where the packet starts in the buffer: at least 40, and 256 for what drivers give.
   */
  uint32_t data;
  /*
   Where it ends.
   */
  uint32_t data_end;
  /*
   Interface index that programs see.
   */
  uint32_t ingress_ifindex;
  /*
   Receive queue that programs see.
   */
  uint32_t rx_queue;
  /*
   Where the metadata in front of the packet starts; `data` when there is none.
   */
  uint32_t data_meta;
  /*
   The verdict: XDP_ABORTED (0), XDP_DROP, XDP_PASS, XDP_TX or XDP_REDIRECT. Unknown codes are XDP_ABORTED.
   */
  uint32_t verdict;
  /*
   What the program returned.
   */
  uint32_t code;
  /*
   Where a redirect goes: XWAY_REDIRECT_…
   */
  uint32_t redirect_kind;
  /*
   Interface, CPU or key, as the kind says.
   */
  uint32_t redirect_target;
  /*
   Id of the map.
   */
  uint32_t redirect_map;
} xway_packet;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The words of the last failure in this thread; valid until the next call in it.
 */
const char *xway_error(void);

/*
 Reads `size` bytes of an object file, verifies the program with this name (NULL: the only one that there is) and compiles
 it. Per-CPU maps get values for `threads` threads (0 is 1). NULL on failure: see xway_error.

 # Safety
 `object` points to `size` bytes; `name` is NULL or a string.
 */
struct xway_filter *xway_filter_load(const void *object,
                                     size_t size,
                                     const char *name,
                                     uint32_t threads);

/*
 The same program over the same maps for another thread; `thread` counts from 1 and is below the `threads` of
 xway_filter_load. NULL on failure.

 # Safety
 `filter` comes from this library and is not in use by another thread.
 */
struct xway_filter *xway_filter_another(const struct xway_filter *filter, uint32_t thread);

/*
 Ends a filter. NULL is allowed. Maps go with the last filter over them.

 # Safety
 `filter` comes from this library and is not used again.
 */
void xway_filter_free(struct xway_filter *filter);

/*
 Name of the program. Valid as long as the filter.

 # Safety
 `filter` comes from this library.
 */
const char *xway_filter_name(const struct xway_filter *filter);

/*
 What runs the program: "jit", or "interp: " and why it is not machine code. Valid as long as the filter.

 # Safety
 `filter` comes from this library.
 */
const char *xway_filter_engine(const struct xway_filter *filter);

/*
 Runs the program over `count` packets, in order. 0, or a negative errno: then no packet was touched.

 # Safety
 `filter` comes from this library and is in use by this thread only; `packets` points to `count` packets, each with a
 buffer of its own that nobody else uses during the call.
 */
int xway_filter_run(struct xway_filter *filter,
                    struct xway_packet *packets,
                    size_t count);

/*
 The map with this name; NULL when there is none. It belongs to the filter and must not be freed.

 # Safety
 `filter` comes from this library; `name` is a string.
 */
const struct xway_map *xway_filter_map(const struct xway_filter *filter, const char *name);

/*
 Bytes of a key; 0 for maps without keys.

 # Safety
 `map` comes from this library.
 */
size_t xway_map_key_size(const struct xway_map *map);

/*
 Bytes of a value as user space reads and writes it: of per-CPU maps all values, each padded to 8 bytes.

 # Safety
 `map` comes from this library.
 */
size_t xway_map_value_size(const struct xway_map *map);

/*
 Reads the value at a key. 0 or a negative errno, as BPF_MAP_LOOKUP_ELEM has them.

 # Safety
 `map` comes from this library; `key` and `value` have the sizes of the map.
 */
int xway_map_lookup(const struct xway_map *map, const void *key, void *value);

/*
 Writes the value at a key; `flags` is BPF_ANY, BPF_NOEXIST or BPF_EXIST. 0 or a negative errno.

 # Safety
 `map` comes from this library; `key` and `value` have the sizes of the map.
 */
int xway_map_update(const struct xway_map *map, const void *key, const void *value, uint64_t flags);

/*
 Removes the entry at a key. 0 or a negative errno.

 # Safety
 `map` comes from this library; `key` has the size of the map's keys.
 */
int xway_map_delete(const struct xway_map *map, const void *key);

/*
 The key behind `key`, or the first one when it is NULL. 0, or a negative errno: ENOENT behind the last one.

 # Safety
 `map` comes from this library; `key` (unless NULL) and `next` have the size of its keys.
 */
int xway_map_next_key(const struct xway_map *map, const void *key, void *next);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* XWAY_H */
