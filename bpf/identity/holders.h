/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The maps that say who holds a socket: of [app], whose programs fill them, and of
 * [token], whose programs read the same ones. */
#ifndef WEIR_IDENTITY_HOLDERS_H
#define WEIR_IDENTITY_HOLDERS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi/identity.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, IDENT_SETS);
	__type(key, struct ident_key);
	__type(value, struct ident_known);
} ident_sets SEC(".maps");

/* An accepted socket gets a copy of what is known of the one that listened. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct ident_socket);
} ident_sockets SEC(".maps");

#endif
