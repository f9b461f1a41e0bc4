// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Traffic allowed by which program sends or receives it. Without a queue: what was
 * decided about a connection stands at its socket, and is decided again when another
 * program uses the socket, when the mappings of the one that does change, and when the
 * rules do.
 *
 *   sock_create           a socket gets its record; raw, MPTCP and SMC ones are looked at
 *   connect               who may not is told at once (EPERM)
 *   tcp_sendmsg_locked    who sends on a connection is looked at before the data leaves:
 *                         a tracepoint, or where there is none the function's beginning
 *   do_tcp_sendpages      the same of what sendfile sends, before Linux 6.5
 *   egress, ingress       the verdict is carried out; of datagrams who sends is looked at
 *   exit_mmap             an address space that ends is forgotten
 *   up_write and so on    at level push: mappings have changed (changes.h)
 *   iter/tcp, iter/udp    connections that the rules allow no longer are ended
 *   iter/task_file        sockets that were there before; those that somebody asks about
 *
 * A socket without a record is none of ours: the kernel's own, or one beyond the control
 * group in which this holds. */
#include "identity/list.h"

/* These give the skeleton what is in no map, or in one without types. */
struct ident_event ident_event_layout;
struct ident_question ident_question_layout;
struct ident_file ident_file_layout;
struct ident_ended ident_ended_layout;
struct ident_listed ident_listed_layout;
struct ident_socket ident_socket_layout;
struct ident_flow_key ident_flow_key_layout;
struct ident_flow ident_flow_layout;

#define MPTCP	    262
#define SMC	    256
#define UDP_LITE    136
#define SOCK_STREAM 1
#define SOCK_RAW    3
#define TCP_LISTEN  10
/* Where a segment has its flags, and one of them. */
#define TCP_FLAGS 13
#define TCP_RST	  4
/* IPv6 headers before the transport's that are gone through. */
#define CHAIN 6

static __always_inline __u8 protocol_of(__u32 type, __u32 protocol)
{
	if (type == SOCK_RAW)
		return IDENT_RAW;
	switch (protocol) {
	case IPPROTO_TCP:
		return IDENT_TCP;
	case IPPROTO_UDP:
	case UDP_LITE:
		return IDENT_UDP;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return IDENT_ICMP;
	default:
		return IDENT_OTHER;
	}
}

/* May its holders have a raw socket? */
static __noinline int judge_raw(struct ident_socket *socket,
				const struct ident_control *control, __u8 protocol)
{
	struct ident_case about = {.protocol = protocol, .direction = IDENT_OUT};
	__u32 found = decide(socket, &about, control, 0);

	if (is_pass(found & 0xff))
		return 1;
	count(IDENT_C_SOCKETS);
	return deny(control, found, IDENT_C_REFUSED);
}

/* What looks at who calls has a stack of its own beside that of who judges: the two
 * together are too large. */
SEC("cgroup/sock_create")
int weir_app_create(struct bpf_sock *ctx)
{
	struct ident_control *control = control_get();
	struct ident_socket *socket;
	__u8 protocol;

	if (!control || (ctx->family != AF_INET && ctx->family != AF_INET6))
		return 1;
	/* Their packets are those of sockets that nobody created. */
	if (ctx->protocol == MPTCP || ctx->protocol == SMC) {
		count(IDENT_C_SOCKETS);
		return deny(control, IDENT_DROP | IDENT_BY_KIND << 8, IDENT_C_REFUSED);
	}
	socket = bpf_sk_storage_get(&ident_sockets, ctx, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!socket) {
		/* Nobody would know whose it is. */
		count(IDENT_C_SOCKETS);
		return 0;
	}
	socket->netns =
		BPF_CORE_READ(bpf_get_current_task_btf(), nsproxy, net_ns, ns.inum);
	socket->direction = IDENT_IN;
	note_holder(socket, bpf_get_current_task_btf(), control);
	protocol = protocol_of(ctx->type, ctx->protocol);
	if (protocol < IDENT_RAW)
		return 1;
	socket->raw = 1;
	return judge_raw(socket, control, protocol);
}

