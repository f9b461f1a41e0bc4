/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What becomes of a packet that comes in, whatever the hook:
 *   parse -> class -> bloom -> ban table, prefix bans ->
 *   scope -> essential -> allow -> port features -> verdict
 * What is answered, and not passed or dropped, is left to programs of their own
 * (bpf/answer).
 * Malformed packets pass, for the host's own stack drops them. More VLAN tags than
 * the parser follows are dropped: the stack takes any number of priority tags (VLAN
 * 0) off a frame, so whoever may add tags would pass otherwise. */
#ifndef WEIR_DECIDE_H
#define WEIR_DECIDE_H

#include "firewall/port_features.h"
#include "firewall/source.h"
#include "lib/decision.h"
#include "lib/request.h"

/* Sources that nobody has are dropped, for some of them reach sockets; but for what
 * a host sends to get an address. Before anything else lets a packet pass: the allow list
 * may. */
static __always_inline enum reason judge_invalid_source(const struct l4 *l4,
							const struct source *s)
{
	if (is_unspecified(s) && l4->no_address)
		return R_PASS;
	if (is_allowed(s))
		return R_ALLOWED;
	return R_INVALID_SOURCE;
}

/* The reason by which a packet leaves that is banned, listed or fenced for `reason`:
 * that one, unless something overrides it. */
static __always_inline enum reason
apply_overrides(enum reason reason, const struct l4 *l4, const struct source *s)
{
	if (l4->essential)
		return R_ESSENTIAL;
	if (is_allowed(s))
		return R_ALLOWED;
	if (control.observe)
		return R_OBSERVED;
	return reason;
}

/* Is one of these bans to be answered for, where a program can? */
static __always_inline int is_answered(__u64 found, enum hook hook)
{
	return cfg.answers && hook != IN_NETFILTER && FOUND_REJECTING(found);
}

/* Most packets that are dropped: TCP, or UDP to a port that is not DHCP's, of a
 * source under a ban of all ports, of which no event is due. Nothing else of their
 * headers matters. */
static __always_inline int is_plain(const struct frame *f, const struct source *s,
				    __u64 now)
{
	struct iphdr *ip = f->l3;
	struct ipv6hdr *ip6 = f->l3;
	struct ports *ports = s->v4 ? (void *)(ip + 1) : (void *)(ip6 + 1);
	/* The other one of each pair is the next port. */
	__u16 dhcp = s->v4 ? DHCP_SERVER : DHCPV6_CLIENT, dest;
	__u8 protocol;

	if (s->v4 && unlikely(ip->ihl != 5))
		return 0;
	protocol = s->v4 ? ip->protocol : ip6->nexthdr;
	if (protocol != IPPROTO_TCP) {
		if (protocol != IPPROTO_UDP || (void *)(ports + 1) > f->end)
			return 0;
		dest = bpf_ntohs(ports->dest);
		if (dest == dhcp || dest == dhcp + 1)
			return 0;
	}
	return !control.observe && !is_event_due(R_BANNED_ALL, now);
}

/* The bans that cover this packet. Ports that cannot be known, as of a first fragment
 * that is cut before them, match any of them; packets that have none, as later
 * fragments, match only bans of all ports. */
static __always_inline __u64 bans_covering(const struct source *s,
					   const struct places *at, __u64 found,
					   __u64 now, const struct l4 *l4)
{
	__u32 flow = FLOW_ALL;

	if (l4->kind == L4_PORTS_UNKNOWN)
		return found;
	if (l4->kind == L4_HAS_PORTS)
		flow = FLOW_SET | (__u32)l4->protocol << 16 | l4->dest;
	return bans_of_flow(s, at, now, flow);
}

/* Why the source is denied, before the allow list or `observe` override it. */
static __always_inline enum reason reason_denied(__u64 found, __u64 covered,
						 __u32 class_verdict)
{
	if (FOUND_ALL(found))
		return R_BANNED_ALL;
	if (covered)
		return R_BANNED_SCOPE;
	if (class_verdict)
		return class_verdict & 0xff;
	return found ? R_OTHER_PORT : R_PASS;
}

/* The reason by which a packet leaves. `way`, a constant: COVER_IN, or COVER_OUT,
 * where bans say nothing. What is told of it is in `result` from R_OBSERVED on. */
static __always_inline enum reason judge(void *ctx, enum hook hook, struct frame *f,
					 struct source *s, const int way,
					 struct pkt_result *result)
{
	__u32 base = 0, class = 0, class_verdict = 0;
	__u64 now = 0, found = 0, cover = 0;
	struct places at = {};
	enum reason reason;
	struct l4 l4 = {};
	int silent;

