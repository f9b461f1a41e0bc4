/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Load balancing by direct server return, tail-called for packets that the firewall
 * lets pass to a port with PORT_BALANCE: the frame gets the link-layer address of a
 * real and leaves; the packet in it stays as it is but for one hop, and the real, which
 * has the virtual address on its loopback interface, answers the client itself.
 *
 * A flow that is known stays with its real while that takes packets; any other goes
 * where the ring of its pool says, by a hash or by turns; a connection of QUIC that moves
 * stays with its real as well, where the real's connection IDs say whose it is (quic.h).
 * The ring is a function of the configuration, so a second weir, or this one without its
 * table of flows, chooses the same real.
 *
 * Of packets without ports, fragments go where their first one went, and ICMP errors
 * (RFC 792, RFC 4443) to the real whose packet they are about: without "packet too big"
 * a real would send what does not arrive, again and again.
 *
 * A frame with a VLAN tag goes to reals of that VLAN, with the tag that it has.
 *
 * Passed to the host's stack as if nothing were here: what is addressed to another
 * link-layer address than the interface's (a frame that a switch floods must not come
 * back) or to a group, what has no hop left, frames of another VLAN than the real's or
 * with two tags, ICMP that is no error (this host answers echo requests), IPv4 options,
 * IPv6 extension headers but a fragment's. Of what XDP gets by
 * another interface than the real's nobody knows whether it is another host's: such an
 * interface may not be promiscuous. */
#ifndef WEIR_BALANCE_H
#define WEIR_BALANCE_H

#include <linux/pkt_cls.h>
#include "balance/acl.h"
#include "balance/flows.h"
#include "balance/pools.h"
#include "balance/quic.h"
#include "balance/turns.h"
#include "lib/request.h"

#define VLAN_ID	 0xfff /* VLAN number in a tag: the rest is its priority */
#define VLAN_TAG 4     /* bytes */

/* No verdict: it is not a packet of its own. */
#define BALANCE_REST (-2)

/* The number of the real that a new flow goes to. */
static __always_inline __u32 balance_select(const struct balance_flow_key *key,
					    __u32 pool)
{
	__u32 number = pool & 0xffff, slot = balance_slot(key);
	struct balance_ring *ring = bpf_map_lookup_elem(&balance_rings, &number);

	if (unlikely(pool & BALANCE_HAS_RULES))
		slot = balance_slot_by_rules(key->source[0], key->source[1],
					     key->ports & 0xffff, pool, slot);
	return ring && slot < BALANCE_SLOTS ? ring->reals[slot] : BALANCE_NOBODY;
}

/* Does a known flow leave its real, which drains, or its client has ended it? A client
 * that opens one more connection from the port of an earlier one does, and a flow of UDP
 * that was silent for long: such a real would never be without flows otherwise. */
static __always_inline int balance_leaves(__u64 state, __u64 window, __u32 begins)
{
	__u32 silence = begins >> BEGINS_SILENCE_SHIFT;

	return begins & BEGINS_FLOW ||
	       (silence && balance_silence(state, window) >= silence);
}

/* BALANCE_DRAINS if a flow may leave a real, with this id. */
static __always_inline __u64 balance_may_leave(__u64 id, __u64 state)
{
	_Static_assert(FLOW_ENDED << 41 == BALANCE_DRAINS, "bits");
	return (id | state << 41) & BALANCE_DRAINS;
}

struct balance_frame {
	struct ethhdr *eth;
	void *l3;
	void *end;
	__u32 vlan; /* 0: none, or a priority tag */
	int tc;
	const struct __sk_buff *skb; /* on tc */
};

/* 1: the kernel says that the frame is another host's, of the four kinds that come in
 * (PACKET_OTHERHOST); XDP is not told. Read where it is needed: on the stack it would be
 * too much for those that go on to a pool. */
static __always_inline __u64 balance_is_others(const struct balance_frame *f)
{
	__u64 type = f->tc ? f->skb->pkt_type : 0;

	return type & type >> 1 & 1;
}

/* Is the frame addressed to this host: to the interface through which the real is
 * reached, if it came in there, and else to no group, each host of which would send it on
 * (RFC 1812 5.3.4)? What is not is not sent on, and begins or moves no flow: a switch
 * floods frames of another host, which may send their flow elsewhere: it has no turn and
 * no part of the quota, no known flow counts as used by it, and no later fragment follows
 * it. Without a branch but the last: each would be a path for the verifier. In one word:
 * of packets the compiler takes single bytes. */
