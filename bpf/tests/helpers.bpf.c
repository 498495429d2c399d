// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Helpers under remote control: each program takes its arguments from the packet, behind the Ethernet header, and leaves
 * results in a map. The tests send many packets through both sides and compare results, packets and verdicts.
 */
#include "parse.h"

struct arguments {
	__u32 word[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __s64);
} results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, char[256]);
} text SEC(".maps");

static __always_inline void result(__u32 slot, __s64 value)
{
	bpf_map_update_elem(&results, &slot, &value, BPF_ANY);
}

/* 256 bytes of a map value. */
static __always_inline char *page(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&text, &zero);
}

/* Copies the arguments out, because helpers move the packet. */
static __always_inline int arguments(struct xdp_md *ctx, struct arguments *args)
{
	struct cursor c;
	struct arguments *in;

	cursor_init(&c, ctx);
	take(&c, sizeof(struct ethhdr));
	in = take(&c, sizeof(*in));
	if (!in)
		return 0;
	*args = *in;
	return 1;
}

/* Where the packet lies after a move, as far as a program can see it. */
static __always_inline void shape(struct xdp_md *ctx, __u32 slot)
{
	result(slot, ctx->data_end - ctx->data);
	result(slot + 1, ctx->data - ctx->data_meta);
}

/* Up to three moves in a row: word 0, 2, 4 say which kind, the words behind them how far. */
static __always_inline __s64 move(struct xdp_md *ctx, __u32 kind, __s32 delta)
{
	switch (kind % 3) {
	case 0:
		return bpf_xdp_adjust_head(ctx, delta);
	case 1:
		return bpf_xdp_adjust_tail(ctx, delta);
	default:
		return bpf_xdp_adjust_meta(ctx, delta);
	}
}

SEC("xdp")
int adjust(struct xdp_md *ctx)
{
	struct arguments a;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	result(0, move(ctx, a.word[0], a.word[1]));
	shape(ctx, 1);
	result(3, move(ctx, a.word[2], a.word[3]));
	shape(ctx, 4);
	result(6, move(ctx, a.word[4], a.word[5]));
	shape(ctx, 7);
	return XDP_PASS;
}

/* Copies between the packet and the stack by offset and length. */
SEC("xdp")
int bytes(struct xdp_md *ctx)
{
	__u8 buffer[64] = {};
	struct arguments a;
	__u32 length;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	length = a.word[1] & 63;
	result(0, bpf_xdp_get_buff_len(ctx));
	if (length == 0)
		return XDP_PASS;
	result(1, bpf_xdp_load_bytes(ctx, a.word[0], buffer, length));
	buffer[0] ^= 0xa5;
	result(2, bpf_xdp_store_bytes(ctx, a.word[2], buffer, length));
	result(3, buffer[length - 1]);
	return XDP_TX;
}

/* Checksum differences of two pieces of the argument area. */
SEC("xdp")
int checksum(struct xdp_md *ctx)
{
	__u32 buffer[16] = {};
	struct arguments a;
	__u32 from, to;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	buffer[0] = a.word[2];
	buffer[3] = a.word[3];
	buffer[7] = a.word[4];
	buffer[9] = a.word[5];
	from = a.word[0] & 31;
	to = a.word[1] & 31;
	result(0, bpf_csum_diff(buffer, from, buffer + 8, to, a.word[5]));
	result(1, bpf_csum_diff(0, 0, buffer, to, 0));
	result(2, bpf_csum_diff(buffer, from, 0, 0, ~a.word[4]));
	return XDP_PASS;
}

/* The same of the packet itself, at places of every alignment and of lengths that only the packet knows. */
SEC("xdp")
int packet_checksum(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct arguments a;
	__u32 length;
	void *p, *q;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	p = data + (a.word[0] & 31);
	q = data + (a.word[2] & 15);
	length = a.word[1] & 124;
	if (p + 128 > end || q + 128 > end)
		return XDP_PASS;
	result(0, bpf_csum_diff(0, 0, p, length, a.word[3]));
	result(1, bpf_csum_diff(p, length, 0, 0, a.word[3]));
	result(2, bpf_csum_diff(p, length, q, a.word[4] & 124, a.word[5]));
	return XDP_TX;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__uint(value_size, 1088);
} summed SEC(".maps");

