/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What becomes of a packet that comes in, whatever the hook:
 *   parse -> class -> bloom -> ban table, prefix bans ->
 *   scope -> essential -> allow -> verdict
 * Malformed packets pass, for the host's own stack drops them. More VLAN tags than
 * the parser follows are dropped: the stack takes any number of priority tags (VLAN
 * 0) off a frame, so whoever may add tags would pass otherwise. */
#ifndef WEIR_DECIDE_H
#define WEIR_DECIDE_H

#include "answer/decoy.h"
#include "answer/reject.h"
#include "firewall/source.h"
#include "lib/decision.h"

/* Sources that nobody has are dropped, for some of them reach sockets; but for what
 * a host sends to get an address. Before anything else saves a packet: the allow list
 * may. */
static __always_inline enum reason settle_invalid(const struct l4 *l4,
						  const struct source *s)
{
	if (is_unspecified(s) && l4->no_address)
		return R_PASS;
	if (is_allowed(s))
		return R_ALLOWED;
	return R_INVALID_SOURCE;
}

/* What follows for a packet that is banned, listed or fenced by `why`: what may
 * still save it. */
static __always_inline enum reason settle(enum reason why, const struct l4 *l4,
					  const struct source *s)
{
	if (l4->essential)
		return R_ESSENTIAL;
	if (is_allowed(s))
		return R_ALLOWED;
	if (control.observe)
		return R_OBSERVED;
	return why;
}

/* Most packets that are dropped: TCP, or UDP to a port that is not DHCP's, of a
 * source under a ban of all ports, of which no event is due. Nothing else of their
 * headers matters. */
static __always_inline int is_plain(const struct frame *f, const struct source *s,
				    __u64 found, __u64 now)
{
	struct iphdr *ip = f->l3;
	struct ipv6hdr *ip6 = f->l3;
	struct ports *ports = s->v4 ? (void *)(ip + 1) : (void *)(ip6 + 1);
	__u16 dhcp = s->v4 ? 67 : 546, dest;
	__u8 protocol;

	if (s->v4 && unlikely(ip->ihl != 5))
		return 0;
	if (cfg.reject && FOUND_REJECTING(found))
		return 0;
	protocol = s->v4 ? ip->protocol : ip6->nexthdr;
	if (protocol != IPPROTO_TCP) {
		if (protocol != IPPROTO_UDP || (void *)(ports + 1) > f->end)
			return 0;
		dest = bpf_ntohs(ports->dest);
		if (dest == dhcp || dest == dhcp + 1)
			return 0;
	}
	return !control.observe && !is_told(R_BANNED_ALL, now);
}

/* Do bans of some ports cover this packet? Ports that cannot be known match any of
 * them; packets that have none match only bans of all ports. */
static __always_inline __u64 are_scoped(const struct source *s, const struct places *at,
					__u64 now, const struct l4 *l4)
{
	return l4->kind == P_UNKNOWN ||
	       (l4->kind == P_PORTS &&
		FOUND_SCOPED(bans_of_flow(
			s, at, now, FLOW_SET | (__u32)l4->protocol << 16 | l4->dest)));
}

/* The reason for which the source is denied, before anything saves it. */
static __always_inline enum reason denied(__u64 found, __u64 covered, __u32 said)
{
	if (FOUND_ALL(found))
		return R_BANNED_ALL;
	if (covered)
		return R_BANNED_SCOPE;
	if (said)
		return said & 0xff;
	return found ? R_OTHER_PORT : R_PASS;
}

/* The reason by which a packet leaves. `way`, a constant: COVER_IN, or COVER_OUT,
 * where bans say nothing. What is told of it is in `exit` from R_OBSERVED on. */
static __always_inline enum reason judge(void *ctx, enum hook hook, struct frame *f,
					 struct source *s, const int way,
					 struct exit *exit)
{
	__u32 base = 0, class = 0, said = 0;
	__u64 now = 0, found = 0, covered = 0;
	struct places at = {};
	enum reason why;
	struct l4 l4 = {};

