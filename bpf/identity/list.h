/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The sockets that there are, for whoever asks about one: by the descriptors that
 * processes have, in every network namespace at once, and by the kernel's tables of one
 * namespace, where those stand that no process has a descriptor of. Nothing is decided
 * here, and nothing changed. */
#ifndef WEIR_IDENTITY_LIST_H
#define WEIR_IDENTITY_LIST_H

#include "identity/cut.h"

#define SOCK_DGRAM 2

/* A socket with its record behind it, if it has one. */
static __noinline int write_listed(struct seq_file *out, struct sock_common *sk,
				   struct ident_listed *listed,
				   struct ident_socket *record)
{
	listed->cookie = bpf_get_socket_cookie(sk);
	listed->netns = BPF_CORE_READ(sk, skc_net.net, ns.inum);
	listed->family = sk->skc_family;
	listed->state = sk->skc_state;
	listed->own_port = sk->skc_num;
	listed->peer_port = bpf_ntohs(sk->skc_dport);
	listed->interface = sk->skc_bound_dev_if;
	if (sk->skc_family == AF_INET) {
		listed->own[0] = sk->skc_rcv_saddr;
		listed->peer[0] = sk->skc_daddr;
	} else {
		bpf_probe_read_kernel(listed->own, sizeof(listed->own),
				      &sk->skc_v6_rcv_saddr);
		bpf_probe_read_kernel(listed->peer, sizeof(listed->peer),
				      &sk->skc_v6_daddr);
	}
	listed->has_record = record != NULL;
	if (bpf_seq_write(out, listed, sizeof(*listed)) || !record)
		return 0;
	bpf_seq_write(out, record, sizeof(*record));
	return 0;
}

static __always_inline __u64 inode_of(struct sock *sk)
{
	return BPF_CORE_READ(sk, sk_socket, file, f_inode, i_ino);
}

#endif
