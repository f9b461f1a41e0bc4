/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The interfaces whose packets the netfilter program judges. */
#ifndef WEIR_ABI_NETFILTER_H
#define WEIR_ABI_NETFILTER_H

#include <linux/types.h>

/* Places in all, and from the one that the hash of an index names on. */
#define NF_INTERFACES 4096
#define NF_PROBES     8
/* The hash: the upper 12 bits of the product. */
#define NF_HASH_FACTOR 0x9e3779b1U
#define NF_HASH_SHIFT  20

_Static_assert(NF_INTERFACES == 1 << (32 - NF_HASH_SHIFT), "abi");

#endif
