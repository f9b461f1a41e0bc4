/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Load balancing by direct server return, tail-called for packets that the firewall
 * lets pass to a port with PORT_BALANCE: the frame gets the link-layer address of a
 * real and leaves; the packet in it stays as it is but for one hop, and the real, which
 * has the virtual address on its loopback interface, answers the client itself.
 *
 * A flow that is known stays with its real while that takes packets; any other goes
 * where the ring of its pool says. The ring is a function of the configuration, so a
 * second weir, or this one without its table of flows, chooses the same real.
 *
 * Of packets without ports, fragments go where their first one went, and ICMP errors
 * (RFC 792, RFC 4443) to the real whose packet they are about: without "packet too big"
 * a real would send what does not arrive, again and again.
 *
 * Passed to the host's stack as if nothing were here: what is addressed to another
 * link-layer address than the interface's (a frame that a switch floods must not come
 * back), what has no hop left, tagged frames, ICMP that is no error (this host answers
 * echo requests), IPv4 options, IPv6 extension headers but a fragment's. */
#ifndef WEIR_BALANCE_H
#define WEIR_BALANCE_H

#include <linux/pkt_cls.h>
#include "balance/flows.h"
#include "balance/pools.h"
#include "lib/request.h"

/* The number of the real that takes this flow; `chosen`: it is there. `served`: the
 * flow is remembered, and counted there if it cannot be. */
static __always_inline __u32 balance_choose(const struct balance_flow_key *key,
					    const struct balance_service *service,
					    struct balance_service_counter *served,
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
	*chosen = real;
	if (!served)
		return number;
	if (!balance_may_remember()) {
		served->unremembered++;
		return number;
	}
	fresh.id = real->id;
	fresh.real = number;
	bpf_map_update_elem(&balance_flows, key, &fresh, BPF_ANY);
	sent = bpf_map_lookup_elem(&balance_sent, &number);
	if (sent)
		sent->flows++;
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

/* Takes one hop of the packet, as a router does (RFC 1812 5.3.1, RFC 8200 3): between
 * hosts that balance to each other it would go round for ever. 0: it has none left. */
static __always_inline int balance_take_hop(void *ctx, const int tc, void *l3, void *end,
					    int v4)
{
	if (v4) {
		struct iphdr *ip = l3;
		__u32 check;

		if ((void *)(ip + 1) > end || ip->ttl < 2)
			return 0;
		ip->ttl--;
		/* RFC 1624, whose sum never is -0. */
		check = ip->check + bpf_htons(0x0100);
		ip->check = check + (check >= 0xffff);
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > end || ip->hop_limit < 2)
			return 0;
		ip->hop_limit--;
		/* Of what a device has summed up. */
		if (tc)
			bpf_csum_update(ctx, bpf_htons(0xfffe));
	}
	return 1;
}

/* Leaves for a real, as the frame is; `back`: by the way that it came, on XDP. */
static __always_inline int balance_send(struct ethhdr *eth,
					const struct balance_real *real, int back)
{
	__builtin_memcpy(eth->h_dest, real->dest, 6);
	__builtin_memcpy(eth->h_source, real->source, 6);
	return back ? XDP_TX : bpf_redirect(real->ifindex, 0);
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
	struct balance_fragment_key fragment = {};
	struct balance_service_counter *served;
	struct balance_flow_key key = {};
	struct balance_real_counter *sent;
	struct balance_real *real = NULL;
	struct balance_service *service;
	struct balance_fragment *first;
	struct balance_fragment whole;
	struct ethhdr *eth = data;
	enum balance_part part;
	__u32 number, of;

	if (!request)
		return pass;
	if ((void *)(eth + 1) > end || request->result.l3 != sizeof(*eth) ||
	    (tc && skb->vlan_present))
		goto leave;
	if (balance_flow_of(data, end, request->result.v4 != 0, &key)) {
		part = PART_WHOLE;
	} else {
		key = (struct balance_flow_key){};
		part = request->result.v4 ? balance_part4(ctx, tc, &key, &fragment)
					  : balance_part6(ctx, tc, &key, &fragment);
	}
	if (part == PART_NONE)
		goto leave;
	if (part == PART_LATER_FRAGMENT) {
		first = bpf_map_lookup_elem(&balance_fragments, &fragment);
		if (!first)
			goto leave;
		number = first->real;
		of = first->service;
		real = bpf_map_lookup_elem(&balance_reals, &number);
		served = bpf_map_lookup_elem(&balance_served, &of);
		if (!real || !served || !real->id || real->id != first->id)
			goto leave;
	} else {
		service = bpf_map_lookup_elem(&balance_services, &key.service);
		if (!service)
			goto leave;
		of = service->number;
		served = bpf_map_lookup_elem(&balance_served, &of);
		if (!served)
			goto leave;
		number = balance_choose(&key, service, part == PART_ERROR ? NULL : served,
					&real);
		if (!real) {
			served->unserved++;
			count(R_NO_REAL, request->result.bytes);
			return tc ? TC_ACT_SHOT : XDP_DROP;
		}
	}
	if (part == PART_FIRST_FRAGMENT) {
		whole = (struct balance_fragment){
			.id = real->id, .real = number, .service = of};
		bpf_map_update_elem(&balance_fragments, &fragment, &whole, BPF_ANY);
	}
	/* What was not sent to this interface is not sent on. */
	if (here == real->ifindex && !is_same_mac(eth->h_dest, real->source))
		goto leave;
	if (!balance_take_hop(ctx, tc, eth + 1, end, request->result.v4))
		goto leave;
	served->packets++;
	served->bytes += request->result.bytes;
	sent = bpf_map_lookup_elem(&balance_sent, &number);
	if (sent) {
		sent->packets++;
		sent->bytes += request->result.bytes;
	}
	balance_count(&request->result);
	return balance_send(eth, real, !tc && here == real->ifindex);
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