	if (way == COVER_IN && unlikely(is_invalid(s))) {
		if (is_loopback(s))
			return R_PASS;
		parse_l4(ctx, hook, f, s->total, !s->v4, &l4);
		return judge_invalid_source(&l4, s);
	}
	if (cfg.class_lines) {
		base = control.class_base;
		class = class_of(s, base);
	}
	if (likely(!(way == COVER_IN && may_be_banned(s, &at)) && !class))
		return R_PASS;

	if (way == COVER_IN) {
		now = bpf_jiffies64();
		found = bans_of(s, &at, now);
		if (!found && !class)
			return R_PASS;
		VERIFIER_FORGET(s->total);
	}
	silent = FOUND_ALL(found) && !is_answered(found, hook);
	if (likely(silent && is_plain(f, s, now)) && !is_allowed(s))
		return R_BANNED_NO_EVENT;
	parse_l4(ctx, hook, f, s->total, !s->v4, &l4);
	if (found && !silent)
		cover = bans_covering(s, &at, found, now, &l4);
	if (class && !FOUND_ALL(found) && !FOUND_SCOPED(cover))
		class_verdict = classify(base, class, remote_of(s), flow_of(&l4),
					 pkt_flags(&l4, way));
	reason = reason_denied(found, FOUND_SCOPED(cover), class_verdict);
	if (reason < R_OBSERVED)
		return reason;
	*result = (struct pkt_result){.protocol = l4.protocol,
				      .rejecting = is_answered(cover, hook),
				      .l3 = f->l3 - f->data,
				      .v4 = s->v4,
				      .port = l4.dest,
				      .class_verdict = class_verdict};
	if (s->v4) {
		result->source[10] = result->source[11] = 0xff;
		__builtin_memcpy(&result->source[12], s->addr, 4);
	} else {
		__builtin_memcpy(result->source, s->addr, 16);
	}
	return apply_overrides(reason, &l4, s);
}

/* Judges a packet from the IP header on. */
static __always_inline enum reason judge_ip(void *ctx, enum hook hook, struct frame *f,
					    __u32 frame_len, const int v4, const int way,
					    struct pkt_result *result)
{
	struct source s = {.v4 = v4};
	enum reason reason = read_source(f, hook, frame_len, way, &s);

	return unlikely(reason) ? reason : judge(ctx, hook, f, &s, way, result);
}

/* Judges a packet from the first byte of the frame on. */
static __always_inline enum reason judge_frame(void *ctx, enum hook hook, struct frame *f,
					       __u32 frame_len, const int way,
					       struct pkt_result *result)
{
	enum reason reason = parse_l2(ctx, hook, f);

	if (unlikely(reason))
		return reason;
	if (likely(f->proto == bpf_htons(ETH_P_IP)))
		return judge_ip(ctx, hook, f, frame_len, 1, way, result);
	if (f->proto == bpf_htons(ETH_P_IPV6))
		return judge_ip(ctx, hook, f, frame_len, 0, way, result);
	return R_NOT_IP;
}

/* Counts and tells. `result` is set where it is told. */
static __always_inline enum act finish(struct pkt_result *result, enum reason reason,
				       __u32 ifindex, __u32 bytes)
{
	if (reason == R_BANNED_NO_EVENT) {
		count_no_event(R_BANNED_ALL, bytes);
		return ACT_DROP;
	}
	if (unlikely(reason >= R_INVALID_SOURCE)) {
		count(control.observe ? R_OBSERVED : reason, bytes);
		return control.observe ? ACT_PASS : ACT_DROP;
	}
	if (unlikely(reason >= R_OBSERVED)) {
		if (result->class_verdict)
			count_class(result->class_verdict, bytes);
		result->reason = reason;
		result->ifindex = ifindex;
		result->bytes = bytes;
		count_and_report(result, bpf_jiffies64());
		return reason >= R_BANNED_ALL ? ACT_DROP : ACT_PASS;
	}
	count(reason, bytes);
	return ACT_PASS;
}

/* Programs that answer: an array for each kind of program that may call them, as the
 * kernel has it. In pins, for an array that no user space holds is empty. */
#define ANSWERS(name)                                                                    \
	struct {                                                                         \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                                   \
		__uint(max_entries, NEXT_MAX);                                           \
		__type(key, __u32);                                                      \
		__type(value, __u32);                                                    \
	} name SEC(".maps")

/* To a place that it knows the kernel jumps; one that is a number it looks up, and where
 * indirect jumps are guarded that takes longer than a pool's packet does in all. Known
 * are the places of those that floods come to. */
