/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The same for a gateway: a match of iptables (`-m bpf --object-pinned`), which needs no
 * daemon. It matches what a requirement lets pass, by the ports and sources of packets
 * and not of sockets, and nothing else: what is no TCP, what is of no requirement, parts
 * of packets. The packet begins with its IP header. */
#ifndef WEIR_TOKEN_MATCH_H
#define WEIR_TOKEN_MATCH_H

#include "token/verify.h"

#define MATCH 0xffff

SEC("socket")
int weir_token_match(struct __sk_buff *skb)
{
	struct token_control *control = control_get();
	struct token_search search = {};
	struct token_packet packet = {};
	enum token_outcome outcome;
	struct token_flow *flow;
	__u64 *candidates;
	__u32 key;

	if (!control || read_packet(skb, &packet))
		return 0;
	key = bpf_ntohs(packet.flow.dest_port) + (control->generation & 1 ? 65536 : 0);
	candidates = bpf_map_lookup_elem(&token_ports, &key);
	if (!candidates || !*candidates)
		return 0;
	search.network.bits = 32 + 128;
	__builtin_memcpy(search.network.addr, packet.flow.source, 16);
	search.candidates = *candidates;
	search.second = control->generation & 1;
	bpf_loop(TOKEN_REQUIREMENTS, try_requirement, &search, 0);
	if (!search.found)
		return 0;
	search.found--;
	if (packet.tcp.syn && !packet.tcp.ack) {
		outcome = verify_syn(skb, &packet, control, search.found);
	} else {
		outcome = TOKEN_NO_FLOW;
		flow = bpf_map_lookup_elem(&token_flows, &packet.flow);
		if (flow) {
			flow->is_used = 1;
			outcome = is_named(control, flow->identity, search.found)
					  ? TOKEN_PROVEN
					  : TOKEN_NOT_NAMED;
		}
	}
	return finish(control, &packet, outcome, search.found) ? MATCH : 0;
}

#endif