static __always_inline int balance_is_here(const struct balance_frame *f,
					   const struct balance_real *real, __u32 here)
{
	/* With `vlan` behind it. */
	__u64 dest = *(__u64 *)f->eth, differs = dest ^ *(__u64 *)real->here;
	__u64 elsewhere = here ^ real->ifindex;

	/* All ones, or 0. */
	elsewhere = -elsewhere >> 63;
	elsewhere = -elsewhere & (balance_is_others(f) - 1);
	asm volatile("" : "+r"(elsewhere));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return !((differs << 16 & ~elsewhere) | (dest & 1 & elsewhere));
#else
	return !((differs >> 16 & ~elsewhere) | (dest >> 56 & 1 & elsewhere));
#endif
}

/* The number of the real that takes this flow; `chosen`: it is there. `served`: the
 * flow is remembered, and counted there if it cannot be. `begins`: what
 * balance_begins() says. `named`: the number of the real, + 1, of whose connection it is,
 * wherever the flow was; 0: the packet does not say. `f` came by the interface `here`. */
static __always_inline __u32 balance_choose(const struct balance_flow_key *key,
					    __u32 pool,
					    struct balance_service_counter *served,
					    int begins, __u32 named,
					    const struct balance_frame *f, __u32 here,
					    struct balance_real **chosen)
{
	__u64 hash = balance_hash(key), window = bpf_jiffies64() >> EVENT_WINDOW_SHIFT;
	__u64 state = balance_find(hash);
	__u64 ended = (__u64)(begins & BEGINS_ENDS) * (FLOW_ENDED / BEGINS_ENDS);
	struct balance_real_counter *sent;
	struct balance_real *real;
	__u32 number;
	int turn;

	if (likely(state)) {
		number = state >> FLOW_REAL_SHIFT & 0xffff;
		real = bpf_map_lookup_elem(&balance_reals, &number);
		if (real && real->id && (__u16)real->id == state >> FLOW_ID_SHIFT &&
		    likely(!(balance_may_leave(real->id, state) &&
			     balance_leaves(state, window, begins)))) {
			if (likely(!named || named == number + 1)) {
				*chosen = real;
				if (likely(balance_is_here(f, real, here)))
					balance_touch(hash, state, window, ended);
				return number;
			}
			/* One datagram, which anybody may have sent, moves no flow. */
			served = NULL;
		}
	}
	turn = !named && begins & BEGINS_WITH_TURN && served &&
	       balance_may_remember(window, 0);
	if (turn)
		pool |= BALANCE_HAS_TURN;
	number = named ? named - 1 : balance_select(key, pool);
	real = bpf_map_lookup_elem(&balance_reals, &number);
	if (!real || !real->id) {
		/* One that is gone does not keep the turn. */
		if (turn)
			balance_take_turn(pool);
		return 0;
	}
	*chosen = real;
	if (!served || unlikely(!balance_is_here(f, real, here)))
		return number;
	/* One that is remembered displaces nobody: it gets its own place again. */
	if ((turn || !state) && !balance_may_remember(window, 1)) {
		served->unremembered++;
		return number;
	}
	if (turn)
		balance_take_turn(pool);
	state = balance_state(number, real->id, window, key->protocol) | ended;
	if (balance_remember(hash, state, begins >> BEGINS_COUNTED_SHIFT & 1) ==
	    REMEMBER_DISPLACED)
		served->displaced++;
	served->flows++;
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

/* Left to the host. */
static __always_inline int balance_pass(const struct answer_request *request, int tc)
{
	balance_count(&request->result);
	return tc ? TC_ACT_UNSPEC : (int)cfg.final_pass;
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
		/* The checksum that a device has summed up follows. */
		if (tc)
			bpf_csum_update(ctx, bpf_htons(0xfffe));
	}
	return 1;
}

/* Leaves for a real, as the frame is; `back`: by the way that it came, on XDP. */
static __always_inline int balance_send(struct ethhdr *eth,
					const struct balance_real *real, int back)
{
	((__u32 *)eth)[0] = ((__u32 *)real)[0];
	((__u32 *)eth)[1] = ((__u32 *)real)[1];
	((__u32 *)eth)[2] = ((__u32 *)real)[2];
	return back ? XDP_TX : bpf_redirect(real->ifindex, 0);
}

/* Notes the VLAN of a frame with one tag at most, of 802.1Q; 0: it has others. On XDP a
 * tag stands in the frame, and of an skb the kernel has taken it off. */
static __always_inline int balance_vlan_of(void *ctx, const int tc,
					   struct balance_frame *f, __u32 l3)
{
	struct __sk_buff *skb = ctx;
	__be16 *tci = (void *)(f->eth + 1);

