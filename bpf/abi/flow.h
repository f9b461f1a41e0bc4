/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Stamps of flows that began here. */
#ifndef WEIR_ABI_FLOW_H
#define WEIR_ABI_FLOW_H

#include <linux/types.h>

/* Flows that began on the other side of the interface, so that their answers
 * are not taken for the beginning of one: {tag: 32, jiffies: 32}, two cells a
 * flow. Lost when both are overwritten by younger flows. */
#define FLOW_CELLS 65536

#endif
