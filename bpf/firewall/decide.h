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
#include "firewall/allow.h"
#include "firewall/ban.h"
#include "firewall/class.h"
#include "firewall/prefix_bans.h"
#include "lib/transport.h"
#include "lib/verdict.h"

/* Has the source entries for this packet? `again` counts the scoped ones that
 * cover the flow it is given. Ports that cannot be known match any of them;
 * packets that have none match only bans of all ports. */
#define SCOPE_HITS(l4, again)                                                            \
	((l4)->kind == P_UNKNOWN ||                                                      \
	 ((l4)->kind == P_PORTS &&                                                       \
	  FOUND_SCOPED(again(FLOW_SET | (__u32)(l4)->protocol << 16 | (l4)->dest))))

/* An IPv6 address as flow_hash takes it. */
static __always_inline __u64 remote6(__u64 hi, __u64 lo)
{
	return lasting_hash64(hi) ^ lo;
}

/* Addresses that nobody has: 0.0.0.0/8 (RFC 1122 3.2.1.3) and ::/24 (RFC 4291
 * 2.5.3, 2.5.5: unspecified, IPv4-compatible and -mapped; the rest is reserved),
 * whose keys in the ban table are IPv4's. No ban, list or place holds them, and
 * some of them reach sockets: so they are dropped, but for what a host sends to
 * get an address, and for ::1, which the stack takes from loopback only. Before
 * anything else saves a packet: the allow list may. */
static __always_inline enum reason settle_invalid(const struct l4 *l4, int unspecified,
						  int allowed)
{
	if (unspecified && l4->no_address)
		return R_PASS;
	if (allowed)
		return R_ALLOWED;
	return R_INVALID_SOURCE;
}

/* What follows for a packet that is banned, listed or fenced by `why`: what may
 * still save it. */
static __always_inline enum reason settle(enum reason why, const struct l4 *l4,
					  int allowed)
{
	if (l4->essential)
		return R_ESSENTIAL;
	if (allowed)
		return R_ALLOWED;
	if (control.observe)
		return R_OBSERVED;
	return why;
}

/* Most packets that are dropped: TCP, or UDP to a port that is not DHCP's, of a
 * source under a ban of all ports, of which no event is due. Nothing else of their
 * headers matters. `ports`: where a UDP header is; `dhcp`: the first of its two. */
