// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Puts options on the TCP segments of this host's own connections, of one control group:
 * the kernel writes them into the header with its own, and reckons with them, so that the
 * MSS is right and superpackets (GSO) have them as well. For `weir options inject
 * --cgroup`, of no instance and without the firewall. User space has made the options.
 *
 * A connection is asked for when it begins; one that stood before has none. What answers
 * a SYN is written by the listening socket, if that has begun to listen since. */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "options/maps.h"

#define TCP_SYN	 0x02
#define AF_INET	 2
#define AF_INET6 10

const volatile struct {
	__u32 number;	   /* of options */
	__u32 bytes;	   /* of all of them */
	__u32 syn_only;	   /* 1: only SYN and SYN-ACK */
	__u32 local_port;  /* 0: any */
	__u32 remote_port; /* 0: any */
	struct inject_option options[INJECT_TCP_OPTIONS];
} inject = {};

/* Of a connection: whether the kernel had room in the segment that it is making. What
 * another program has got room for is not to be written over. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} inject_room SEC(".maps");

static __always_inline int is_chosen(struct bpf_sock_ops *ctx)
{
	struct inject_network to = {.bits = 128};
	__u32 *words;

	if (inject.local_port && inject.local_port != ctx->local_port)
		return 0;
	if (inject.remote_port && inject.remote_port != bpf_ntohl(ctx->remote_port))
		return 0;
	words = (__u32 *)to.addr;
	if (ctx->family == AF_INET) {
		words[2] = bpf_htonl(0xffff);
		words[3] = ctx->remote_ip4;
		/* Else clang makes one load of both families', at a computed place. */
		asm volatile("" ::: "memory");
	} else if (ctx->family == AF_INET6) {
		words[0] = ctx->remote_ip6[0];
		words[1] = ctx->remote_ip6[1];
		words[2] = ctx->remote_ip6[2];
		words[3] = ctx->remote_ip6[3];
	} else {
		return 0;
	}
	return is_named(&to);
}

/* Has the kernel ask for what it is to write in each segment. */
static __always_inline void begin(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk || !bpf_sk_storage_get(&inject_room, sk, 0, BPF_SK_STORAGE_GET_F_CREATE))
		return;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags |
					       BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/* Is this segment to have the options? What the kernel reckons the MSS with is one
 * behind the SYN. */
static __always_inline int is_meant(struct bpf_sock_ops *ctx)
{
	if (inject.syn_only && !(ctx->skb_tcp_flags & TCP_SYN))
		return 0;
	return is_chosen(ctx);
}

static __always_inline void make_room(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u32 *room = NULL;
	long rc;

	if (!is_meant(ctx))
		return;
	rc = bpf_reserve_hdr_opt(ctx, inject.bytes, 0);
	if (ctx->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS)
		return;
	/* What answers a SYN has no socket yet. */
	if (sk)
		room = bpf_sk_storage_get(&inject_room, sk, 0, 0);
	if (room)
		*room = !rc;
	if (rc)
		count(INJECT_NO_ROOM);
}

static __always_inline void write_options(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u32 *room, i;
	long rc;

	if (!is_meant(ctx))
		return;
	if (sk) {
		room = bpf_sk_storage_get(&inject_room, sk, 0, 0);
		if (!room || !*room)
			return;
	}
	for (i = 0; i < INJECT_TCP_OPTIONS; i++) {
		if (i >= inject.number)
			break;
		rc = bpf_store_hdr_opt(ctx, (void *)inject.options[i].bytes,
				       sizeof(inject.options[i].bytes), 0);
		if (!rc)
			continue;
		/* The kernel, or another program, wrote one of this kind. */
		count(rc == -EEXIST ? INJECT_OTHER : INJECT_REFUSED);
		return;
	}
	count(INJECT_CHANGED);
}

SEC("sockops")
int weir_inject_connections(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		/* Who will connect is not known. */
		if (!inject.local_port || inject.local_port == ctx->local_port)
			begin(ctx);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	/* Another program may have ended it with the handshake. */
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (is_chosen(ctx))
			begin(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		make_room(ctx);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_options(ctx);
		break;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
