/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Headers of packets, and what can be said of them without reading one. */
#ifndef WEIR_HEADERS_H
#define WEIR_HEADERS_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include "lib/cfg.h"

#define BIT(n)	      (1ULL << ((n)&63))
#define IP_OFFSET     0x1fff
#define IP_MF_OFFSET  0x3fff /* more-fragments bit and offset */
#define IP6_OFFSET    0xfff8 /* offset in a fragment header */
#define IPPROTO_SHIM6 140
#define IPPROTO_HIP   139

/* Offsets of the IP header are masked with it before they are added to a packet
 * pointer: the verifier has forgotten their bound. Above Ethernet and eight tags:
 * 46. */
#define L3_MOST 0x3f
/* Mask of offsets behind a chain of extension headers: at most 12 KiB. */
#define CHAIN_MOST 0x3fff

/* Types of errors; of ICMP also source quench. */
#define ICMP_ERRORS   (BIT(3) | BIT(4) | BIT(11) | BIT(12))
#define ICMPV6_ERRORS (BIT(1) | BIT(2) | BIT(3) | BIT(4))

/* RFC 2131, RFC 8415. */
#define DHCP_SERVER   67
#define DHCP_CLIENT   68
#define DHCPV6_CLIENT 546
#define DHCPV6_SERVER 547

/* Types of ICMPv6, RFC 4861. */
#define ND_SOLICITATION	 135
#define ND_ADVERTISEMENT 136

struct ext_header {
	__u8 next;
	__u8 len;
	__be16 fragment; /* in a fragment header: offset << 3 | more */
	__u8 rest[4];
};
struct ports {
	__be16 source;
	__be16 dest;
};

/* IPv4 as ::ffff:a.b.c.d (RFC 4291 2.5.5.2), into an address of zeros. */
static __always_inline void map_v4(__u8 *mapped, __be32 addr)
{
	mapped[10] = mapped[11] = 0xff;
	__builtin_memcpy(mapped + 12, &addr, 4);
}

/* Both at even addresses. */
static __always_inline int is_same_mac(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

/* Membership of a protocol number as one test: a chain of comparisons would
 * be a path each for the verifier. `low` holds 0-63, `high` 128-191. */
static __always_inline int is_one_of(__u8 protocol, __u64 low, __u64 high)
{
	__u64 set = protocol < 64 ? low : protocol >= 128 && protocol < 192 ? high : 0;

	return (set >> (protocol & 63)) & 1;
}

static __always_inline int has_ports(__u8 protocol)
{
	return is_one_of(protocol,
			 BIT(IPPROTO_TCP) | BIT(IPPROTO_UDP) | BIT(IPPROTO_DCCP),
			 BIT(IPPROTO_SCTP) | BIT(IPPROTO_UDPLITE));
}

static __always_inline int is_extension(__u8 next)
{
	return is_one_of(next,
			 BIT(IPPROTO_HOPOPTS) | BIT(IPPROTO_ROUTING) |
				 BIT(IPPROTO_DSTOPTS) | BIT(IPPROTO_FRAGMENT) |
				 BIT(IPPROTO_AH),
			 BIT(IPPROTO_MH) | BIT(IPPROTO_HIP) | BIT(IPPROTO_SHIM6));
}

#endif
