/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What a frame holds of a flow: its addresses and ports, where most packets have them,
 * behind the header of a fragment, or in an ICMP error. Decides nothing. */
#ifndef WEIR_BALANCE_PACKET_H
#define WEIR_BALANCE_PACKET_H

#include "lib/headers.h"

/* Before the packet that an error quotes, of either family. */
#define ICMP_HEADER 8

/* A flow; or a packet that comes in fragments, by what all of them have (RFC 791, RFC
 * 8200). In words, which stay in registers: what is stored by halves and loaded whole
 * waits for the cache. */
struct balance_flow_key {
	__u64 source[2]; /* as in memory; IPv4 as ::ffff:a.b.c.d */
	__u64 dest[2];
	__u32 ports; /* source | dest << 16, each as in a packet; of fragments their id */
	__u32 protocol;
};

/* What the frame holds of a flow. */
enum balance_part {
	PART_NONE,
	PART_WHOLE, /* a packet of its own */
	PART_FIRST_FRAGMENT,
	PART_LATER_FRAGMENT,
	PART_ERROR, /* an ICMP error about a packet of the flow's real */
};

/* The second word of an IPv4 address; the first one is 0. */
static __always_inline __u64 balance_word_v4(__be32 addr)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return (__u64)addr << 32 | 0xffff0000;
#else
	return 0xffffULL << 32 | addr;
#endif
}

static __always_inline void balance_set_v4(struct balance_flow_key *key, __be32 source,
					   __be32 dest)
{
	key->source[0] = key->dest[0] = 0;
	key->source[1] = balance_word_v4(source);
	key->dest[1] = balance_word_v4(dest);
}

static __always_inline void balance_set_v6(struct balance_flow_key *key,
					   const struct in6_addr *source,
					   const struct in6_addr *dest)
{
	__builtin_memcpy(key->source, source, 16);
	__builtin_memcpy(key->dest, dest, 16);
}

static __always_inline void balance_set_ports(struct balance_flow_key *key, __u8 protocol,
					      __be16 source, __be16 dest)
{
	key->protocol = protocol;
	key->ports = (__u32)dest << 16 | source;
}

/* Makes a flow what all fragments of a packet have: of IPv4 the protocol, too, and of
 * IPv6 not the next header, for that of later ones is not looked at (RFC 8200 4.5). */
static __always_inline void balance_set_fragment(struct balance_flow_key *key, int v4,
						 __u32 id)
{
	key->ports = id;
	if (!v4)
		key->protocol = IPPROTO_FRAGMENT;
}

static __always_inline int balance_has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* The addresses and ports of a packet that has them where most have; 0: it has not. */
static __always_inline int balance_flow_of(void *l3, void *end, int v4,
					   struct balance_flow_key *key)
{
	struct ipv6hdr *ip6 = l3;
	struct iphdr *ip = l3;
	struct ports *ports;
	__u8 protocol;

	if (v4) {
		ports = (void *)(ip + 1);
		if ((void *)(ports + 1) > end || ip->ihl != 5 ||
		    ip->frag_off & bpf_htons(IP_MF_OFFSET))
			return 0;
		protocol = ip->protocol;
		balance_set_v4(key, ip->saddr, ip->daddr);
	} else {
		ports = (void *)(ip6 + 1);
		if ((void *)(ports + 1) > end)
			return 0;
		protocol = ip6->nexthdr;
		balance_set_v6(key, &ip6->saddr, &ip6->daddr);
	}
	balance_set_ports(key, protocol, ports->source, ports->dest);
	return balance_has_ports(protocol);
}

/* By packet pointers on XDP, whose helper is younger. `at`: at most L3_MOST and four
 * headers. */
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

/* The flow of an IPv4 packet whose ports are not where they are in most. An error's is
 * that of the packet in it, turned round. `id`: that of a fragment. */
