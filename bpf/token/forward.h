/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The same for a gateway that runs weir itself: what comes in by the interfaces where
 * this is attached, for networks and ports of a requirement about forwarded packets,
 * passes only with a token. Behind it are hosts without weir.
 *
 * As in match.h a packet of a connection that is known costs one lookup in a hash, whose
 * entry notes the requirement; the table is another one, for other requirements hold
 * here. All packets are judged, and not what iptables chooses:
 *
 *   - tags of VLANs: a frame is judged by what is behind them; one of more than
 *     FORWARD_TAGS, whatever it carries, does not pass.
 *   - parts of packets: the first one is judged like a whole one; without it the
 *     receiver cannot put together the others, which pass. A part of TCP that could
 *     overwrite the flags of the first one does not (RFC 1858).
 *   - what a frame has behind its packet is no part of it.
 *   - IPv6: more than six headers before the ports are malformed, and so is a chain of
 *     them that does not end in this packet, or in its first part (RFC 7112).
 *   - ICMP errors about an answer of a protected port pass if they are about a flow that
 *     has proved itself. Those that come in parts do not, nor those that do not say whom
 *     they are about.
 *   - what is neither TCP nor UDP passes.
 *
 * It fails closed: who cannot be judged is dropped. */
#ifndef WEIR_TOKEN_FORWARD_H
#define WEIR_TOKEN_FORWARD_H

/* What is for a gateway alone, in all that follows. */
#define TOKEN_GATEWAY

#include <linux/pkt_cls.h>
#include "token/match.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TOKEN_FORWARD_FLOWS);
	__type(key, struct token_flow_key);
	__type(value, struct token_flow);
} token_forward_flows SEC(".maps");

/* Flows that this table has taken: those that are not there any more had to go for
 * others. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} token_forward_taken SEC(".maps");

/* Which requirement is about a forwarded packet. */
struct token_forward_search {
	struct token_network network;
	__u8 source[16];
	__u8 dest[16];
	__u64 candidates;
	__u32 second;
	__u32 found;	     /* its number + 1 */
	__u32 is_strict;     /* not the first one, but one that drops, if there is one */
	__u32 is_anywhere;   /* whatever networks it protects */
	__u32 is_sourceless; /* whatever sources it is about */
};

static long try_forward(__u32 number, struct token_forward_search *search)
{
	struct token_requirement *requirement;

	if (!(search->candidates >> (number & 63)))
		return 1; /* nor any behind it */
	if (!(search->candidates >> (number & 63) & 1))
		return 0;
	requirement = requirement_at(search->second, number);
	if (!requirement)
		return 0;
	search->network.networks = requirement->to;
	__builtin_memcpy(search->network.addr, search->dest, 16);
	if (!search->is_anywhere &&
	    !bpf_map_lookup_elem(&token_networks, &search->network))
		return 0;
	if (requirement->networks && !search->is_sourceless) {
		search->network.networks = requirement->networks;
		__builtin_memcpy(search->network.addr, search->source, 16);
		if (!bpf_map_lookup_elem(&token_networks, &search->network))
			return 0;
	}
	if (!search->found || requirement->mode != TOKEN_LOG)
		search->found = (number & 63) + 1;
	return !search->is_strict || requirement->mode != TOKEN_LOG;
}

/* The number + 1 of the first requirement about a packet, of `candidates`; 0: none.
 * `is_strict`: of a packet that could not be read whole, the first one of those that drop
 * it: it passes where all of them only log. */
static __noinline __u32 find_forward(const struct token_packet *packet, __u64 candidates,
				     __u32 generation, __u32 is_strict)
{
	struct token_forward_search search = {
		.candidates = candidates,
		.second = generation & 1,
		.is_strict = is_strict,
	};

	/* Who sends an error is not whom it is about, and what is behind headers that do
	 * not end may be one. */
	if (is_strict && packet->protocol != IPPROTO_TCP &&
	    packet->protocol != IPPROTO_UDP)
		search.is_sourceless = 1;
	/* Nor is it known to whom something goes whose IP header was not reached. */
	search.is_anywhere = is_strict && is_unset(packet->flow.dest);
	search.network.bits = 32 + 128;
	__builtin_memcpy(search.source, packet->flow.source, 16);
	__builtin_memcpy(search.dest, packet->flow.dest, 16);
	bpf_loop(TOKEN_REQUIREMENTS, try_forward, &search, 0);
	return search.found;
}

