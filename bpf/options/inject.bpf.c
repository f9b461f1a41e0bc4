// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Puts options on packets that leave an interface: of IPv4 and TCP headers, behind a UDP
 * datagram (RFC 9868), and IPv6 extension headers. For `weir options inject`, on tcx
 * egress, of no instance and without the firewall. User space has made the bytes; which
 * packets get them is decided here.
 *
 * Checksums stay right, also those that the device or the kernel computes later
 * (CHECKSUM_PARTIAL: the field has the sum of the pseudo header until then, and begins
 * where the transport header began). bpf_l4_csum_replace tells the two apart: with
 * BPF_F_PSEUDO_HDR it changes both, without it finished sums only. Therefore a TCP header
 * stays where it is and what is behind it moves, which takes a packet in one piece;
 * options of IP go in front of the transport header, which the kernel does for
 * superpackets (GSO) as well, and lowers the size of their segments. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "options/maps.h"

#define FRAGMENT 0x3fff /* of frag_off: more fragments, or an offset */
#define TCP_SYN	 0x02

/* Extension headers of IPv6 (those that IANA has). */
#define IS_EXTENSION(n)                                                                  \
	((n) == IPPROTO_HOPOPTS || (n) == IPPROTO_ROUTING || (n) == IPPROTO_FRAGMENT ||  \
	 (n) == IPPROTO_AH || (n) == IPPROTO_DSTOPTS || (n) == 135 || (n) == 139 ||      \
	 (n) == 140 || (n) == 253 || (n) == 254)

const volatile struct {
	__u32 l2;	    /* bytes of the link-layer header */
	__u16 protocol;	    /* of the packets that are meant; 256: any */
	__u16 syn_only;	    /* 1: of TCP, only SYN and SYN-ACK */
	__be16 source_port; /* 0: any */
	__be16 dest_port;   /* 0: any */
	__u32 ip_len;	    /* bytes of each, 0: none */
	__u32 tcp_len;
	__u32 even_len;
	__u32 odd_len;
	__u32 ext_len;
	__u32 ext_first;  /* protocol number of the first extension header */
	__u32 ext_single; /* 1: the kernel cuts no segments behind them */
	__u32 ext_last;	  /* where the last one has that of what follows */
	__u8 ip[INJECT_HEADER];
	__u8 tcp[INJECT_HEADER];
	__u8 even[INJECT_SURPLUS];
	__u8 odd[INJECT_SURPLUS];
	__u8 ext[INJECT_EXTENSIONS];
} inject = {};

/* What moves. */
struct inject_moved {
	__u8 bytes[INJECT_MOVED];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct inject_moved);
} inject_moved SEC(".maps");

/* A packet as far as it counts here. */
struct packet {
	__u32 l4;	 /* offset of its transport header */
	__u32 bytes;	 /* from the IP header on */
	__u32 ip_header; /* bytes of an IPv4 header */
	__u8 v4;
	__u8 protocol; /* of what is behind the IP header */
	__u8 is_fragment;
	__u8 is_tcp;
	__u8 is_udp;
};

