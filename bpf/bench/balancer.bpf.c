// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A load balancer with direct server return.
 *
 * A packet to one of the services goes through a tunnel to one of its servers. Which server a connection has is remembered
 * in a connection table; a new connection is hashed onto the service's ring, whose places are shared out among the servers
 * in advance. What is for no service passes.
 *
 *   packet -> services (hash: address, port, protocol)
 *          -> connections (LRU hash: five numbers) --- new ---> ring (array) and back into connections
 *          -> servers (array: where the tunnel leads) -> encapsulate, TX
 */
#include "counter.h"
#include "flow.h"
#include "tunnel.h"

/* Places on the ring of one service; a power of two. */
#define RING 4096
#define SERVICES 64
#define SERVERS 1024

struct service_key {
	__be32 address;
	__be16 port;
	__u16 protocol;
};

struct service {
	__u32 number; /* which part of the ring */
	__u32 flags;
};

/* Connections to this service are not remembered: every packet is hashed. */
#define SERVICE_STATELESS 1

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 100000);
	__type(key, struct flow);
	__type(value, __u32);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RING *SERVICES);
	__type(key, __u32);
	__type(value, __u32);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVERS);
	__type(key, __u32);
	__type(value, struct tunnel);
} servers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICES);
	__type(key, __u32);
	__type(value, struct counter);
} traffic SEC(".maps");

enum event { EVENT_NEW, EVENT_NO_SERVER, EVENT_NO_ROOM, EVENTS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENTS);
	__type(key, __u32);
	__type(value, struct counter);
} events SEC(".maps");

/* Spreads the five numbers over 32 bits: each round multiplies and folds. */
static __always_inline __u32 hash_flow(const struct flow *flow)
{
	__u64 h = ((__u64)flow->source << 32 | flow->destination) * 0x9e3779b97f4a7c15;
	__u64 ports = (__u64)flow->source_port << 32 | (__u64)flow->destination_port << 16 | flow->protocol;

	h ^= h >> 32;
	h = (h ^ ports) * 0xc2b2ae3d27d4eb4f;
	h ^= h >> 29;
	h *= 0x165667b19e3779f9;
	return h >> 32;
}

/* The server of a connection that the table does not know. */
static __always_inline __u32 *choose(const struct service *service, const struct flow *flow)
{
	__u32 place = (service->number & (SERVICES - 1)) * RING + (hash_flow(flow) & (RING - 1));

	return bpf_map_lookup_elem(&ring, &place);
}

SEC("xdp")
int balance(struct xdp_md *ctx)
{
	__u64 bytes = ctx->data_end - ctx->data;
	struct service_key key = {};
	struct service *service;
	struct tunnel *tunnel;
	struct iphdr *ip;
	struct flow flow;
	__u32 *known = 0;
	__u32 server;

	if (!parse_flow(ctx, &flow))
		return XDP_PASS;
	key.address = flow.destination;
	key.port = flow.destination_port;
	key.protocol = flow.protocol;
	service = bpf_map_lookup_elem(&services, &key);
	if (!service)
		return XDP_PASS;

	if (!(service->flags & SERVICE_STATELESS))
		known = bpf_map_lookup_elem(&connections, &flow);
	if (known) {
		server = *known;
	} else {
		__u32 *chosen = choose(service, &flow);

		if (!chosen)
			return XDP_DROP;
		server = *chosen;
		if (!(service->flags & SERVICE_STATELESS)) {
			bpf_map_update_elem(&connections, &flow, &server, BPF_ANY);
			count(&events, EVENT_NEW, bytes);
		}
	}

	tunnel = bpf_map_lookup_elem(&servers, &server);
	if (!tunnel || !tunnel->destination) {
		count(&events, EVENT_NO_SERVER, bytes);
		return XDP_DROP;
	}
	count(&traffic, service->number, bytes);
	ip = ipv4_of(ctx);
	if (!ip)
		return XDP_DROP;
	if (!encapsulate(ctx, tunnel, bpf_ntohs(ip->tot_len))) {
		count(&events, EVENT_NO_ROOM, bytes);
		return XDP_DROP;
	}
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