/* Sums of up to a kibibyte of a map's value, at places of every alignment. */
SEC("xdp")
int long_checksum(struct xdp_md *ctx)
{
	struct arguments a;
	__u32 zero = 0, i;
	__u64 word;
	char *p;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	p = bpf_map_lookup_elem(&summed, &zero);
	if (!p)
		return XDP_ABORTED;
	word = ((__u64)a.word[2] << 32) | a.word[3];
	for (i = 0; i < 136; i++) {
		((__u64 *)p)[i] = a.word[5] & 3 ? word : -1;
		word = word * 0x9e3779b97f4a7c15 + i;
	}
	result(0, bpf_csum_diff(0, 0, (void *)(p + (a.word[0] & 31)), a.word[1] & 1023, a.word[4]));
	result(1, bpf_csum_diff((void *)(p + (a.word[0] & 63)), a.word[1] & 1023, 0, 0, a.word[4]));
	result(2, bpf_csum_diff((void *)p, 600, (void *)(p + (a.word[4] & 7)), a.word[3] & 511, a.word[5]));
	return XDP_PASS;
}

/* Numbers to text and back. */
SEC("xdp")
int print(struct xdp_md *ctx)
{
	static const char format[] = "%d|%5u|%-8llx|%+d|%c|%%|%pI4|%08lld";
	/* Without an address: Linux counts it wrongly where the buffer ends before it. */
	static const char plain[] = "%d|%5u|%-8llx|%+d|%c|%%";
	struct arguments a;
	__u64 data[7];
	char *out;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	out = page();
	if (!out)
		return XDP_ABORTED;
	data[0] = (__s64)(__s32)a.word[0];
	data[1] = a.word[1];
	data[2] = ((__u64)a.word[2] << 32) | a.word[3];
	data[3] = a.word[4];
	data[4] = 'a' + (a.word[5] & 15);
	data[5] = (__u64)(long)&a.word[5];
	data[6] = (__s64)(__s32)a.word[2];
	result(0, bpf_snprintf(out, 256, format, data, sizeof(data)));
	result(1, bpf_snprintf(out + 128, 1 + (a.word[0] & 31), plain, data, 5 * sizeof(data[0])));
	return XDP_PASS;
}

/* Calls with two lengths. */
SEC("xdp")
int lengths(struct xdp_md *ctx)
{
	static const char format[] = "port %llu is here";
	__u32 from[8], to[2];
	__u64 out[4] = {}, data[1];
	struct arguments a;
	__u32 n;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	n = a.word[0] & 4;
	from[0] = a.word[1];
	from[1] = a.word[2];
	from[2] = a.word[3];
	from[3] = a.word[4];
	from[4] = 0x4444;
	from[5] = a.word[5];
	from[6] = 0x6666;
	from[7] = a.word[0];
	to[0] = a.word[2];
	to[1] = 0x1111;
	result(0, bpf_csum_diff(from, sizeof(from), to, n, 0));
	result(1, bpf_csum_diff(to, n, from, sizeof(from), 0));
	data[0] = a.word[3];
	result(2, bpf_snprintf((char *)out, sizeof(out), format, data, sizeof(data)));
	result(3, out[0]);
	result(4, out[1]);
	result(5, out[2]);
	result(6, from[7] ^ to[0]);
	return XDP_PASS;
}

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 64);
	__type(value, __u64);
} filter SEC(".maps");

static const volatile __u64 asked = 7;

/* A filter reads what it is asked for: constants may be, and what was known of a number stays known. */
SEC("xdp")
int member(struct xdp_md *ctx)
{
	__s64 table[4] = { 11, 22, 33, 44 };
	struct arguments a;
	__u64 one = 7, k;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	result(0, bpf_map_push_elem(&filter, &one, BPF_ANY));
	result(1, bpf_map_peek_elem(&filter, (void *)&asked));
	k = a.word[0] & 15;
	if (k > 3)
		return XDP_PASS;
	result(2, bpf_map_peek_elem(&filter, &k));
	result(3, table[k]);
	return XDP_TX;
}

