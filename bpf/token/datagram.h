/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* UDP on the side that verifies. Each datagram may have a token of its own, in its IP
 * header. For one that had no room for it its flow stands in, for a while: whoever sent
 * the last token sends this one. The sender could write another address into it, as into
 * any datagram; so that time is short, and what has no token does not make it longer.
 *
 * What a program here sends from such a port to somebody who has proved nothing begins a
 * flow of its own, whose answers pass. */
#ifndef WEIR_TOKEN_DATAGRAM_H
#define WEIR_TOKEN_DATAGRAM_H

#include "token/receive.h"

#define IDLE_NS (TOKEN_DATAGRAM_IDLE * 1000000000ull)

/* As token_ports, of UDP. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * 65536);
	__type(key, __u32);
	__type(value, __u64);
} token_udp_ports SEC(".maps");

/* Since when each UDP port wants tokens of the sources of which it does (CLOCK_BOOTTIME,
 * nanoseconds); behind the last port, for user space, the same of which sources. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * 65536);
	__type(key, __u32);
	__type(value, __u64);
} token_udp_since SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TOKEN_DATAGRAM_FLOWS);
	__type(key, struct token_flow_key);
	__type(value, struct token_datagrams);
} token_udp_proven SEC(".maps");

/* Flows that a program here has begun, as their answers come in, and the time of its last
 * datagram. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TOKEN_DATAGRAM_FLOWS);
	__type(key, struct token_flow_key);
	__type(value, __u64);
} token_udp_own SEC(".maps");

/* Flows that passed because their requirement only logs: to answer them begins none. Of a
 * datagram that could not be read, which came from any port, the source port is 0. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TOKEN_DATAGRAM_FLOWS);
	__type(key, struct token_flow_key);
	__type(value, __u64);
} token_udp_logged SEC(".maps");

/* Flows that each table (enum token_udp_table) has taken: those that are not there any
 * more had to go for others. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOKEN_UDP_TABLES);
	__type(key, __u32);
	__type(value, __u64);
} token_udp_taken SEC(".maps");

static __always_inline void count_taken(__u32 table)
{
	__u64 *number = bpf_map_lookup_elem(&token_udp_taken, &table);

	if (number)
		__sync_fetch_and_add(number, 1);
}

static __always_inline int is_fresh(__u64 at)
{
	return bpf_ktime_get_boot_ns() - at < IDLE_NS;
}

static __always_inline int is_kept(void *flows, const struct token_flow_key *flow)
{
	__u64 *at = bpf_map_lookup_elem(flows, flow);

	return at && is_fresh(*at);
}

/* The same, and it is kept on. */
static __always_inline int keep_on(void *flows, const struct token_flow_key *flow)
{
	__u64 *at = bpf_map_lookup_elem(flows, flow);

	if (!at || !is_fresh(*at))
		return 0;
	*at = bpf_ktime_get_boot_ns();
	return 1;
}

static __always_inline void keep(void *flows, const struct token_flow_key *flow,
				 enum token_udp_table table)
{
	__u64 now = bpf_ktime_get_boot_ns(), *at = bpf_map_lookup_elem(flows, flow);

	if (at)
		*at = now;
	else if (!bpf_map_update_elem(flows, flow, &now, BPF_ANY))
		count_taken(table);
}

/* 0: it is a UDP datagram, whose IP header is at `base`; `or_first`: or the first part of
 * one. A token is looked for among the options of IPv4, or in the destination options
 * that stand right before the UDP header. */
static __noinline int read_datagram(struct __sk_buff *skb, __u32 base, int or_first,
				    struct token_packet *packet)
{
	struct token_scan scan = {.kind = TOKEN_IP_KIND, .wanted = TOKEN_BYTES};
	__u32 at, i, begin, more;
	__be16 ports[2];
	__u8 next;

