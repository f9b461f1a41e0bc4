/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* A flow of datagrams: what a socket without connections sends to one peer, and gets from
 * it. A peer that one has sent to may answer, and one that has sent may be answered: a
 * flow keeps the direction in which it began.
 *
 * A flow that is forgotten costs its program something: the answer to what it has sent is
 * judged as if the peer had begun, and is refused mostly. So whoever sends from very many
 * addresses must not have flows of others forgotten: those that pass lie in a table for
 * each direction, and those that do not in a third one, whose rows cost a judgement when
 * they go and nothing else. What was refused in one direction says nothing of the other:
 * a stranger's datagram does not keep a program from sending to where it claims to be
 * from. One that has passed, and does so no more, is refused in both.
 *
 * A port that anybody may send to gets flows from as many addresses as somebody writes
 * into packets, and all of them pass. What is new at one socket beyond IDENT_NEW_FLOWS in
 * a window lies in a fourth table, where it takes room from others of its kind only. */
#ifndef WEIR_IDENTITY_FLOW_H
#define WEIR_IDENTITY_FLOW_H

#include "identity/socket.h"

static __always_inline void map_v4(__u8 addr[16], __be32 v4)
{
	__u32 *words = (__u32 *)addr;

	words[0] = words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

static __always_inline struct ident_flow *refused_flow(struct ident_flow_key *key,
						       __u32 direction)
{
	struct ident_flow *flow;

	key->direction = direction;
	flow = bpf_map_lookup_elem(&ident_refused, key);
	key->direction = 0;
	return flow;
}

/* What was decided about it last; NULL: nothing that is remembered. Where weir only
 * observes, what is refused passes: then an answer is of the flow that it answers. */
static __always_inline struct ident_flow *flow_of(const struct ident_socket *socket,
						  struct ident_flow_key *key,
						  __u32 direction, int is_observed)
{
	struct ident_flow *flow;

	flow = bpf_map_lookup_elem(&ident_flows, key);
	if (!flow)
		flow = bpf_map_lookup_elem(&ident_flows_in, key);
	if (!flow && socket->has_overflow)
		flow = bpf_map_lookup_elem(&ident_overflow, key);
	if (!flow)
		flow = refused_flow(key, direction);
	if (!flow && is_observed)
		flow = refused_flow(key, IDENT_OUT + IDENT_IN - direction);
	return flow;
}

/* Has the socket had its share of new flows from outside? Counts one more. */
static __always_inline int is_beyond_share(struct ident_socket *socket)
{
	__u32 window = bpf_ktime_get_ns() / IDENT_WINDOW_NS;

	if (socket->window != window) {
		socket->window = window;
		socket->new_flows = 0;
	}
	__sync_fetch_and_add(&socket->new_flows, 1);
	return *(volatile __u32 *)&socket->new_flows > IDENT_NEW_FLOWS;
}

/* One that somebody else has begun, and that passes. `is_new`: it is not one that has
 * passed until now, which stays where it lies. */
static __always_inline void keep_flow_in(struct ident_socket *socket,
					 struct ident_flow_key *key,
					 const struct ident_flow *flow, int is_new)
{
	int is_over;

	if (is_new) {
		is_over = is_beyond_share(socket);
		if (is_over) {
			socket->has_overflow = 1;
			count(IDENT_C_OVERFLOW);
		}
	} else {
		is_over =
			socket->has_overflow && bpf_map_lookup_elem(&ident_overflow, key);
	}
	if (is_over)
		bpf_map_update_elem(&ident_overflow, key, flow, BPF_ANY);
	else
		bpf_map_update_elem(&ident_flows_in, key, flow, BPF_ANY);
}

/* `direction`: of the packet. `began`: the direction of a flow that has passed until now;
 * else 0. */
static __always_inline void keep_flow(struct ident_socket *socket,
				      struct ident_flow_key *key,
				      const struct ident_flow *flow, __u32 direction,
				      __u32 began)
{
	if (is_pass(flow->verdict)) {
		if (flow->direction == IDENT_OUT)
			bpf_map_update_elem(&ident_flows, key, flow, BPF_ANY);
		else
			keep_flow_in(socket, key, flow, !began);
		return;
	}
	key->direction = direction;
	bpf_map_update_elem(&ident_refused, key, flow, BPF_ANY);
	if (began) {
		/* Nor does it go on as one that the other side begins. */
		key->direction = IDENT_OUT + IDENT_IN - direction;
		bpf_map_update_elem(&ident_refused, key, flow, BPF_ANY);
	}
	key->direction = 0;
	if (began == IDENT_OUT)
		bpf_map_delete_elem(&ident_flows, key);
	else if (began) {
		bpf_map_delete_elem(&ident_flows_in, key);
		if (socket->has_overflow)
			bpf_map_delete_elem(&ident_overflow, key);
	}
}

/* verdict | rule << 8. `about` has peer and port as the packet has them, and its
 * direction; `key` has cookie and ports. A denial is told as `denial`. */
static __noinline __u32 judge_flow(struct ident_socket *socket,
				   const struct ident_control *control,
				   struct ident_case *about, struct ident_flow_key *key,
				   enum ident_event_kind denial)
{
	struct ident_flow fresh = {}, *flow;
	__u32 found, changes, before = 0, began = 0, direction = about->direction;
	__u32 epoch = *(volatile __u32 *)&control->epoch;
	int is_resolved, was_refused;

	changes = socket->changes;
	is_resolved = resolve(socket, control);
	__builtin_memcpy(key->peer, about->peer, sizeof(key->peer));
	flow = flow_of(socket, key, direction, is_observed(control));
	if (flow && flow->epoch == epoch && flow->changes == socket->changes &&
	    (flow->verdict != IDENT_PENDING || flow->rule == IDENT_BY_DEFAULT))
		return flow->verdict | flow->rule << 8;
	if (is_resolved && flow && flow->epoch == epoch && flow->changes == changes)
		before = flow->verdict | flow->rule << 8;
	was_refused = flow && is_denied(flow->verdict);
	if (flow) {
		about->direction = flow->direction;
		if (is_pass(flow->verdict))
			began = flow->direction;
	}
	if (about->direction == IDENT_IN)
		about->port = key->port >> 16;
	about->has_port &= about->protocol == IDENT_UDP;
	found = decide_as(socket, about, control, before, denial);
	fresh.epoch = epoch;
	fresh.changes = socket->changes;
	fresh.verdict = found & 0xff;
	fresh.rule = found >> 8;
	fresh.direction = about->direction;
	keep_flow(socket, key, &fresh, direction, began);
	if (is_denied(fresh.verdict) && !was_refused)
		count(IDENT_C_FLOWS);
	return found;
}

#endif