static __always_inline void count_forward(__s64 more)
{
	__u32 zero = 0;
	__u64 *taken = bpf_map_lookup_elem(&token_forward_taken, &zero);

	if (taken)
		__sync_fetch_and_add(taken, more);
}

static __always_inline int remember_forward(const struct token_packet *packet,
					    const struct token_flow *flow, int is_new)
{
	if (bpf_map_update_elem(&token_forward_flows, &packet->flow, flow, BPF_ANY))
		return -1;
	if (is_new)
		count_forward(1);
	return 0;
}

/* As verify_syn. */
static __noinline enum token_outcome forward_syn(struct __sk_buff *skb,
						 struct token_packet *packet,
						 const struct token_control *control,
						 __u32 requirement)
{
	enum token_outcome outcome = judge_syn(skb, packet, control, requirement);
	struct token_flow flow = {}, *before;

	if (outcome != TOKEN_VALID) {
		if (forget_before(&token_forward_flows, packet, control, requirement))
			count_forward(-1);
		return outcome;
	}
	before = bpf_map_lookup_elem(&token_forward_flows, &packet->flow);
	if (is_sent_again(before, packet))
		return before->used ? TOKEN_REPLAYED : TOKEN_VALID;
	copy_identity(flow.identity, packet->identity);
	flow.isn = packet->tcp.seq;
	remember_forward(packet, &flow, !before);
	return TOKEN_VALID;
}

/* A later segment of a connection of which nothing is known, or that was there before the
 * requirement (`flow`). TOKEN_FREE: it was. */
static __noinline enum token_outcome judge_before(const struct token_packet *packet,
						  struct token_flow *flow,
						  __u32 generation, __u32 number)
{
	struct token_requirement *about = requirement_at(generation, number);
	struct token_flow fresh = {};
	__u32 used;

	if (!about || !about->before_until)
		return TOKEN_NO_FLOW;
	used = generation << TOKEN_USED_GENERATION | number << TOKEN_USED_REQUIREMENT |
	       TOKEN_USED | TOKEN_USED_BEFORE;
	if (flow) {
		flow->used = used;
		return TOKEN_FREE;
	}
	if (bpf_ktime_get_boot_ns() > about->before_until)
		return TOKEN_NO_FLOW;
	fresh.used = used;
	return remember_forward(packet, &fresh, 1) ? TOKEN_NO_FLOW : TOKEN_FREE;
}

/* As match_anew. */
static __noinline int forward_anew(struct __sk_buff *skb, struct token_packet *packet,
				   const struct token_control *control, __u32 generation,
				   struct token_flow *flow)
{
	__u32 found =
		find_forward(packet, candidates_of(packet, generation) & control->forward,
			     generation, 0);
	enum token_outcome outcome;

	if (!found)
		return MATCH;
	found = (found - 1) & 63;
	if (scope_of(control, found) == TOKEN_SCOPE_DAF)
		return MATCH_BY_DAF + found;
	if (packet->protocol == IPPROTO_UDP) {
		outcome = judge_datagram(skb, packet, control, found);
	} else if (packet->tcp.syn && !packet->tcp.ack) {
		outcome = forward_syn(skb, packet, control, found);
	} else if (!flow || flow->used & TOKEN_USED_BEFORE) {
		outcome = judge_before(packet, flow, generation, found);
	} else if (!is_named(control, flow->identity, found)) {
		outcome = TOKEN_NOT_NAMED;
		if (!flow->used)
			flow->used = TOKEN_USED;
	} else if (wants_payload(control, found)) {
		copy_identity(packet->identity, flow->identity);
		packet->isn = flow->isn;
		return MATCH_BY_TOKEN + found;
	} else {
		outcome = TOKEN_PROVEN;
		flow->used = generation << TOKEN_USED_GENERATION |
			     found << TOKEN_USED_REQUIREMENT | TOKEN_USED;
	}
	return finish(control, packet, outcome, found) ? MATCH : 0;
}

/* Tags that are gone through, beside one that the kernel has taken off before tc. */
#define FORWARD_TAGS 4

