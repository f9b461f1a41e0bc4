/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Packets that are answered: those to decoy and tarpit ports, and those of bans that
 * reject. */
#ifndef WEIR_ABI_ANSWER_H
#define WEIR_ABI_ANSWER_H

#include <linux/types.h>

/* Features that ports have beside the firewall: four bits each; TCP's
 * ports, then UDP's, sixteen a word. */
#define PORT_FEATURE_BITS  4
#define PORT_DECOY	   1
#define PORT_BALANCE	   2
#define PORT_TARPIT	   4
#define PORT_ADDRESSES	   8 /* bit of no port: some addresses are tarpits */
#define PORTS_A_WORD	   16
#define PORT_FEATURE_WORDS (65536 / PORTS_A_WORD)

/* Programs that a firewall tail-calls: their places in its array. */
enum next {
	NEXT_DECOY,
	NEXT_REJECT,
	NEXT_BALANCE,
	NEXT_TARPIT,
	NEXT_MAX,
};

/* Addresses of this host, IPv4 as ::ffff:a.b.c.d: what is forwarded to other
 * hosts is theirs to answer. */
#define MAX_OWN 4096

/* SYN-ACKs in one EVENT_WINDOW and CPU. A scan of all ports goes on for seconds, so
 * it cannot outrun this; a flood in other people's names is not passed on to them
 * any faster than that. */
#define DECOY_ANSWERS 4096

/* Cookies that come back wrong, of the whole host in a second, whatever the number
 * of CPUs; above that none is looked at until the next. Who sends SYN and guess in
 * a victim's name has it banned by 1 guess in 2^29 (8 bits of time with 2 of 256
 * accepted, 24 of data with 4 accepted): at this rate after two years in the mean,
 * and within a day with a probability of 0.13 %. */
#define DECOY_GUESSES 8

/* Per CPU: what decoy ports answered. */
struct decoy_counter {
	__u64 window;  /* jiffies >> EVENT_WINDOW_SHIFT of what follows */
	__u32 answers; /* SYN-ACKs in that window */
	__u32 pad;
	__u64 answered; /* SYN-ACKs */
	__u64 silent;	/* SYNs above the limit, not answered */
};

/* Cookies that came back wrong, counted for all CPUs together. */
struct decoy_guesses {
	__u32 second; /* the present second of CLOCK_BOOTTIME */
	__u32 before; /* lower half of `wrong` when that second began */
	__u64 wrong;  /* wrong cookies so far, and those that are looked at just now */
};

/* The window that a tarpit offers: the one piece of data of at most so many bytes that
 * it takes. */
#define TARPIT_WINDOW 16

/* One of so many segments without data is not answered: tarpit.h. */
#define TARPIT_PROBES 16

/* Answers of tarpit ports in one EVENT_WINDOW: of a CPU, and to one source (of IPv6 a
 * /64; sources whose hashes collide share it). */
#define TARPIT_ANSWERS	      4096
#define TARPIT_SOURCE_ANSWERS 1024
#define TARPIT_SOURCES	      65536

/* Per CPU: what tarpit ports answered. */
struct tarpit_counter {
	__u64 window;  /* jiffies >> EVENT_WINDOW_SHIFT of what follows */
	__u32 answers; /* answers of all kinds in that window */
	__u32 pad;
	__u64 answered; /* SYN-ACKs */
	__u64 held;	/* ACKs with a window of zero */
	__u64 silent;	/* packets above a limit, not answered */
	__u64 resolved; /* ARP requests and neighbour solicitations */
	__u64 asked;	/* questions of this host's that such a packet led to */
	__u64 crowded;	/* questions for an address that found no place to be learned */
};

/* Prefixes whose every address is a tarpit, but for those that somebody has. Value: for
 * how many seconds nobody must have answered for an address before it is one; 0: it is
 * one at once. */
#define TARPIT_PREFIXES 256
struct tarpit_prefix_key {
	__u32 bits;    /* length of the prefix, for IPv4 96 more */
	__u8 addr[16]; /* IPv4 as ::ffff:a.b.c.d */
};

/* Addresses in them that were seen alive, each for so many seconds; the oldest are
 * forgotten. */
#define TARPIT_ALIVE	     16384
#define TARPIT_ALIVE_SECONDS 3600

/* Addresses that nobody has answered for: a place each, by a keyed hash. A word: its
 * tag in the upper half, the tag's lowest bit once the address is dark, and since when in
 * seconds of CLOCK_BOOTTIME. What is dark is asked for again after so many seconds, and
 * keeps its place until then. */
#define TARPIT_DARK	  65536
#define TARPIT_DARK_AGAIN 600

/* Interfaces by their index, on which such addresses are answered for. */
#define TARPIT_LINKS 1024
struct tarpit_link {
	__u8 mac[6];
	__u16 pad;
	/* Addresses of this host to ask from; 0: it asks nobody there. */
	__be32 addr4;
	__be32 addr6[4];
};

/* Answers to one source. */
struct tarpit_source {
	__u32 window; /* jiffies >> EVENT_WINDOW_SHIFT, the lower half */
	__u32 answers;
};

/* Answers of bans that reject, of one CPU: this many a second, and this many at
 * once. */
#define REJECT_RATE  1000
#define REJECT_BURST 250

_Static_assert(sizeof(struct decoy_counter) == 32, "abi");
_Static_assert(sizeof(struct decoy_guesses) == 16, "abi");
_Static_assert(sizeof(struct tarpit_counter) == 64, "abi");
_Static_assert(sizeof(struct tarpit_link) == 28, "abi");

#endif
