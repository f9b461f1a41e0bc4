/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the firewall knows of a packet that it leaves to a program of its own
 * (bpf/answer), which so reads no header twice. A tail call passes nothing but the
 * context; on a CPU neither XDP nor tc ingress is entered again before the packet has
 * left. A change here is a new WEIR_ABI: the two programs may be of two builds. */
#ifndef WEIR_REQUEST_H
#define WEIR_REQUEST_H

#include "lib/verdict.h"

struct answer_request {
	struct pkt_result result; /* the exit of the packet when nobody answers */
	__u32 observe;		  /* 1: count what would be answered, and pass it */
	__u32 features;		  /* features of the port (abi/answer.h), if looked up */
};

_Static_assert(sizeof(struct answer_request) == 48, "abi");
_Static_assert(__builtin_offsetof(struct pkt_result, source) == 12, "abi");
_Static_assert(__builtin_offsetof(struct pkt_result, l3) == 31, "abi");
_Static_assert(__builtin_offsetof(struct pkt_result, v4) == 32, "abi");
_Static_assert(NEXT_DECOY == 0 && NEXT_REJECT == 1 && NEXT_BALANCE == 2 &&
		       NEXT_TARPIT == 3,
	       "abi");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct answer_request);
} answer_request SEC(".maps");

static __always_inline struct answer_request *answer_request_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&answer_request, &zero);
}

#endif
