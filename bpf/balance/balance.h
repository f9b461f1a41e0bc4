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

/* A packet that comes in fragments, by what all of them have (RFC 791, RFC 8200). */
struct balance_fragment_key {
	__u8 source[16];
	__u8 dest[16];
	__be32 id;
	__u8 protocol;
	__u8 pad[3];
};

/* Where its first fragment went. */
struct balance_fragment {
	__u64 id;
	__u32 real;
	__u32 service;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, BALANCE_FRAGMENTS);
	__type(key, struct balance_fragment_key);
	__type(value, struct balance_fragment);
} balance_fragments SEC(".maps");

/* How many flows were remembered lately. */
struct balance_quota {
	__u64 window; /* jiffies >> EVENT_WINDOW_SHIFT */
	__u64 flows;  /* in it */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct balance_quota);
} balance_quota SEC(".maps");

/* What the frame holds of a flow. */
enum balance_part {
	PART_NONE,
	PART_WHOLE, /* a packet of its own */
	PART_FIRST_FRAGMENT,
	PART_LATER_FRAGMENT,
	PART_ERROR, /* an ICMP error about a packet of the flow's real */
};

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

/* Reads at a constant place. By packet pointers on XDP, whose helper is younger. */
static __always_inline int balance_load(void *ctx, int tc, __u32 at, void *to,
					const __u32 len)
{
	struct xdp_md *xdp = ctx;
	void *from;

	if (tc)
		return bpf_skb_load_bytes(ctx, at, to, len);
	from = (void *)(long)xdp->data + at;
	if (from + len > (void *)(long)xdp->data_end)
		return -1;
	__builtin_memcpy(to, from, len);
	return 0;
}

static __always_inline int balance_same_address(const struct in6_addr *a,
						const struct in6_addr *b)
{
	return a->s6_addr32[0] == b->s6_addr32[0] && a->s6_addr32[1] == b->s6_addr32[1] &&
	       a->s6_addr32[2] == b->s6_addr32[2] && a->s6_addr32[3] == b->s6_addr32[3];
}

static __always_inline int balance_has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* The flow of an IPv4 packet whose ports are not where they are in most. An error's is
 * that of the packet in it, turned round. */
static __always_inline enum balance_part
balance_part4(void *ctx, int tc, struct balance_flow_key *key,
	      struct balance_fragment_key *fragment)
{
	const __u32 l3 = sizeof(struct ethhdr), l4 = l3 + sizeof(struct iphdr);
	struct {
		__u8 type;
		__u8 code;
		__u8 rest[6];
		struct iphdr ip;
		struct ports ports;
	} error;
	struct ports ports;
	struct iphdr ip;

	if (balance_load(ctx, tc, l3, &ip, sizeof(ip)) || ip.ihl != 5)
		return PART_NONE;
	if (ip.frag_off & bpf_htons(IP_MF_OFFSET)) {
		map_v4(fragment->source, ip.saddr);
		map_v4(fragment->dest, ip.daddr);
		fragment->id = ip.id;
		fragment->protocol = ip.protocol;
		if (ip.frag_off & bpf_htons(IP_OFFSET))
			return PART_LATER_FRAGMENT;
		if (!balance_has_ports(ip.protocol) ||
		    balance_load(ctx, tc, l4, &ports, sizeof(ports)))
			return PART_NONE;
		__builtin_memcpy(key->source, fragment->source, 16);
		__builtin_memcpy(key->service.addr, fragment->dest, 16);
		key->service.protocol = ip.protocol;
		key->service.port = ports.dest;
		key->port = ports.source;
		return PART_FIRST_FRAGMENT;
	}
	if (ip.protocol != IPPROTO_ICMP ||
	    balance_load(ctx, tc, l4, &error, sizeof(error)) ||
	    !is_one_of(error.type, ICMP_ERRORS, 0) || error.ip.ihl != 5 ||
	    error.ip.frag_off & bpf_htons(IP_OFFSET) || error.ip.saddr != ip.daddr ||
	    !balance_has_ports(error.ip.protocol))
		return PART_NONE;
	map_v4(key->source, error.ip.daddr);
	map_v4(key->service.addr, error.ip.saddr);
	key->service.protocol = error.ip.protocol;
	key->service.port = error.ports.source;
	key->port = error.ports.dest;
	return PART_ERROR;
}

/* The same of IPv6. */
static __always_inline enum balance_part
balance_part6(void *ctx, int tc, struct balance_flow_key *key,
	      struct balance_fragment_key *fragment)
{
	const __u32 l3 = sizeof(struct ethhdr), l4 = l3 + sizeof(struct ipv6hdr);
	struct {
		__u8 type;
		__u8 code;
		__u8 rest[6];
		struct ipv6hdr ip;
		struct ports ports;
	} error;
	struct {
		__u8 next;
		__u8 reserved;
		__be16 offset;
		__be32 id;
	} part;
	struct ports ports;
	struct ipv6hdr ip;

	if (balance_load(ctx, tc, l3, &ip, sizeof(ip)))
		return PART_NONE;
	if (ip.nexthdr == IPPROTO_FRAGMENT) {
		if (balance_load(ctx, tc, l4, &part, sizeof(part)))
			return PART_NONE;
		__builtin_memcpy(fragment->source, &ip.saddr, 16);
		__builtin_memcpy(fragment->dest, &ip.daddr, 16);
		fragment->id = part.id;
		fragment->protocol = part.next;
		if (part.offset & bpf_htons(0xfff8))
			return PART_LATER_FRAGMENT;
		if (!balance_has_ports(part.next) ||
		    balance_load(ctx, tc, l4 + sizeof(part), &ports, sizeof(ports)))
			return PART_NONE;
		__builtin_memcpy(key->source, &ip.saddr, 16);
		__builtin_memcpy(key->service.addr, &ip.daddr, 16);
		key->service.protocol = part.next;
		key->service.port = ports.dest;
		key->port = ports.source;
		return PART_FIRST_FRAGMENT;
	}
	if (ip.nexthdr != IPPROTO_ICMPV6 ||
	    balance_load(ctx, tc, l4, &error, sizeof(error)) ||
	    !is_one_of(error.type, ICMPV6_ERRORS, 0) ||
	    !balance_has_ports(error.ip.nexthdr) ||
	    !balance_same_address(&error.ip.saddr, &ip.daddr))
		return PART_NONE;
	__builtin_memcpy(key->source, &error.ip.daddr, 16);
	__builtin_memcpy(key->service.addr, &error.ip.saddr, 16);
	key->service.protocol = error.ip.nexthdr;
	key->service.port = error.ports.source;
	key->port = error.ports.dest;
	return PART_ERROR;
}

/* May one more flow be remembered now? */
static __always_inline int balance_may_remember(void)
{
	__u64 window = bpf_jiffies64() >> EVENT_WINDOW_SHIFT;
	__u32 zero = 0;
	struct balance_quota *quota = bpf_map_lookup_elem(&balance_quota, &zero);

	if (!quota)
		return 0;
	if (quota->window != window) {
		quota->window = window;
		quota->flows = 0;
	}
	if (quota->flows >= BALANCE_NEW_FLOWS)
		return 0;
	quota->flows++;
	return 1;
}

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