static __always_inline enum balance_part
balance_part4(void *ctx, int tc, __u32 l3, struct balance_flow_key *key, __u32 *id)
{
	__u32 l4 = l3 + sizeof(struct iphdr);
	struct ports ports;
	struct iphdr ip;
	__u8 type;

	if (balance_load(ctx, tc, l3, &ip, sizeof(ip)) || ip.ihl != 5)
		return PART_NONE;
	balance_set_v4(key, ip.saddr, ip.daddr);
	if (ip.frag_off & bpf_htons(IP_MF_OFFSET)) {
		*id = ip.id;
		key->protocol = ip.protocol;
		if (ip.frag_off & bpf_htons(IP_OFFSET))
			return PART_LATER_FRAGMENT;
		if (!balance_has_ports(ip.protocol) ||
		    balance_load(ctx, tc, l4, &ports, sizeof(ports)))
			return PART_NONE;
		balance_set_ports(key, ip.protocol, ports.source, ports.dest);
		return PART_FIRST_FRAGMENT;
	}
	if (ip.protocol != IPPROTO_ICMP || balance_load(ctx, tc, l4, &type, 1) ||
	    !is_one_of(type, ICMP_ERRORS, 0) ||
	    balance_load(ctx, tc, l4 + ICMP_HEADER, &ip, sizeof(ip)) || ip.ihl != 5 ||
	    ip.frag_off & bpf_htons(IP_OFFSET) ||
	    balance_word_v4(ip.saddr) != key->dest[1] ||
	    !balance_has_ports(ip.protocol) ||
	    balance_load(ctx, tc, l4 + ICMP_HEADER + sizeof(ip), &ports, sizeof(ports)))
		return PART_NONE;
	balance_set_v4(key, ip.daddr, ip.saddr);
	balance_set_ports(key, ip.protocol, ports.dest, ports.source);
	return PART_ERROR;
}

/* A fragment header, RFC 8200 4.5. */
struct balance_part_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

/* Protocol << 32 | ports, source first, of a fragment that an error quotes: "packet too
 * big" is about the first one as well as about a whole packet. 0: it is a later one, or
 * cut. `at`: where its fragment header is. */
static __always_inline __u64 balance_quoted_part(void *ctx, int tc, __u32 at)
{
	struct {
		struct balance_part_header part;
		struct ports ports;
	} quoted;

	if (balance_load(ctx, tc, at & 0xff, &quoted, sizeof(quoted)) ||
	    quoted.part.offset & bpf_htons(IP6_OFFSET))
		return 0;
	return (__u64)quoted.part.next << 32 | (__u32)quoted.ports.dest << 16 |
	       quoted.ports.source;
}

/* Global, so that the verifier checks each once. */
__noinline __u64 balance_quoted_part_xdp(struct xdp_md *ctx, __u32 at)
{
	return balance_quoted_part(ctx, 0, at);
}

__noinline __u64 balance_quoted_part_tc(struct __sk_buff *ctx, __u32 at)
{
	return balance_quoted_part(ctx, 1, at);
}

/* The flow of an IPv6 packet whose ports are not where they are in most: see
 * balance_part4. */
static __always_inline enum balance_part
balance_part6(void *ctx, int tc, __u32 l3, struct balance_flow_key *key, __u32 *id)
{
	__u32 l4 = l3 + sizeof(struct ipv6hdr);
	struct balance_part_header part;
	struct ports ports;
	struct ipv6hdr ip;
	__u64 vip[2], quoted;
	__u8 type;

	if (balance_load(ctx, tc, l3, &ip, sizeof(ip)))
		return PART_NONE;
	balance_set_v6(key, &ip.saddr, &ip.daddr);
	if (ip.nexthdr == IPPROTO_FRAGMENT) {
		if (balance_load(ctx, tc, l4, &part, sizeof(part)))
			return PART_NONE;
		*id = part.id;
		if (part.offset & bpf_htons(IP6_OFFSET))
			return PART_LATER_FRAGMENT;
		if (!balance_has_ports(part.next) ||
		    balance_load(ctx, tc, l4 + sizeof(part), &ports, sizeof(ports)))
			return PART_NONE;
		balance_set_ports(key, part.next, ports.source, ports.dest);
		return PART_FIRST_FRAGMENT;
	}
	vip[0] = key->dest[0];
	vip[1] = key->dest[1];
	if (ip.nexthdr != IPPROTO_ICMPV6 || balance_load(ctx, tc, l4, &type, 1) ||
	    !is_one_of(type, ICMPV6_ERRORS, 0) ||
	    balance_load(ctx, tc, l4 + ICMP_HEADER, &ip, sizeof(ip)))
		return PART_NONE;
	l4 += ICMP_HEADER + sizeof(ip);
	if (ip.nexthdr == IPPROTO_FRAGMENT) {
		quoted = tc ? balance_quoted_part_tc(ctx, l4)
			    : balance_quoted_part_xdp(ctx, l4);
	} else {
		if (balance_load(ctx, tc, l4, &ports, sizeof(ports)))
			return PART_NONE;
		quoted = (__u64)ip.nexthdr << 32 | (__u32)ports.dest << 16 | ports.source;
	}
	if (!balance_has_ports(quoted >> 32))
		return PART_NONE;
	balance_set_v6(key, &ip.daddr, &ip.saddr);
	if (key->dest[0] != vip[0] || key->dest[1] != vip[1])
		return PART_NONE;
	balance_set_ports(key, quoted >> 32, quoted >> 16, quoted);
	return PART_ERROR;
}

#endif
