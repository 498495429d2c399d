// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A patch panel: frames with a VLAN tag leave through the port that `ports` names for their VLAN id; where it names
 * none the frame passes to the stack. Untagged frames pass.
 */
#include "parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} ports SEC(".maps");

SEC("xdp")
int patch_panel(struct xdp_md *ctx)
{
	struct vlan_tag *tag;
	struct ethhdr *eth;
	struct cursor c;

	cursor_init(&c, ctx);
	eth = take(&c, sizeof(*eth));
	if (!eth || !is_vlan(eth->h_proto))
		return XDP_PASS;
	tag = take(&c, sizeof(*tag));
	if (!tag)
		return XDP_DROP;
	/* The low bits of the flags are the verdict when there is no such entry. */
	return bpf_redirect_map(&ports, bpf_ntohs(tag->tci) & 0xfff, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