/* For an address that is none, such as 0.0.0.0, the one that the kernel will take: the
 * socket's own if it has one, or else loopback (RFC 1122 3.2.1.3 allows it nowhere). */
static __always_inline void name_unspecified(struct bpf_sock_addr *ctx, __u8 peer[16],
					     const int v6)
{
	__u32 *words = (__u32 *)peer;
	__u32 v4 = !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);

	if (v4) {
		words[3] = ctx->sk->src_ip4 ? ctx->sk->src_ip4 : bpf_htonl(0x7f000001);
		return;
	}
	if (!v6)
		return;
	words[0] = ctx->sk->src_ip6[0];
	words[1] = ctx->sk->src_ip6[1];
	words[2] = ctx->sk->src_ip6[2];
	words[3] = ctx->sk->src_ip6[3];
	if (!(words[0] | words[1] | words[2] | words[3]))
		words[3] = bpf_htonl(1);
}

/* 1: its holders may connect there. */
static __noinline int judge_address(struct bpf_sock_addr *ctx,
				    struct ident_socket *socket,
				    const struct ident_control *control, const int v6)
{
	struct ident_case about = {.protocol = IDENT_TCP, .direction = IDENT_OUT};
	__u32 found;
	int is_nobody;

	resolve(socket, control);
	if (v6) {
		__u32 *words = (__u32 *)about.peer;

		words[0] = ctx->user_ip6[0];
		words[1] = ctx->user_ip6[1];
		words[2] = ctx->user_ip6[2];
		words[3] = ctx->user_ip6[3];
		is_nobody = !words[0] && !words[1] && !words[3] &&
			    (!words[2] || words[2] == bpf_htonl(0xffff));
	} else {
		map_v4(about.peer, ctx->user_ip4);
		is_nobody = !ctx->user_ip4;
	}
	if (is_nobody)
		name_unspecified(ctx, about.peer, v6);
	about.port = bpf_ntohs(ctx->user_port);
	about.has_port = 1;
	/* Before the rules are asked: what older ones say is asked of the newer. To which
	 * address it is, if to none, the kernel says in the first segment. */
	socket->epoch = is_nobody ? 0 : *(volatile __u32 *)&control->epoch;
	found = decide(socket, &about, control, 0);
	socket->direction = IDENT_OUT;
	socket->verdict = found & 0xff;
	socket->rule = found >> 8;
	if (is_pass(found & 0xff) || (found & 0xff) == IDENT_PENDING)
		return 1;
	return deny(control, found, IDENT_C_REFUSED);
}

/* 1: may connect there. Datagrams are judged one by one, for the peer may have sent
 * first. */
static __always_inline int to_address(struct bpf_sock_addr *ctx, const int v6)
{
	struct ident_control *control = control_get();
	struct ident_socket *socket;

	if (!control || !ctx->sk)
		return 1;
	socket = bpf_sk_storage_get(&ident_sockets, ctx->sk, 0, 0);
	if (!socket || protocol_of(ctx->type, ctx->protocol) != IDENT_TCP)
		return 1;
	note_holder(socket, bpf_get_current_task_btf(), control);
	return judge_address(ctx, socket, control, v6);
}

SEC("cgroup/connect4")
int weir_app_connect4(struct bpf_sock_addr *ctx)
{
	return to_address(ctx, 0);
}

SEC("cgroup/connect6")
int weir_app_connect6(struct bpf_sock_addr *ctx)
{
	return to_address(ctx, 1);
}

/* Before the data leaves: who changes, or has been given the socket, is a holder of it
 * from here on, and the packet meets a verdict that counts him. */
static __always_inline int note_sender(struct sock *sk)
{
	struct ident_control *control = control_get();
	struct ident_socket *socket;

	if (!control)
		return 0;
	socket = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (socket)
		note_holder(socket, bpf_get_current_task_btf(), control);
	return 0;
}

