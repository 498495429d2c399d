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
 Complete the checksum of a packet that is sent: the field holds the sum of the pseudo header.
 */
#define XWAY_XSK_CHECKSUM 1

/*
 A verified, compiled program with its maps. One thread uses it at a time.
 */
typedef struct xway_filter xway_filter;

/*
 A map of a filter.
 */
typedef struct xway_map xway_map;

/*
 A socket on a queue, over a connection and packet memory of its own. One thread uses it at a time.
 */
typedef struct xway_xsk xway_xsk;

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

/*
 How a socket is opened.
 */
typedef struct xway_xsk_options {
  /*
   Interface or port, as the server calls it.
   */
  const char *interface;
  /*
   Queue.
   */
  uint32_t queue;
  /*
   XDP_SHARED_UMEM, XDP_COPY, XDP_ZEROCOPY, XDP_USE_NEED_WAKEUP of linux/if_xdp.h.
   */
  uint16_t flags;
  /*
   Not 0: everything that arrives on the queue comes to this socket, past all programs.
   */
  uint16_t direct;
  /*
   Entries of each ring, a power of two; 0 is 2048.
   */
  uint32_t entries;
  /*
   Chunks of packet memory; 0 is 4096. Each has 2048 bytes.
   */
  uint32_t chunks;
  /*
   Share of the queue's sending in relation to other sockets; 0 is 1.
   */
  uint32_t weight;
} xway_xsk_options;

/*
 A packet in the program's hands, until it is given to xway_xsk_send or xway_xsk_release.
 */
typedef struct xway_xsk_packet {
  /*
   Its bytes.
   */
  uint8_t *data;
  /*
   How many. A program may write another length before it sends the packet, up to `room`.
   */
  uint32_t len;
  /*
   Bytes from `data` to the end of the chunk.
   */
  uint32_t room;
  /*
   What the library knows it by.
   */
  uint32_t number;
  /*
   XWAY_XSK_CHECKSUM, or 0: read by xway_xsk_send.
   */
  uint32_t requests;
  /*
   Where the bytes start that a checksum covers, and where it stands, counted from there.
   */
  uint16_t csum_start;
  /*
   See `csum_start`.
   */
  uint16_t csum_offset;
} xway_xsk_packet;

/*
 What a socket counted: `struct xdp_statistics` of linux/if_xdp.h, and two numbers more.
 */
typedef struct xway_xsk_counters {
  /*
   Packets that do not fit a chunk.
   */
  uint64_t rx_dropped;
  /*
   Addresses in FILL that cannot be.
   */
  uint64_t rx_invalid_descs;
  /*
   Descriptors in TX that cannot be.
   */
  uint64_t tx_invalid_descs;
  /*
   Packets dropped because RX was full.
   */
  uint64_t rx_ring_full;
  /*
   Packets dropped because FILL was empty.
   */
  uint64_t rx_fill_ring_empty_descs;
  /*
   Looks at an empty TX ring.
   */
  uint64_t tx_ring_empty_descs;
  /*
   Indices that were published and cannot be.
   */
  uint64_t refused_indices;
  /*
   Packets that asked for what cannot be done.
   */
  uint64_t tx_unsupported;
} xway_xsk_counters;

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
 Proves the program with this name (NULL: the only one that there is) in `size` bytes of an object file, without making its
 maps or code. 0 when it is accepted, -EACCES when it is refused, -EINVAL when the object cannot be read; xway_error says why,
 with the source line, the check that is missing and where.

 # Safety
 `object` points to `size` bytes; `name` is NULL or a string.
 */
int xway_verify(const void *object,
                size_t size,
                const char *name);

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

/*
 A descriptor of the memory in which the values of an array lie that was made with BPF_F_MMAPABLE, as `.data`, `.bss` and `.rodata` are:
 for mmap(2) with MAP_SHARED, here or in a process to which it is sent. Value `i` lies at `i * stride`; `bytes` is what there is to map,
 whole pages (NULL: not asked for). `writable` 0 opens it for reading alone. The caller closes it; the memory stays as long as somebody
 has it open or mapped. Negative errno, as mmap(2) on a map's descriptor has them: EINVAL, ENOTSUPP (524) where values cannot be
 mapped, EACCES where only programs write, EPERM when it is frozen; ENODEV when it lies in memory of this process alone.

 # Safety
 `map` comes from this library; `bytes` and `stride` are NULL or point to a size each.
 */
int xway_map_memory(const struct xway_map *map,
                    int writable,
                    size_t *bytes,
                    size_t *stride);

/*
 Connects to the server at `path` and opens a socket. Half of its chunks wait for packets at once. NULL on failure: see xway_error.

 # Safety
 `path` is a string; `options` points to options whose interface is a string.
 */
struct xway_xsk *xway_xsk_open(const char *path,
                               const struct xway_xsk_options *options);

/*
 Closes a socket. Packets in the program's hands are its no more. NULL is allowed.

 # Safety
 `xsk` comes from this library and is not used again, nor are its packets.
 */
void xway_xsk_close(struct xway_xsk *xsk);

/*
 Takes up to `count` packets that came, and says how many those are; a negative errno on failure.

 # Safety
 `xsk` comes from this library and is in use by this thread only; `packets` points to room for `count` packets.
 */
int xway_xsk_receive(struct xway_xsk *xsk,
                     struct xway_xsk_packet *packets,
                     uint32_t count);

/*
 Takes up to `count` free chunks for packets that the program makes, and says how many those are; a negative errno on failure.

 # Safety
 As xway_xsk_receive.
 */
int xway_xsk_make(struct xway_xsk *xsk,
                  struct xway_xsk_packet *packets,
                  uint32_t count);

/*
 Queues `count` packets to be sent and tells the server; says how many it took, fewer when the TX ring is full: the others stay in the
 program's hands. A negative errno when the first one cannot be sent: EINVAL for a number that is not in the program's hands or a
 length beyond `room`.

 # Safety
 As xway_xsk_receive; nobody uses the bytes of packets that were taken.
 */
int xway_xsk_send(struct xway_xsk *xsk,
                  const struct xway_xsk_packet *packets,
                  uint32_t count);

/*
 Gives back `count` packets that are not wanted any more. 0, or EINVAL for a number that is not in the program's hands; those before
 it are given back.

 # Safety
 As xway_xsk_send.
 */
int xway_xsk_release(struct xway_xsk *xsk,
                     const struct xway_xsk_packet *packets,
                     uint32_t count);

/*
 Waits until a packet came, at most so many milliseconds (negative: without end). 1 when one is there, 0 when not, a negative errno
 on failure.

 # Safety
 `xsk` comes from this library and is in use by this thread only.
 */
int xway_xsk_wait(struct xway_xsk *xsk,
                  int timeout_ms);

/*
 Packets that were lost since the last call because the program does not keep up. Costs one load.

 # Safety
 `xsk` comes from this library and is in use by this thread only.
 */
uint32_t xway_xsk_lost(struct xway_xsk *xsk);

/*
 Packets that were given to send and that the server has not taken yet: a program that ends before it is 0 may lose them.

 # Safety
 `xsk` comes from this library and is in use by this thread only.
 */
uint32_t xway_xsk_sending(struct xway_xsk *xsk);

/*
 Asks the server for the socket's counters. 0 or a negative errno.

 # Safety
 `xsk` comes from this library and is in use by this thread only; `statistics` points to room for them.
 */
int xway_xsk_statistics(struct xway_xsk *xsk, struct xway_xsk_counters *statistics);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* XWAY_H */