static __always_inline int is_tag(__be16 link)
{
	return link == bpf_htons(ETH_P_8021Q) || link == bpf_htons(ETH_P_8021AD);
}

/* Goes through the tags of a frame whose type is packet->link, to the type of what it
 * carries, whose offset is the answer: a receiver takes off all of them. 0: it cannot. */
static __noinline __u32 skip_tags(struct __sk_buff *skb, __u32 base,
				  struct token_packet *packet)
{
	__be16 tag[2];
	int i;

	for (i = 0; i < FORWARD_TAGS && is_tag(packet->link); i++) {
		if (bpf_skb_load_bytes(skb, base, tag, sizeof(tag)))
			return 0;
		packet->link = tag[1];
		base += sizeof(tag);
	}
	return is_tag(packet->link) ? 0 : base;
}

static __always_inline int is_ip(__be16 link)
{
	return link == bpf_htons(ETH_P_IP) || link == bpf_htons(ETH_P_IPV6);
}

/* Where what a packet carries begins, behind the headers of IP. */
struct forward_path {
	__u32 at;
	__u8 next;	     /* its protocol */
	__u8 is_later;	     /* a part of a packet behind the first one */
	__u8 is_overlapping; /* of one that could overwrite what the first one says */
	__u8 is_first;	     /* the first one of several */
};

/* Bytes of the least IPv6 header between those of IP and of what is carried. */
#define EXTENSION_LEAST 8
/* Those with which every message of ICMP and ICMPv6 begins (RFC 792, RFC 4443). */
#define ICMP_HEADER 8

/* 0: read; the addresses are in packet->flow. -1: they are not. 1: malformed behind
 * them. */
static __noinline int read_path(struct __sk_buff *skb, __u32 base,
				struct token_packet *packet, struct forward_path *path)
{
	__u32 at, i;
	__u8 next;

	if (link_protocol(skb, packet) == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		__u16 offset;

		if (bpf_skb_load_bytes(skb, base, &ip, sizeof(ip)) || ip.version != 4)
			return -1;
		map_v4(packet->flow.source, ip.saddr);
		map_v4(packet->flow.dest, ip.daddr);
		packet->end = end_of(skb, base, ip.tot_len);
		if (ip.ihl < 5)
			return 1;
		offset = bpf_ntohs(ip.frag_off) & 0x1fff;
		path->is_later = offset != 0;
		path->is_first = !offset && ip.frag_off & bpf_htons(0x2000);
		path->is_overlapping = offset == 1 && ip.protocol == IPPROTO_TCP;
		path->next = ip.protocol;
		path->at = base + ip.ihl * 4;
		packet->ip_options = base + sizeof(ip);
		packet->ip_options_len = ip.ihl * 4 - sizeof(ip);
		return 0;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, base, &ip, sizeof(ip)) || ip.version != 6)
			return -1;
		__builtin_memcpy(packet->flow.source, &ip.saddr, 16);
		__builtin_memcpy(packet->flow.dest, &ip.daddr, 16);
		next = ip.nexthdr;
		at = base + sizeof(ip);
		packet->end = end_of(skb, at, ip.payload_len);
		packet->ip_options_len = 0;
		for (i = 0; i < CHAIN; i++) {
			__u8 head[4];

			if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING &&
			    next != IPPROTO_DSTOPTS && next != IPPROTO_FRAGMENT)
				break;
			/* What is behind the packet in its frame ends no chain: the next
			 * part goes on with it. */
			if (!is_within(packet, at, EXTENSION_LEAST) ||
			    bpf_skb_load_bytes(skb, at, head, sizeof(head)))
				return 1;
			if (next == IPPROTO_FRAGMENT) {
				/* What is behind it is data of some header. Of which
				 * one says the first part, not this one. */
				if (head[2] || head[3] & 0xf8) {
					path->is_later = 1;
					path->is_overlapping =
						!head[2] && (head[3] & 0xf8) == 8;
					return 0;
				}
				/* One around another, which is whole, is a part. */
				path->is_first |= head[3] & 1;
				head[1] = 0;
			}
			if (next == IPPROTO_DSTOPTS &&
			    (head[0] == IPPROTO_TCP || head[0] == IPPROTO_UDP)) {
				packet->ip_options = at + 2;
				packet->ip_options_len = head[1] * 8 + 6;
			}
			next = head[0];
			at += (head[1] + 1) * 8;
		}
		if (next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING ||
		    next == IPPROTO_DSTOPTS || next == IPPROTO_FRAGMENT)
			return 1;
		path->next = next;
		path->at = at;
		return 0;
	}
}