static __always_inline int is_plain(const struct frame *f, __u64 found, __u8 protocol,
				    const struct ports *ports, __u16 dhcp, __u64 now)
{
	__u16 dest;

	if (cfg.reject && FOUND_REJECTING(found))
		return 0;
	if (protocol != IPPROTO_TCP) {
		if (protocol != IPPROTO_UDP || (void *)(ports + 1) > f->end)
			return 0;
		dest = bpf_ntohs(ports->dest);
		if (dest == dhcp || dest == dhcp + 1)
			return 0;
	}
	return !control.observe && !is_told(R_BANNED_ALL, now);
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

static __always_inline enum reason decide_v4(void *ctx, struct frame *f, __u32 frame_len,
					     int tc, struct exit *exit)
{
	struct iphdr *ip = f->l3;
	__u64 key, net = 0, hash, net_hash = 0, now, found = 0;
	__u32 total, policy = 0, net_policy = 0, base = 0, class = 0, said = 0;
	__u64 covered = 0;
	int hit, wide_hit, net_hit = 0;
	enum reason why;
	struct l4 l4 = {};

	if (unlikely((void *)(ip + 1) > f->end || ip->version != 4 || ip->ihl < 5))
		return R_MALFORMED;
	total = bpf_ntohs(ip->tot_len);
	/* BIG TCP: the stack writes 0 for a merged packet above 64 KiB. */
	if (tc && total == 0 && frame_len > 65535)
		total = frame_len;
	if (unlikely(ip->ihl > 5) && f->l3 + ip->ihl * 4 > f->end)
		return R_MALFORMED;
	if (unlikely(total < ip->ihl * 4))
		return R_MALFORMED;

	key = bpf_ntohl(ip->saddr);
	if (unlikely(!(key >> 24))) {
		parse_l4_apart(ctx, tc, f, total, 0, &l4);
		return settle_invalid(&l4, !key, allowed4(ip->saddr));
	}
	if (cfg.class_lines) {
		base = control.class_base;
		class = class4(base, key);
		VERIFIER_FORGET(class);
	}
	if (cfg.v4_length) {
		net = (key & (~0U << (32 - cfg.v4_length))) | (__u64)cfg.v4_length << 32;
		net_hash = hash64(net);
		net_hit = bloom_has_short(bloom_word(net_hash), net_hash);
	}
	key |= 32ULL << 32;
	hash = hash64(key);
	hit = bloom_has_short(bloom_word(hash), hash);
	wide_hit = may_be_wide(0, (__u32)key >> 16);
	if (likely(!hit && !net_hit && !wide_hit && !class))
		return R_PASS;

	now = bpf_jiffies64();
	if (hit)
		found = glance64(key, hash, now, &policy);
	if (net_hit)
		found += glance64(net, net_hash, now, &net_policy);
	if (wide_hit)
		found += find_wide4((__u32)key, now, 0);
	VERIFIER_FORGET(found);
	VERIFIER_FORGET(policy);
	VERIFIER_FORGET(net_policy);
	if (!found && !class)
		return R_PASS;
#define AGAIN_V4(flow)                                                                   \
	((hit ? again64(key, hash, now, flow, policy) : 0) +                             \
	 (net_hit ? again64(net, net_hash, now, flow, net_policy) : 0) +                 \
	 (wide_hit ? find_wide4((__u32)key, now, flow) : 0))
	if (FOUND_ALL(found)) {
		if (likely(ip->ihl == 5) &&
		    is_plain(f, found, ip->protocol, (void *)(ip + 1), 67, now) &&
		    !allowed4(ip->saddr))
			return R_UNTOLD;
		parse_l4_apart(ctx, tc, f, total, 0, &l4);
	} else {
		parse_l4(ctx, tc, f, total, 0, &l4);
	}
	if (found && !FOUND_ALL(found))
		covered = SCOPE_HITS(&l4, AGAIN_V4);
	if (class && !FOUND_ALL(found) && !covered)
		said = classify(base, class, bpf_ntohl(ip->saddr), flow_of(&l4),
				how(&l4, COVER_IN));
	why = denied(found, covered, said);
	if (why < R_OBSERVED)
		return why;
	*exit = (struct exit){.protocol = l4.protocol,
			      .rejecting = cfg.reject && FOUND_REJECTING(found),
			      .port = l4.dest,
			      .said = said};
	exit->source[10] = exit->source[11] = 0xff;
	__builtin_memcpy(&exit->source[12], &ip->saddr, 4);
	return settle(why, &l4, allowed4(ip->saddr));
}

/* Bytes of an IPv6 packet by its own account: 0 in a jumbogram (RFC 2675), or
 * merged by GRO above 64 KiB; then the frame is the measure. */
static __always_inline __u32 length6(const struct ipv6hdr *ip, __u32 frame_len, int tc)
{
	__u32 total = bpf_ntohs(ip->payload_len) + sizeof(*ip);

	if (total == sizeof(*ip) &&
	    (ip->nexthdr == IPPROTO_HOPOPTS || (tc && frame_len > 65535)))
		total = ~0U;
	return total;
}

static __always_inline enum reason decide_v6(void *ctx, struct frame *f, __u32 frame_len,
					     int tc, struct exit *exit)
{
	struct ipv6hdr *ip = f->l3;
	__u32 short_policy = 0, long_policy = 0, base = 0, class = 0, said = 0;
	__u64 hi, lo, hash, bits, now, found = 0, covered = 0;
	int short_hit, long_hit, wide_hit;
	enum reason why;
	struct l4 l4 = {};

	if (unlikely((void *)(ip + 1) > f->end || ip->version != 6))
		return R_MALFORMED;
	hi = ((__u64)bpf_ntohl(ip->saddr.s6_addr32[0]) << 32) |
	     bpf_ntohl(ip->saddr.s6_addr32[1]);
	lo = ((__u64)bpf_ntohl(ip->saddr.s6_addr32[2]) << 32) |
	     bpf_ntohl(ip->saddr.s6_addr32[3]);
	if (unlikely(!(hi >> 40))) {
		if (!hi && lo == 1)
			return R_PASS;
		parse_l4_apart(ctx, tc, f, length6(ip, frame_len, tc), 1, &l4);
		return settle_invalid(&l4, !(hi | lo), allowed6(&ip->saddr));
	}
	if (cfg.class_lines) {
		base = control.class_base;
		class = class6(base, hi, lo);
		VERIFIER_FORGET(class);
	}
	hash = hash64(hi);
	bits = bloom_word(hash);
	short_hit = bloom_has_short(bits, hash);
	long_hit = bloom_has_long(bits, hash);
	wide_hit = may_be_wide(1, (hi >> 32 ^ hi >> 48) & 0xffff);
	if (likely(!short_hit && !long_hit && !wide_hit && !class))
		return R_PASS;

	now = bpf_jiffies64();
	if (short_hit)
		found = glance64(hi, hash, now, &short_policy);
	if (long_hit)
		found += glance128(hi, lo, now, &long_policy);
	if (wide_hit)
		found += find_wide(hi, lo, now, 0);
	VERIFIER_FORGET(found);
	VERIFIER_FORGET(short_policy);
	VERIFIER_FORGET(long_policy);
	if (!found && !class)
		return R_PASS;
#define AGAIN_V6(flow)                                                                   \
	((short_hit ? again64(hi, hash, now, flow, short_policy) : 0) +                  \
	 (long_hit ? again128(hi, lo, now, flow, long_policy) : 0) +                     \
	 (wide_hit ? find_wide(hi, lo, now, flow) : 0))
	if (FOUND_ALL(found)) {
		if (is_plain(f, found, ip->nexthdr, (void *)(ip + 1), 546, now) &&
		    !allowed6(&ip->saddr))
			return R_UNTOLD;
		parse_l4_apart(ctx, tc, f, length6(ip, frame_len, tc), 1, &l4);
	} else {
		parse_l4(ctx, tc, f, length6(ip, frame_len, tc), 1, &l4);
	}
	if (found && !FOUND_ALL(found))
		covered = SCOPE_HITS(&l4, AGAIN_V6);
	if (class && !FOUND_ALL(found) && !covered)
		said = classify(base, class, remote6(hi, lo), flow_of(&l4),
				how(&l4, COVER_IN));
	why = denied(found, covered, said);
	if (why < R_OBSERVED)
		return why;
	*exit = (struct exit){.protocol = l4.protocol,
			      .rejecting = cfg.reject && FOUND_REJECTING(found),
			      .port = l4.dest,
			      .said = said};
	__builtin_memcpy(exit->source, &ip->saddr, 16);
	return settle(why, &l4, allowed6(&ip->saddr));
}

#define AGAIN -1 /* more of the headers must be made readable first */

/* Counts and tells; 1: drop, 0: pass. `exit` is set where it is told. */
static __always_inline int leave(struct exit *exit, enum reason reason, __u32 ifindex,
				 __u32 bytes)
{
	if (reason == R_UNTOLD) {
		count_untold(R_BANNED_ALL, bytes);
		return 1;
	}
	if (unlikely(reason >= R_INVALID_SOURCE)) {
		count(control.observe ? R_OBSERVED : reason, bytes);
		return !control.observe;
	}
	if (unlikely(reason >= R_OBSERVED)) {
		if (exit->said)
			count_class(exit->said, bytes);
		exit->reason = reason;
		exit->ifindex = ifindex;
		exit->bytes = bytes;
		count_and_tell(exit, bpf_jiffies64());
		return reason >= R_BANNED_ALL;
	}
	count(reason, bytes);
	return 0;
}

/* 1: drop, 0: pass, from BAIT on: for a decoy port, from REFUSE on: banned.
 * `whole`: f->end is as far as this hook can see. */
static __always_inline int decide(void *ctx, struct frame *f, __u32 frame_len, int tc,
				  int whole, __u32 ifindex)
{
	struct exit exit; /* set on the way to an event only */
	enum reason reason = parse_l2(ctx, tc, f);

	if (reason == R_PASS) {
		if (likely(f->proto == bpf_htons(ETH_P_IP)))
			reason = decide_v4(ctx, f, frame_len, tc, &exit);
		else if (f->proto == bpf_htons(ETH_P_IPV6))
			reason = decide_v6(ctx, f, frame_len, tc, &exit);
		else
			reason = R_NOT_IP;
	}
	if (cfg.decoy && (reason == R_PASS || reason == R_OTHER_PORT) && is_bait(f))
		return BAIT + reason;
	if (!whole && (f->cut || reason == R_MALFORMED))
		return AGAIN;
	if (cfg.reject && (reason == R_BANNED_ALL || reason == R_BANNED_SCOPE) &&
	    exit.rejecting)
		return REFUSE + reason;
	return leave(&exit, reason, ifindex, frame_len);
}

#endif
