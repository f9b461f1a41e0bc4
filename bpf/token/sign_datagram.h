/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* UDP on the side that signs: a datagram gets its token where it leaves an interface, as
 * an option of IPv4, or in an IPv6 destination options header before UDP's. Who sends was
 * noted at its socket a moment ago, in the sender's context ([app] at egress). So does
 * the SYN of a connection to where TCP options do not get (TOKEN_BY_IP_OPTION).
 *
 * A datagram never gets longer than the device and the path take: then it leaves as it
 * was. Checksums of UDP stay right, computed or not, for nothing of what they cover
 * changes. Of a superpacket (GSO) each datagram gets a copy of the header, so of the
 * token. */
#ifndef WEIR_TOKEN_SIGN_DATAGRAM_H
#define WEIR_TOKEN_SIGN_DATAGRAM_H

#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include "token/route.h"
#include "token/sign.h"

#define AF_INET6   10
#define SOCK_DGRAM 2
#define FRAGMENT   0x3fff /* of frag_off: more fragments, or an offset */
#define OFFSET	   0x1fff
#define IPV6_LEAST 1280 /* bytes of a packet that every path of IPv6 takes */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOKEN_UDP_SIGNINGS);
	__type(key, __u32);
	__type(value, __u64);
} token_udp_signings SEC(".maps");

/* As it stands before a UDP or TCP header of IPv6. */
struct token_extension {
	__u8 next;
	__u8 len;
	__u8 padding[2];
	struct token_option option;
};

_Static_assert(sizeof(struct token_extension) == TOKEN_EXTENSION, "abi");

/* A datagram or SYN as far as it counts here. */
struct leaving_datagram {
	union token_input input; /* its protocol is that of the socket */
	struct token_network to;
	__u32 l2;    /* bytes of the link-layer header */
	__u32 l4;    /* offset of the UDP or TCP header */
	__u32 bytes; /* from the IP header on */
	__u32 more;  /* that it is to get */
	__u32 v4;
};

static __always_inline int count_udp_signing(enum token_udp_signing what)
{
	__u32 key = what;
	__u64 *number = bpf_map_lookup_elem(&token_udp_signings, &key);

	if (number)
		__sync_fetch_and_add(number, 1);
	return what == TOKEN_UDP_BROKEN ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Counts a SYN (of `socket`) or a datagram without a token, or the latter with one. */
static __always_inline int count_leaving(const struct token_socket *socket,
					 enum token_udp_signing what)
{
	if (!socket)
		return count_udp_signing(what);
	count_signing(what == TOKEN_UDP_NO_SIGNER ? TOKEN_NO_SIGNER : TOKEN_NO_ROOM);
	return what == TOKEN_UDP_BROKEN ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Do tokens of datagrams go to p->to.addr? Of a SYN its socket knows. */
static __always_inline int is_signed_to(struct leaving_datagram *p,
					const struct token_control *control)
{
	if (p->input.statement.protocol == IPPROTO_TCP)
		return 1;
	p->to.bits = 32 + 128;
	p->to.networks = control->generation << 8 | TOKEN_SIGN_UDP_TO;
	return conduit_of(bpf_map_lookup_elem(&token_networks, &p->to)) !=
	       TOKEN_BY_NOTHING;
}

/* Has a program of ours been here before, at a device above this one? */
static __always_inline int has_token(struct __sk_buff *skb, __u32 at, __u8 len)
{
	__u8 head[4];

	return !bpf_skb_load_bytes(skb, at, head, sizeof(head)) &&
	       head[0] == TOKEN_IP_KIND && head[1] == len && head[2] == TOKEN_EXID >> 8 &&
	       head[3] == (TOKEN_EXID & 0xff);
}

/* TOKEN_UDP_SIGNED: it may get a token. TOKEN_UDP_SIGNINGS: it is none of ours. */
static __noinline enum token_udp_signing read_leaving(struct __sk_buff *skb,
						      struct leaving_datagram *p,
						      const struct token_control *control)
{
	__u8 protocol = p->input.statement.protocol;
	__u32 l2 = p->l2;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.version != 4 ||
		    ip.protocol != protocol)
			return TOKEN_UDP_SIGNINGS;
		map_v4(p->to.addr, ip.daddr);
		if (!is_signed_to(p, control) || ip.frag_off & bpf_htons(OFFSET))
			return TOKEN_UDP_SIGNINGS;
		if (ip.frag_off & bpf_htons(FRAGMENT))
			return TOKEN_UDP_FRAGMENT;
		map_v4(p->input.statement.source, ip.saddr);
		p->v4 = 1;
		p->more = TOKEN_BYTES;
		p->bytes = bpf_ntohs(ip.tot_len);
		p->l4 = l2 + ip.ihl * 4;
		if (ip.ihl > 5) {
			if (has_token(skb, l2 + sizeof(ip), TOKEN_BYTES))
				return TOKEN_UDP_SIGNINGS;
			if (ip.ihl * 4 + TOKEN_BYTES > 60)
				return TOKEN_UDP_NO_ROOM;
		}
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u32 at = l2 + sizeof(struct ipv6hdr);
		struct ipv6hdr ip;
		__u8 head[4];

		if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.version != 6)
			return TOKEN_UDP_SIGNINGS;
		__builtin_memcpy(p->to.addr, &ip.daddr, 16);
		if (!is_signed_to(p, control))
			return TOKEN_UDP_SIGNINGS;
		if (ip.nexthdr == IPPROTO_FRAGMENT) {
			if (bpf_skb_load_bytes(skb, at, head, sizeof(head)) || head[2] ||
			    head[3] & 0xf8)
				return TOKEN_UDP_SIGNINGS;
			return TOKEN_UDP_FRAGMENT;
		}
		if (ip.nexthdr == IPPROTO_DSTOPTS &&
		    has_token(skb, at + TOKEN_EXTENSION - TOKEN_BYTES, TOKEN_BYTES - 2))
			return TOKEN_UDP_SIGNINGS;
		if (ip.nexthdr != protocol)
			return TOKEN_UDP_NO_ROOM;
		__builtin_memcpy(p->input.statement.source, &ip.saddr, 16);
		p->more = TOKEN_EXTENSION;
		p->bytes = bpf_ntohs(ip.payload_len) + sizeof(ip);
		p->l4 = at;
	} else {
		return TOKEN_UDP_SIGNINGS;
	}
	__builtin_memcpy(p->input.statement.dest, p->to.addr, 16);
	if (p->bytes != skb->len - l2 ||
	    bpf_skb_load_bytes(skb, p->l4, &p->input.statement.source_port, 4))
		return TOKEN_UDP_REFUSED;
	return TOKEN_UDP_SIGNED;
}