/* For each segment that a send fills (Linux 6.16). */
SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(weir_app_send, struct sock *sk)
{
	return note_sender(sk);
}

/* Where there is no such tracepoint: once for each send, and again when it has waited for
 * room or for the connection: meanwhile other threads may have changed the mappings. */
SEC("fentry/tcp_sendmsg_locked")
int BPF_PROG(weir_app_entry, struct sock *sk)
{
	return note_sender(sk);
}

/* Before Linux 6.5 pages do not come by there: sendfile, splice, and what the kernel has
 * encrypted itself (kTLS). */
SEC("fentry/do_tcp_sendpages")
int BPF_PROG(weir_app_pages, struct sock *sk)
{
	return note_sender(sk);
}

SEC("fexit/sk_stream_wait_memory")
int BPF_PROG(weir_app_room, struct sock *sk)
{
	return note_sender(sk);
}

SEC("fexit/sk_stream_wait_connect")
int BPF_PROG(weir_app_open, struct sock *sk)
{
	return note_sender(sk);
}

/* Its address and port; has_port is 0 where none is found. */
static __noinline int read_peer(struct __sk_buff *skb, struct ident_case *about, int out,
				__u16 *own)
{
	__be16 ports[2];
	__u32 at, i;
	__u8 next;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
			return -1;
		map_v4(about->peer, out ? ip.daddr : ip.saddr);
		next = ip.protocol;
		at = ip.ihl * 4;
		if (ip.frag_off & bpf_htons(0x1fff))
			return 0;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
			return -1;
		__builtin_memcpy(about->peer, out ? &ip.daddr : &ip.saddr, 16);
		next = ip.nexthdr;
		at = sizeof(ip);
		for (i = 0; i < CHAIN; i++) {
			__u8 head[2];

			if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING &&
			    next != IPPROTO_DSTOPTS)
				break;
			if (bpf_skb_load_bytes(skb, at, head, sizeof(head)))
				return 0;
			next = head[0];
			at += (head[1] + 1) * 8;
		}
	}
	if (next != IPPROTO_TCP && next != IPPROTO_UDP && next != UDP_LITE)
		return 0;
	if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return 0;
	*own = bpf_ntohs(out ? ports[0] : ports[1]);
	about->port = bpf_ntohs(out ? ports[1] : ports[0]);
	about->has_port = 1;
	return 0;
}

/* A segment of a connection, or one that begins it. */
static __noinline int judge_tcp(struct __sk_buff *skb, struct ident_socket *socket,
				const struct ident_control *control, int out, int listens)
{
	struct ident_case about = {.protocol = IDENT_TCP};
	__u32 found, before = 0, epoch = *(volatile __u32 *)&control->epoch;
	__u16 own = 0;

	/* Of who asks to connect it was decided when it came in. */
	if (listens && out)
		return 1;
	/* What was decided about an unknown one holds until it is known who that is. */
	if (socket->epoch == epoch)
		before = socket->verdict | socket->rule << 8;
	if (!resolve(socket, control))
		before = 0;
	if (!listens && socket->epoch == epoch) {
		if (is_pass(socket->verdict))
			return 1;
		found = socket->verdict | socket->rule << 8;
		return deny(control, found, out ? IDENT_C_OUT : IDENT_C_IN);
	}
	if (read_peer(skb, &about, out, &own))
		return deny(control, IDENT_DROP | IDENT_BY_DEFAULT << 8, IDENT_C_OUT);
	about.direction = listens ? IDENT_IN : socket->direction;
	if (about.direction == IDENT_IN)
		about.port = own;
	found = decide(socket, &about, control, before);
	if (!listens) {
		socket->verdict = found & 0xff;
		socket->rule = found >> 8;
		socket->epoch = epoch;
	}
	if (is_pass(found & 0xff))
		return 1;
	return deny(control, found, out ? IDENT_C_OUT : IDENT_C_IN);
}

