/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* TCP segments as both sides read them, and the MAC of one whose token is about what it
 * carries. */
#ifndef WEIR_TOKEN_SEGMENT_H
#define WEIR_TOKEN_SEGMENT_H

#include "token/maps.h"

#define SOCK_STREAM 1
/* IPv6 headers before TCP's that are gone through. */
#define CHAIN 6
/* Bytes of the options of a TCP header. */
#define OPTIONS_MOST 40

/* What is read of a packet. */
struct token_packet {
	struct token_flow_key flow;
	__u32 transport; /* offset of the TCP header */
	__u32 token;	 /* offset of its token; 0: it has none */
	__u32 end;	 /* of the packet, whatever the frame has behind it */
	/* Of a segment: where the options of IPv4 are, or those of the IPv6 destination
	 * options header right before TCP's, and how many bytes of them. */
	__u16 ip_options, ip_options_len;
	struct tcphdr tcp;
	__be32 isn;	   /* the sequence number of the connection's SYN */
	__u8 identity[16]; /* whose token it has, if that is right */
	__u8 protocol;	   /* IPPROTO_TCP or IPPROTO_UDP */
	__u8 is_bad;	   /* of a datagram: its options contradict themselves */
	__u8 has_token;
	__u8 is_part; /* the first one of several (fragments), at a gateway */
	__u8 key;
	__u8 tag[4];
#ifdef TOKEN_GATEWAY
	__be16 link; /* the protocol that the frame carries */
#endif
};

/* The protocol that a frame carries: a gateway reads it behind tags of VLANs. */
#ifdef TOKEN_GATEWAY
#define link_protocol(skb, packet) ((packet)->link)
#else
#define link_protocol(skb, packet) ((skb)->protocol)
#endif

/* The bytes of a frame, and whether the kernel has put it together of several: it may be
 * larger then than an IP header can say. */
#ifdef TOKEN_XDP
#define frame_bytes(skb) ((__u32)bpf_xdp_get_buff_len(skb))
#define is_several(skb)	 0
#else
#define frame_bytes(skb) ((skb)->len)
#define is_several(skb)	 ((skb)->gso_size != 0)
#endif

/* Where a packet ends that begins at `begin`, by the length that its IP header says: the
 * receiver takes off what a frame has behind it. */
static __always_inline __u32 end_of(struct __sk_buff *skb, __u32 begin, __be16 said)
{
	__u32 all = frame_bytes(skb), end = begin + bpf_ntohs(said);

	if (!said && is_several(skb))
		return all;
	return end < all ? end : all;
}

/* Do so many bytes at an offset belong to the packet? */
static __always_inline int is_within(const struct token_packet *packet, __u32 at,
				     __u32 bytes)
{
	return at + bytes <= packet->end;
}

/* Headers that mostly follow each other: one call for both. */
struct token_headers4 {
	struct iphdr ip;
	struct tcphdr tcp;
};
struct token_headers6 {
	struct ipv6hdr ip;
	struct tcphdr tcp;
};

/* 0: it is a TCP segment, whose IP header is at `base`. No packet that is one is shorter
 * than both headers. */
static __always_inline int read_inline(struct __sk_buff *skb, __u32 base,
				       struct token_packet *packet)
{
	__u32 at, i;
	__u8 next;

	if (link_protocol(skb, packet) == bpf_htons(ETH_P_IP)) {
		struct token_headers4 headers;

		if (bpf_skb_load_bytes(skb, base, &headers, sizeof(headers)))
			return -1;
		map_v4(packet->flow.source, headers.ip.saddr);
		map_v4(packet->flow.dest, headers.ip.daddr);
		next = headers.ip.protocol;
		at = headers.ip.ihl * 4;
		packet->end = end_of(skb, base, headers.ip.tot_len);
		packet->tcp = headers.tcp;
		/* Sockets get whole packets; a gateway without reassembly may not. */
		if (headers.ip.version != 4 || at < sizeof(headers.ip) ||
		    headers.ip.frag_off & bpf_htons(0x3fff) || next != IPPROTO_TCP)
			return -1;
		if (at != sizeof(headers.ip) &&
		    bpf_skb_load_bytes(skb, base + at, &packet->tcp, sizeof(packet->tcp)))
			return -1;
		packet->ip_options = base + sizeof(headers.ip);
		packet->ip_options_len = at - sizeof(headers.ip);
	} else {
		struct token_headers6 headers;

		if (bpf_skb_load_bytes(skb, base, &headers, sizeof(headers)))
			return -1;
		if (headers.ip.version != 6)
			return -1;
		__builtin_memcpy(packet->flow.source, &headers.ip.saddr, 16);
		__builtin_memcpy(packet->flow.dest, &headers.ip.daddr, 16);
		next = headers.ip.nexthdr;
		at = sizeof(headers.ip);
		packet->end = end_of(skb, base + at, headers.ip.payload_len);
		packet->tcp = headers.tcp;
		for (i = 0; i < CHAIN; i++) {
			__u8 head[4];

			if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING &&
			    next != IPPROTO_DSTOPTS && next != IPPROTO_FRAGMENT)
				break;
			if (bpf_skb_load_bytes(skb, base + at, head, sizeof(head)))
				return -1;
			if (next == IPPROTO_FRAGMENT) {
				/* Only that of a whole packet (RFC 6946) is none. */
				if (head[2] || head[3] & 0xf9)
					return -1;
				head[1] = 0;
			}
			if (next == IPPROTO_DSTOPTS && head[0] == IPPROTO_TCP) {
				packet->ip_options = base + at + 2;
				packet->ip_options_len = head[1] * 8 + 6;
			}
			next = head[0];
			at += (head[1] + 1) * 8;
		}
		if (next != IPPROTO_TCP)
			return -1;
		if (at != sizeof(headers.ip) &&
		    bpf_skb_load_bytes(skb, base + at, &packet->tcp, sizeof(packet->tcp)))
			return -1;
	}
	if (!is_within(packet, base + at, sizeof(packet->tcp)))
		return -1;
	packet->protocol = IPPROTO_TCP;
	packet->transport = base + at;
	packet->flow.source_port = packet->tcp.source;
	packet->flow.dest_port = packet->tcp.dest;
	return 0;
}