	if (link_protocol(skb, packet) == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, base, &ip, sizeof(ip)) || ip.version != 4 ||
		    ip.ihl < 5 || ip.frag_off & bpf_htons(or_first ? 0x1fff : 0x3fff) ||
		    ip.protocol != IPPROTO_UDP)
			return -1;
		map_v4(packet->flow.source, ip.saddr);
		map_v4(packet->flow.dest, ip.daddr);
		packet->end = end_of(skb, base, ip.tot_len);
		at = base + ip.ihl * 4;
		begin = base + sizeof(ip);
		scan.len = at - begin;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, base, &ip, sizeof(ip)) || ip.version != 6)
			return -1;
		__builtin_memcpy(packet->flow.source, &ip.saddr, 16);
		__builtin_memcpy(packet->flow.dest, &ip.daddr, 16);
		next = ip.nexthdr;
		at = begin = base + sizeof(ip);
		packet->end = end_of(skb, at, ip.payload_len);
		scan.is_ipv6 = 1;
		for (i = 0; i < CHAIN; i++) {
			__u8 head[4];

			if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING &&
			    next != IPPROTO_DSTOPTS && next != IPPROTO_FRAGMENT)
				break;
			if (bpf_skb_load_bytes(skb, at, head, sizeof(head)))
				return -1;
			if (next == IPPROTO_FRAGMENT) {
				/* Only that of a whole packet (RFC 6946) is none. */
				if (head[2] || head[3] & (or_first ? 0xf8 : 0xf9))
					return -1;
				head[1] = 0;
			}
			if (next == IPPROTO_DSTOPTS && head[0] == IPPROTO_UDP) {
				begin = at + 2;
				scan.len = head[1] * 8 + 6;
			}
			next = head[0];
			at += (head[1] + 1) * 8;
		}
		if (next != IPPROTO_UDP)
			return -1;
	}
	if (!is_within(packet, at, sizeof(ports)) ||
	    bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return -1;
	packet->protocol = IPPROTO_UDP;
	packet->flow.source_port = ports[0];
	packet->flow.dest_port = ports[1];
	/* Less one, and in one register: as in find_option. */
	more = scan.len - 1;
	barrier_var(more);
	if (more >= EXTENSION_MOST)
		return 0;
	if (bpf_skb_load_bytes(skb, begin, scan.bytes, more + 1)) {
		packet->is_bad = 1;
		return 0;
	}
	bpf_loop(EXTENSION_MOST, scan_option, &scan, 0);
	packet->is_bad = scan.is_bad;
	if (scan.found)
		packet->token = begin + scan.found - 1;
	return 0;
}

/* A datagram to a port of this requirement. */
static __noinline enum token_outcome judge_datagram(struct __sk_buff *skb,
						    struct token_packet *packet,
						    const struct token_control *control,
						    __u32 requirement)
{
	struct token_datagrams *flow, fresh = {};
	struct token_option option = {};
	enum token_outcome outcome;

	if (packet->is_bad)
		return TOKEN_MALFORMED;
	if (!packet->token) {
		flow = bpf_map_lookup_elem(&token_udp_proven, &packet->flow);
		if (!flow)
			return TOKEN_MISSING;
		if (!is_fresh(flow->at))
			return TOKEN_NO_FLOW;
		return is_named(control, flow->identity, requirement) ? TOKEN_PROVEN
								      : TOKEN_NOT_NAMED;
	}
	if (bpf_skb_load_bytes(skb, packet->token, &option, sizeof(option)))
		return TOKEN_MALFORMED;
	outcome = verify_token(packet, &option, control, requirement);
	if (outcome != TOKEN_VALID)
		return outcome;
	flow = bpf_map_lookup_elem(&token_udp_proven, &packet->flow);
	if (flow && is_same(flow->identity, packet->identity)) {
		flow->at = bpf_ktime_get_boot_ns();
		return TOKEN_VALID;
	}
	copy_identity(fresh.identity, packet->identity);
	fresh.at = bpf_ktime_get_boot_ns();
	if (!bpf_map_update_elem(&token_udp_proven, &packet->flow, &fresh, BPF_ANY) &&
	    !flow)
		count_taken(TOKEN_UDP_PROVEN);
	return TOKEN_VALID;
}