	if ((void *)(tci + 1) > f->end)
		return 0;
	if (tc) {
		/* One path for the verifier. Without a tag there may be an old one. */
		f->vlan = (skb->vlan_tci & VLAN_ID) * skb->vlan_present;
		return l3 == sizeof(*f->eth) &&
		       (!skb->vlan_present || skb->vlan_proto == bpf_htons(ETH_P_8021Q));
	}
	if (l3 == sizeof(*f->eth))
		return 1;
	f->vlan = bpf_ntohs(*tci) & VLAN_ID;
	return l3 == sizeof(*f->eth) + VLAN_TAG &&
	       f->eth->h_proto == bpf_htons(ETH_P_8021Q);
}
/* For what goes to a real beyond a router, in place of what the hook shall return: the
 * numbers of service and real are in it, for encap.h. */
#define BALANCE_ENCAP(number, of) (0x60 << 24 | (of) << 10 | (number))
#define BALANCE_IS_ENCAP(verdict) ((__u32)(verdict) >> 24 == 0x60)
_Static_assert(BALANCE_REALS <= 1 << 10 && BALANCE_SERVICES <= 1 << 14, "bits");

/* Counts a packet and sends it to its real, if it can go on at all: what the hook shall
 * return. `number`: that of the real, `of`: that of the service. */
static __always_inline int balance_forward(void *ctx, const int tc,
					   const struct answer_request *request,
					   const struct balance_frame *f, __u32 here,
					   struct balance_service_counter *served,
					   const struct balance_real *real, __u32 number,
					   __u32 of)
{
	struct balance_real_counter *sent;

	/* What was not sent to this host is not sent on, nor into another VLAN. */
	if (!balance_is_here(f, real, here))
		return balance_pass(request, tc);
	if (unlikely(f->vlan != real->vlan))
		return real->vlan == BALANCE_TUNNELED && !f->vlan
			       ? BALANCE_ENCAP(number, of)
			       : balance_pass(request, tc);
	if (!balance_take_hop(ctx, tc, f->l3, f->end, request->result.v4))
		return balance_pass(request, tc);
	served->packets++;
	served->bytes += request->result.bytes;
	sent = bpf_map_lookup_elem(&balance_sent, &number);
	if (sent) {
		sent->packets++;
		sent->bytes += request->result.bytes;
	}
	balance_count(&request->result);
	return balance_send(f->eth, real, !tc && here == real->ifindex);
}

/* There is no real for it. */
static __always_inline int balance_drop(const struct answer_request *request,
					const int tc,
					struct balance_service_counter *served)
{
	served->unserved++;
	count(R_NO_REAL, request->result.bytes);
	return tc ? TC_ACT_SHOT : XDP_DROP;
}

/* What is not a packet with ports behind the IP header: fragments, and ICMP errors. */
static __always_inline int balance_rest(void *ctx, const int tc)
{
	struct xdp_md *xdp = ctx;
	struct __sk_buff *skb = ctx;
	struct balance_frame f = {
		.eth = (void *)(long)(tc ? skb->data : xdp->data),
		.end = (void *)(long)(tc ? skb->data_end : xdp->data_end),
		.tc = tc,
		.skb = skb,
	};
	__u32 here = tc ? skb->ifindex : xdp->ingress_ifindex;
	struct answer_request *request = answer_request_here();
	struct balance_service_counter *served;
	struct balance_flow_key key = {};
	struct balance_real *real = NULL;
	struct balance_fragment *first;
	enum balance_part part;
	__u32 number, of, pool, id = 0, l3, v4;
	__u64 service;

	if (!request)
		return tc ? TC_ACT_UNSPEC : (int)cfg.final_pass;
	l3 = request->result.l3 & L3_MOST;
	v4 = request->result.v4;
	if (!balance_vlan_of(ctx, tc, &f, l3))
		return balance_pass(request, tc);
	f.l3 = (void *)f.eth + l3;
	part = v4 ? balance_part4(ctx, tc, l3, &key, &id)
		  : balance_part6(ctx, tc, l3, &key, &id);
	if (part == PART_NONE)
		return balance_pass(request, tc);
	if (part == PART_LATER_FRAGMENT) {
		balance_set_fragment(&key, v4, id);
		first = bpf_map_lookup_elem(&balance_fragments, &key);
		if (!first)
			return balance_pass(request, tc);
		number = first->real;
		of = first->service;
		real = bpf_map_lookup_elem(&balance_reals, &number);
		served = bpf_map_lookup_elem(&balance_served, &of);
		if (!real || !served || !real->id ||
		    (real->id ^ first->id) & ~BALANCE_DRAINS)
			return balance_pass(request, tc);
	} else {
		service = balance_service_of(&key);
		of = (__u32)service - 1;
		served = bpf_map_lookup_elem(&balance_served, &of);
		if (!service || !served)
			return balance_pass(request, tc);
		pool = service >> 32;
		if (balance_denies(request, &key, pool, served))
			return tc ? TC_ACT_SHOT : XDP_DROP;
		/* A first fragment has no turn, but counts: where nobody counts, no load
		 * is looked at. Without a call: of the stack there is no more. */
		number = balance_choose(&key, pool, part == PART_ERROR ? NULL : served,
					(pool & BALANCE_HAS_RULES) / BALANCE_HAS_RULES *
						BEGINS_COUNTED,
					0, &f, here, &real);
		if (!real)
			return balance_drop(request, tc, served);
		if (part == PART_FIRST_FRAGMENT && balance_is_here(&f, real, here)) {
			struct balance_fragment whole = {
				.id = real->id, .real = number, .service = of};

			balance_set_fragment(&key, v4, id);
			bpf_map_update_elem(&balance_fragments, &key, &whole, BPF_ANY);
		}
	}
	return balance_forward(ctx, tc, request, &f, here, served, real, number, of);
}

