// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Functions, small enough to be copied into their callers, that read and write what lies on the stacks of their callers:
 * as memory, as a key, as bytes of a checksum, one through another, and while the caller goes on changing it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct pair {
	__u32 a;
	__u16 b;
	__u8 c, d;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 20);
	__type(key, __u32);
	__type(value, __u64);
} table SEC(".maps");

static __noinline __u64 next(const __u64 *n) { return *n + 1; }

static __noinline __u32 sum(const struct pair *p) { return p->a + 3 * p->b + 7 * p->c + 11 * p->d; }

static __noinline __u32 mix(struct pair *p, __u32 n)
{
	p->a += n;
	p->b ^= p->a;
	p->c = p->b;
	return p->d;
}

/* Through two stacks: its own pair, made of its caller's. */
static __noinline __u32 through(struct pair *p)
{
	struct pair own = *p;
	own.a++;
	__u32 before = sum(&own);
	mix(&own, before);
	p->a = own.a;
	return before + sum(&own) + sum(p);
}

static __noinline __u32 swapped(__u8 *to, const __u8 *from)
{
	for (int i = 0; i < 8; i++)
		to[i] = from[7 - i] ^ i;
	return to[7];
}

static __noinline __u32 is_seen(const __u32 *key) { return bpf_map_lookup_elem(&seen, key) != 0; }

static __noinline __u32 is_inside(const __u32 *key) { return bpf_map_lookup_elem(&table, key) != 0; }

static __noinline __u32 checksum(__u32 *words) { return bpf_csum_diff(0, 0, words, 8, 0); }

SEC("xdp")
int numbers(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + 40 > end)
		return XDP_DROP;
	__u64 n = data[14], first, second;
	first = next(&n);
	n = data[15];
	second = next(&n);
	n = data[16];
	data[0] = first;
	data[1] = second;
	data[2] = next(&n);
	return XDP_TX;
}

SEC("xdp")
int structures(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + 40 > end)
		return XDP_DROP;
	struct pair p = { data[14], data[15], data[16], data[17] };
	__u32 all = sum(&p);
	p.a = data[18];
	all = 31 * all + sum(&p);
	all += mix(&p, data[19]);
	all = 31 * all + sum(&p);
	p.d = 5;
	all = 31 * all + sum(&p);
	all = 31 * all + through(&p);
	p.b = data[20];
	all = 31 * all + through(&p);

	__u8 x[8], y[8];
	for (int i = 0; i < 8; i++)
		x[i] = data[24 + i];
	all += swapped(y, x);
	all = 31 * all + swapped(x, y);
	x[3] = 9;
	all = 31 * all + swapped(y, x);
	__builtin_memcpy(data, &all, 4);
	__builtin_memcpy(data + 4, y, 8);
	return XDP_TX;
}

SEC("xdp")
int keys(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + 40 > end)
		return XDP_DROP;
	__u32 key = data[14] & 7, all;
	__u64 one = 1;
	bpf_map_update_elem(&seen, &key, &one, 0);
	key = data[15] & 7;
	all = is_seen(&key);
	key = data[16] & 7;
	all = 2 * all + is_seen(&key);
	key = data[14] & 7;
	all = 2 * all + is_seen(&key);
	for (int i = 0; i < 4; i++) {
		key = data[20 + i];
		all = 2 * all + is_inside(&key);
	}
	__u32 words[2] = { data[14], data[15] };
	__u32 sums = checksum(words);
	words[1] = data[16];
	sums = 7 * sums + checksum(words);
	words[0] = data[17];
	sums = 7 * sums + checksum(words);
	__builtin_memcpy(data, &all, 4);
	__builtin_memcpy(data + 4, &sums, 4);
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
