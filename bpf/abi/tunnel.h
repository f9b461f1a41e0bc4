/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The way to a real beyond a router: IP in IP (RFC 2003, RFC 2473, RFC 4213), or GUE
 * (draft-ietf-intarea-gue, variant 1: IP directly in UDP). */
#ifndef WEIR_ABI_TUNNEL_H
#define WEIR_ABI_TUNNEL_H

#include <linux/types.h>

/* UDP port of GUE (IANA). */
#define GUE_PORT 6080

/* The outer header of packets to a real; at the number of the real. */
struct balance_tunnel {
	__u8 source[16]; /* source of the outer header; IPv4 as ::ffff:a.b.c.d */
	__u8 dest[16];	 /* the real's own address */
	__u32 mtu;	 /* bytes of the largest outer packet */
	__be16 port;	 /* UDP port of GUE; 0: IP in IP */
	__u8 v4;	 /* 1: the outer header is IPv4 */
	__u8 pad;
};

/* Addresses that a real takes packets out of tunnels for: bits of each. */
#define DECAP_OWN	1 /* the real's own: an outer header may be addressed to it */
#define DECAP_VIP	2 /* virtual: an inner header may be */
#define DECAP_BALANCER	4 /* an outer header may be from it */
#define DECAP_ADDRESSES 4096

/* Packets that arrive in a tunnel, by their fate. */
enum decap_count {
	DECAP_TAKEN,	 /* the outer header was taken off */
	DECAP_STRANGER,	 /* not from a balancer: left as it is */
	DECAP_OTHER,	 /* not for a virtual address: left as it is */
	DECAP_FRAGMENT,	 /* the outer packet is in fragments: left as it is */
	DECAP_MALFORMED, /* dropped */
	DECAP_REFUSED,	 /* dropped, for the kernel did not take the header off */
	DECAP_MAX,
};

_Static_assert(sizeof(struct balance_tunnel) == 40, "abi");

#endif
