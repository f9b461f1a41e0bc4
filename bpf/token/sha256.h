/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* SHA-256 (FIPS 180-4): one block of a message. Padding, and what becomes of the state,
 * is the caller's. */
#ifndef WEIR_TOKEN_SHA256_H
#define WEIR_TOKEN_SHA256_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define SHA256_BLOCK 64
/* Bytes of a message in its last block at most: its length stands behind them. */
#define SHA256_LAST 56

struct sha256_state {
	__u32 words[8];
};

union sha256_block {
	__u32 words[SHA256_BLOCK / 4];
	__u8 bytes[SHA256_BLOCK];
};

#define ROTATE32(x, bits) ((x) >> (bits) | (x) << (32 - (bits)))

/* Of the schedule only the last 16 words are kept, each in the place of the one that is
 * not needed any more. */
static __always_inline void sha256_schedule(__u32 w[16], __u32 i)
{
	__u32 s0 = w[(i + 1) & 15], s1 = w[(i + 14) & 15];

	s0 = ROTATE32(s0, 7) ^ ROTATE32(s0, 18) ^ s0 >> 3;
	s1 = ROTATE32(s1, 17) ^ ROTATE32(s1, 19) ^ s1 >> 10;
	w[i & 15] += s0 + w[(i + 9) & 15] + s1;
	asm volatile("" ::: "memory");
}

/* One round, in which only d and h change. The barrier keeps clang from beginning the
 * next ones: it would hold more at once than there is room for on the stack. */
#define SHA256_ROUND(a, b, c, d, e, f, g, h, j)                                          \
	do {                                                                             \
		h += sha256_k[(i + (j)) & 63] + w[j];                                    \
		h += g ^ (e & (f ^ g));                                                  \
		h += ROTATE32(e, 6) ^ ROTATE32(e, 11) ^ ROTATE32(e, 25);                 \
		d += h;                                                                  \
		h += (a & b) | (c & (a | b));                                            \
		h += ROTATE32(a, 2) ^ ROTATE32(a, 13) ^ ROTATE32(a, 22);                 \
		asm volatile("" : "+r"(d), "+r"(h)::"memory");                           \
	} while (0)

#define SHA256_ROUNDS(j)                                                                 \
	do {                                                                             \
		SHA256_ROUND(a, b, c, d, e, f, g, h, j);                                 \
		SHA256_ROUND(h, a, b, c, d, e, f, g, j + 1);                             \
		SHA256_ROUND(g, h, a, b, c, d, e, f, j + 2);                             \
		SHA256_ROUND(f, g, h, a, b, c, d, e, j + 3);                             \
		SHA256_ROUND(e, f, g, h, a, b, c, d, j + 4);                             \
		SHA256_ROUND(d, e, f, g, h, a, b, c, j + 5);                             \
		SHA256_ROUND(c, d, e, f, g, h, a, b, j + 6);                             \
		SHA256_ROUND(b, c, d, e, f, g, h, a, j + 7);                             \
	} while (0)

static const __u32 sha256_k[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
	0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
	0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
	0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
	0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
	0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
	0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
	0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* Takes a block, whose words are numbers of this machine, into the state. The words are
 * others afterwards. Not static: so the kernel's verifier looks at it once, and not at
 * each place from which it is called. */
__noinline int sha256_block(struct sha256_state *state, union sha256_block *block)
{
	__u32 a, b, c, d, e, f, g, h, i, j, *w;

	if (!state || !block)
		return -1;
	a = state->words[0];
	b = state->words[1];
	c = state->words[2];
	d = state->words[3];
	e = state->words[4];
	f = state->words[5];
	g = state->words[6];
	h = state->words[7];
	w = block->words;
#pragma clang loop unroll(disable)
	for (i = 0; i < 64; i += 16) {
		if (i) {
#pragma unroll
			for (j = 0; j < 16; j++)
				sha256_schedule(w, j);
		}
		SHA256_ROUNDS(0);
		SHA256_ROUNDS(8);
	}
	state->words[0] += a;
	state->words[1] += b;
	state->words[2] += c;
	state->words[3] += d;
	state->words[4] += e;
	state->words[5] += f;
	state->words[6] += g;
	state->words[7] += h;
	return 0;
}

#endif
