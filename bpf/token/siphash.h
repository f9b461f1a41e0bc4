/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* SipHash-2-4 (Aumasson and Bernstein 2012), of a statement and of more: a keyed
 * pseudorandom function for short inputs. */
#ifndef WEIR_TOKEN_SIPHASH_H
#define WEIR_TOKEN_SIPHASH_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi/token.h"

#define STATEMENT_WORDS (sizeof(struct token_statement) / 8)

union token_input {
	struct token_statement statement;
	__u64 words[STATEMENT_WORDS];
};

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LE64(x) __builtin_bswap64(x)
#else
#define LE64(x) (x)
#endif

#define ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

static __always_inline void sip_round(__u64 v[4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = ROTATE(v[1], 13) ^ v[0];
	v[3] = ROTATE(v[3], 16) ^ v[2];
	v[0] = ROTATE(v[0], 32);
	v[2] += v[1];
	v[0] += v[3];
	v[1] = ROTATE(v[1], 17) ^ v[2];
	v[3] = ROTATE(v[3], 21) ^ v[0];
	v[2] = ROTATE(v[2], 32);
}

static __always_inline void sip_begin(__u64 v[4], const struct token_key *key)
{
	__u64 k0 = key->words[0], k1 = key->words[1];

	v[0] = k0 ^ 0x736f6d6570736575ull;
	v[1] = k1 ^ 0x646f72616e646f6dull;
	v[2] = k0 ^ 0x6c7967656e657261ull;
	v[3] = k1 ^ 0x7465646279746573ull;
}

/* Eight bytes, as they lie in memory. */
static __always_inline void sip_word(__u64 v[4], __u64 bytes)
{
	__u64 word = LE64(bytes);

	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
}

/* Of so many bytes, all of them in words. As it stands in the option, read as one word of
 * this machine. */
static __always_inline __u64 sip_end(__u64 v[4], __u64 bytes)
{
	sip_word(v, LE64(bytes << 56));
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return LE64(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

static __noinline __u64 mac_of(const struct token_key *key,
			       const union token_input *input)
{
	__u64 v[4];
	int i;

	sip_begin(v, key);
#pragma unroll
	for (i = 0; i < (int)STATEMENT_WORDS; i++)
		sip_word(v, input->words[i]);
	return sip_end(v, sizeof(struct token_statement));
}

#endif
