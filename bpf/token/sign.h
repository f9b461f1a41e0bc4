/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The side that signs: a SYN gets a token of the program that begins the connection, if
 * the socket has one holder, and that one is known (bpf/identity). The kernel makes room
 * for it as for its own options, and it costs nothing once the connection stands.
 *
 * What is proved is to hold for the whole connection: where another program comes to hold
 * the socket, or this one maps other files, nothing is sent on it any more.
 *
 * Where the scope is the payload, the kernel makes room in each segment as well, so that
 * its MSS is right at every path MTU; sign_segment.h writes the token there. */
#ifndef WEIR_TOKEN_SIGN_H
#define WEIR_TOKEN_SIGN_H

#include "identity/holders.h"
#include "token/maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IDENT_IDENTITIES);
	__type(key, __u32);
	__type(value, struct token_signer);
} token_signers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct token_socket);
} token_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOKEN_SIGNINGS);
	__type(key, __u32);
	__type(value, __u64);
} token_signings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOKEN_SEGMENT_SIGNINGS);
	__type(key, __u32);
	__type(value, __u64);
} token_segment_signings SEC(".maps");

/* By the numbers of interfaces at which segments are signed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TOKEN_INTERFACES);
	__type(key, __u32);
	__type(value, struct token_interface);
} token_interfaces SEC(".maps");

static __always_inline void count_segment(enum token_segment_signing what)
{
	__u32 key = what;
	__u64 *number = bpf_map_lookup_elem(&token_segment_signings, &key);

	if (number)
		__sync_fetch_and_add(number, 1);
}

static __always_inline void count_signing(enum token_signing what)
{
	__u32 key = what;
	__u64 *number = bpf_map_lookup_elem(&token_signings, &key);

	if (number)
		__sync_fetch_and_add(number, 1);
}

/* The one holder of a socket; 0: it has several, or one that is not known. Of who was not
 * known when he sent last this asks again: in a SYN that is sent anew there has to be
 * room before [app] judges it, which is when the socket gets to know. */
static __always_inline __u32 only_holder(const struct ident_socket *socket)
{
	const struct ident_holder *first = &socket->holders[0];
	struct ident_known *known;
	int i;

	if (socket->flags & IDENT_S_LOST)
		return 0;
	for (i = 1; i < IDENT_HOLDERS; i++)
		if (socket->holders[i].handle)
			return 0;
	if (!(socket->flags & IDENT_S_PENDING))
		return first->handle;
	/* He may have been another program before. */
	if (first->handle && first->space != socket->pending_space)
		return 0;
	known = bpf_map_lookup_elem(&ident_sets, &socket->pending);
	return known ? known->handle : 0;
}

/* Who signs for a socket with these holders; NULL: nobody. */
static __always_inline struct token_signer *signer_of(const struct ident_socket *socket)
{
	__u32 handle = only_holder(socket), number = handle & 0xffff;
	struct token_signer *signer;

	if (!handle)
		return NULL;
	signer = bpf_map_lookup_elem(&token_signers, &number);
	return signer && signer->handle == handle ? signer : NULL;
}

/* Does he sign still, with the key that was read of it? Before another key is written
 * his handle goes, and it is there again behind the whole of that. */
static __always_inline int still_signs(const struct token_signer *signer,
				       const struct ident_socket *socket)
{
#ifdef __TARGET_ARCH_x86
	barrier();
#else
	/* Other processors exchange loads, but not across this. */
	__u64 order = 0;

	__sync_fetch_and_add(&order, signer->handle);
#endif
	return *(const volatile __u32 *)&signer->handle == only_holder(socket);
}

static __always_inline void read_addresses(struct bpf_sock_ops *ctx, __u8 local[16],
					   __u8 remote[16])
{
	__u32 *words;

	if (ctx->family == AF_INET) {
		map_v4(local, ctx->local_ip4);
		map_v4(remote, ctx->remote_ip4);
		/* Else clang 19 makes one load of both families', at a computed place. */
		asm volatile("" ::: "memory");
		return;
	}
	words = (__u32 *)local;
	words[0] = ctx->local_ip6[0];
	words[1] = ctx->local_ip6[1];
	words[2] = ctx->local_ip6[2];
	words[3] = ctx->local_ip6[3];
	words = (__u32 *)remote;
	words[0] = ctx->remote_ip6[0];
	words[1] = ctx->remote_ip6[1];
	words[2] = ctx->remote_ip6[2];
	words[3] = ctx->remote_ip6[3];
}

