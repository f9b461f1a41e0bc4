/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What becomes of a packet. */
#ifndef WEIR_DECISION_H
#define WEIR_DECISION_H

#include "lib/cfg.h"

enum act {
	ACT_PASS,
	ACT_DROP,
	ACT_PULL, /* judged again when more of its headers is readable */
	ACT_NEXT, /* left to the program that `next` says, see request.h */
};

struct decision {
	__u8 act;  /* enum act */
	__u8 next; /* enum next, of ACT_NEXT: nobody has counted the packet yet */
};

/* A decision as one number, for functions that the verifier checks once. */
static __always_inline __u32 pack_decision(struct decision d)
{
	return d.act | (__u32)d.next << 8;
}

static __always_inline struct decision unpack_decision(__u32 packed)
{
	return (struct decision){.act = packed, .next = packed >> 8};
}

#endif
