/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The address that is judged: the source of a packet that comes in, the destination of
 * one that goes out; IPv4 and IPv6 alike. What differs between the two is here. `v4` is a
 * constant wherever this is used, so neither pays for the other. */
#ifndef WEIR_SOURCE_H
#define WEIR_SOURCE_H

#include "firewall/allow.h"
#include "firewall/ban.h"
#include "firewall/class.h"
#include "firewall/prefix_bans.h"
#include "lib/transport.h"
#include "lib/verdict.h"

struct source {
	int v4;
	const struct in6_addr *addr; /* in the packet; of IPv4 its first 4 bytes */
	__u64 hi, lo;		     /* in host order, IPv4 as ::ffff:a.b.c.d */
	__u32 total; /* bytes of the packet by its own account, from the IP header on */
};

/* The tables in which it may be, by the bloom filter: its own key, and a second one
 * (IPv4: its network of cfg.v4_length; IPv6: the host, whose key is set when it is
 * looked up); and of either the number of its policy when that is the only entry. */
struct places {
	int own, second, prefix;
	struct ban_key own_key, second_key;
	__u32 own_policy, second_policy;
};

/* R_PASS, or R_MALFORMED. */
static __always_inline enum reason read_source(struct frame *f, enum hook hook,
					       __u32 frame_len, const int way,
					       struct source *s)
{
	if (s->v4) {
		struct iphdr *ip = f->l3;

		if (unlikely((void *)(ip + 1) > f->end || ip->version != 4 ||
			     ip->ihl < 5))
			return R_MALFORMED;
		s->total = bpf_ntohs(ip->tot_len);
		/* BIG TCP: the stack writes 0 for a merged packet above 64 KiB. */
		if (hook && s->total == 0 && frame_len > 65535)
			s->total = frame_len;
		/* Nobody needs the options of packets that go out. */
		if (way == COVER_IN && unlikely(ip->ihl > 5) &&
		    f->l3 + ip->ihl * 4 > f->end)
			return R_MALFORMED;
		if (unlikely(s->total < ip->ihl * 4))
			return R_MALFORMED;
		s->addr = (void *)(way == COVER_IN ? &ip->saddr : &ip->daddr);
		s->hi = 0;
		s->lo = MAPPED | bpf_ntohl(*(__be32 *)s->addr);
	} else {
		struct ipv6hdr *ip = f->l3;

		if (unlikely((void *)(ip + 1) > f->end || ip->version != 6))
			return R_MALFORMED;
		s->total = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		/* 0 in a jumbogram (RFC 2675), or merged by GRO above 64 KiB; then
		 * the frame is the measure. */
		if (s->total == sizeof(*ip) &&
		    (ip->nexthdr == IPPROTO_HOPOPTS || (hook && frame_len > 65535)))
			s->total = ~0U;
		s->addr = way == COVER_IN ? &ip->saddr : &ip->daddr;
		s->hi = (__u64)bpf_ntohl(s->addr->s6_addr32[0]) << 32 |
			bpf_ntohl(s->addr->s6_addr32[1]);
		s->lo = (__u64)bpf_ntohl(s->addr->s6_addr32[2]) << 32 |
			bpf_ntohl(s->addr->s6_addr32[3]);
	}
	return R_PASS;
}

/* Addresses that nobody has: 0.0.0.0/8 (RFC 1122 3.2.1.3) and ::/24 (RFC 4291
 * 2.5.3, 2.5.5: unspecified, IPv4-compatible and -mapped; the rest is reserved),
 * whose keys in the ban table are IPv4's. No ban, list or place holds them. */
static __always_inline int is_invalid(const struct source *s)
{
	return s->v4 ? !((__u32)s->lo >> 24) : !(s->hi >> 40);
}

static __always_inline int is_unspecified(const struct source *s)
{
	return s->v4 ? !(__u32)s->lo : !(s->hi | s->lo);
}

/* ::1, which the stack takes from loopback only. */
static __always_inline int is_loopback(const struct source *s)
{
	return !s->v4 && !s->hi && s->lo == 1;
}

static __always_inline int is_allowed(const struct source *s)
{
	return s->v4 ? allowed4(*(__be32 *)s->addr) : allowed6(s->addr);
}

static __always_inline __u32 class_of(const struct source *s, __u32 base)
{
	__u32 class = s->v4 ? class4(base, s->lo) : class6(base, s->hi, s->lo);

	VERIFIER_FORGET(class);
	return class;
}

/* The judged address as one number, for the hash of a flow. */
static __always_inline __u64 remote_of(const struct source *s)
{
	return s->v4 ? (__u32)s->lo : lasting_hash64(s->hi) ^ s->lo;
}

/* Is it in one of the ban tables, by the bloom filter and the hint of prefixes? */
static __always_inline int may_be_banned(const struct source *s, struct places *at)
{
	if (s->v4) {
		__u64 addr = (__u32)s->lo;

		if (cfg.v4_length) {
			at->second_key =
				short_key((addr & (~0U << (32 - cfg.v4_length))) |
					  (__u64)cfg.v4_length << 32);
			at->second = bloom_has_short(bloom_word(at->second_key.hash),
						     at->second_key.hash);
		}
		at->own_key = short_key(addr | 32ULL << 32);
		at->own = bloom_has_short(bloom_word(at->own_key.hash), at->own_key.hash);
		at->prefix = may_have_prefix_bans(0, (__u32)addr >> 16);
	} else {
		__u64 bits;

		at->own_key = short_key(s->hi);
		bits = bloom_word(at->own_key.hash);
		at->own = bloom_has_short(bits, at->own_key.hash);
		at->second = bloom_has_long(bits, at->own_key.hash);
		at->prefix =
			may_have_prefix_bans(1, (s->hi >> 32 ^ s->hi >> 48) & 0xffff);
	}
	return at->own || at->second || at->prefix;
}

/* What the tables hold of it, as find_all counts it. */
static __always_inline __u64 bans_of(const struct source *s, struct places *at, __u64 now)
{
	__u64 found = 0;

	if (at->own)
		found = s->v4 ? lookup_v4(at->own_key, now, &at->own_policy)
			      : lookup_fast(at->own_key, 0, now, &at->own_policy);
	VERIFIER_FORGET(found);
	VERIFIER_FORGET(at->own_policy);
	if (at->second) {
		if (!s->v4)
			at->second_key = host_key(s->hi, s->lo, at->own_key.hash);
		found += lookup_fast(at->second_key, !s->v4, now, &at->second_policy);
	}
	if (at->prefix)
		found += find_prefix_bans(s->hi, s->lo, now, 0);
	VERIFIER_FORGET(found);
	VERIFIER_FORGET(at->prefix);
	VERIFIER_FORGET(at->own_policy);
	VERIFIER_FORGET(at->second_policy);
	return found;
}

/* Finds the bans of a source that cover a flow: see bans_of. */
static __always_inline __u64 bans_of_flow(const struct source *s, const struct places *at,
					  __u64 now, __u32 flow)
{
	__u64 found = 0;

	if (at->own)
		found = lookup_scoped(at->own_key, now, flow, at->own_policy);
	if (at->second)
		found += lookup_scoped(at->second_key, now, flow, at->second_policy);
	if (at->prefix)
		found += find_prefix_bans(s->hi, s->lo, now, flow);
	return found;
}

#endif
