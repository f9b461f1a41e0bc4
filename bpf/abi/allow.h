/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The allow list, and the hints in front of it and of the prefix bans. */
#ifndef WEIR_ABI_ALLOW_H
#define WEIR_ABI_ALLOW_H

#include <linux/types.h>

/* Prefixes of one family. */
#define MAX_ALLOW 65536

/* A hint is a bit per upper half of an IPv4 address, then one per IPv6 /32 folded
 * to 16 bits. These are the 64-bit words of one family. */
#define HINT_WORDS (65536 / 64)

#endif
