/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Load balancing by direct server return, tail-called for packets that the firewall
 * lets pass to a port with PORT_BALANCE: the frame gets the link-layer address of a
 * real and leaves; the packet in it stays as it is, and the real, which has the virtual
 * address on its loopback interface, answers the client itself.
 *
 * A flow that is known stays with its real while that takes packets; any other goes
 * where the ring of its pool says. The ring is a function of the configuration, so a
 * second weir, or this one without its table of flows, chooses the same real.
 *
 * Passed to the host's stack as if nothing were here: what is addressed to another
 * link-layer address than the interface's (a frame that a switch floods must not come
 * back), tagged frames, fragments, IPv4 options, IPv6 extension headers. */
#ifndef WEIR_BALANCE_H
#define WEIR_BALANCE_H

#include <linux/pkt_cls.h>
#include "lib/headers.h"
#include "lib/request.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCE_SERVICES);
	__type(key, struct balance_service_key);
	__type(value, struct balance_service);
} balance_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_POOLS);
	__type(key, __u32);
	__type(value, struct balance_ring);
} balance_rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_REALS);
	__type(key, __u32);
	__type(value, struct balance_real);
} balance_reals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_REALS);
	__type(key, __u32);
	__type(value, struct balance_real_counter);
} balance_sent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_SERVICES);
	__type(key, __u32);
	__type(value, struct balance_service_counter);
} balance_served SEC(".maps");

struct balance_flow_key {
	__u8 source[16];
	struct balance_service_key service;
	__be16 port;
	__u16 pad;
};

struct balance_flow {
	__u64 id;
	__u32 real;
	__u32 pad;
};

/* Of the program: user space reads none of it, and a program that is loaded anew
 * finds the same real by the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, BALANCE_FLOWS);
	__type(key, struct balance_flow_key);
	__type(value, struct balance_flow);
} balance_flows SEC(".maps");

static __always_inline __u64 balance_mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* The slot of a flow: not keyed, for two weirs are to choose the same. */
static __always_inline __u32 balance_slot(const struct balance_flow_key *key)
{
	const __u64 *source = (const void *)key->source;
	const __u64 *dest = (const void *)key->service.addr;
	__u64 hash = 0x243f6a8885a308d3ULL;

	hash = balance_mix(hash, source[0]);
	hash = balance_mix(hash, source[1]);
	hash = balance_mix(hash, dest[0]);
	hash = balance_mix(hash, dest[1]);
	hash = balance_mix(hash, (__u64)key->service.protocol << 32 |
					 (__u32)key->service.port << 16 | key->port);
	hash = balance_mix(hash, hash >> 29);
	return ((hash & 0xffffffff) * BALANCE_SLOTS) >> 32;
}

/* The addresses and ports of a packet; 0: it has none that are readable. */
static __always_inline int balance_flow_of(void *data, void *end, int v4,
					   struct balance_flow_key *key)
{
	void *l3 = data + sizeof(struct ethhdr);
	struct ports *ports;

	if (v4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > end || ip->ihl != 5 ||
		    ip->frag_off & bpf_htons(IP_MF_OFFSET))
			return 0;
		key->source[10] = key->source[11] = 0xff;
		key->service.addr[10] = key->service.addr[11] = 0xff;
		__builtin_memcpy(&key->source[12], &ip->saddr, 4);
		__builtin_memcpy(&key->service.addr[12], &ip->daddr, 4);
		key->service.protocol = ip->protocol;
		ports = (void *)(ip + 1);
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return 0;
		__builtin_memcpy(key->source, &ip->saddr, 16);
		__builtin_memcpy(key->service.addr, &ip->daddr, 16);
		key->service.protocol = ip->nexthdr;
		ports = (void *)(ip + 1);
	}
	if ((key->service.protocol != IPPROTO_TCP &&
	     key->service.protocol != IPPROTO_UDP) ||
	    (void *)(ports + 1) > end)
		return 0;
	key->service.port = ports->dest;
	key->port = ports->source;
	return 1;
}