/* Arguments with more bits than are looked at, and lengths that no packet has. */
SEC("xdp")
int wide(struct xdp_md *ctx)
{
	static long (*const read64)(void *, __u64, void *, __u64, __u64) = (void *)BPF_FUNC_dynptr_read;
	static const char letters[] = "a%cb \xc3\xa9|%d";
	__u64 out[4] = {}, data[2];
	struct bpf_dynptr dynptr;
	__u32 length;
	struct arguments a;
	void *memory;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	length = a.word[0];
	result(0, bpf_check_mtu(ctx, 1, &length, a.word[1], 0));
	result(1, length);
	length = 0;
	result(2, bpf_check_mtu(ctx, 1, &length, a.word[2], 0));
	memory = page();
	if (!memory)
		return XDP_ABORTED;
	bpf_dynptr_from_mem(memory, 256, 0, &dynptr);
	result(3, read64(out, sizeof(out), &dynptr, (1ULL << 32) + (a.word[3] & 255), 0));
	result(4, !!bpf_dynptr_data(&dynptr, a.word[3] & 255, 32));
	data[0] = 'k';
	data[1] = a.word[4];
	result(5, bpf_snprintf((char *)out, sizeof(out), letters, data, sizeof(data)));
	result(6, out[0]);
	result(7, out[1]);
	return XDP_PASS;
}

/* Fields wider than any buffer, and widths that no number holds. */
SEC("xdp")
int print_wide(struct xdp_md *ctx)
{
	static const char formats[] = "%1025d|%-1400x|";
	static const char widest[] = "%8388607d|%8388608u";
	static const char wrapped[] = "%4294967299d|%-2147483650d|%2147483649d|%99999999999x";
	static const char string[] = "%10000s|%-2000s|%1030c";
	__u32 zero = 0;
	struct arguments a;
	__u64 data[4];
	char *out;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	out = bpf_map_lookup_elem(&text, &zero);
	if (!out)
		return XDP_ABORTED;
	data[0] = data[1] = data[2] = data[3] = a.word[0];
	result(0, bpf_snprintf(out, 128, formats, data, 2 * sizeof(data[0])));
	result(1, bpf_snprintf(out + 128, 1 + (a.word[1] & 63), widest, data, 2 * sizeof(data[0])));
	result(2, bpf_snprintf(out + 192, 64, wrapped, data, sizeof(data)));
	result(3, bpf_trace_printk(formats, sizeof(formats), a.word[0], a.word[1]));
	data[0] = data[1] = (__u64)(long)string;
	result(4, bpf_snprintf(out + 64, 64, string, data, 3 * sizeof(data[0])));
	return XDP_PASS;
}

/* Addresses: widths and letters that belong to nothing. */
SEC("xdp")
int print_addresses(struct xdp_md *ctx)
{
	static const char format[] = "%20pI4|%-20pI4x|%pI6c|%pi4h|";
	struct arguments a;
	__u64 data[4];
	char *out;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	out = page();
	if (!out)
		return XDP_ABORTED;
	data[0] = data[1] = data[2] = data[3] = (__u64)(long)&a;
	result(0, bpf_snprintf(out, 256, format, data, sizeof(data)));
	return XDP_PASS;
}

SEC("xdp")
int parse(struct xdp_md *ctx)
{
	char digits[25] = {};
	struct arguments a;
	unsigned long u = 0;
	long s = 0;

	if (!arguments(ctx, &a))
		return XDP_ABORTED;
	__builtin_memcpy(digits, a.word, sizeof(a.word));
	result(0, bpf_strtol(digits, sizeof(digits) - 1, 0, &s));
	result(1, s);
	result(2, bpf_strtoul(digits, sizeof(digits) - 1, 16, &u));
	result(3, u);
	result(4, bpf_strncmp(digits, sizeof(digits), "0x12"));
	return XDP_PASS;
}

/* What a program may read of its context. */
SEC("xdp")
int context(struct xdp_md *ctx)
{
	result(0, ctx->ingress_ifindex);
	result(1, ctx->rx_queue_index);
	shape(ctx, 2);
	result(4, bpf_get_smp_processor_id());
	result(5, bpf_redirect(1, 0));
	result(6, bpf_redirect(1, 1));
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
