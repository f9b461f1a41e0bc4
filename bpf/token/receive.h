/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* TCP at the sockets of the side that verifies. Asked is the socket that a packet has
 * come to, behind reassembly and all extension headers: no form of a packet reaches the
 * port by another way. A listening socket takes a SYN with a token, and later segments of
 * flows whose SYN had one: so a SYN cookie is no way around. An accepted socket knows
 * whose it is. */
#ifndef WEIR_TOKEN_RECEIVE_H
#define WEIR_TOKEN_RECEIVE_H

#include "token/verify.h"

#define TCP_LISTEN 10

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct token_accepted);
} token_accepted SEC(".maps");

/* Does a packet tell of a new connection, where the socket is of an older one that had
 * the same port at the other end, and has proven nothing? A SYN does, which has to prove
 * itself, and a reset behind a SYN that was right. The kernel answers the SYN with a
 * challenge (RFC 5961, section 4), and its sender that one with a reset, which nobody
 * signs: so the older socket ends, and the SYN meets the listening one when it is sent
 * again. Neither has anything that the older socket would take. */
static __always_inline int is_of_new_connection(const struct token_packet *packet,
						const struct token_accepted *accepted)
{
	struct token_flow *flow;

	if (packet->tcp.syn)
		return !packet->tcp.ack;
	if (!packet->tcp.rst)
		return 0;
	flow = bpf_map_lookup_elem(&token_flows, &packet->flow);
	return flow && !flow->used && flow->isn != accepted->isn;
}

/* Marks an accepted connection as proven if its own SYN was verified: who had the same
 * port before, or has it next, proves nothing about it. 0: that is not certain yet, for
 * another processor may stand between the two numbers. */
static __always_inline int prove(struct bpf_sock *sk, const struct token_packet *packet,
				 struct token_accepted *accepted)
{
	struct token_flow *flow = bpf_map_lookup_elem(&token_flows, &packet->flow);
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(sk);

	if (!flow || !tcp)
		return 1;
	/* Both numbers count the SYN's and the FIN's place as they count bytes. */
	if (bpf_ntohl(flow->isn) != tcp->rcv_nxt - (__u32)tcp->bytes_received - 1)
		return 0;
	copy_identity(accepted->identity, flow->identity);
	accepted->isn = flow->isn;
	accepted->is_proven = 1;
	/* What a gateway here has noted stays. */
	if (!flow->used)
		flow->used = TOKEN_USED;
	return 1;
}

/* A packet for a listening socket at a port of `candidates`. 1: it passes. */
static __noinline int judge_packet(struct __sk_buff *skb,
				   const struct token_control *control, __u64 candidates)
{
	enum token_outcome outcome = TOKEN_NO_FLOW;
	struct token_search search = {};
	struct token_packet packet = {};
	struct token_flow *flow;

	if (read_packet(skb, 0, &packet))
		return judge_unread(&packet, control, candidates) != 0;
	find_requirement(&search, packet.flow.source, candidates, control->generation);
	if (!search.found)
		return 1;
	search.found--;
	if (packet.tcp.syn && !packet.tcp.ack)
		return finish(control, &packet,
			      verify_syn(skb, &packet, control, search.found),
			      search.found);
	flow = bpf_map_lookup_elem(&token_flows, &packet.flow);
	if (flow) {
		outcome = is_named(control, flow->identity, search.found)
				  ? TOKEN_PROVEN
				  : TOKEN_NOT_NAMED;
		copy_identity(packet.identity, flow->identity);
		packet.isn = flow->isn;
	}
	if (outcome == TOKEN_PROVEN && wants_payload(control, search.found))
		outcome = verify_segment(skb, &packet, control, packet.identity);
	return finish(control, &packet, outcome, search.found);
}

/* What holds for an accepted connection under this policy: TOKEN_FREE, TOKEN_PROVEN or
 * why not. TOKEN_VALID: that is not certain yet. */
static __always_inline enum token_outcome settle(struct bpf_sock *sk,
						 const struct token_packet *packet,
						 struct token_accepted *accepted,
						 const struct token_control *control,
						 __u64 candidates)
{
	struct token_search search = {};

	find_requirement(&search, packet->flow.source, candidates, control->generation);
	if (!search.found)
		return TOKEN_FREE;
	search.found--;
	accepted->requirement = search.found;
	accepted->is_payload = wants_payload(control, search.found);
	if (!accepted->is_proven && !prove(sk, packet, accepted))
		return TOKEN_VALID;
	if (!accepted->is_proven)
		return TOKEN_NO_FLOW;
	return is_named(control, accepted->identity, search.found) ? TOKEN_PROVEN
								   : TOKEN_NOT_NAMED;
}

