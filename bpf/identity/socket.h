/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Whom a socket belongs to: the programs that have used it. Each of them is met when it
 * sends, in whatever way it came by the socket (fork, exec, a descriptor that was passed,
 * io_uring), so that no passing on needs to be followed. */
#ifndef WEIR_IDENTITY_SOCKET_H
#define WEIR_IDENTITY_SOCKET_H

#include "identity/judge.h"

static __always_inline void tell(const struct ident_socket *socket,
				 enum ident_event_kind kind,
				 const struct ident_case *about, __u32 found,
				 const struct ident_key *key)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct ident_control *control = control_get();
	struct ident_event *event;
	int i;

	if (about && about->direction == IDENT_IN && kind != IDENT_EV_CUT &&
	    bpf_ringbuf_query(&ident_events, BPF_RB_AVAIL_DATA) > IDENT_RING_IN) {
		count(IDENT_C_UNTOLD);
		return;
	}
	event = bpf_ringbuf_reserve(&ident_events, sizeof(*event), 0);
	if (!event) {
		count(IDENT_C_LOST);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	if (key)
		event->key = *key;
	else if (socket->flags & IDENT_S_PENDING)
		event->key = socket->pending;
	event->netns = socket->netns;
	event->cgroup = socket->cgroup;
	event->tgid = socket->tgid;
	event->uid = socket->uid;
	event->kind = kind;
	if (socket->flags & IDENT_S_PENDING)
		event->executable = socket->pending_executable;
	/* Packets also leave, and come in, while somebody else runs. */
	if (task->tgid == socket->tgid)
		bpf_probe_read_kernel_str(event->comm, sizeof(event->comm), task->comm);
	event->policy = control ? control->epoch & 1 : 0;
	for (i = 0; i < IDENT_HOLDERS; i++)
		event->handles[i] = socket->holders[i].handle;
	if (about) {
		__builtin_memcpy(event->peer, about->peer, sizeof(event->peer));
		event->port = about->port;
		event->protocol = about->protocol;
		event->direction = about->direction;
		event->verdict = found & 0xff;
		event->rule = found >> 8;
	}
	bpf_ringbuf_submit(event, 0);
}

/* Has user space find out who that is, once in a while. */
static __always_inline void ask(const struct ident_socket *socket,
				const struct ident_key *key)
{
	struct ident_known *known = bpf_map_lookup_elem(&ident_sets, key);
	__u64 now = bpf_ktime_get_ns();

	if (known) {
		if (now - known->asked < IDENT_ASK_NS)
			return;
		known->asked = now;
	} else {
		struct ident_known fresh = {.asked = now};

		bpf_map_update_elem(&ident_sets, key, &fresh, BPF_NOEXIST);
	}
	tell(socket, IDENT_EV_UNKNOWN, NULL, 0, key);
}

/* A program of its own, by this handle, holds the socket; `space` 0: several processes.
 */
static __always_inline void add_holder(struct ident_socket *socket, __u64 space,
				       __u32 handle)
{
	int i;

	/* Who has become another one is that one only. */
	for (i = 0; i < IDENT_HOLDERS; i++) {
		if (space && socket->holders[i].handle &&
		    socket->holders[i].space == space) {
			if (socket->holders[i].handle != handle) {
				socket->holders[i].handle = handle;
				socket->changes++;
				socket->epoch = 0;
			}
			return;
		}
	}
	for (i = 0; i < IDENT_HOLDERS; i++) {
		if (socket->holders[i].handle == handle)
			return;
		if (!socket->holders[i].handle) {
			socket->holders[i].space = space;
			socket->holders[i].handle = handle;
			socket->changes++;
			socket->epoch = 0;
			return;
		}
	}
	if (!(socket->flags & IDENT_S_LOST)) {
		socket->flags |= IDENT_S_LOST;
		socket->changes++;
		socket->epoch = 0;
		count(IDENT_C_HOLDERS);
	}
}

static __always_inline int is_same_key(const struct ident_key *a,
				       const struct ident_key *b)
{
	return a->set[0] == b->set[0] && a->set[1] == b->set[1] &&
	       a->cgroup == b->cgroup && a->uid == b->uid && a->flags == b->flags &&
	       a->space == b->space;
}

/* This process uses the socket. Nothing but a few comparisons if it is the one that did
 * so last, and as it was then. Who is no process (a thread of the kernel) is left out. */
