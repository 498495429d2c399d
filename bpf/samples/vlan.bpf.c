// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What can be done to a VLAN tag in front of everything else: drop by it, change it, take it away (two ways), put one on.
 *
 * A card that takes tags out itself hides them from programs (`ethtool -K DEV rxvlan off`; of a veth pair, txvlan at the
 * sender). A tag is four bytes behind the two addresses, so taking it away is: move the addresses over it, then let the packet
 * start four bytes later. Putting one on is the same the other way round, into the room in front of the packet.
 */
#include "parse.h"

/* Identifiers of VLANs. Set before loading. */
const volatile __u16 drop_id = 4011;
const volatile __u16 from_id = 4011;
const volatile __u16 to_id = 42;
const volatile __u16 push_id = 4011;
/* What a tag that is put on says it is: 0x8100 for customers' tags, 0x88a8 for a provider's. */
const volatile __u16 push_type = ETH_P_8021Q;

/* The twelve bytes in front of a tag. */
struct addresses {
	__u32 words[3];
};

/* A frame with a tag. */
struct tagged {
	struct addresses addresses;
	__be16 tpid;
	__be16 tci;
	__be16 ethertype;
} __attribute__((packed));

#define ID_MASK 0x0fff

/* The frame, if it has a tag; null if not, or if it ends before the type behind its tag. */
static __always_inline struct tagged *tagged(struct xdp_md *ctx)
{
	struct tagged *frame = (void *)(long)ctx->data;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return 0;
	return is_vlan(frame->tpid) ? frame : 0;
}

static __always_inline __u16 id_of(const struct tagged *frame)
{
	return bpf_ntohs(frame->tci) & ID_MASK;
}

/* Frames of one VLAN go no further. Of two tags the outer one counts. */
SEC("xdp")
int vlan_drop(struct xdp_md *ctx)
{
	struct tagged *frame = tagged(ctx);

	return frame && id_of(frame) == drop_id ? XDP_DROP : XDP_PASS;
}

/* Frames of one VLAN go on in another one; priority and drop eligibility stay. */
SEC("xdp")
int vlan_change(struct xdp_md *ctx)
{
	struct tagged *frame = tagged(ctx);

	if (frame && id_of(frame) == from_id)
		frame->tci = bpf_htons((bpf_ntohs(frame->tci) & ~ID_MASK) | (to_id & ID_MASK));
	return XDP_PASS;
}

/* Takes the outer tag away: the addresses go by way of the stack. */
SEC("xdp")
int vlan_pop_copy(struct xdp_md *ctx)
{
	struct tagged *frame = tagged(ctx);
	struct addresses kept, *addresses;

	if (!frame)
		return XDP_PASS;
	kept = frame->addresses;
	if (bpf_xdp_adjust_head(ctx, sizeof(struct vlan_tag)))
		return XDP_ABORTED;
	addresses = (void *)(long)ctx->data;
	if ((void *)(addresses + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	*addresses = kept;
	return XDP_PASS;
}

/* The same, word by word where they lie, from the last to the first: nothing is copied twice, nothing checked twice. */
SEC("xdp")
int vlan_pop_words(struct xdp_md *ctx)
{
	struct tagged *frame = tagged(ctx);
	__u32 *words;

	if (!frame)
		return XDP_PASS;
	words = (void *)frame;
	words[3] = words[2];
	words[2] = words[1];
	words[1] = words[0];
	return bpf_xdp_adjust_head(ctx, sizeof(struct vlan_tag)) ? XDP_ABORTED : XDP_PASS;
}

/* Puts a tag in front of whatever there is. */
SEC("xdp")
int vlan_push(struct xdp_md *ctx)
{
	struct tagged *frame;
	__u32 *words;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct vlan_tag)))
		return XDP_ABORTED;
	frame = (void *)(long)ctx->data;
	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	words = (void *)frame;
	words[0] = words[1];
	words[1] = words[2];
	words[2] = words[3];
	frame->tpid = bpf_htons(push_type);
	frame->tci = bpf_htons(push_id & ID_MASK);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