/* A packet of a socket without connections. */
static __noinline int judge_datagram(struct __sk_buff *skb, struct ident_socket *socket,
				     const struct ident_control *control, int out,
				     __u8 protocol)
{
	struct ident_case about = {.protocol = protocol};
	struct ident_flow_key key = {};
	__u32 found;
	__u16 own = 0;

	if (read_peer(skb, &about, out, &own))
		return deny(control, IDENT_DROP | IDENT_BY_DEFAULT << 8, IDENT_C_OUT);
	about.direction = out ? IDENT_OUT : IDENT_IN;
	key.cookie = bpf_get_socket_cookie(skb);
	key.port = about.port | (__u32)own << 16;
	found = judge_flow(socket, control, &about, &key, IDENT_EV_DENIED);
	if (is_pass(found & 0xff))
		return 1;
	return deny(control, found, out ? IDENT_C_OUT : IDENT_C_IN);
}

/* Behind further headers of IPv6, which a program can set, none is looked for. */
static __always_inline int is_reset(struct __sk_buff *skb)
{
	__u32 at = sizeof(struct ipv6hdr);
	__u8 first = 0, next = 0, flags = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, 0, &first, sizeof(first));
		at = (first & 15) * 4;
	} else {
		bpf_skb_load_bytes(skb, offsetof(struct ipv6hdr, nexthdr), &next,
				   sizeof(next));
		if (next != IPPROTO_TCP)
			return 0;
	}
	bpf_skb_load_bytes(skb, at + TCP_FLAGS, &flags, sizeof(flags));
	return (flags & TCP_RST) != 0;
}

static __always_inline int judge(struct __sk_buff *skb, const int out)
{
	struct ident_control *control = control_get();
	struct bpf_sock *sk = skb->sk;
	struct ident_socket *socket;
	__u8 protocol;

	if (!sk || !control)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 1;
	socket = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!socket)
		return 1;
	protocol = protocol_of(sk->type, sk->protocol);
	/* The reset by which it ends: only that leaves while it is ended. */
	if (out && protocol == IDENT_TCP && socket->is_cut &&
	    (socket->is_cut == IDENT_CUT_NOW || is_reset(skb)))
		return 1;
	if (protocol == IDENT_TCP)
		return judge_tcp(skb, socket, control, out, sk->state == TCP_LISTEN);
	/* These leave while their sender waits. */
	if (out && protocol != IDENT_OTHER)
		note_holder(socket, bpf_get_current_task_btf(), control);
	return judge_datagram(skb, socket, control, out, protocol);
}

SEC("cgroup_skb/egress")
int weir_app_egress(struct __sk_buff *skb)
{
	return judge(skb, 1);
}

SEC("cgroup_skb/ingress")
int weir_app_ingress(struct __sk_buff *skb)
{
	return judge(skb, 0);
}

SEC("tp_btf/exit_mmap")
int BPF_PROG(weir_app_exit, struct mm_struct *mm)
{
	__u64 address = (__u64)mm;

	bpf_map_delete_elem(&ident_spaces, &address);
	if (ident_cfg.push)
		bpf_map_delete_elem(&ident_changes, &address);
	return 0;
}

/* Level push, by functions: every lock of this kind comes here. */
SEC("fentry/up_write")
int BPF_PROG(weir_app_unlock, struct rw_semaphore *lock)
{
	note_change(space_of_lock(lock));
	return 0;
}

SEC("fentry/downgrade_write")
int BPF_PROG(weir_app_lower, struct rw_semaphore *lock)
{
	note_change(space_of_lock(lock));
	return 0;
}

/* The same by tracepoints, as Linux 6.13 and later have them. */
SEC("tp_btf/mmap_lock_released")
int BPF_PROG(weir_app_released, struct mm_struct *mm, _Bool write)
{
	if (write)
		note_change((__u64)mm);
	return 0;
}

/* Who has the lock for reading and finds it written is the writer, who goes on as a
 * reader: munmap does. */
SEC("tp_btf/mmap_lock_acquire_returned")
int BPF_PROG(weir_app_lowered, struct mm_struct *mm, _Bool write, _Bool success)
{
	struct mm_struct___int *locked = (struct mm_struct___int *)mm;

	if (!write && success && locked->mmap_lock.count.counter & RWSEM_WRITER_LOCKED)
		note_change((__u64)mm);
	return 0;
}