/* A packet for an accepted socket at a port of `candidates`: the first one under this
 * policy, by which what holds for the connection is noted; or one of a connection that
 * has proven nothing, or whose segments are to have tokens. 1: it passes. */
static __noinline int judge_accepted(struct __sk_buff *skb, struct bpf_sock *sk,
				     struct token_accepted *accepted,
				     const struct token_control *control,
				     __u64 candidates)
{
	/* Nothing is TOKEN_VALID that was noted. */
	int is_first = accepted->generation != control->generation ||
		       accepted->outcome == TOKEN_VALID;
	struct token_packet packet = {};
	enum token_outcome outcome;

	if (read_packet(skb, 0, &packet))
		return judge_unread(&packet, control, candidates) != 0;
	if (is_first) {
		accepted->outcome = settle(sk, &packet, accepted, control, candidates);
		/* Last: from here on no packet is judged by what held before. */
		barrier();
		accepted->generation = control->generation;
	}
	outcome = accepted->outcome;
	if (outcome == TOKEN_FREE)
		return 1;
	/* For the next packet it is settled anew. */
	if (outcome == TOKEN_VALID)
		outcome = TOKEN_NO_FLOW;
	if (outcome != TOKEN_PROVEN && is_of_new_connection(&packet, accepted)) {
		outcome = TOKEN_FREE;
		if (packet.tcp.syn)
			outcome =
				verify_syn(skb, &packet, control, accepted->requirement);
		return finish(control, &packet, outcome, accepted->requirement);
	}
	packet.isn = accepted->isn;
	if (outcome == TOKEN_PROVEN && accepted->is_payload)
		outcome = verify_segment(skb, &packet, control, accepted->identity);
	else if (!is_first) /* of those that prove nothing only the first is kept */
		return finish(control, NULL, outcome, accepted->requirement);
	return finish(control, &packet, outcome, accepted->requirement);
}

#define NOT_OF_DAF (-1)

/* A packet for a socket at a port of `candidates`, where some go by signatures of DAF:
 * each packet proves itself, and none of what is known of a flow counts. 1: it passes.
 * NOT_OF_DAF: the requirement that is about its source is another one, or the packet
 * cannot be read, which is the same in each scope. */
static __noinline int judge_daf(struct __sk_buff *skb,
				const struct token_control *control, __u64 candidates)
{
	struct token_search search = {};
	struct token_packet packet = {};

	if (read_packet(skb, 0, &packet))
		return NOT_OF_DAF;
	find_requirement(&search, packet.flow.source, candidates, control->generation);
	if (!search.found)
		return NOT_OF_DAF;
	search.found--;
	if (scope_of(control, search.found) != TOKEN_SCOPE_DAF)
		return NOT_OF_DAF;
	return finish(control, &packet, verify_daf(skb, &packet, control), search.found);
}

/* A packet for a TCP socket at a port of `candidates`. 1: it passes. One of a connection
 * that has proven itself is not read, unless each of its segments has to: it has nothing
 * of the others on its way. */
static __always_inline int receive_packet(struct __sk_buff *skb, struct bpf_sock *sk,
					  const struct token_control *control,
					  __u64 candidates)
{
	struct token_accepted *accepted;
	int is_of_daf = (candidates & control->daf) != 0, said;

	if (sk->state == TCP_LISTEN) {
		said = is_of_daf ? judge_daf(skb, control, candidates) : NOT_OF_DAF;
		return said == NOT_OF_DAF ? judge_packet(skb, control, candidates) : said;
	}
	accepted =
		bpf_sk_storage_get(&token_accepted, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!accepted)
		return 0;
	if (sk->state == TCP_SYN_SENT)
		accepted->is_own = 1;
	if (accepted->is_own)
		return 1;
	if (is_of_daf) {
		said = judge_daf(skb, control, candidates);
		if (said != NOT_OF_DAF)
			return said;
	}
	if (accepted->generation == control->generation) {
		if (accepted->outcome == TOKEN_FREE)
			return 1;
		if (accepted->outcome == TOKEN_PROVEN && !accepted->is_payload)
			return finish(control, NULL, TOKEN_PROVEN, accepted->requirement);
	}
	return judge_accepted(skb, sk, accepted, control, candidates);
}

#endif
