/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Options that are put on packets which leave (bpf/options/inject.bpf.c), or that the
 * kernel puts on TCP segments (bpf/options/connections.bpf.c), and what became of them.
 */
#ifndef WEIR_ABI_INJECT_H
#define WEIR_ABI_INJECT_H

#include <linux/types.h>

#define INJECT_HEADER	  40	/* bytes of options of an IPv4 or TCP header at most */
#define INJECT_SURPLUS	  256	/* bytes behind a UDP datagram at most */
#define INJECT_EXTENSIONS 256	/* bytes of IPv6 extension headers at most */
#define INJECT_NETWORKS	  65	/* destinations that may be named, and all of IPv4 */
#define INJECT_MOVED	  16384 /* bytes of a packet behind its TCP header's 20 at most */
/* Options of a TCP header at most, which have two bytes at least. */
#define INJECT_TCP_OPTIONS 20

/* A network of destinations, for a map that finds the longest prefix. */
struct inject_network {
	__u32 bits;    /* of addr that count */
	__u8 addr[16]; /* IPv4 as ::ffff:a.b.c.d */
};

/* One TCP option, from its kind and length on. */
struct inject_option {
	__u8 bytes[INJECT_HEADER];
};

/* Packets of the chosen flows, by what became of them. All but the last have left. */
enum inject_count {
	INJECT_CHANGED,	 /* with the options */
	INJECT_TOO_BIG,	 /* as it was: with the options it exceeds the interface's MTU */
	INJECT_GSO,	 /* as it was: several segments in one, to be cut up later */
	INJECT_FRAGMENT, /* as it was: a fragment */
	INJECT_NO_ROOM,	 /* as it was: its header has not room for the options */
	/* As it was: it has extension headers or a surplus area already; of a connection:
	 * an option of this kind. */
	INJECT_OTHER,
	INJECT_MALFORMED, /* as it was: its lengths contradict each other */
	INJECT_REFUSED,	  /* as it was: the kernel refused to make room */
	INJECT_BROKEN,	  /* dropped: the kernel refused after a part was changed */
	INJECT_MAX,
};

_Static_assert(sizeof(struct inject_network) == 20, "abi");

#endif