static __always_inline int finish(enum inject_count what)
{
	count(what);
	return what == INJECT_BROKEN ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

static __always_inline int is_meant(const struct inject_network *to, __u8 protocol)
{
	if (inject.protocol < 256 && inject.protocol != protocol)
		return 0;
	return is_named(to);
}

/* 0: it is IP of a chosen network and protocol. */
static __always_inline int read_ip(struct __sk_buff *skb, struct packet *p,
				   int *malformed)
{
	struct inject_network to = {.bits = 128};
	__u32 l2 = inject.l2, there = skb->len - l2;

	*malformed = 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.version != 4)
			return -1;
		to.addr[10] = to.addr[11] = 0xff;
		__builtin_memcpy(to.addr + 12, &ip.daddr, 4);
		if (!is_meant(&to, ip.protocol))
			return -1;
		p->v4 = 1;
		p->protocol = ip.protocol;
		p->ip_header = ip.ihl * 4;
		p->bytes = bpf_ntohs(ip.tot_len);
		p->is_fragment = (ip.frag_off & bpf_htons(FRAGMENT)) != 0;
		*malformed = ip.ihl < 5 || p->bytes != there || p->bytes < p->ip_header;
		p->l4 = l2 + p->ip_header;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.version != 6)
			return -1;
		__builtin_memcpy(to.addr, &ip.daddr, 16);
		/* What protocol is behind extension headers is not looked for: the packet
		 * is none that gets more of them. */
		if (!is_meant(&to, IS_EXTENSION(ip.nexthdr) && inject.protocol < 256
					   ? inject.protocol
					   : ip.nexthdr))
			return -1;
		p->protocol = ip.nexthdr;
		p->is_fragment = ip.nexthdr == IPPROTO_FRAGMENT;
		p->bytes = bpf_ntohs(ip.payload_len) + sizeof(ip);
		*malformed = p->bytes != there;
		p->l4 = l2 + sizeof(ip);
	} else {
		return -1;
	}
	p->is_tcp = p->protocol == IPPROTO_TCP;
	p->is_udp = p->protocol == IPPROTO_UDP;
	return 0;
}

/* Is it of the chosen ports and, if these are chosen, a SYN? */
static __always_inline int is_chosen_flow(struct __sk_buff *skb, const struct packet *p)
{
	__be16 ports[2];
	__u8 flags;

	if (p->is_tcp && inject.syn_only &&
	    (bpf_skb_load_bytes(skb, p->l4 + 13, &flags, 1) || !(flags & TCP_SYN)))
		return 0;
	if (!inject.source_port && !inject.dest_port)
		return 1;
	/* TCP, UDP, DCCP, SCTP and UDP-Lite begin with them. */
	if (!p->is_tcp && !p->is_udp && p->protocol != 33 && p->protocol != 132 &&
	    p->protocol != 136)
		return 0;
	if (bpf_skb_load_bytes(skb, p->l4, ports, sizeof(ports)))
		return 0;
	return (!inject.source_port || inject.source_port == ports[0]) &&
	       (!inject.dest_port || inject.dest_port == ports[1]);
}

/* Writes the length of the IP packet, which has grown by `more` bytes; 0: it is there. */
static __always_inline int grow_ip(struct __sk_buff *skb, struct packet *p, __u32 more)
{
	__u32 before = p->v4 ? p->bytes : p->bytes - sizeof(struct ipv6hdr);
	__be16 old = bpf_htons(before), new = bpf_htons(before + more);
	__u32 l2 = inject.l2;

	p->bytes += more;
	if (!p->v4)
		return (int)bpf_skb_store_bytes(
			skb, l2 + offsetof(struct ipv6hdr, payload_len), &new,
			sizeof(new), 0);
	if (bpf_l3_csum_replace(skb, l2 + offsetof(struct iphdr, check), old, new, 2))
		return -1;
	return (int)bpf_skb_store_bytes(skb, l2 + offsetof(struct iphdr, tot_len), &new,
					sizeof(new), 0);
}

/* Options of TCP, first behind the fixed header: some stacks end theirs with "end of
 * list". Returns what became of the packet. */
