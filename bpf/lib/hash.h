/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Keyed hashes of addresses. */
#ifndef WEIR_HASH_H
#define WEIR_HASH_H

#include "lib/cfg.h"

static __always_inline __u64 keyed_hash(const volatile __u64 *seed, __u64 key)
{
	key += seed[0];
	key ^= key >> 32;
	key *= seed[1] | 1;
	key ^= key >> 29;
	key *= seed[2] | 1;
	key ^= key >> 32;
	return key;
}

/* Keyed: an attacker chooses addresses, not the seed (random per generation). */
static __always_inline __u64 hash64(__u64 key)
{
	return keyed_hash(cfg.seed, key);
}

/* Another 32-bit number for each, keyed as above; the inverse is in
 * crates/bpf/src/table/v4_hosts.rs. */
static __always_inline __u32 permute32(__u32 x)
{
	x += (__u32)(cfg.seed[0] >> 32);
	x ^= x >> 16;
	x *= (__u32)(cfg.seed[1] >> 32) | 1;
	x ^= x >> 15;
	x *= (__u32)(cfg.seed[2] >> 32) | 1;
	x ^= x >> 16;
	return x;
}

/* hash64 for maps that are handed on to the next generation: their keys must
 * be found there. Random per instance. */
static __always_inline __u64 lasting_hash64(__u64 key)
{
	return keyed_hash(cfg.lasting_seed, key);
}

#endif
