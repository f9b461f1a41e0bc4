/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* From the IP header to the ports, when a stage asks. Only what later stages need
 * is read: an innocent packet never has its transport header touched.
 *
 * Decided here, and in the reference decoder of the tests:
 *  - IPv4 needs ihl >= 5, its options inside the frame, total length >= ihl*4;
 *  - transport bytes behind the total length (Ethernet padding) do not exist;
 *  - at most six IPv6 extension headers; a longer or cut chain is L4_PORTS_UNKNOWN.
 * What an innocent packet meets is marked likely, here and later: its way is
 * laid out straight, and registers are spilled elsewhere (2 ns). */
#ifndef WEIR_PARSE_H
#define WEIR_PARSE_H

#include "lib/frame.h"
#include "lib/verifier.h"

#define IPV6_EXT_MAX_CHAIN 6
#define TCP_FLAGS	   13 /* offset of the byte with SYN and ACK */
#define TCP_SYN		   0x02
#define TCP_ACK		   0x10
#define TCP_LATER	   2 /* times 8: fragments from here on overwrite no flags */
#define ND_TYPE_FIRST	   133
#define ND_TYPE_LAST	   137
/* Router and neighbour solicitation: asked before there is an address. */
#define ND_ASKS (BIT(133) | BIT(135))
/* Multicast listener query, reports and done (RFC 2710, RFC 3810). */
#define MLD_TYPES (BIT(130) | BIT(131) | BIT(132) | BIT(143))

enum transport {
	L4_HAS_PORTS,	  /* ports read */
	L4_LATER_FRAG,	  /* a fragment that is not the first */
	P_NO_PORTS,	  /* a protocol without ports */
	L4_PORTS_UNKNOWN, /* cut, or behind more headers than we follow */
};
struct l4 {
	enum transport kind;
	__u8 protocol;
	__u8 essential;		/* neighbour discovery or DHCP */
	__u8 cannot_start_flow; /* cannot begin a flow: see read_beginning */
	__u8 no_address; /* sent by a host that has no address yet, see settle_invalid */
	__u16 source;
	__u16 dest;
};

/* Reads the ports at `pos`; `limit` is the end of the packet by its own length. */
static __always_inline void read_ports(struct frame *f, void *pos, __u32 room,
				       struct l4 *l4)
{
	struct ports *ports = pos;

	if (!has_ports(l4->protocol)) {
		l4->kind = P_NO_PORTS;
		return;
	}
	if (room < sizeof(*ports) || (void *)(ports + 1) > f->end) {
		l4->kind = L4_PORTS_UNKNOWN;
		return;
	}
	l4->kind = L4_HAS_PORTS;
	l4->source = bpf_ntohs(ports->source);
	l4->dest = bpf_ntohs(ports->dest);
}

/* Can this packet begin a flow? Asked about packets of a class only. What cannot
 * be read may. Later fragments of TCP cannot: whether a flow begins says the first
 * one, without which they come to nothing. ICMP errors answer a packet of ours:
 * dropping them breaks path MTU discovery (RFC 4890 4.3.1). Without a branch on the
 * protocol, as each outcome would be a path. */
static __always_inline void read_beginning(struct frame *f, void *pos, __u32 room,
					   struct l4 *l4)
{
	__u64 tcp = is_zero(l4->protocol ^ IPPROTO_TCP);
	__u64 errors = (is_zero(l4->protocol ^ IPPROTO_ICMP) & ICMP_ERRORS) |
		       (is_zero(l4->protocol ^ IPPROTO_ICMPV6) & ICMPV6_ERRORS);
	__u32 at = TCP_FLAGS & tcp;
	__u8 *byte = pos + at;
	__u64 value;

	if (room <= at || (void *)(byte + 1) > f->end) {
		f->need_pull |= (tcp | errors) != 0;
		return;
	}
	value = *byte;
	l4->cannot_start_flow =
		(not_zero((value & (TCP_SYN | TCP_ACK)) ^ TCP_SYN) >> 63 & tcp) |
		(errors >> (value & 31) & is_zero(value >> 5) & 1);
}

static __always_inline void walk_l4_v4(struct frame *f, struct iphdr *ip, __u32 total,
				       struct l4 *l4)
{
	__u32 head = ip->ihl * 4;

	l4->protocol = ip->protocol;
	if (ip->frag_off & bpf_htons(IP_OFFSET)) {
		l4->kind = L4_LATER_FRAG;
		l4->cannot_start_flow =
			l4->protocol == IPPROTO_TCP &&
			(bpf_ntohs(ip->frag_off) & IP_OFFSET) >= TCP_LATER;
		return;
	}
	read_ports(f, f->l3 + head, total - head, l4);
	if (cfg.class_lines)
		read_beginning(f, f->l3 + head, total - head, l4);
	if (ip->frag_off & bpf_htons(IP_MF_OFFSET))
		return;
	l4->essential = l4->kind == L4_HAS_PORTS && l4->protocol == IPPROTO_UDP &&
			((l4->source == DHCP_SERVER && l4->dest == DHCP_CLIENT) ||
			 (l4->source == DHCP_CLIENT && l4->dest == DHCP_SERVER));
	l4->no_address = (l4->essential && l4->dest == DHCP_SERVER) ||
			 l4->protocol == IPPROTO_IGMP;
}