#define CALL_ANSWER(ctx, answers, next)                                                  \
	do {                                                                             \
		if (unlikely((next) == NEXT_TARPIT))                                     \
			bpf_tail_call_static(ctx, answers, NEXT_TARPIT);                 \
		else if (unlikely((next) != NEXT_BALANCE))                               \
			bpf_tail_call(ctx, answers, next);                               \
		if (likely((next) == NEXT_BALANCE) || is_pools_without_tarpit(next))     \
			bpf_tail_call_static(ctx, answers, NEXT_BALANCE);                \
	} while (0)

/* Is it a pool's packet, where the tarpit that would have gone on to it is not loaded? */
static __always_inline int is_pools_without_tarpit(enum next next)
{
	struct answer_request *r = answer_request_here();

	return next == NEXT_TARPIT && r && r->features & PORT_BALANCE;
}

/* What is to be told of a packet that another program gets. */
static __always_inline void hand_over(const struct pkt_result *result)
{
	struct answer_request *r = answer_request_here();

	if (r)
		r->result = *result;
}

/* Leaves the packet to another program. Of one that is not told of, `result` has no more
 * than this. */
static __always_inline struct decision next_program(enum next next, enum reason reason,
						    __u32 ifindex, __u32 bytes, __u32 l3,
						    int v4, __u32 features)
{
	struct answer_request *r = answer_request_here();

	if (r) {
		r->result.reason = reason;
		r->result.ifindex = ifindex;
		r->result.bytes = bytes;
		r->result.l3 = l3;
		r->result.v4 = v4;
		r->observe = control.observe;
		r->features = features;
	}
	return (struct decision){ACT_NEXT, next};
}

/* When that program is not there. */
static __always_inline enum act finish_unanswered(void)
{
	struct answer_request *r = answer_request_here();

	return r ? finish(&r->result, r->result.reason, r->result.ifindex,
			  r->result.bytes)
		 : ACT_DROP;
}

/* Does a packet of this reason go on to whoever serves its port? */
static __always_inline int may_be_served(enum reason reason)
{
	const __u32 served = 1 << R_PASS | 1 << R_ALLOWED | 1 << R_OTHER_PORT |
			     1 << R_REPLY | 1 << R_OBSERVED | 1 << R_NOT_IP;

	/* One test, and so one path for the verifier. */
	return served >> (reason & 31) & 1;
}

/* Decides on a frame that comes in. `all_readable`: f->end is as far as this hook can
 * see. */
static __always_inline struct decision decide(void *ctx, enum hook hook, struct frame *f,
					      __u32 frame_len, int all_readable,
					      __u32 ifindex)
{
	struct pkt_result result; /* set on the way to an event only */
	enum reason reason = judge_frame(ctx, hook, f, frame_len, COVER_IN, &result);

	/* Most packets, and first: an innocent's way is laid out straight. Of an skb one
	 * whose ports a fence could not see is judged again when they can be read. */
	if (hook == IN_XDP && likely(reason == R_PASS && !control.port_features)) {
		count(R_PASS, frame_len);
		return (struct decision){ACT_PASS};
	}
	if (cfg.answers && hook != IN_NETFILTER && control.port_features &&
	    may_be_served(reason)) {
		int v4 = f->proto == bpf_htons(ETH_P_IP);
		__u32 l3 = f->l3 - f->data;
		/* ARP asks for addresses of tarpits. */
		__u32 features =
			reason == R_NOT_IP
				? control.port_features & PORT_ADDRESSES
				: features_of_port(ctx, hook, l3, v4, &f->need_pull);
		const __u32 answers = PORT_DECOY | PORT_TARPIT | PORT_ADDRESSES;
		enum next next = NEXT_BALANCE;

		if (unlikely(features & answers) &&
		    (reason == R_PASS || reason == R_NOT_IP || reason == R_OTHER_PORT))
			next = features & PORT_DECOY ? NEXT_DECOY : NEXT_TARPIT;
		if (next != NEXT_BALANCE || features & PORT_BALANCE) {
			if (unlikely(reason == R_OBSERVED)) {
				if (result.class_verdict)
					count_class(result.class_verdict, frame_len);
				result.class_verdict = 0;
				hand_over(&result);
			}
			return next_program(next, reason, ifindex, frame_len, l3, v4,
					    features);
		}
	}
	if (!all_readable && (f->need_pull || reason == R_MALFORMED))
		return (struct decision){ACT_PULL};
	if (cfg.answers && (reason == R_BANNED_ALL || reason == R_BANNED_SCOPE) &&
	    result.rejecting) {
		hand_over(&result);
		return next_program(NEXT_REJECT, reason, ifindex, frame_len, result.l3,
				    result.v4, 0);
	}
	return (struct decision){finish(&result, reason, ifindex, frame_len)};
}

#endif