	if (way == COVER_IN && unlikely(is_invalid(s))) {
		if (is_loopback(s))
			return R_PASS;
		parse_l4_apart(ctx, hook, f, s->total, !s->v4, &l4);
		return settle_invalid(&l4, s);
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
	if (FOUND_ALL(found)) {
		if (likely(is_plain(f, s, found, now)) && !is_allowed(s))
			return R_UNTOLD;
		parse_l4_apart(ctx, hook, f, s->total, !s->v4, &l4);
	} else {
		parse_l4(ctx, hook, f, s->total, !s->v4, &l4);
	}
	if (found && !FOUND_ALL(found))
		covered = are_scoped(s, &at, now, &l4);
	if (class && !FOUND_ALL(found) && !covered)
		said = classify(base, class, remote_of(s), flow_of(&l4), how(&l4, way));
	why = denied(found, covered, said);
	if (why < R_OBSERVED)
		return why;
	*exit = (struct exit){.protocol = l4.protocol,
			      .rejecting = cfg.reject && FOUND_REJECTING(found),
			      .port = l4.dest,
			      .said = said};
	if (s->v4) {
		exit->source[10] = exit->source[11] = 0xff;
		__builtin_memcpy(&exit->source[12], s->addr, 4);
	} else {
		__builtin_memcpy(exit->source, s->addr, 16);
	}
	return settle(why, &l4, s);
}

/* The same from the IP header on. */
static __always_inline enum reason judge_ip(void *ctx, enum hook hook, struct frame *f,
					    __u32 frame_len, const int v4, const int way,
					    struct exit *exit)
{
	struct source s = {.v4 = v4};
	enum reason reason = read_source(f, hook, frame_len, way, &s);

	return unlikely(reason) ? reason : judge(ctx, hook, f, &s, way, exit);
}

/* And from the first byte of the frame on. */
static __always_inline enum reason judge_frame(void *ctx, enum hook hook, struct frame *f,
					       __u32 frame_len, const int way,
					       struct exit *exit)
{
	enum reason reason = parse_l2(ctx, hook, f);

	if (unlikely(reason))
		return reason;
	if (likely(f->proto == bpf_htons(ETH_P_IP)))
		return judge_ip(ctx, hook, f, frame_len, 1, way, exit);
	if (f->proto == bpf_htons(ETH_P_IPV6))
		return judge_ip(ctx, hook, f, frame_len, 0, way, exit);
	return R_NOT_IP;
}

/* Counts and tells. `exit` is set where it is told. */
static __always_inline enum act leave(struct exit *exit, enum reason reason,
				      __u32 ifindex, __u32 bytes)
{
	if (reason == R_UNTOLD) {
		count_untold(R_BANNED_ALL, bytes);
		return ACT_DROP;
	}
	if (unlikely(reason >= R_INVALID_SOURCE)) {
		count(control.observe ? R_OBSERVED : reason, bytes);
		return control.observe ? ACT_PASS : ACT_DROP;
	}
	if (unlikely(reason >= R_OBSERVED)) {
		if (exit->said)
			count_class(exit->said, bytes);
		exit->reason = reason;
		exit->ifindex = ifindex;
		exit->bytes = bytes;
		count_and_tell(exit, bpf_jiffies64());
		return reason >= R_BANNED_ALL ? ACT_DROP : ACT_PASS;
	}
	count(reason, bytes);
	return ACT_PASS;
}

/* Of a frame that comes in. `whole`: f->end is as far as this hook can see. */
static __always_inline struct decision decide(void *ctx, enum hook hook, struct frame *f,
					      __u32 frame_len, int whole, __u32 ifindex)
{
	struct exit exit; /* set on the way to an event only */
	enum reason reason = judge_frame(ctx, hook, f, frame_len, COVER_IN, &exit);

	if (cfg.decoy && (reason == R_PASS || reason == R_OTHER_PORT) && is_bait(f))
		return (struct decision){ACT_NEXT, NEXT_DECOY, reason};
	if (!whole && (f->cut || reason == R_MALFORMED))
		return (struct decision){ACT_PULL};
	if (cfg.reject && (reason == R_BANNED_ALL || reason == R_BANNED_SCOPE) &&
	    exit.rejecting)
		return (struct decision){ACT_NEXT, NEXT_REJECT, reason};
	return (struct decision){leave(&exit, reason, ifindex, frame_len)};
}

#endif
