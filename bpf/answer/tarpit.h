/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Tarpit ports: nobody serves them. A SYN is answered with the kernel's own SYN cookie
 * and a window of a few bytes; what follows is answered with a window of zero. So the
 * client is connected, has something to send, and probes the window, ever more slowly
 * (RFC 9293 3.8.6.1), until it gives up. No connection is remembered: what the answer
 * says follows from the packet alone.
 *
 * Tail-called for packets that would pass (port_features.h), and answered when they are
 * to an address of this host, or to one that this host holds for a tarpit
 * (tarpit_address.h). What is not, and may be for a pool, is that one's. At most one
 * answer to a packet, never longer than that; none to RST, SYN-ACK, fragments or this
 * host itself; limited by CPU and by source. Two that answer each other come to an end:
 * is_worth_no_answer.
 *
 * Connections that this host has of its own from or at such a port go on: the kernel is
 * asked for their socket. */
#ifndef WEIR_TARPIT_H
#define WEIR_TARPIT_H

#include "answer/decoy.h"
#include "answer/tarpit_address.h"
#include "balance/balance.h"

/* Does this host have a socket for the segment? */
static __always_inline int is_own_connection(void *ctx, const struct bait *b, int v4)
{
	const struct tcphdr *tcp = &b->segment.tcp;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sock;

	if (v4) {
		tuple.ipv4.saddr = b->ip.v4.saddr;
		tuple.ipv4.daddr = b->ip.v4.daddr;
		tuple.ipv4.sport = tcp->source;
		tuple.ipv4.dport = tcp->dest;
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &b->ip.v6.saddr, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &b->ip.v6.daddr, 16);
		tuple.ipv6.sport = tcp->source;
		tuple.ipv6.dport = tcp->dest;
	}
	sock = bpf_skc_lookup_tcp(ctx, &tuple,
				  v4 ? sizeof(tuple.ipv4) : sizeof(tuple.ipv6),
				  BPF_F_CURRENT_NETNS, 0);
	if (!sock)
		return 0;
	bpf_sk_release(sock);
	return 1;
}

/* Is the segment of `length` bytes one that says nothing, and not of a client that
 * probes? Those have room themselves, so a window of zero is another tarpit's. Some
 * stacks say something to whatever acknowledges more than they sent (RFC 9293 3.10.7.4,
 * FreeBSD), as an answer to a plain ACK does: of each TARPIT_PROBES one gets none, so
 * that such a pair falls silent. A client that probes goes on. */
static __always_inline int is_worth_no_answer(const struct tcphdr *tcp, __u32 length)
{
	return !length && !tcp->fin &&
	       (!tcp->window || !(bpf_get_prandom_u32() % TARPIT_PROBES));
}

/* From the segment in `b`, `total` bytes of which `length` are data, an ACK with a
 * window of zero; returns its length. Acknowledged is what fits into the window once
 * offered. More is not taken, nor one byte, which probes of the window have (BSD,
 * Windows), nor a FIN. A segment without data is a probe as well, from before the
 * window (Linux) or a keep-alive: with it all that came before is acknowledged, and to
 * a plain ACK that says something that its sender ignores. */
static __always_inline __u32 write_hold(struct bait *b, int v4, int tc, __u32 total,
					__u32 length)
{
	const struct tcphdr *tcp = &b->segment.tcp;
	int csum_partial = tc && tcp->check == fold(pseudo_header(b, v4, total));
	__u32 taken = length;
	struct tcphdr answer;

	if (!length)
		taken = !tcp->fin;
	else if (length == 1 || length > TARPIT_WINDOW)
		taken = 0;
	answer = (struct tcphdr){
		.seq = tcp->ack_seq,
		.ack_seq = bpf_htonl(bpf_ntohl(tcp->seq) + taken),
		.ack = 1,
	};
	write_segment(b, v4, csum_partial, &answer, 0, sizeof(answer));
	return sizeof(answer);
}