/* `total`: bytes of the packet by its own account, from the IPv6 header on. */
static __always_inline void walk_l4_v6(struct frame *f, struct ipv6hdr *ip, __u32 total,
				       struct l4 *l4)
{
	__u8 next = ip->nexthdr, fragmented = 0;
	__u32 off = sizeof(*ip), len;
	struct ext_header *ext;
	__u8 *nd;
	int i;

	l4->kind = L4_PORTS_UNKNOWN;
#pragma unroll
	for (i = 0; i <= IPV6_EXT_MAX_CHAIN; i++) {
		l4->protocol = next;
		if (!is_extension(next))
			break;
		if (i == IPV6_EXT_MAX_CHAIN)
			return;
		ext = f->l3 + off;
		if (off + sizeof(*ext) > total || (void *)(ext + 1) > f->end)
			return;
		if (next == IPPROTO_FRAGMENT) {
			if (ext->fragment & bpf_htons(IP6_OFFSET)) {
				l4->kind = L4_LATER_FRAG;
				l4->protocol = ext->next;
				l4->cannot_start_flow =
					ext->next == IPPROTO_TCP &&
					bpf_ntohs(ext->fragment) >> 3 >= TCP_LATER;
				return;
			}
			fragmented = 1;
			len = 8;
		} else if (next == IPPROTO_AH) {
			len = (ext->len + 2) * 4;
		} else {
			len = (ext->len + 1) * 8;
		}
		next = ext->next;
		off += len;
	}
	/* One path from here on, whatever the chain was. */
	VERIFIER_FORGET(off);
	off &= CHAIN_MOST;
	VERIFIER_FORGET(next);
	VERIFIER_FORGET(fragmented);
	l4->protocol = next;
	if (off > total || f->l3 + off > f->end)
		return;
	read_ports(f, f->l3 + off, total - off, l4);
	if (cfg.class_lines)
		read_beginning(f, f->l3 + off, total - off, l4);
	if (fragmented) /* not even a whole packet: RFC 6980 */
		return;
	if (l4->kind == L4_HAS_PORTS && l4->protocol == IPPROTO_UDP)
		l4->essential =
			(l4->source == DHCPV6_SERVER && l4->dest == DHCPV6_CLIENT) ||
			(l4->source == DHCPV6_CLIENT && l4->dest == DHCPV6_SERVER);
	if (next != IPPROTO_ICMPV6 || total - off < 2)
		return;
	nd = f->l3 + off;
	if ((void *)(nd + 2) > f->end) {
		f->need_pull = 1;
		return;
	}
	/* RFC 4861 7.1: hop limit 255, code 0; then the sender is on this link. */
	if (ip->hop_limit == 255 && nd[0] >= ND_TYPE_FIRST && nd[0] <= ND_TYPE_LAST &&
	    nd[1] == 0) {
		l4->essential = 1;
		l4->cannot_start_flow = 1; /* what comes back is essential, too */
		l4->no_address = is_one_of(nd[0], 0, ND_ASKS);
	}
	if (ip->hop_limit == 1)
		l4->no_address = is_one_of(nd[0], 0, MLD_TYPES);
}

/* What is known of the transport header as one scalar. */
static __always_inline __u64 pack_l4(struct frame *f, __u32 total, int v6)
{
	struct l4 l4 = {.kind = L4_PORTS_UNKNOWN};
	struct ipv6hdr *ip6 = f->l3;
	struct iphdr *ip = f->l3;

	if (v6 && (void *)(ip6 + 1) <= f->end)
		walk_l4_v6(f, ip6, total, &l4);
	if (!v6 && (void *)(ip + 1) <= f->end)
		walk_l4_v4(f, ip, total, &l4);
	f->need_pull |= l4.kind == L4_PORTS_UNKNOWN;
	return (__u64)l4.kind | (__u64)l4.essential << 2 |
	       (__u64)l4.cannot_start_flow << 3 | (__u64)f->need_pull << 4 |
	       (__u64)l4.no_address << 5 | (__u64)l4.protocol << 8 |
	       (__u64)l4.source << 16 | (__u64)l4.dest << 32;
}

static __always_inline void unpack_l4(__u64 packed, struct frame *f, struct l4 *l4)
{
	l4->kind = packed & 3;
	l4->essential = packed >> 2 & 1;
	l4->cannot_start_flow = packed >> 3 & 1;
	f->need_pull = packed >> 4 & 1;
	l4->no_address = packed >> 5 & 1;
	l4->protocol = packed >> 8;
	l4->source = packed >> 16;
	l4->dest = packed >> 32;
}

#endif
