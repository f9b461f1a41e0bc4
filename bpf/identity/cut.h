/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Connections that the rules allow no longer are ended: the program gets ECONNABORTED at
 * once, the peer a reset, where both would wait for their time-outs. The kernel goes
 * through all sockets of a network namespace, with each of them locked. Datagrams:
 * sockets that are connected, by the flow to their peer. */
#ifndef WEIR_IDENTITY_CUT_H
#define WEIR_IDENTITY_CUT_H

#include "identity/flow.h"

#define AF_INET	 2
#define AF_INET6 10
/* States of connections that have been established, and of those that are being made: the
 * latter fail at once where the verdict is "reject", as connect does. */
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT	2
#define TCP_FIN_WAIT1	4
#define TCP_FIN_WAIT2	5
#define TCP_CLOSE_WAIT	8
#define TCP_LAST_ACK	9
#define TCP_CLOSING	11
#define CUT_STATES                                                                       \
	(1 << TCP_ESTABLISHED | 1 << TCP_SYN_SENT | 1 << TCP_FIN_WAIT1 |                 \
	 1 << TCP_FIN_WAIT2 | 1 << TCP_CLOSE_WAIT | 1 << TCP_LAST_ACK |                  \
	 1 << TCP_CLOSING)

static __always_inline void peer_of(struct sock_common *sk, struct ident_case *about)
{
	if (sk->skc_family == AF_INET)
		map_v4(about->peer, sk->skc_daddr);
	else
		bpf_probe_read_kernel(about->peer, sizeof(about->peer),
				      &sk->skc_v6_daddr);
	about->port = bpf_ntohs(sk->skc_dport);
	about->has_port = 1;
}

/* Has user space end it, by what sock_diag(7) knows a socket by. It is counted when that
 * is done (weir_app_ended). */
static __noinline int tell_ended(struct sock_common *sk, struct seq_file *out,
				 __u8 protocol, __u32 found, enum ident_count what)
{
	struct ident_ended ended = {
		.cookie = bpf_get_socket_cookie(sk),
		.own_port = bpf_htons(sk->skc_num),
		.peer_port = sk->skc_dport,
		.interface = sk->skc_bound_dev_if,
		.found = found,
		.family = sk->skc_family,
		.protocol = protocol,
		.what = what,
	};

	if (sk->skc_family == AF_INET) {
		ended.own[0] = sk->skc_rcv_saddr;
		ended.peer[0] = sk->skc_daddr;
	} else {
		bpf_probe_read_kernel(ended.own, sizeof(ended.own),
				      &sk->skc_v6_rcv_saddr);
		bpf_probe_read_kernel(ended.peer, sizeof(ended.peer), &sk->skc_v6_daddr);
	}
	return bpf_seq_write(out, &ended, sizeof(ended));
}

/* `out`: of the iterator that has come to the socket. */
static __always_inline void end_connection(struct sock_common *sk, struct seq_file *out,
					   __u8 protocol,
					   const struct ident_control *control,
					   __u32 found, enum ident_count what)
{
	if (ident_cfg.diag)
		tell_ended(sk, out, protocol, found, what);
	else if (!bpf_sock_destroy(sk))
		deny(control, found, what);
}

static __always_inline int cut_tcp(struct sock_common *sk, struct seq_file *out)
{
	struct ident_control *control = control_get();
	struct ident_case about = {.protocol = IDENT_TCP};
	struct ident_socket *socket;
	__u32 found, before = 0;
	int is_judged, is_new;

	if (!control || !(CUT_STATES >> (sk->skc_state & 31) & 1) || is_observed(control))
		return 0;
	socket = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!socket)
		return 0;
	is_new = sk->skc_state == TCP_SYN_SENT;
	peer_of(sk, &about);
	about.direction = socket->direction;
	if (about.direction == IDENT_IN)
		about.port = sk->skc_num;
	if (socket->epoch == control->epoch)
		before = socket->verdict | socket->rule << 8;
	if (!resolve(socket, control))
		before = 0;
	/* By a packet of it, since the rules are others. */
	is_judged = socket->epoch == control->epoch;
	if (is_judged) {
		found = socket->verdict | socket->rule << 8;
	} else {
		/* Before the rules are asked: what older ones say is asked again. */
		socket->epoch = *(volatile __u32 *)&control->epoch;
		found = decide_as(socket, &about, control, before,
				  is_new ? IDENT_EV_DENIED : IDENT_EV_CUT);
		socket->verdict = found & 0xff;
		socket->rule = found >> 8;
	}
	if (!is_denied(found & 0xff)) {
		socket->is_cut = IDENT_CUT_NOT;
		return 0;
	}
	if (is_new) {
		if ((found & 0xff) == IDENT_REJECT)
			end_connection(sk, out, IPPROTO_TCP, control, found,
				       IDENT_C_REFUSED);
		return 0;
	}
	/* Once: user space may not have ended it when it was told. */
	if (is_judged && !socket->is_cut)
		tell(socket, IDENT_EV_CUT, &about, found, NULL);
	socket->is_cut = ident_cfg.diag ? IDENT_CUT_SOON : IDENT_CUT_NOW;
	end_connection(sk, out, IPPROTO_TCP, control, found, IDENT_C_CUT);
	if (!ident_cfg.diag)
		socket->is_cut = IDENT_CUT_NOT;
	return 0;
}

/* A flow that is refused: 1 if it was told already, by these rules, that its socket is
 * ended, which user space may not have done then. A function of its own: the stack of
 * who calls it is full. */
static __noinline int note_told(struct ident_flow_key *key, __u32 epoch)
{
	struct ident_flow *flow = refused_flow(key, IDENT_OUT);

	if (!flow || flow->told == epoch)
		return flow != NULL;
	flow->told = epoch;
	return 0;
}

static __always_inline int cut_udp(struct sock *sk, struct seq_file *out)
{
	struct ident_control *control = control_get();
	struct sock_common *common = &sk->__sk_common;
	struct ident_case about = {.protocol = IDENT_UDP};
	struct ident_flow_key key = {};
	struct ident_socket *socket;
	struct ident_flow *flow;
	__u32 found, changes, is_judged = 1;

	if (!control || common->skc_state != TCP_ESTABLISHED || is_observed(control))
		return 0;
	socket = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!socket)
		return 0;
	peer_of(common, &about);
	about.direction = IDENT_OUT;
	key.cookie = bpf_get_socket_cookie(sk);
	key.port = about.port | (__u32)common->skc_num << 16;
	__builtin_memcpy(key.peer, about.peer, sizeof(key.peer));
	flow = flow_of(socket, &key, IDENT_OUT, 0);
	if (!flow) {
		/* A peer has begun, and was refused: may its program send? */
		flow = refused_flow(&key, IDENT_IN);
		is_judged = 0;
	}
	/* Nothing was ever sent or received on it. */
	if (!flow)
		return 0;
	changes = socket->changes;
	is_judged &= flow->epoch == control->epoch && flow->changes == changes;
	found = judge_flow(socket, control, &about, &key, IDENT_EV_CUT);
	/* Told already, if it was judged anew because a holder became known. */
	is_judged &= changes == socket->changes;
	if (!is_denied(found & 0xff))
		return 0;
	if (!note_told(&key, control->epoch) && is_judged)
		tell(socket, IDENT_EV_CUT, &about, found, NULL);
	end_connection(common, out, sk->sk_protocol, control, found, IDENT_C_CUT);
	return 0;
}

#endif