/* The number of the real that takes this flow; `chosen`: it is there. */
static __always_inline __u32 balance_choose(const struct balance_flow_key *key,
					    const struct balance_service *service,
					    struct balance_real **chosen)
{
	struct balance_flow *flow = bpf_map_lookup_elem(&balance_flows, key);
	struct balance_flow fresh = {};
	struct balance_real_counter *sent;
	struct balance_ring *ring;
	struct balance_real *real;
	__u32 number, slot, pool;

	if (flow) {
		number = flow->real;
		real = bpf_map_lookup_elem(&balance_reals, &number);
		if (real && real->id && real->id == flow->id) {
			*chosen = real;
			return number;
		}
	}
	pool = service->pool;
	ring = bpf_map_lookup_elem(&balance_rings, &pool);
	slot = balance_slot(key);
	if (!ring || slot >= BALANCE_SLOTS)
		return 0;
	number = ring->reals[slot];
	real = bpf_map_lookup_elem(&balance_reals, &number);
	if (!real || !real->id)
		return 0;
	fresh.id = real->id;
	fresh.real = number;
	bpf_map_update_elem(&balance_flows, key, &fresh, BPF_ANY);
	sent = bpf_map_lookup_elem(&balance_sent, &number);
	if (sent)
		sent->flows++;
	*chosen = real;
	return number;
}

/* A packet that the firewall lets pass; of observed ones it is told. */
static __always_inline void balance_count(const struct pkt_result *result)
{
	if (result->reason == R_OBSERVED)
		count_and_report(result, bpf_jiffies64());
	else
		count(result->reason, result->bytes);
}

static __always_inline int balance_same_mac(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

/* What the hook shall return. `tc`: the context is an skb. */
static __always_inline int handle_balance(void *ctx, const int tc)
{
	struct xdp_md *xdp = ctx;
	struct __sk_buff *skb = ctx;
	void *data = (void *)(long)(tc ? skb->data : xdp->data);
	void *end = (void *)(long)(tc ? skb->data_end : xdp->data_end);
	__u32 here = tc ? skb->ifindex : xdp->ingress_ifindex;
	const int pass = tc ? TC_ACT_UNSPEC : (int)cfg.final_pass;
	struct answer_request *request = answer_request_here();
	struct balance_service_counter *served;
	struct balance_real_counter *sent;
	struct balance_service *service;
	struct balance_flow_key key = {};
	struct balance_real *real = NULL;
	struct ethhdr *eth = data;
	__u32 number;

	if (!request)
		return pass;
	if ((void *)(eth + 1) > end || request->result.l3 != sizeof(*eth) ||
	    (tc && skb->vlan_present) ||
	    !balance_flow_of(data, end, request->result.v4 != 0, &key))
		goto leave;
	service = bpf_map_lookup_elem(&balance_services, &key.service);
	if (!service)
		goto leave;
	number = service->number;
	served = bpf_map_lookup_elem(&balance_served, &number);
	if (!served)
		goto leave;
	number = balance_choose(&key, service, &real);
	if (!real) {
		served->unserved++;
		count(R_NO_REAL, request->result.bytes);
		return tc ? TC_ACT_SHOT : XDP_DROP;
	}
	/* What was not sent to this interface is not sent on. */
	if (here == real->ifindex && !balance_same_mac(eth->h_dest, real->source))
		goto leave;
	served->packets++;
	served->bytes += request->result.bytes;
	sent = bpf_map_lookup_elem(&balance_sent, &number);
	if (sent) {
		sent->packets++;
		sent->bytes += request->result.bytes;
	}
	balance_count(&request->result);
	__builtin_memcpy(eth->h_dest, real->dest, 6);
	__builtin_memcpy(eth->h_source, real->source, 6);
	if (!tc && here == real->ifindex)
		return XDP_TX;
	return bpf_redirect(real->ifindex, 0);
leave:
	balance_count(&request->result);
	return pass;
}

SEC("xdp")
int weir_pool_xdp(struct xdp_md *ctx)
{
	return handle_balance(ctx, 0);
}

SEC("tcx/ingress")
int weir_pool_tc(struct __sk_buff *skb)
{
	return handle_balance(skb, 1);
}

#endif