/* The socket of IPv4 or IPv6 that an open file is; NULL: it is none. */
static __always_inline struct sock *socket_of(struct file *file)
{
	struct socket *holder = bpf_sock_from_file(file);
	struct sock *sk = holder ? holder->sk : NULL;

	if (!sk || (sk->__sk_common.skc_family != AF_INET &&
		    sk->__sk_common.skc_family != AF_INET6))
		return NULL;
	return sk;
}

/* A socket that was there before: whoever has a descriptor of it is a holder. */
SEC("iter/task_file")
int weir_app_adopt(struct bpf_iter__task_file *ctx)
{
	struct ident_control *control = control_get();
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct ident_socket *socket;
	struct cgroup *cgroup, *ancestor = NULL;
	struct sock *sk;
	__u32 protocol;

	if (!control || !task || !file)
		return 0;
	sk = socket_of(file);
	if (!sk)
		return 0;
	if (control->level) {
		cgroup = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
		bpf_probe_read_kernel(
			&ancestor, sizeof(ancestor),
			(void *)cgroup + bpf_core_field_offset(struct cgroup, ancestors) +
				control->level * sizeof(ancestor));
		if (BPF_CORE_READ(ancestor, kn, id) != control->cgroup)
			return 0;
	}
	socket = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	if (!socket) {
		socket = bpf_sk_storage_get(&ident_sockets, sk, 0,
					    BPF_SK_STORAGE_GET_F_CREATE);
		if (!socket)
			return 0;
		socket->netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
		/* Who began it nobody has noted: a client's port is the higher one. */
		socket->direction =
			sk->__sk_common.skc_dport &&
					sk->__sk_common.skc_num >
						bpf_ntohs(sk->__sk_common.skc_dport)
				? IDENT_OUT
				: IDENT_IN;
		protocol = protocol_of(sk->sk_type, sk->sk_protocol);
		socket->raw = protocol >= IDENT_RAW;
		count(IDENT_C_ADOPTED);
	}
	if (ident_cfg.push) {
		note_holder(socket, task, control);
		return 0;
	}
	/* Of its own a program has it without a reference only. Not the first thread,
	 * which may have ended before the others. */
	task = bpf_task_from_pid(task->pid);
	if (!task)
		return 0;
	note_holder(socket, task, control);
	bpf_task_release(task);
	return 0;
}

/* Whoever asks about a socket is told of each descriptor of one. */
SEC("iter/task_file")
int weir_app_list(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct ident_listed listed = {};
	struct ident_socket *record;
	struct sock *sk;

	if (!task || !file)
		return 0;
	sk = socket_of(file);
	if (!sk)
		return 0;
	record = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	listed.tgid = task->tgid;
	listed.fd = ctx->fd;
	listed.inode = file->f_inode->i_ino;
	listed.type = sk->sk_type;
	listed.protocol = sk->sk_protocol;
	listed.kind = protocol_of(listed.type, listed.protocol);
	return write_listed(ctx->meta->seq, &sk->__sk_common, &listed, record);
}

/* The same of sockets of a network namespace that nobody has a descriptor of. */
SEC("iter/tcp")
int weir_app_list_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct ident_listed listed = {
		.type = SOCK_STREAM,
		.protocol = IPPROTO_TCP,
		.kind = IDENT_TCP,
	};
	struct ident_socket *record = NULL;

	if (!sk)
		return 0;
	/* Others are not whole: they are about to begin, or have ended. */
	if (CUT_STATES >> (sk->skc_state & 31) & 1 || sk->skc_state == TCP_LISTEN) {
		listed.inode = inode_of((struct sock *)sk);
		record = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	}
	return write_listed(ctx->meta->seq, sk, &listed, record);
}