static __noinline void note_holder(struct ident_socket *socket, struct task_struct *task,
				   const struct ident_control *control)
{
	struct mm_struct *mm = task->mm;
	__u64 cgroup = 0, executable, space;
	struct ident_key key;
	__u32 sequence, uid = 0, flags, handle, traced;
	int is_same;
	__u16 period;

	if (!mm)
		return;
	sequence = sequence_of(mm);
	period = period_now();
	traced = is_traced(task);
	flags = policy_of(control)->flags;
	if (flags & IDENT_BY_UID)
		uid = uid_of(task);
	if (flags & IDENT_BY_CGROUP)
		cgroup = cgroup_of(task);
	/* An odd sequence is that of changes that go on. Before Linux 6.13, and at push,
	 * the next ones have the same: it is like no other. */
	is_same = socket->space == (__u64)mm && socket->sequence == sequence &&
		  !(sequence & 1) && socket->life == life_of(task) &&
		  socket->noted == control->epoch && socket->is_traced == traced &&
		  !(flags & IDENT_BY_UID && socket->uid != uid) &&
		  !(flags & IDENT_BY_CGROUP && socket->cgroup != cgroup);
	if (is_same && socket->period == period)
		return;
	socket->period = period;
	socket->is_traced = traced;
	if (socket->space && !is_same)
		count(IDENT_C_CHANGED);
	socket->tgid = task->tgid;
	socket->uid = uid_of(task);
	socket->cgroup = cgroup_of(task);
	if (key_of(task, mm, control, &key, &executable, sequence)) {
		/* Who changes his mappings at every moment cannot be told: he is
		 * unknown until he sends again. */
		socket->space = 0;
		socket->flags |= IDENT_S_PENDING;
		__builtin_memset(&socket->pending, 0, sizeof(socket->pending));
		socket->pending_executable = 0;
		socket->epoch = 0;
		socket->changes++;
		return;
	}
	handle = handle_of(control, &key);
	space = holder_id(task, control);
	if (handle) {
		if (socket->flags & IDENT_S_PENDING && socket->pending_space == space) {
			socket->flags &= ~IDENT_S_PENDING;
			socket->epoch = 0;
		}
		add_holder(socket, space, handle);
	} else {
		if (socket->flags & IDENT_S_PENDING && socket->pending_space != space) {
			/* A server and the workers that it begins are one program. */
			if (is_same_key(&socket->pending, &key))
				space = 0;
			else
				socket->flags |= IDENT_S_LOST;
		}
		socket->flags |= IDENT_S_PENDING;
		socket->pending = key;
		socket->pending_space = space;
		socket->pending_executable = executable;
		socket->epoch = 0;
		socket->changes++;
		ask(socket, &key);
	}
	socket->sequence = sequence;
	socket->noted = control->epoch;
	socket->life = life_of(task);
	socket->space = (__u64)mm;
}

/* Has somebody said meanwhile who the unknown one is? 1: yes. */
static __always_inline int resolve(struct ident_socket *socket,
				   const struct ident_control *control)
{
	__u32 handle;

	if (!(socket->flags & IDENT_S_PENDING))
		return 0;
	handle = handle_of(control, &socket->pending);
	if (handle) {
		socket->flags &= ~IDENT_S_PENDING;
		socket->epoch = 0;
		socket->changes++;
		add_holder(socket, socket->pending_space, handle);
		return 1;
	}
	if (socket->pending.set[0])
		ask(socket, &socket->pending);
	return 0;
}

/* Dropped until somebody has said whether it may: no rule is about it. */
static __always_inline int is_asked(__u32 found)
{
	return found == (IDENT_PENDING | IDENT_BY_DEFAULT << 8);
}

static __always_inline int is_denied(__u32 verdict)
{
	return verdict == IDENT_DROP || verdict == IDENT_REJECT;
}

/* verdict | rule << 8 for this peer, counted and told; a denial as `denial`. `before`:
 * the same of what was decided while one holder was not known yet, which is not told
 * twice; else 0. */
static __always_inline __u32 decide_as(struct ident_socket *socket,
				       struct ident_case *about,
				       const struct ident_control *control, __u32 before,
				       enum ident_event_kind denial)
{
	struct ident_hits *hits;
	__u32 found, verdict;
	int i;

	about->netns = socket->netns;
	about->unknown = (socket->flags & IDENT_S_LOST) != 0;
	about->executable = 0;
	if (socket->flags & IDENT_S_PENDING) {
		about->executable = socket->pending_executable;
		if (!about->executable)
			about->unknown = 1;
	}
	for (i = 0; i < IDENT_HOLDERS; i++)
		about->handles[i] = socket->holders[i].handle;
	found = ident_judge(about);
	verdict = found & 0xff;
	if (found == before) {
		/* Now it is known who asks. */
		if (is_asked(found))
			tell(socket, IDENT_EV_JUDGED, about, found, NULL);
		return found;
	}
	hits = hits_of(found >> 8, control->epoch);
	if (hits)
		__sync_fetch_and_add(&hits->judged, 1);
	if (is_denied(verdict))
		tell(socket, denial, about, found, NULL);
	else if (policy_of(control)->flags & IDENT_TELL_ALL || is_asked(found))
		tell(socket, IDENT_EV_JUDGED, about, found, NULL);
	return found;
}

static __always_inline __u32 decide(struct ident_socket *socket, struct ident_case *about,
				    const struct ident_control *control, __u32 before)
{
	return decide_as(socket, about, control, before, IDENT_EV_DENIED);
}

static __always_inline int is_pass(__u32 verdict)
{
	return verdict == IDENT_ALLOW || verdict == IDENT_LEARN;
}

/* Does all pass that the rules deny? */
static __always_inline int is_observed(const struct ident_control *control)
{
	return (policy_of(control)->flags & IDENT_OBSERVE) != 0;
}

/* Counts what is denied; 1: it passes all the same. */
static __always_inline int deny(const struct ident_control *control, __u32 found,
				enum ident_count what)
{
	struct ident_hits *hits = hits_of(found >> 8, control->epoch);

	if (hits)
		__sync_fetch_and_add(&hits->dropped, 1);
	count(what);
	return is_observed(control);
}

#endif