/* What cannot be judged, for a network that requirements are about: its ports are not
 * known, so it may be about any of them. */
static __noinline int judge_malformed(const struct token_packet *packet,
				      const struct token_control *control)
{
	__u32 found = find_forward(packet, control->forward, control->generation, 1);

	return !found || finish(control, packet, TOKEN_MALFORMED, found - 1) ? MATCH : 0;
}

/* Is this ICMP message an error about a packet, which it quotes? */
static __always_inline int is_icmp_error(__u8 protocol, __u8 type)
{
	if (protocol == IPPROTO_ICMP)
		return type == 3 || type == 4 || type == 11 || type == 12;
	return type >= 1 && type <= 4;
}

#define FORWARD_UNREAD (-1)

/* An ICMP message, at outer->transport. FORWARD_UNREAD: it does not say whom it is about;
 * its caller judges that, for before Linux 6.8 the stack has no room for it here. */
static __noinline int judge_icmp(struct __sk_buff *skb, const struct token_packet *outer,
				 const struct token_control *control)
{
	struct token_packet packet = {};
	struct forward_path quoted = {};
	__u32 at = outer->transport, found;
	__be16 ports[2];
	__u64 about;
	void *known;
	__u8 type;

	if (bpf_skb_load_bytes(skb, at, &type, 1) ||
	    !is_icmp_error(outer->protocol, type))
		return MATCH;
	packet.link = outer->link;
	/* Its receiver may find out what it is about where this does not. */
	if (read_path(skb, at + 8, &packet, &quoted) || quoted.is_later ||
	    quoted.next == IPPROTO_AH)
		return FORWARD_UNREAD;
	if (quoted.next != IPPROTO_TCP && quoted.next != IPPROTO_UDP)
		return MATCH;
	if (bpf_skb_load_bytes(skb, quoted.at, ports, sizeof(ports)))
		return FORWARD_UNREAD;
	/* As the flow comes in. `identity` has nothing else here. */
	__builtin_memcpy(packet.identity, packet.flow.source, 16);
	__builtin_memcpy(packet.flow.source, packet.flow.dest, 16);
	__builtin_memcpy(packet.flow.dest, packet.identity, 16);
	packet.flow.source_port = ports[1];
	packet.flow.dest_port = ports[0];
	packet.protocol = quoted.next;
	about = candidates_of(&packet, control->generation) & control->forward;
	found = about ? find_forward(&packet, about, control->generation, 0) : 0;
	/* Nothing is known of flows with signatures of DAF. */
	if (!found || scope_of(control, found - 1) == TOKEN_SCOPE_DAF)
		return MATCH;
	known = packet.protocol == IPPROTO_UDP
			? bpf_map_lookup_elem(&token_udp_proven, &packet.flow)
			: bpf_map_lookup_elem(&token_forward_flows, &packet.flow);
	return finish(control, &packet, known ? TOKEN_PROVEN : TOKEN_NO_FLOW, found - 1)
		       ? MATCH
		       : 0;
}

#define FORWARD_READ (-2)
#define FORWARD_ICMP (-3)

/* What is no whole segment of TCP. FORWARD_READ: judged by its ports, which are read.
 * FORWARD_ICMP: a message is at packet->transport. FORWARD_UNREAD: malformed. */