static __always_inline enum inject_count add_tcp(struct __sk_buff *skb, struct packet *p)
{
	__u32 at = p->l4 + sizeof(struct tcphdr), check = p->l4 + 16, zero = 0;
	__u32 header, rest, length, more = inject.tcp_len;
	__be16 offset, grown, before, after;
	struct inject_moved *moved;

	moved = bpf_map_lookup_elem(&inject_moved, &zero);
	if (!moved || bpf_skb_load_bytes(skb, p->l4 + 12, &offset, sizeof(offset)))
		return INJECT_MALFORMED;
	header = (bpf_ntohs(offset) >> 12) * 4;
	if (header < sizeof(struct tcphdr) || p->l4 + header > skb->len)
		return INJECT_MALFORMED;
	if (header + more > 60)
		return INJECT_NO_ROOM;
	rest = skb->len - at;
	if (rest > INJECT_MOVED)
		return INJECT_NO_ROOM;
	length = skb->len - p->l4;
	/* The verifier follows a mask where it loses a comparison. */
	if (rest && bpf_skb_load_bytes(skb, at, moved->bytes,
				       ((rest - 1) & (INJECT_MOVED - 1)) + 1))
		return INJECT_REFUSED;
	if (bpf_skb_change_tail(skb, skb->len + more, 0))
		return INJECT_REFUSED;
	if (rest && bpf_skb_store_bytes(skb, at + more, moved->bytes,
					((rest - 1) & (INJECT_MOVED - 1)) + 1, 0))
		return INJECT_BROKEN;
	grown = bpf_htons(bpf_ntohs(offset) + (more / 4 << 12));
	before = bpf_htons(length);
	after = bpf_htons(length + more);
	if (bpf_skb_store_bytes(skb, at, (void *)inject.tcp, more, 0) ||
	    bpf_skb_store_bytes(skb, p->l4 + 12, &grown, sizeof(grown), 0) ||
	    bpf_l4_csum_replace(skb, check, offset, grown, 2) ||
	    bpf_l4_csum_replace(skb, check, 0,
				bpf_csum_diff(NULL, 0, (void *)inject.tcp, more, 0), 0) ||
	    bpf_l4_csum_replace(skb, check, before, after, BPF_F_PSEUDO_HDR | 2) ||
	    grow_ip(skb, p, more))
		return INJECT_BROKEN;
	return INJECT_CHANGED;
}

/* The surplus area behind a UDP datagram, whose own length stays. */
static __always_inline enum inject_count add_udp(struct __sk_buff *skb, struct packet *p)
{
	__u32 check = p->l4 + offsetof(struct udphdr, check), at, more;
	const __u64 zero_is_none = BPF_F_MARK_MANGLED_0;
	struct udphdr udp;
	__be16 added;
	int is_odd;

	if (bpf_skb_load_bytes(skb, p->l4, &udp, sizeof(udp)) ||
	    bpf_ntohs(udp.len) < sizeof(udp) || p->l4 + bpf_ntohs(udp.len) > skb->len)
		return INJECT_MALFORMED;
	at = skb->len;
	if (p->l4 + bpf_ntohs(udp.len) != at)
		return INJECT_OTHER;
	is_odd = bpf_ntohs(udp.len) & 1;
	more = is_odd ? inject.odd_len : inject.even_len;
	added = bpf_htons(more);
	if (bpf_skb_change_tail(skb, at + more, 0))
		return INJECT_REFUSED;
	if (is_odd ? bpf_skb_store_bytes(skb, at, (void *)inject.odd, inject.odd_len, 0)
		   : bpf_skb_store_bytes(skb, at, (void *)inject.even, inject.even_len,
					 0))
		return INJECT_BROKEN;
	/* A sum that is yet to be computed goes over the area, too, which with its length
	 * sums up to zero: the length is put in front. A finished sum gets it and gives
	 * it back. */
	if (bpf_l4_csum_replace(skb, check, 0, added,
				BPF_F_PSEUDO_HDR | zero_is_none | 2) ||
	    bpf_l4_csum_replace(skb, check, added, 0, zero_is_none | 2) ||
	    grow_ip(skb, p, more))
		return INJECT_BROKEN;
	return INJECT_CHANGED;
}