/* Is there room for the token on the way? */
static __always_inline int has_room(struct __sk_buff *skb,
				    const struct leaving_datagram *p)
{
	__u32 mtu = 0, path = path_mtu(skb, p->v4), bytes = p->bytes;

	if (p->bytes + p->more > 0xffff || bpf_check_mtu(skb, 0, &mtu, p->more, 0))
		return 0;
	if (skb->gso_size)
		bytes = p->l4 - p->l2 + sizeof(struct udphdr) + skb->gso_size;
	if (path && path < mtu)
		mtu = path;
	/* Who sends no more than every path of IPv6 takes may hear of none that takes
	 * just that. */
	if (!p->v4 && !path && bytes <= IPV6_LEAST && bytes + p->more > IPV6_LEAST)
		return 0;
	return bytes + p->more <= mtu;
}

/* Writes the length of the IP packet, which has grown; 0: it is there. */
static __always_inline int grow_length(struct __sk_buff *skb,
				       const struct leaving_datagram *p)
{
	__u32 before = p->v4 ? p->bytes : p->bytes - sizeof(struct ipv6hdr);
	__be16 old = bpf_htons(before), new = bpf_htons(before + p->more);

	if (!p->v4)
		return (int)bpf_skb_store_bytes(
			skb, p->l2 + offsetof(struct ipv6hdr, payload_len), &new,
			sizeof(new), 0);
	if (bpf_l3_csum_replace(skb, p->l2 + offsetof(struct iphdr, check), old, new, 2))
		return -1;
	return (int)bpf_skb_store_bytes(skb, p->l2 + offsetof(struct iphdr, tot_len),
					&new, sizeof(new), 0);
}

static __always_inline enum token_udp_signing write_ipv4(struct __sk_buff *skb,
							 const struct leaving_datagram *p,
							 struct token_option *option,
							 __u64 flags)
{
	__u32 check = p->l2 + offsetof(struct iphdr, check);
	__be16 first, grown;

	option->kind = TOKEN_IP_KIND;
	option->len = TOKEN_BYTES;
	if (bpf_skb_load_bytes(skb, p->l2, &first, sizeof(first)) ||
	    bpf_skb_adjust_room(skb, TOKEN_BYTES, BPF_ADJ_ROOM_NET, flags))
		return TOKEN_UDP_REFUSED;
	grown = bpf_htons(bpf_ntohs(first) + (TOKEN_BYTES / 4 << 8));
	if (bpf_skb_store_bytes(skb, p->l2 + sizeof(struct iphdr), option,
				sizeof(*option), 0) ||
	    bpf_skb_store_bytes(skb, p->l2, &grown, sizeof(grown), 0) ||
	    bpf_l3_csum_replace(skb, check, first, grown, 2) ||
	    bpf_l3_csum_replace(
		    skb, check, 0,
		    bpf_csum_diff(NULL, 0, (void *)option, sizeof(*option), 0), 0) ||
	    grow_length(skb, p))
		return TOKEN_UDP_BROKEN;
	return TOKEN_UDP_SIGNED;
}