/* The same where its time does not matter, but its room in the kernel's verifier. */
static __noinline int read_packet(struct __sk_buff *skb, __u32 base,
				  struct token_packet *packet)
{
	return read_inline(skb, base, packet);
}

/* So many bytes of a segment are read and hashed at once: what the stack has room for. */
#define SEGMENT_CHUNK 64
/* Of the longest one. */
#define SEGMENT_CHUNKS (65536 / SEGMENT_CHUNK)

/* The way through a segment. */
struct segment_hash {
	__u64 v[4];
	struct __sk_buff *skb;
	__u32 at;   /* offset of what comes next */
	__u32 left; /* bytes from there on */
	__u32 mac;  /* where the MAC is in the segment, in words of four bytes */
	__u32 is_unread;
};

union segment_chunk {
	__u64 words[SEGMENT_CHUNK / 8];
	__u32 halves[SEGMENT_CHUNK / 4];
	__u8 bytes[SEGMENT_CHUNK];
};

static long hash_chunk(__u32 number, struct segment_hash *hash)
{
	union segment_chunk chunk;
	__u64 v[4];
	__u32 bytes = hash->left, i;

	if (!bytes)
		return 1;
	if (bytes >= SEGMENT_CHUNK) {
		bytes = SEGMENT_CHUNK;
		if (bpf_skb_load_bytes(hash->skb, hash->at, chunk.bytes, SEGMENT_CHUNK))
			goto unread;
	} else {
		/* Less one, and in one register: as in find_option. */
		__u32 more = bytes - 1;

		__builtin_memset(&chunk, 0, sizeof(chunk));
		barrier_var(more);
		if (more >= SEGMENT_CHUNK ||
		    bpf_skb_load_bytes(hash->skb, hash->at, chunk.bytes, more + 1))
			goto unread;
	}
	if (!number) {
		/* The whole header is here. The checksum, which is not computed yet where
		 * it is signed; the MAC. */
		chunk.bytes[16] = chunk.bytes[17] = 0;
		chunk.halves[hash->mac & 15] = 0;
		chunk.halves[(hash->mac + 1) & 15] = 0;
	}
	__builtin_memcpy(v, hash->v, sizeof(v));
#pragma unroll
	for (i = 0; i < SEGMENT_CHUNK / 8; i++)
		if (i * 8 < bytes)
			sip_word(v, chunk.words[i]);
	__builtin_memcpy(hash->v, v, sizeof(v));
	hash->at += bytes;
	hash->left -= bytes;
	return 0;
unread:
	hash->is_unread = 1;
	return 1;
}

/* Hashes what comes before the segment itself: in a frame of its own, which is gone when
 * the stack is at its deepest. */
static __noinline int begin_hash(struct segment_hash *hash, const struct token_key *key,
				 const struct token_packet *packet, __u64 epoch)
{
	union token_input input = {};
	int i;

	input.statement.version = TOKEN_VERSION | TOKEN_SEGMENT_BIT;
	input.statement.key = packet->key;
	input.statement.protocol = IPPROTO_TCP;
	input.statement.isn = packet->isn;
	input.statement.epoch = bpf_cpu_to_be64(epoch);
	__builtin_memcpy(input.statement.source, packet->flow.source, 16);
	__builtin_memcpy(input.statement.dest, packet->flow.dest, 16);
	input.statement.source_port = packet->flow.source_port;
	input.statement.dest_port = packet->flow.dest_port;
	input.statement.bytes = bpf_htonl(hash->left);
	sip_begin(hash->v, key);
#pragma unroll
	for (i = 0; i < (int)STATEMENT_WORDS; i++)
		sip_word(hash->v, input.words[i]);
	return 0;
}

/* The MAC of a segment, which reaches to the end of the packet; the token is the last one
 * of its options. 0: it is in `mac`. */
static __noinline int mac_of_segment(struct __sk_buff *skb, const struct token_key *key,
				     const struct token_packet *packet, __u64 epoch,
				     __u64 *mac)
{
	struct segment_hash hash = {
		.skb = skb,
		.at = packet->transport,
		.left = packet->end - packet->transport,
		.mac = packet->tcp.doff - 2,
	};
	__u32 all = hash.left;

	begin_hash(&hash, key, packet, epoch);
	bpf_loop(SEGMENT_CHUNKS, hash_chunk, &hash, 0);
	if (hash.is_unread || hash.left)
		return -1;
	all = (all + 7) / 8 * 8 + sizeof(struct token_statement);
	*mac = sip_end(hash.v, all);
	return 0;
}

#endif
