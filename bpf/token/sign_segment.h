/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Segments on the side that signs, where the scope is the payload: each one behind the
 * SYN gets its token where it leaves an interface, as the last TCP option. The kernel has
 * left room for it in the header (sign.h), so nothing grows here. Its checksum is
 * computed behind this, by the device or for it.
 *
 * A segment that cannot get one is dropped and counted, and TCP sends it again: nothing
 * of such a connection leaves without. A superpacket (GSO) has one header for many
 * segments; so interfaces at which segments are signed have none made (token_interfaces).
 */
#ifndef WEIR_TOKEN_SIGN_SEGMENT_H
#define WEIR_TOKEN_SIGN_SEGMENT_H

#include "token/segment.h"
#include "token/sign_datagram.h"

#define TCP_NOP	   1
#define TCP_SACK   5
#define TCP_HEADER 20
/* Kind and length; a block of two sequence numbers. */
#define SACK_HEAD  2
#define SACK_BLOCK 8

/* The options of a segment, in which room is made. */
struct leaving_options {
	union {
		__u8 bytes[64]; /* a power of two: offsets are masked for the verifier */
		__u32 words[16];
	};
	__u32 at;
	__u32 limit; /* where the token begins */
	__u32 has_room;
};

/* Options stay up to the limit; of one that acknowledges parts (SACK) as many blocks as
 * have room, of which the first one says most (RFC 2018, 4). */
static long keep_option(__u32 number, struct leaving_options *options)
{
	__u32 at = options->at, len, kept;
	__u8 kind;

	if (at >= options->limit) {
		options->has_room = at == options->limit;
		return 1;
	}
	kind = options->bytes[at & 63];
	if (kind == TCP_NOP) {
		options->at = at + 1;
		return 0;
	}
	len = options->bytes[(at + 1) & 63];
	if (!kind || len < 2)
		return 1;
	if (at + len > options->limit) {
		kept = (options->limit - at - SACK_HEAD) / SACK_BLOCK * SACK_BLOCK;
		if (kind != TCP_SACK || options->limit < at + SACK_HEAD + SACK_BLOCK)
			return 1;
		len = SACK_HEAD + kept;
		options->bytes[(at + 1) & 63] = len;
		/* Fewer bytes than a block are left. */
		for (kept = 0; kept < SACK_BLOCK; kept++)
			if (at + len + kept < options->limit)
				options->bytes[(at + len + kept) & 63] = TCP_NOP;
		options->has_room = 1;
		return 1;
	}
	options->at = at + len;
	return 0;
}

/* Writes the token without its MAC. */
static __noinline enum token_segment_signing
write_option(struct __sk_buff *skb, struct token_packet *packet,
	     const struct token_segment *token)
{
	struct leaving_options options = {};
	__u32 begin = packet->transport + TCP_HEADER, more, place, i;
	const __u32 *words = (const __u32 *)token;

	if (packet->tcp.doff * 4 < TCP_HEADER + TOKEN_SEGMENT_BYTES)
		return TOKEN_SEGMENT_NO_ROOM;
	options.limit = packet->tcp.doff * 4 - TCP_HEADER - TOKEN_SEGMENT_BYTES;
	/* Less one, and in one register: as in find_option. */
	more = options.limit + TOKEN_SEGMENT_BYTES - 1;
	barrier_var(more);
	if (more >= OPTIONS_MOST ||
	    bpf_skb_load_bytes(skb, begin, options.bytes, more + 1))
		return TOKEN_SEGMENT_BROKEN;
	bpf_loop(OPTIONS_MOST, keep_option, &options, 0);
	if (!options.has_room)
		return TOKEN_SEGMENT_NO_ROOM;
	place = options.limit / 4;
#pragma unroll
	for (i = 0; i < TOKEN_SEGMENT_BYTES / 4; i++)
		options.words[(place + i) & 15] = words[i];
	more = options.limit + TOKEN_SEGMENT_BYTES - 1;
	barrier_var(more);
	if (more >= OPTIONS_MOST ||
	    bpf_skb_store_bytes(skb, begin, options.bytes, more + 1, 0))
		return TOKEN_SEGMENT_BROKEN;
	packet->token = begin + options.limit;
	return TOKEN_SEGMENT_SIGNED;
}

