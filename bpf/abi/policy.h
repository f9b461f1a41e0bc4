/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the policy number of a ban says: which ports, drop or reject. */
#ifndef WEIR_ABI_POLICY_H
#define WEIR_ABI_POLICY_H

#include <linux/types.h>

/* Set in a policy number: the ban covers some ports only, see `policies`. */
#define POLICY_SCOPED 0x8000
/* The ban's packets are answered, see reject.h. */
#define POLICY_REJECT 0x4000
#define POLICY_NUMBER 0x3fff

/* What a policy number means, without the bits above. Number 0 is not used. */
#define MAX_POLICIES 4096
#define MAX_RANGES   15
enum action {
	ACTION_DROP,
	ACTION_REJECT,
};
struct port_range {
	__u8 protocol; /* 0 = any */
	__u8 pad;
	__u16 low;
	__u16 high;
};
struct policy {
	__u16 ranges; /* 0 = all ports */
	__u16 action; /* enum action */
	struct port_range range[MAX_RANGES];
	char producer[66]; /* text, NUL-padded; user space's, not read here */
};

_Static_assert(sizeof(struct policy) == 160, "abi");

#endif
