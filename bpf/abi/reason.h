/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Why a packet passes or is dropped. */
#ifndef WEIR_ABI_REASON_H
#define WEIR_ABI_REASON_H

#include <linux/types.h>

/* Exits of the packet path: up to R_ESSENTIAL and R_REPLY they pass, from
 * R_BANNED_ALL on they drop; from R_OBSERVED on they are told as events, but
 * those from R_INVALID_SOURCE on are only counted: no source is known of them.
 * crates/core/src/reason.rs has the same numbers; crates/bpf/src/abi.rs asserts
 * each of them. */
enum reason {
	R_PASS,
	R_NOT_IP,
	R_MALFORMED,
	R_ALLOWED,
	R_OTHER_PORT,
	R_ESSENTIAL,
	R_REPLY,
	R_OBSERVED,
	R_BANNED_ALL,
	R_BANNED_SCOPE,
	R_LISTED,
	R_FENCED,
	R_LISTED_OUT,
	R_FENCED_OUT,
	R_DECOY,
	R_DECOY_HANDSHAKE,
	R_REJECTED,
	R_REJECTED_SILENT,
	R_TARPIT,
	R_TARPIT_HANDSHAKE,
	R_INVALID_SOURCE,
	R_TOO_MANY_TAGS,
	R_NO_REAL,
	R_POOL_DENIED,
	R_TOO_BIG,
	R_NO_ROOM,
	R_MAX,
};

#endif