/* Has it been here before, at a device above this one? */
static __always_inline int is_signed_segment(struct __sk_buff *skb,
					     const struct token_packet *packet)
{
	__u32 end = packet->transport + packet->tcp.doff * 4;
	__u8 head[5];

	return packet->tcp.doff * 4 >= TCP_HEADER + TOKEN_SEGMENT_BYTES &&
	       !bpf_skb_load_bytes(skb, end - TOKEN_SEGMENT_BYTES, head, sizeof(head)) &&
	       head[0] == TOKEN_KIND && head[1] == TOKEN_SEGMENT_BYTES &&
	       head[2] == TOKEN_EXID >> 8 && head[3] == (TOKEN_EXID & 0xff) &&
	       head[4] == (TOKEN_VERSION | TOKEN_SEGMENT_BIT);
}

static __noinline enum token_segment_signing sign_read(struct __sk_buff *skb,
						       struct bpf_sock *sk,
						       const struct token_socket *socket,
						       struct token_packet *packet)
{
	struct token_segment token = {};
	struct ident_socket *holders;
	struct token_signer *signer;
	enum token_segment_signing what;
	__u64 epoch, mac = 0;

	holders = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!holders)
		return TOKEN_SEGMENT_NO_SIGNER;
	signer = signer_of(holders);
	if (!signer || !is_same(signer->identity, socket->identity))
		return TOKEN_SEGMENT_NO_SIGNER;
	if (skb->gso_size)
		return TOKEN_SEGMENT_SUPER;
	epoch = epoch_now();
	token.kind = TOKEN_KIND;
	token.len = TOKEN_SEGMENT_BYTES;
	token.exid = bpf_htons(TOKEN_EXID);
	token.version = TOKEN_VERSION | TOKEN_SEGMENT_BIT;
	token.key = signer->key_id;
	token.epoch = bpf_htons(epoch);
	packet->key = signer->key_id;
	packet->isn = socket->isn;
	what = write_option(skb, packet, &token);
	if (what != TOKEN_SEGMENT_SIGNED)
		return what;
	if (mac_of_segment(skb, &signer->key, packet, epoch, &mac))
		return TOKEN_SEGMENT_BROKEN;
	if (!still_signs(signer, holders))
		return TOKEN_SEGMENT_NO_SIGNER;
	if (bpf_skb_store_bytes(skb, packet->token + offsetof(struct token_segment, mac),
				&mac, sizeof(mac), 0))
		return TOKEN_SEGMENT_BROKEN;
	return TOKEN_SEGMENT_SIGNED;
}

static __always_inline int sign_segment(struct __sk_buff *skb, __u32 l2)
{
	struct token_packet packet = {};
	struct bpf_sock *sk = skb->sk;
	struct token_socket *socket;
	enum token_segment_signing what;

	if (!sk)
		return TC_ACT_UNSPEC;
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->protocol != IPPROTO_TCP || sk->type != SOCK_STREAM)
		return TC_ACT_UNSPEC;
	socket = bpf_sk_storage_get(&token_sockets, sk, 0, 0);
	if (!socket || !socket->is_signed || !socket->is_payload)
		return TC_ACT_UNSPEC;
	/* A tunnel's packet around one that was signed at the tunnel's device; a SYN,
	 * whose token is there. */
	if (read_packet(skb, l2, &packet) ||
	    bpf_ntohs(packet.flow.source_port) != sk->src_port || packet.tcp.syn ||
	    is_signed_segment(skb, &packet))
		return TC_ACT_UNSPEC;
	what = sign_read(skb, sk, socket, &packet);
	count_segment(what);
	return what == TOKEN_SEGMENT_SIGNED ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* At a device whose frames have an Ethernet header. */
SEC("tcx/egress")
int weir_sign_tcp(struct __sk_buff *skb)
{
	return sign_segment(skb, ETHERNET);
}

/* At one whose frames begin with the IP header. */
SEC("tcx/egress")
int weir_sign_tcp_ip(struct __sk_buff *skb)
{
	return sign_segment(skb, 0);
}

#endif