/* A packet to a tarpit port: what the hook shall return for it. */
static __always_inline int handle_tarpit(void *ctx, int tc)
{
	const int drop = tc ? TC_ACT_SHOT : XDP_DROP;
	const int innocent = tc ? TC_ACT_UNSPEC : XDP_PASS;
	const int pass = cfg.final_pass == XDP_PASS ? innocent : drop;
	struct answer_request *request = answer_request_here();
	__u32 zero = 0, total, length, len, tag, *slot, l3, v4, frame_len, addresses;
	struct decoy_guesses *guesses;
	struct tarpit_counter *c;
	enum reason otherwise;
	struct tcphdr *tcp;
	struct bait *b;
	__u64 now;

	if (!request)
		return drop;
	l3 = request->result.l3 & L3_MOST;
	v4 = request->result.v4;
	frame_len = request->result.bytes;
	otherwise = request->result.reason;
	addresses = request->features & PORT_ADDRESSES;
	b = bpf_map_lookup_elem(&decoy_scratch, &zero);
	c = bpf_map_lookup_elem(&tarpit_counters, &zero);
	if (!b || !c)
		goto none;
	*b = (struct bait){
		.result = {.ifindex = request->result.ifindex, .bytes = frame_len}};
	tcp = &b->segment.tcp;
	if (otherwise == R_NOT_IP ||
	    (addresses && is_neighbour_discovery(ctx, tc, l3, v4))) {
		if (request->observe)
			goto none;
		length = tc ? locate_tc(ctx, b, l3, c, otherwise == R_NOT_IP)
			    : locate_xdp(ctx, b, l3, c, otherwise == R_NOT_IP);
		if (!length)
			goto none;
		count(R_TARPIT, frame_len);
		return length == LOCATED ? send_back(ctx, tc, b->mac) : drop;
	}
	len = read_request(ctx, tc, b, l3, v4, 1, &total);
	if (!len)
		goto none;
	if (addresses && !request->observe)
		note_alive(&b->source);
	if (bpf_map_lookup_elem(&decoy_own, &b->own) ? !(request->features & PORT_TARPIT)
						     : !addresses || !is_held_here(b))
		goto none;
	if (b->result.protocol != IPPROTO_TCP || tcp->rst || tcp->syn == tcp->ack ||
	    (tcp->syn && tcp->fin))
		goto none;
	if (bpf_map_lookup_elem(&decoy_own, &b->source) ||
	    (tcp->ack && is_own_connection(ctx, b, v4)))
		goto none;
	if (v4 ? allowed4(b->ip.v4.saddr) : allowed6(&b->ip.v6.saddr)) {
		otherwise = R_ALLOWED;
		goto none;
	}
	slot = asked_slot(b, &tag);
	if (!slot)
		goto none;
	now = bpf_jiffies64();
	__builtin_memcpy(b->result.source, &b->source, sizeof(b->result.source));
	if (request->observe) {
		b->result.reason = R_OBSERVED;
		count_and_report(&b->result, now);
		return pass;
	}
	b->result.reason = R_TARPIT;
	if (tcp->doff < 5 || total < tcp->doff * 4) {
		count(R_TARPIT, frame_len);
		return drop;
	}
	if (tcp->syn) {
		b->result.scanner = scanner_of(tcp);
		count_and_report(&b->result, now);
		if (take_answer(c, b, v4, now))
			return drop;
		total = answer_syn(ctx, tc, b, v4, len, total, TARPIT_WINDOW);
		if (!total)
			return drop;
		*slot = tag;
		c->answered++;
		return send_reply(ctx, tc, b, l3, v4, frame_len, total);
	}

	length = total - tcp->doff * 4;
	guesses = *slot == tag ? take_guess() : NULL;
	if (guesses) {
		/* One guess a SYN. */
		*slot = tag ^ ASKED;
		if (is_cookie_right(b, v4, guesses))
			b->result.reason = R_TARPIT_HANDSHAKE;
	}
	if (b->result.reason == R_TARPIT_HANDSHAKE) {
		count_and_report(&b->result, now);
		/* The end of a handshake asks for nothing. */
		if (!length && !tcp->fin)
			return drop;
	} else {
		count(R_TARPIT, frame_len);
	}
	if (is_worth_no_answer(tcp, length) || take_answer(c, b, v4, now))
		return drop;
	c->held++;
	total = write_hold(b, v4, tc, total, length);
	return send_reply(ctx, tc, b, l3, v4, frame_len, total);
none:
	if (request->features & PORT_BALANCE) {
		request->result.reason = otherwise;
		return handle_balance(ctx, tc);
	}
	count(otherwise, frame_len);
	return pass;
}

SEC("xdp")
int weir_tarpit_xdp(struct xdp_md *ctx)
{
	return handle_tarpit(ctx, 0);
}

SEC("tcx/ingress")
int weir_tarpit_tc(struct __sk_buff *skb)
{
	return handle_tarpit(skb, 1);
}

#endif
