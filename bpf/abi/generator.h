/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What benchmarks say to the generator and find in its packets. Not of the packet
 * path: nothing here is pinned. */
#ifndef WEIR_ABI_GENERATOR_H
#define WEIR_ABI_GENERATOR_H

#include <linux/types.h>

enum families {
	FAMILY_IPV4 = 1,
	FAMILY_IPV6 = 2,
	FAMILY_BOTH = 3,
};

/* The server tells the two kinds of requests apart by the first byte of the
 * payload. */
#define WANTED_PAYLOAD	 'W'
#define UNWANTED_PAYLOAD 'U'

/* Frames of requests: an Ethernet and an IPv6 header, UDP, two bytes. */
#define REQUEST_LEN 64

#endif
