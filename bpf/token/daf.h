/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The signature of DAF, for networks where hosts with it stand: HMAC-SHA256 of a TCP
 * payload, in an option of the IPv4 header. It is bound to no flow and to no time, and
 * all segments without data have the same one; it says that a host has the key, and never
 * which program sends. So it counts only where the configuration says so
 * (TOKEN_SCOPE_DAF). */
#ifndef WEIR_TOKEN_DAF_H
#define WEIR_TOKEN_DAF_H

#include "token/segment.h"
#include "token/sha256.h"

/* Of even generations, then of the others. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct token_daf_key);
} token_daf_keys SEC(".maps");

/* Of the longest payload, and of the padding. */
#define DAF_BLOCKS (65536 / SHA256_BLOCK + 2)

/* The way through a payload. */
struct daf_hash {
	struct sha256_state state; /* in the end the MAC, as it stands in the option */
	struct __sk_buff *skb;
	__u32 at;   /* offset of what comes next */
	__u32 left; /* bytes from there on */
	__u32 bits; /* of all that is hashed, the block of the key as well */
	__u16 is_padded;
	__u16 is_done;
};

/* NULL: there is none in this generation. */
static __always_inline struct token_daf_key *
daf_key_of(const struct token_control *control)
{
	__u32 place = control->generation & 1;
	struct token_daf_key *key = bpf_map_lookup_elem(&token_daf_keys, &place);

	return key && key->is_there ? key : NULL;
}

static long daf_hash_block(__u32 number, struct daf_hash *hash)
{
	union sha256_block block;
	__u32 bytes = hash->left, i;

	if (hash->is_done)
		return 1;
	if (bytes >= SHA256_BLOCK) {
		bytes = SHA256_BLOCK;
		if (bpf_skb_load_bytes(hash->skb, hash->at, block.bytes, SHA256_BLOCK))
			return 1;
	} else {
		/* Less one, and in one register: as in find_option. */
		__u32 more = bytes - 1;

		__builtin_memset(&block, 0, sizeof(block));
		barrier_var(more);
		if (more < SHA256_BLOCK &&
		    bpf_skb_load_bytes(hash->skb, hash->at, block.bytes, more + 1))
			return 1;
		if (!hash->is_padded)
			block.bytes[bytes & (SHA256_BLOCK - 1)] = 0x80;
		hash->is_padded = 1;
	}
#pragma unroll
	for (i = 0; i < SHA256_BLOCK / 4; i++)
		block.words[i] = bpf_ntohl(block.words[i]);
	if (hash->is_padded && bytes < SHA256_LAST) {
		block.words[15] = hash->bits;
		hash->is_done = 1;
	}
	hash->at += bytes;
	hash->left -= bytes;
	sha256_block(&hash->state, &block);
	return 0;
}

/* The outer hash, over the inner one. */
static __noinline int daf_finish(struct daf_hash *hash, const struct token_daf_key *key)
{
	union sha256_block block = {};
	__u32 i;

#pragma unroll
	for (i = 0; i < 8; i++) {
		block.words[i] = hash->state.words[i];
		hash->state.words[i] = key->outer[i];
	}
	block.words[8] = 0x80000000;
	block.words[15] = (SHA256_BLOCK + 32) * 8;
	sha256_block(&hash->state, &block);
#pragma unroll
	for (i = 0; i < 8; i++)
		hash->state.words[i] = bpf_htonl(hash->state.words[i]);
	return 0;
}

/* 0: the MAC of `left` bytes from `at` on is in hash->state. */
static __always_inline int daf_mac(struct daf_hash *hash, const struct token_daf_key *key)
{
	__builtin_memcpy(&hash->state, key->inner, sizeof(hash->state));
	hash->bits = (SHA256_BLOCK + hash->left) * 8;
	bpf_loop(DAF_BLOCKS, daf_hash_block, hash, 0);
	if (!hash->is_done)
		return -1;
	daf_finish(hash, key);
	/* One that has been taken away meanwhile is zeros, which anybody knows. */
	barrier();
	return key->inner[0] | key->inner[1] | key->outer[0] | key->outer[1] ? 0 : -1;
}

/* Is the MAC at `at` that of the hash? In a frame of its own, which is gone when the
 * stack is at its deepest. */
static __noinline enum token_outcome compare_daf(struct __sk_buff *skb, __u32 at,
						 const struct daf_hash *hash)
{
	__u32 said[8], differs = 0, i;

	if (bpf_skb_load_bytes(skb, at, said, sizeof(said)))
		return TOKEN_MALFORMED;
		/* All of it, whatever differs: how long that takes says nothing. */
#pragma unroll
	for (i = 0; i < 8; i++)
		differs |= said[i] ^ hash->state.words[i];
	barrier_var(differs);
	return differs ? TOKEN_WRONG_MAC : TOKEN_VALID;
}

/* A segment of IPv4 whose signature is right is TOKEN_VALID. */
static __noinline enum token_outcome verify_daf(struct __sk_buff *skb,
						const struct token_packet *packet,
						const struct token_control *control)
{
	struct daf_hash hash = {.skb = skb};
	struct token_daf_key *key = daf_key_of(control);
	__u8 head[2];

	if (packet->protocol != IPPROTO_TCP)
		return TOKEN_MALFORMED;
	if (link_protocol(skb, packet) != bpf_htons(ETH_P_IP) || !packet->ip_options_len)
		return TOKEN_MISSING;
	if (bpf_skb_load_bytes(skb, packet->ip_options, head, sizeof(head)))
		return TOKEN_MALFORMED;
	if (head[0] != TOKEN_DAF_KIND)
		return TOKEN_MISSING;
	hash.at = packet->transport + packet->tcp.doff * 4;
	if (head[1] != TOKEN_DAF_BYTES || packet->ip_options_len < TOKEN_DAF_BYTES ||
	    packet->tcp.doff < 5 || hash.at > packet->end)
		return TOKEN_MALFORMED;
	if (!key)
		return TOKEN_UNKNOWN_KEY;
	hash.left = packet->end - hash.at;
	if (daf_mac(&hash, key))
		return TOKEN_MALFORMED;
	return compare_daf(skb, packet->ip_options + sizeof(head), &hash);
}

#endif
