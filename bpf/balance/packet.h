/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What a frame holds of a flow: its addresses and ports, where most packets have them,
 * behind the header of a fragment, or in an ICMP error. Decides nothing. */
#ifndef WEIR_BALANCE_PACKET_H
#define WEIR_BALANCE_PACKET_H

#include "lib/headers.h"

struct balance_flow_key {
	__u8 source[16];
	struct balance_service_key service;
	__be16 port;
	__u16 pad;
};

/* A packet that comes in fragments, by what all of them have (RFC 791, RFC 8200). */
struct balance_fragment_key {
	__u8 source[16];
	__u8 dest[16];
	__be32 id;
	__u8 protocol;
	__u8 pad[3];
};

/* What the frame holds of a flow. */
enum balance_part {
	PART_NONE,
	PART_WHOLE, /* a packet of its own */
	PART_FIRST_FRAGMENT,
	PART_LATER_FRAGMENT,
	PART_ERROR, /* an ICMP error about a packet of the flow's real */
};

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

#endif