static __always_inline enum token_udp_signing
write_ipv6(struct __sk_buff *skb, const struct leaving_datagram *p,
	   const struct token_option *option, __u64 flags)
{
	struct token_extension extension = {
		.next = p->input.statement.protocol,
		.len = TOKEN_EXTENSION / 8 - 1,
		.padding = {1, 0}, /* PadN of two bytes */
		.option = *option,
	};
	__u8 next = IPPROTO_DSTOPTS;

	extension.option.kind = TOKEN_IP_KIND;
	extension.option.len = TOKEN_BYTES - 2;
	if (bpf_skb_adjust_room(skb, TOKEN_EXTENSION, BPF_ADJ_ROOM_NET, flags))
		return TOKEN_UDP_REFUSED;
	if (bpf_skb_store_bytes(skb, p->l2 + sizeof(struct ipv6hdr), &extension,
				sizeof(extension), 0) ||
	    bpf_skb_store_bytes(skb, p->l2 + offsetof(struct ipv6hdr, nexthdr), &next, 1,
				0) ||
	    grow_length(skb, p))
		return TOKEN_UDP_BROKEN;
	return TOKEN_UDP_SIGNED;
}

/* The SYN of this connection begins at p->l4? */
static __always_inline int read_syn(struct __sk_buff *skb, struct leaving_datagram *p)
{
	__u8 flags;

	if (bpf_skb_load_bytes(skb, p->l4 + 13, &flags, 1) ||
	    (flags & SYN_AND_ACK) != SYN)
		return 0;
	return !bpf_skb_load_bytes(skb, p->l4 + offsetof(struct tcphdr, seq),
				   &p->input.statement.isn, 4);
}

static __always_inline int sign_datagram(struct __sk_buff *skb, __u32 l2)
{
	struct token_control *control = control_get();
	struct leaving_datagram p = {.l2 = l2};
	struct token_socket *socket = NULL;
	struct token_option option = {};
	struct bpf_sock *sk = skb->sk;
	struct ident_socket *holders;
	struct token_signer *signer;
	enum token_udp_signing what;
	__u64 epoch, mac;
	__u64 flags = 0;

	if (!sk || !control)
		return TC_ACT_UNSPEC;
	sk = bpf_sk_fullsock(sk);
	if (!sk || (sk->family != AF_INET && sk->family != AF_INET6))
		return TC_ACT_UNSPEC;
	if (sk->protocol == IPPROTO_TCP) {
		if (sk->state != TCP_SYN_SENT)
			return TC_ACT_UNSPEC;
		socket = bpf_sk_storage_get(&token_sockets, sk, 0, 0);
		if (!socket || socket->conduit != TOKEN_BY_IP_OPTION)
			return TC_ACT_UNSPEC;
	} else if (sk->protocol != IPPROTO_UDP || sk->type != SOCK_DGRAM) {
		return TC_ACT_UNSPEC;
	}
	p.input.statement.protocol = sk->protocol;
	/* Beyond the control group nobody signs. */
	holders = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!holders || skb->len < l2)
		return TC_ACT_UNSPEC;
	what = read_leaving(skb, &p, control);
	if (what == TOKEN_UDP_SIGNINGS ||
	    (socket && what == TOKEN_UDP_SIGNED && !read_syn(skb, &p)))
		return TC_ACT_UNSPEC;
	/* A tunnel's datagram around one that a program sends is not the program's. */
	if (what == TOKEN_UDP_SIGNED &&
	    bpf_ntohs(p.input.statement.source_port) != sk->src_port)
		what = TOKEN_UDP_NO_SIGNER;
	if (what != TOKEN_UDP_SIGNED)
		return count_leaving(socket, what);
	signer = signer_of(holders);
	if (!signer)
		return count_leaving(socket, TOKEN_UDP_NO_SIGNER);
	if (!has_room(skb, &p))
		return count_leaving(socket, TOKEN_UDP_TOO_BIG);
	epoch = epoch_now();
	p.input.statement.version = TOKEN_VERSION;
	p.input.statement.key = signer->key_id;
	p.input.statement.epoch = bpf_cpu_to_be64(epoch);
	mac = mac_of(&signer->key, &p.input);
	option.exid = bpf_htons(TOKEN_EXID);
	option.version = TOKEN_VERSION;
	option.key = signer->key_id;
	option.epoch = bpf_htons(epoch);
	__builtin_memcpy(option.tag, signer->identity, sizeof(option.tag));
	__builtin_memcpy(option.mac, &mac, sizeof(option.mac));
	if (!still_signs(signer, holders))
		return count_leaving(socket, TOKEN_UDP_NO_SIGNER);
	/* Its datagrams keep their size. */
	if (skb->gso_size)
		flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	what = p.v4 ? write_ipv4(skb, &p, &option, flags)
		    : write_ipv6(skb, &p, &option, flags);
	if (socket && what == TOKEN_UDP_SIGNED) {
		note_signed(socket, holders, signer, p.input.statement.isn);
		return TC_ACT_UNSPEC;
	}
	return count_leaving(socket, what);
}

/* At a device whose frames have an Ethernet header. */
SEC("tcx/egress")
int weir_sign_udp(struct __sk_buff *skb)
{
	return sign_datagram(skb, ETHERNET);
}

/* At one whose frames begin with the IP header. */
SEC("tcx/egress")
int weir_sign_udp_ip(struct __sk_buff *skb)
{
	return sign_datagram(skb, 0);
}

#endif