/* A connection begins: do tokens go there? */
static __always_inline void begin_connection(struct bpf_sock_ops *ctx)
{
	struct token_control *control = control_get();
	struct token_network network = {.bits = 32 + 128};
	struct bpf_sock *sk = ctx->sk;
	struct token_socket *socket;
	__u8 local[16] = {};
	__u32 *to, conduit;

	if (!control || !sk)
		return;
	network.networks = control->generation << 8 | TOKEN_SIGN_TO;
	read_addresses(ctx, local, network.addr);
	to = bpf_map_lookup_elem(&token_networks, &network);
	conduit = conduit_of(to);
	if (!to || conduit == TOKEN_BY_NOTHING) {
		/* A connection before of the same socket may have gone where they do. */
		bpf_sk_storage_delete(&token_sockets, sk);
		return;
	}
	socket = bpf_sk_storage_get(&token_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!socket) {
		count_signing(TOKEN_NO_SIGNER);
		return;
	}
	socket->is_signed = 0;
	socket->conduit = conduit;
	socket->is_payload = *to >> TOKEN_SCOPE_SHIFT == TOKEN_SCOPE_PAYLOAD;
	/* Its interfaces are none of those at which segments are signed: without a token
	 * in its SYN nobody takes it for a connection that has them. */
	if (socket->is_payload && bpf_get_netns_cookie(ctx) != control->netns) {
		bpf_sk_storage_delete(&token_sockets, sk);
		count_segment(TOKEN_SEGMENT_NO_PLACE);
		return;
	}
	if (conduit == TOKEN_BY_IP_OPTION) /* sign_datagram.h */
		return;
	socket->had_callbacks =
		(ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG) != 0;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags |
					       BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/* It stands: later segments carry nothing, unless the scope is the payload. */
static __always_inline void end_handshake(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct token_socket *socket;

	if (!sk)
		return;
	socket = bpf_sk_storage_get(&token_sockets, sk, 0, 0);
	if (socket && socket->conduit != TOKEN_BY_IP_OPTION && !socket->had_callbacks &&
	    !(socket->is_payload && socket->is_signed))
		bpf_sock_ops_cb_flags_set(ctx,
					  ctx->bpf_sock_ops_cb_flags &
						  ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/* Room in a segment behind the SYN, and in the kernel's reckoning of the MSS. What
 * acknowledges parts (SACK) may have filled the header up to four bytes: there blocks of
 * it give way (sign_segment.h), and what is left is taken. */
static __always_inline void make_segment_room(struct bpf_sock_ops *ctx)
{
	int bytes;

#pragma unroll
	for (bytes = TOKEN_SEGMENT_BYTES; bytes > 0; bytes -= 4)
		if (!bpf_reserve_hdr_opt(ctx, bytes, 0))
			return;
}

/* Room in a SYN, also in one that is sent again: who it is may be known by then. */
static __always_inline void make_room(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct token_socket *signing;
	struct ident_socket *socket;

	if (!sk)
		return;
	signing = bpf_sk_storage_get(&token_sockets, sk, 0, 0);
	if (!signing || signing->conduit == TOKEN_BY_IP_OPTION)
		return;
	if ((ctx->skb_tcp_flags & SYN_AND_ACK) != SYN) {
		if (signing->is_payload && signing->is_signed)
			make_segment_room(ctx);
		return;
	}
	socket = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!socket || !signer_of(socket)) {
		count_signing(TOKEN_NO_SIGNER);
		return;
	}
	if (bpf_reserve_hdr_opt(ctx, TOKEN_BYTES, 0))
		count_signing(TOKEN_NO_ROOM);
}

/* The SYN has its token: the connection is of this program from now on. */
static __always_inline void note_signed(struct token_socket *socket,
					const struct ident_socket *holders,
					const struct token_signer *signer, __be32 isn)
{
	copy_identity(socket->identity, signer->identity);
	socket->changes = holders->changes;
	socket->isn = isn;
	socket->is_signed = 1;
	count_signing(TOKEN_SIGNED);
}

static __always_inline void write_token(struct bpf_sock_ops *ctx)
{
	struct tcphdr *tcp = ctx->skb_data;
	void *end = ctx->skb_data_end;
	struct bpf_sock *sk = ctx->sk;
	struct token_option option = {};
	struct ident_socket *holders;
	struct token_signer *signer;
	struct token_socket *socket;
	union token_input input = {};
	__u64 epoch, mac;

	if (!sk || (ctx->skb_tcp_flags & SYN_AND_ACK) != SYN || (void *)(tcp + 1) > end)
		return;
	input.statement.isn = tcp->seq;
	input.statement.source_port = tcp->source;
	input.statement.dest_port = tcp->dest;
	socket = bpf_sk_storage_get(&token_sockets, sk, 0, 0);
	if (!socket || socket->conduit == TOKEN_BY_IP_OPTION)
		return;
	holders = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!holders)
		return;
	signer = signer_of(holders);
	if (!signer)
		return;
	epoch = epoch_now();
	input.statement.version = TOKEN_VERSION;
	input.statement.key = signer->key_id;
	input.statement.protocol = IPPROTO_TCP;
	input.statement.epoch = bpf_cpu_to_be64(epoch);
	read_addresses(ctx, input.statement.source, input.statement.dest);
	mac = mac_of(&signer->key, &input);
	option.kind = TOKEN_KIND;
	option.len = TOKEN_BYTES;
	option.exid = bpf_htons(TOKEN_EXID);
	option.version = TOKEN_VERSION;
	option.key = signer->key_id;
	option.epoch = bpf_htons(epoch);
	__builtin_memcpy(option.tag, signer->identity, sizeof(option.tag));
	__builtin_memcpy(option.mac, &mac, sizeof(option.mac));
	if (!still_signs(signer, holders))
		return;
	if (bpf_store_hdr_opt(ctx, &option, sizeof(option), 0)) {
		count_signing(TOKEN_NO_ROOM);
		return;
	}
	note_signed(socket, holders, signer, input.statement.isn);
}

SEC("sockops")
int weir_token_sign(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		begin_connection(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		end_handshake(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		make_room(ctx);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_token(ctx);
		break;
	}
	return 1;
}

/* A packet of a connection whose segments have tokens: will it get one where it leaves?
 */
static __always_inline int can_be_signed(struct __sk_buff *skb)
{
	struct token_control *control = control_get();
	__u32 interface = skb->ifindex;

	/* Another scope is configured since: it goes on without. */
	if (!control || !control->netns)
		return 1;
	if (!bpf_map_lookup_elem(&token_interfaces, &interface)) {
		count_segment(TOKEN_SEGMENT_NO_PLACE);
		return 0;
	}
	if (skb->gso_segs > 1) {
		count_segment(TOKEN_SEGMENT_SUPER);
		return 0;
	}
	return 1;
}

/* What leaves on a connection with a token is of the program that signed, as it was. */
SEC("cgroup_skb/egress")
int weir_token_keep(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct ident_socket *holders;
	struct token_signer *signer;
	struct token_socket *socket;

	if (!sk)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 1;
	socket = bpf_sk_storage_get(&token_sockets, sk, 0, 0);
	if (!socket || !socket->is_signed)
		return 1;
	if (socket->is_payload && !can_be_signed(skb))
		return 0;
	holders = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (holders) {
		if (holders->changes == socket->changes &&
		    !(holders->flags & (IDENT_S_PENDING | IDENT_S_LOST)))
			return 1;
		signer = signer_of(holders);
		if (signer && is_same(signer->identity, socket->identity)) {
			socket->changes = holders->changes;
			return 1;
		}
	}
	count_signing(TOKEN_CHANGED);
	return 0;
}

#endif
