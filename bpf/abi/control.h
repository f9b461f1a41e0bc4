/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What user space says to the program, and what is said of a generation. */
#ifndef WEIR_ABI_CONTROL_H
#define WEIR_ABI_CONTROL_H

#include <linux/types.h>

/* Pinned tables of another number are refused, never reinterpreted. */
#define WEIR_ABI 21

/* Words that user space changes while the program runs. */
struct control {
	__u32 bloom_base;    /* first word of the bloom copy that readers use */
	__u32 observe;	     /* 1: count what would be dropped, and pass it */
	__u32 prefix_bans;   /* bit 0: there are prefix bans of IPv4, bit 1: of IPv6 */
	__u32 zero;	     /* always 0, which the verifier does not know */
	__u32 class_base;    /* first line of the class table that readers use */
	__u32 port_features; /* bit 0: a port has a feature (abi/answer.h); PORT_BALANCE:
				an address has that, for packets without ports;
				PORT_ADDRESSES: there are addresses of tarpits */
	__u32 rejects;	     /* 1: there are bans that reject, or were */
	__u32 pad;
};

/* What a generation was built with, kept beside its pins. */
struct meta {
	__u32 abi;
	__u32 v4_buckets;
	__u64 seed[3];
	__u64 lasting_seed[3];
	__u64 build; /* hash of the BPF object */
	__u32 buckets64;
	__u32 overflow64;
	__u32 buckets128;
	__u32 overflow128;
	__u32 bloom_words; /* words of one copy of the bloom filter */
	__u32 v4_length;
	__u64 started; /* jiffies from which IPv4 hosts' expiries count */
	__u64 generation;
	__u8 boot_id[40];
	__u64 suspended_ns; /* CLOCK_BOOTTIME - CLOCK_MONOTONIC that the expiries allow
			       for */
	__u32 class_lines;  /* lines of one copy of the class table; 0: no class stage */
	__u32 pad;
};

/* Answer of the clock program. */
struct clock_sample {
	__u64 jiffies;
	__u64 mono_ns;
};

_Static_assert(sizeof(struct control) == 32 && sizeof(struct meta) == 160, "abi");

#endif
