/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The same for a gateway: a match of iptables (`-m bpf --object-pinned`), which needs no
 * daemon. It matches what a requirement lets pass, by the ports and sources of packets
 * and not of sockets, and nothing else: what is neither TCP nor UDP, what is of no
 * requirement, parts of packets. The packet begins with its IP header.
 *
 * A packet of a flow that is known costs one lookup in a hash: its entry notes which
 * requirement names its program, and in which generation of the control, for that is
 * found by nothing but the flow and the tables of a generation. The note is one word,
 * so that CPUs which write it at once write the same, or one of a generation that is
 * over. A flow whose segments each prove themselves has no such note. Should the entry
 * become another flow's in between (the kernel hands entries on at once), that one, which
 * its own SYN has let in, is counted with this one's requirement until the next
 * generation. */
#ifndef WEIR_TOKEN_MATCH_H
#define WEIR_TOKEN_MATCH_H

#include "token/datagram.h"

#define MATCH 0xffff
/* What match_anew says where each segment proves itself, with the number of the
 * requirement: its caller looks at them (match_segment), for before Linux 6.8 the stack
 * has no room for both. */
#define MATCH_BY_TOKEN 0x10000
#define MATCH_BY_DAF   0x20000

/* The requirements about the port of a packet, those about forwarded ones as well; 0:
 * none. */
static __always_inline __u64 candidates_of(const struct token_packet *packet,
					   __u32 generation)
{
	__u32 key = bpf_ntohs(packet->flow.dest_port) + (generation & 1 ? 65536 : 0);
	__u64 *candidates = packet->protocol == IPPROTO_UDP
				    ? bpf_map_lookup_elem(&token_udp_ports, &key)
				    : bpf_map_lookup_elem(&token_ports, &key);

	return candidates ? *candidates : 0;
}

/* What match_anew leaves, and why. */
static __noinline int match_segment(struct __sk_buff *skb, struct token_packet *packet,
				    struct token_flow *flow,
				    const struct token_control *control, __u32 left)
{
	enum token_outcome outcome;

	/* What is signed is the whole: what a first part carries proves nothing of it. */
	if (packet->is_part) {
		outcome = TOKEN_MALFORMED;
	} else if (left >= MATCH_BY_DAF) {
		outcome = verify_daf(skb, packet, control);
	} else {
		outcome = verify_segment(skb, packet, control, packet->identity);
		if (outcome == TOKEN_PROVEN && flow && !flow->used)
			flow->used = TOKEN_USED;
	}
	return finish(control, packet, outcome, left & (TOKEN_REQUIREMENTS - 1)) ? MATCH
										 : 0;
}

#ifndef TOKEN_GATEWAY /* these go by other programs */
/* A packet of no flow that is known, or of one (`flow`, or NULL) whose entry does not
 * note what holds in this generation: what is noted is of no other one. Beside the way
 * of known flows, which has nothing of it. */
static __noinline int match_anew(struct __sk_buff *skb, struct token_packet *packet,
				 const struct token_control *control, __u32 generation,
				 struct token_flow *flow)
{
	struct token_search search = {};
	enum token_outcome outcome;

	find_requirement(&search, packet->flow.source,
			 candidates_of(packet, generation) & ~control->forward,
			 generation);
	if (!search.found)
		return 0;
	search.found--;
	if (scope_of(control, search.found) == TOKEN_SCOPE_DAF)
		return MATCH_BY_DAF + search.found;
	if (packet->protocol == IPPROTO_UDP) {
		outcome = judge_datagram(skb, packet, control, search.found);
	} else if (packet->tcp.syn && !packet->tcp.ack) {
		outcome = verify_syn(skb, packet, control, search.found);
	} else if (!flow) {
		outcome = TOKEN_NO_FLOW;
	} else if (!is_named(control, flow->identity, search.found)) {
		outcome = TOKEN_NOT_NAMED;
		if (!flow->used)
			flow->used = TOKEN_USED;
	} else if (wants_payload(control, search.found)) {
		copy_identity(packet->identity, flow->identity);
		packet->isn = flow->isn;
		return MATCH_BY_TOKEN + search.found;
	} else {
		outcome = TOKEN_PROVEN;
		flow->used = generation << TOKEN_USED_GENERATION |
			     search.found << TOKEN_USED_REQUIREMENT | TOKEN_USED;
	}
	return finish(control, packet, outcome, search.found) ? MATCH : 0;
}

SEC("socket")
int weir_token_match(struct __sk_buff *skb)
{
	struct token_control *control = control_get();
	struct token_packet packet = {};
	struct token_flow *flow = NULL;
	__u32 generation, used, said;

	if (!control)
		return 0;
	if (read_inline(skb, 0, &packet) && read_datagram(skb, 0, 0, &packet))
		return 0;
	generation = control->generation;
	if (!(candidates_of(&packet, generation) & ~control->forward))
		return 0;
	if (packet.protocol == IPPROTO_TCP && !(packet.tcp.syn && !packet.tcp.ack)) {
		flow = bpf_map_lookup_elem(&token_flows, &packet.flow);
		used = flow ? flow->used : 0;
		if (generation && used >> TOKEN_USED_GENERATION == generation)
			return finish(control, NULL, TOKEN_PROVEN,
				      used >> TOKEN_USED_REQUIREMENT)
				       ? MATCH
				       : 0;
	}
	said = match_anew(skb, &packet, control, generation, flow);
	return said <= MATCH ? said : match_segment(skb, &packet, flow, control, said);
}

#endif

#endif
