/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The settings that a program is loaded with: read-only data, which the verifier knows,
 * so it removes what is switched off. Each object has its own; programs that answer read
 * lasting_seed, final_pass, limit_shift and flow_mask only. */
#ifndef WEIR_CFG_H
#define WEIR_CFG_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

#ifndef likely /* libbpf before 1.6 has them not */
#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

const volatile struct {
	__u64 seed[3];
	__u64 lasting_seed[3]; /* seeds of maps that are handed from generation to
				  generation */
	__u64 started;	       /* jiffies from which IPv4 hosts' expiries count */
	__u32 v4_buckets;      /* buckets of IPv4 hosts */
	__u32 pages64;	       /* pages of buckets of networks */
	__u32 over64;	       /* overflow buckets - 1 */
	__u32 pages128;	       /* pages of buckets of IPv6 hosts */
	__u32 over128;
	__u32 host_base;    /* first bucket of IPv6 hosts */
	__u32 bloom_mask;   /* words of one copy - 1 */
	__u32 v4_length;    /* the IPv4 length below 32 that the table holds; 0: none */
	__u32 final_pass;   /* XDP action of an innocent packet; benchmarks make it a drop
			     */
	__u32 class_lines;  /* lines of one copy of the class table; 0: no class stage */
	__u32 flow_jiffies; /* jiffies for which an answer is expected */
	__u32 answers;	    /* 1: what answers may be tail-called (bpf/answer) */
	__u32 frags;	    /* 1: XDP frames may have more than a page (Linux 5.18) */
	__u32 limit_shift;  /* shift of the limits in a window; benchmarks raise it */
	__u32 flow_mask;    /* buckets of balanced flows - 1 */
	__u32 pad;
} cfg = {.v4_length = 24, .final_pass = XDP_PASS};

#endif