static __noinline int read_other(struct __sk_buff *skb, __u32 base,
				 struct token_packet *packet,
				 const struct token_control *control)
{
	struct forward_path path = {};
	int said = read_path(skb, base, packet, &path);
	__be16 ports[2];
	__u8 type;

	if (said < 0)
		return MATCH;
	packet->protocol = path.next;
	if (said || path.is_overlapping)
		return FORWARD_UNREAD;
	if (path.is_later)
		return MATCH;
	packet->is_part = path.is_first;
	switch (path.next) {
	case IPPROTO_UDP:
		if (!is_within(packet, path.at, sizeof(ports)) ||
		    bpf_skb_load_bytes(skb, path.at, ports, sizeof(ports)))
			return FORWARD_UNREAD;
		/* Most are to other ports: their options are of no interest. */
		packet->flow.dest_port = ports[1];
		if (!(candidates_of(packet, control->generation) & control->forward))
			return MATCH;
		return read_datagram(skb, base, 1, packet) ? FORWARD_UNREAD
							   : FORWARD_READ;
	case IPPROTO_TCP:
		if (!is_within(packet, path.at, sizeof(packet->tcp)) ||
		    bpf_skb_load_bytes(skb, path.at, &packet->tcp, sizeof(packet->tcp)))
			return FORWARD_UNREAD;
		packet->transport = path.at;
		packet->flow.source_port = packet->tcp.source;
		packet->flow.dest_port = packet->tcp.dest;
		return FORWARD_READ;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		/* What it is about may stand in the next part. */
		if (path.is_first && (!is_within(packet, path.at, ICMP_HEADER) ||
				      bpf_skb_load_bytes(skb, path.at, &type, 1) ||
				      is_icmp_error(path.next, type)))
			return FORWARD_UNREAD;
		packet->transport = path.at;
		return FORWARD_ICMP;
	}
	return MATCH;
}

/* As judge_forward; FORWARD_READ: by its ports. FORWARD_UNREAD: it cannot be judged. */
static __always_inline int read_forward(struct __sk_buff *skb, __u32 base,
					struct token_packet *packet,
					const struct token_control *control)
{
	int said;

	if (is_tag(packet->link)) {
		base = skip_tags(skb, base, packet);
		if (!base)
			return FORWARD_UNREAD;
	}
	if (!is_ip(packet->link))
		return MATCH;
#ifdef TOKEN_XDP
	/* There is no room for both on the stack of kernels before 6.8. */
	said = read_packet(skb, base, packet);
#else
	said = read_inline(skb, base, packet);
#endif
	if (!said)
		return FORWARD_READ;
	said = read_other(skb, base, packet, control);
	return said == FORWARD_ICMP ? judge_icmp(skb, packet, control) : said;
}

/* 0: it is dropped. `packet` is empty, but for the type of its frame. */
static __always_inline int judge_forward(struct __sk_buff *skb, __u32 base,
					 struct token_packet *packet,
					 const struct token_control *control)
{
	int said = read_forward(skb, base, packet, control);
	__u32 generation = control->generation, used;
	struct token_flow *flow = NULL;

	/* In one place, for verifiers before Linux 6.4 go through it once for each. */
	if (said == FORWARD_UNREAD)
		return judge_malformed(packet, control);
	if (said != FORWARD_READ)
		return said;
	if (!(candidates_of(packet, generation) & control->forward))
		return MATCH;
	if (packet->protocol == IPPROTO_TCP && !(packet->tcp.syn && !packet->tcp.ack)) {
		flow = bpf_map_lookup_elem(&token_forward_flows, &packet->flow);
		used = flow ? flow->used : 0;
		if (generation && used >> TOKEN_USED_GENERATION == generation)
			return finish(control, NULL,
				      used & TOKEN_USED_BEFORE ? TOKEN_FREE
							       : TOKEN_PROVEN,
				      used >> TOKEN_USED_REQUIREMENT);
	}
	said = forward_anew(skb, packet, control, generation, flow);
	return said <= MATCH ? said : match_segment(skb, packet, flow, control, said);
}

#ifndef TOKEN_XDP
static __always_inline int forward_frame(struct __sk_buff *skb, __u32 base)
{
	struct token_control *control = control_get();
	struct token_packet packet = {};

	if (!control || !control->forward)
		return TC_ACT_UNSPEC;
	packet.link = skb->protocol;
	return judge_forward(skb, base, &packet, control) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* At a device whose frames have an Ethernet header. */
SEC("tcx/ingress")
int weir_forward(struct __sk_buff *skb)
{
	return forward_frame(skb, ETHERNET);
}

/* At one whose frames begin with the IP header. */
SEC("tcx/ingress")
int weir_forward_ip(struct __sk_buff *skb)
{
	return forward_frame(skb, 0);
}
#endif

#endif