/* Options of IPv4, before those that are there. */
static __always_inline enum inject_count add_ip(struct __sk_buff *skb, struct packet *p,
						__u64 flags)
{
	__u32 l2 = inject.l2, check = l2 + offsetof(struct iphdr, check);
	__be16 first, grown;

	if (bpf_skb_load_bytes(skb, l2, &first, sizeof(first)) ||
	    bpf_skb_adjust_room(skb, inject.ip_len, BPF_ADJ_ROOM_NET, flags))
		return INJECT_REFUSED;
	grown = bpf_htons(bpf_ntohs(first) + (inject.ip_len / 4 << 8));
	if (bpf_skb_store_bytes(skb, l2 + sizeof(struct iphdr), (void *)inject.ip,
				inject.ip_len, 0) ||
	    bpf_skb_store_bytes(skb, l2, &grown, sizeof(grown), 0) ||
	    bpf_l3_csum_replace(skb, check, first, grown, 2) ||
	    bpf_l3_csum_replace(
		    skb, check, 0,
		    bpf_csum_diff(NULL, 0, (void *)inject.ip, inject.ip_len, 0), 0) ||
	    grow_ip(skb, p, inject.ip_len))
		return INJECT_BROKEN;
	return INJECT_CHANGED;
}

static __always_inline enum inject_count add_extensions(struct __sk_buff *skb,
							struct packet *p, __u64 flags)
{
	__u32 l2 = inject.l2, at = l2 + sizeof(struct ipv6hdr);
	__u8 next = p->protocol, first = inject.ext_first;

	if (bpf_skb_adjust_room(skb, inject.ext_len, BPF_ADJ_ROOM_NET, flags))
		return INJECT_REFUSED;
	if (bpf_skb_store_bytes(skb, at, (void *)inject.ext, inject.ext_len, 0) ||
	    bpf_skb_store_bytes(skb, at + inject.ext_last, &next, 1, 0) ||
	    bpf_skb_store_bytes(skb, l2 + offsetof(struct ipv6hdr, nexthdr), &first, 1,
				0) ||
	    grow_ip(skb, p, inject.ext_len))
		return INJECT_BROKEN;
	return INJECT_CHANGED;
}

SEC("tcx/egress")
int weir_inject(struct __sk_buff *skb)
{
	__u32 network, transport, mtu = 0;
	enum inject_count what = INJECT_CHANGED;
	struct packet p = {};
	int malformed, is_behind;
	__u64 flags = 0;

	if (skb->len < inject.l2 || read_ip(skb, &p, &malformed))
		return TC_ACT_UNSPEC;
	network = p.v4 ? inject.ip_len : inject.ext_len;
	transport = p.is_tcp ? inject.tcp_len : p.is_udp ? inject.odd_len : 0;
	/* What is behind a header is not looked for: it may be TCP or UDP. */
	is_behind =
		!p.v4 && IS_EXTENSION(p.protocol) && (inject.tcp_len || inject.odd_len);
	if (!network && !transport && !is_behind)
		return TC_ACT_UNSPEC;
	if (p.is_fragment)
		return finish(INJECT_FRAGMENT);
	if (malformed)
		return finish(INJECT_MALFORMED);
	if (!p.v4 && IS_EXTENSION(p.protocol))
		return finish(INJECT_OTHER);
	if (!is_chosen_flow(skb, &p))
		return TC_ACT_UNSPEC;
	if (p.v4 && p.ip_header + network > 60)
		return finish(INJECT_NO_ROOM);
	if (skb->gso_size && (transport || (!p.v4 && inject.ext_single)))
		return finish(INJECT_GSO);
	if (p.bytes + network + transport > 0xffff ||
	    bpf_check_mtu(skb, 0, &mtu, network + transport, 0))
		return finish(INJECT_TOO_BIG);
	if (p.is_udp && skb->gso_size) {
		/* Its datagrams keep their size. */
		if (p.l4 - inject.l2 + sizeof(struct udphdr) + skb->gso_size + network >
		    mtu)
			return finish(INJECT_TOO_BIG);
		flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	}
	if (transport)
		what = p.is_tcp ? add_tcp(skb, &p) : add_udp(skb, &p);
	if (what != INJECT_CHANGED || !network)
		return finish(what);
	what = p.v4 ? add_ip(skb, &p, flags) : add_extensions(skb, &p, flags);
	/* The transport's are in it by now. */
	if (what == INJECT_REFUSED && transport)
		what = INJECT_BROKEN;
	return finish(what);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
