/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What is counted and told of packets. */
#ifndef WEIR_ABI_EVENT_H
#define WEIR_ABI_EVENT_H

#include <linux/types.h>

/* Per CPU and reason. */
struct counter {
	__u64 packets;
	__u64 bytes;
	__u64 event_window; /* jiffies >> EVENT_WINDOW_SHIFT of the last event */
	__u32 event_count;  /* events in that window */
	__u32 event_lost;   /* events not sent: rate limit or full ring buffer */
};

/* Events per reason, CPU and window of 2^8 jiffies (about a second). */
#define EVENT_WINDOW_SHIFT 8
#define EVENT_LIMIT	   64
#define PROOF_LIMIT	   4096 /* events of R_DECOY_HANDSHAKE: one for each cookie sent */
#define EVENT_WAKE_BYTES   (64 * 1024)

struct event {
	__u64 at_ns; /* CLOCK_BOOTTIME */
	__u64 jiffies;
	__u8 source[16]; /* IPv4 as ::ffff:a.b.c.d */
	__u32 ifindex;
	__u32 reason;
	__u16 port;
	__u8 protocol;
	__u8 scanner; /* enum scanner, of a SYN to a decoy port */
	__u8 pad[4];
};

/* The scanner that sent a SYN, by its options and window. No operating system leaves
 * out all options. */
enum scanner {
	SCANNER_NONE,	 /* nothing that stands out */
	SCANNER_BARE,	 /* no options */
	SCANNER_MASSCAN, /* no options, window 1024 */
	SCANNER_ZMAP,	 /* no options, window 65535 */
	SCANNER_NMAP,	 /* segment size only, window 1024 */
};

_Static_assert(sizeof(struct event) == 48 && sizeof(struct counter) == 32, "abi");

#endif
