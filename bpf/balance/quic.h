/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* QUIC connections that move: a client that changes its address or port, by its own wish
 * or its router's, goes on with the connection ID that the server has chosen (RFC 9000
 * 9). Where that holds the ID of the server, as QUIC-LB writes it in plaintext
 * (draft-ietf-quic-load-balancers 3 and 5.1), its packets stay with their real:
 *
 *   first octet of the packet: 0, and seven bits that are not looked at (RFC 8999 5.2)
 *   first octet of the ID: 0 as the number of the configuration, three bits; the rest
 *     is the length of the ID or random
 *   server ID, of the pool's length; then what the server likes.
 *
 * Every port of UDP that the pool serves is taken for QUIC's. Packets with a long header
 * come before a connection can move, and the first ones have an ID that the client has
 * chosen: they go by their flow, as does whatever has an ID of another configuration (7:
 * not to be routed) or of nobody's. Both that an ID says the real and that it is
 * nobody's are counted. */
#ifndef WEIR_BALANCE_QUIC_H
#define WEIR_BALANCE_QUIC_H

#include <linux/udp.h>
#include "balance/pools.h"

#define QUIC_LONG_HEADER 0x80
#define QUIC_LB_CONFIG	 0xe0 /* in the first octet of a connection ID */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BALANCE_QUIC_SERVERS);
	__type(key, struct balance_quic_key);
	__type(value, struct balance_quic_server);
} balance_quic SEC(".maps");

/* The number of the real, + 1, whose connection a datagram is of; 0: nobody's. `l4`:
 * where its UDP header is; `of`: the number of the service, which counts it. */
static __always_inline __u32 balance_quic_real(void *ctx, const int tc, __u32 pool,
					       __u32 l4, __u32 of)
{
	const struct balance_rules *rules = balance_rules_of(pool);
	struct balance_quic_key key = {.pool = pool & 0xffff};
	struct balance_service_counter *served;
	struct balance_quic_server *server;
	struct balance_real *real;
	__u32 number, bytes, i;
	/* Each packet has as many bytes: without 16 behind its number that are sampled
	 * for header protection it is dropped (RFC 9001 5.4.2). Behind a shorter datagram
	 * the frame may have padding. */
	struct {
		struct udphdr udp;
		__u8 flags;
		__u8 config;
		__u8 server_id[BALANCE_QUIC_SERVER_ID_MAX];
	} head;

	bytes = rules ? rules->quic_server_id : 0;
	if (!bytes || balance_load(ctx, tc, l4 & 0xff, &head, sizeof(head)) ||
	    bpf_ntohs(head.udp.len) < sizeof(head) || head.flags & QUIC_LONG_HEADER ||
	    head.config & QUIC_LB_CONFIG)
		return 0;
#pragma unroll
	for (i = 0; i < BALANCE_QUIC_SERVER_ID_MAX; i++)
		key.server_id[i] = i < bytes ? head.server_id[i] : 0;
	served = bpf_map_lookup_elem(&balance_served, &of);
	if (!served)
		return 0;
	server = bpf_map_lookup_elem(&balance_quic, &key);
	number = server ? server->real : BALANCE_REALS;
	real = bpf_map_lookup_elem(&balance_reals, &number);
	/* One that drains keeps its connections. */
	if (!server || !real || !real->id || (real->id ^ server->id) & ~BALANCE_DRAINS) {
		served->quic_unknown++;
		return 0;
	}
	served->quic_placed++;
	return number + 1;
}

/* Global, so that the verifier checks each once. */
__noinline __u32 balance_quic_xdp(struct xdp_md *ctx, __u32 pool, __u32 l4, __u32 of)
{
	return balance_quic_real(ctx, 0, pool, l4, of);
}

__noinline __u32 balance_quic_tc(struct __sk_buff *ctx, __u32 pool, __u32 l4, __u32 of)
{
	return balance_quic_real(ctx, 1, pool, l4, of);
}

#endif