/* Global, so that the verifier checks each once. */
__noinline int balance_rest_xdp(struct xdp_md *ctx)
{
	return balance_rest(ctx, 0);
}

__noinline int balance_rest_tc(struct __sk_buff *ctx)
{
	return balance_rest(ctx, 1);
}

/* A packet of its own, whose IP header is at `l3`, a constant. */
static __always_inline int balance_whole(void *ctx, const int tc, const __u32 l3,
					 struct answer_request *request)
{
	struct xdp_md *xdp = ctx;
	struct __sk_buff *skb = ctx;
	struct balance_frame f = {
		.eth = (void *)(long)(tc ? skb->data : xdp->data),
		.end = (void *)(long)(tc ? skb->data_end : xdp->data_end),
		.tc = tc,
		.skb = skb,
	};
	__u32 here = tc ? skb->ifindex : xdp->ingress_ifindex;
	struct balance_service_counter *served;
	struct balance_flow_key key;
	struct balance_real *real = NULL;
	__u32 number, of, pool, l4, named = 0;
	__u64 service;
	int begins = 0;

	f.l3 = (void *)f.eth + l3;
	if (unlikely(!balance_vlan_of(ctx, tc, &f, l3) ||
		     !balance_flow_of(f.l3, f.end, request->result.v4, &key)))
		return BALANCE_REST;
	service = balance_service_of(&key);
	of = (__u32)service - 1;
	served = bpf_map_lookup_elem(&balance_served, &of);
	if (!service || !served)
		return balance_pass(request, tc);
	pool = service >> 32;
	if (unlikely(pool & BALANCE_HAS_RULES)) {
		if (balance_denies(request, &key, pool, served))
			return tc ? TC_ACT_SHOT : XDP_DROP;
		begins = balance_begins(
			pool, key.protocol,
			balance_tcp_flags(f.l3, f.end, request->result.v4));
		l4 = l3 +
		     (request->result.v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
		if (key.protocol == IPPROTO_UDP)
			named = tc ? balance_quic_tc(ctx, pool, l4, of)
				   : balance_quic_xdp(ctx, pool, l4, of);
	}
	number = balance_choose(&key, pool, served, begins, named, &f, here, &real);
	if (!real)
		return balance_drop(request, tc, served);
	return balance_forward(ctx, tc, request, &f, here, served, real, number, of);
}

/* With a tag in the frame. */
__noinline int balance_tagged_xdp(struct xdp_md *ctx)
{
	struct answer_request *request = answer_request_here();

	return request ? balance_whole(ctx, 0, sizeof(struct ethhdr) + VLAN_TAG, request)
		       : (int)cfg.final_pass;
}

/* To a real beyond a router: encap.h. */
int encap_xdp(struct xdp_md *ctx, __u32 number, __u32 of);
int encap_skb(struct __sk_buff *ctx, __u32 number, __u32 of);

/* What the hook shall return. `tc`: the context is an skb. Calls of encap.h are here,
 * where little of the stack is taken. */
static __always_inline int handle_balance(void *ctx, const int tc)
{
	struct answer_request *request = answer_request_here();
	__u32 number, of;
	int verdict;

	if (!request)
		return tc ? TC_ACT_UNSPEC : (int)cfg.final_pass;
	if (likely(request->result.l3 == sizeof(struct ethhdr)))
		verdict = balance_whole(ctx, tc, sizeof(struct ethhdr), request);
	else if (!tc && request->result.l3 == sizeof(struct ethhdr) + VLAN_TAG)
		verdict = balance_tagged_xdp(ctx);
	else
		return balance_pass(request, tc);
	if (unlikely(verdict == BALANCE_REST))
		verdict = tc ? balance_rest_tc(ctx) : balance_rest_xdp(ctx);
	if (likely(!BALANCE_IS_ENCAP(verdict)))
		return verdict;
	number = verdict & 0x3ff;
	of = verdict >> 10 & 0x3fff;
	return tc ? encap_skb(ctx, number, of) : encap_xdp(ctx, number, of);
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