#ifndef TOKEN_GATEWAY /* these go by other programs */
/* A datagram for a socket at a port of `candidates`. 1: it passes. */
static __noinline int receive_datagram(struct __sk_buff *skb,
				       const struct token_control *control,
				       __u64 candidates, __be16 port)
{
	struct token_search search = {};
	struct token_packet packet = {};
	enum token_outcome outcome;
	int said;

	if (read_datagram(skb, 0, 0, &packet)) {
		packet.protocol = IPPROTO_UDP;
		packet.flow.source_port = 0;
		packet.flow.dest_port = port;
		said = judge_unread(&packet, control, candidates);
		if (said == 1)
			keep(&token_udp_logged, &packet.flow, TOKEN_UDP_LOGGED);
		return said != 0;
	}
	find_requirement(&search, packet.flow.source, candidates, control->generation);
	if (!search.found)
		return 1;
	search.found--;
	outcome = judge_datagram(skb, &packet, control, search.found);
	if (outcome == TOKEN_MISSING && is_kept(&token_udp_own, &packet.flow))
		outcome = TOKEN_FREE;
	if (!finish(control, &packet, outcome, search.found))
		return 0;
	if (outcome >= TOKEN_MISSING)
		keep(&token_udp_logged, &packet.flow, TOKEN_UDP_LOGGED);
	return 1;
}

/* Whoever had something from this port when it wanted no token may get answers still, and
 * is none to whom a program here begins. */
static __always_inline int is_settled(__be16 port)
{
	__u32 key = bpf_ntohs(port);
	__u64 *since = bpf_map_lookup_elem(&token_udp_since, &key);

	return since && !is_fresh(*since);
}

/* A program sends from a port that wants tokens: to whom it answers has proved himself
 * once, or need not, and to others it begins. */
static __noinline int note_own(struct __sk_buff *skb, const struct token_control *control,
			       __u64 candidates)
{
	struct token_search search = {};
	struct token_packet packet = {};
	struct token_flow_key flow = {};

	if (read_datagram(skb, 0, 0, &packet))
		return 1;
	__builtin_memcpy(flow.source, packet.flow.dest, 16);
	__builtin_memcpy(flow.dest, packet.flow.source, 16);
	flow.dest_port = packet.flow.source_port;
	if (keep_on(&token_udp_logged, &flow))
		return 1;
	flow.source_port = packet.flow.dest_port;
	/* However long ago: else the next answer would take the place of a token. */
	if (bpf_map_lookup_elem(&token_udp_proven, &flow) ||
	    keep_on(&token_udp_logged, &flow))
		return 1;
	find_requirement(&search, flow.source, candidates, control->generation);
	if (search.found && !keep_on(&token_udp_own, &flow) && is_settled(flow.dest_port))
		keep(&token_udp_own, &flow, TOKEN_UDP_OWN);
	return 1;
}

/* The requirements about the port of a UDP socket; 0: none, or it is no such one. */
static __always_inline __u64 udp_candidates(struct bpf_sock *sk,
					    const struct token_control *control)
{
	__u64 *candidates;
	__u32 key;

	if (sk->type != SOCK_DGRAM || sk->protocol != IPPROTO_UDP)
		return 0;
	key = (sk->src_port & 0xffff) + (control->generation & 1 ? 65536 : 0);
	candidates = bpf_map_lookup_elem(&token_udp_ports, &key);
	return candidates ? *candidates & ~control->forward : 0;
}

SEC("cgroup_skb/ingress")
int weir_token_verify(struct __sk_buff *skb)
{
	struct token_control *control = control_get();
	struct bpf_sock *sk = skb->sk;
	__u64 *candidates, about;
	__u32 key;

	if (!sk || !control)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 1;
	if (sk->type != SOCK_STREAM || sk->protocol != IPPROTO_TCP) {
		about = udp_candidates(sk, control);
		return about ? receive_datagram(skb, control, about,
						bpf_htons(sk->src_port))
			     : 1;
	}
	key = (sk->src_port & 0xffff) + (control->generation & 1 ? 65536 : 0);
	candidates = bpf_map_lookup_elem(&token_ports, &key);
	about = candidates ? *candidates & ~control->forward : 0;
	return about ? receive_packet(skb, sk, control, about) : 1;
}

SEC("cgroup_skb/egress")
int weir_token_own(struct __sk_buff *skb)
{
	struct token_control *control = control_get();
	struct bpf_sock *sk = skb->sk;
	__u64 candidates;

	if (!sk || !control)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 1;
	candidates = udp_candidates(sk, control);
	return candidates ? note_own(skb, control, candidates) : 1;
}

#endif

#endif