SEC("iter/udp")
int weir_app_list_udp(struct bpf_iter__udp *ctx)
{
	struct sock *sk = (struct sock *)ctx->udp_sk;
	struct ident_listed listed = {.type = SOCK_DGRAM, .kind = IDENT_UDP};
	struct ident_socket *record;

	if (!sk)
		return 0;
	record = bpf_sk_storage_get(&ident_sockets, sk, 0, 0);
	listed.protocol = sk->sk_protocol;
	listed.inode = inode_of(sk);
	return write_listed(ctx->meta->seq, &sk->__sk_common, &listed, record);
}

SEC("iter/tcp")
int weir_app_cut_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;

	return sk ? cut_tcp(sk, ctx->meta->seq) : 0;
}

SEC("iter/udp")
int weir_app_cut_udp(struct bpf_iter__udp *ctx)
{
	struct udp_sock *sk = ctx->udp_sk;

	return sk ? cut_udp((struct sock *)sk, ctx->meta->seq) : 0;
}

/* User space has ended this connection. */
SEC("syscall")
int weir_app_ended(struct ident_ended *ended)
{
	struct ident_control *control = control_get();

	if (control)
		deny(control, ended->found,
		     ended->what == IDENT_C_REFUSED ? IDENT_C_REFUSED : IDENT_C_CUT);
	return 0;
}

static __always_inline void look_at(struct task_struct *task,
				    const struct ident_control *control,
				    struct ident_question *question)
{
	struct ident_space space = {}, *known;
	struct mm_struct *mm = task->mm;
	__u32 flags = policy_of(control)->flags;
	__u64 begin, address = (__u64)mm;

	if (!mm)
		return;
	question->space = address;
	question->sequence = sequence_of(mm);
	begin = bpf_ktime_get_ns();
	if (walk(task, address, control, &space))
		return;
	question->nanoseconds = bpf_ktime_get_ns() - begin;
	question->key.set[0] = space.set[0];
	question->key.set[1] = space.set[1];
	question->key.flags = space.flags;
	known = bpf_map_lookup_elem(&ident_spaces, &address);
	if (known)
		question->key.flags |= known->flags & IDENT_ALTERED;
	if (is_traced(task))
		question->key.flags |= IDENT_ALTERED;
	question->executable = space.executable;
	question->uid = uid_of(task);
	question->cgroup = cgroup_of(task);
	question->key.uid = flags & IDENT_BY_UID ? question->uid : 0;
	question->key.cgroup = flags & IDENT_BY_CGROUP ? question->cgroup : 0;
	question->key.space = flags & IDENT_BY_SPACE ? space_id(task, control) : 0;
	question->found = 1;
}

/* Who is this process? */
SEC("syscall")
int weir_app_question(struct ident_question *question)
{
	struct ident_control *control = control_get();
	struct task_struct *task;

	question->found = 0;
	if (!control)
		return 0;
	task = bpf_task_from_pid(question->tgid);
	if (!task)
		return 0;
	look_at(task, control, question);
	bpf_task_release(task);
	return 0;
}

/* The same at level push, of the one task that is gone through. */
SEC("iter/task")
int weir_app_look(struct bpf_iter__task *ctx)
{
	struct ident_control *control = control_get();
	struct task_struct *task = ctx->task;
	struct ident_question question = {};

	if (!control || !task)
		return 0;
	look_at(task, control, &question);
	bpf_seq_write(ctx->meta->seq, &question, sizeof(question));
	return 0;
}

/* By what key will a program be known that runs this file? */
SEC("syscall")
int weir_app_file(struct ident_file *question)
{
	struct ident_control *control = control_get();
	struct task_struct *task = bpf_get_current_task_btf();
	struct file **files, *file = NULL;
	struct fdtable *table;
	struct inode *inode;

	question->found = 0;
	if (!control)
		return 0;
	table = BPF_CORE_READ(task, files, fdt);
	if (!table || question->fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	files = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), files + question->fd);
	inode = BPF_CORE_READ(file, f_inode);
	if (!inode)
		return 0;
	question->executable = executable_key(control, inode);
	question->found = 1;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
