/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Addresses that nobody has and that a tarpit holds: ARP requests (RFC 826) and
 * neighbour solicitations (RFC 4861) for them are answered with the link-layer address of
 * the interface, and packets to them that reach that one are a tarpit's.
 *
 * Those of some prefixes are tarpits at once. Of others each is one only when somebody
 * has asked for it, this host has asked as well, from an address of its own, and nobody
 * has answered for some seconds: an answer goes to whoever asked, so one to somebody
 * else's question is not seen on a switch. The question of the first is sent on as this
 * host's, in its place.
 *
 * Never for an address that somebody has: this host's own; one of which the kernel
 * knows a neighbour, which user space writes down; one that says itself that it is
 * there, or that sends anything. Nor for one that somebody is about to take: who probes
 * for it (RFC 5227, RFC 4862) is as good as there. */
#ifndef WEIR_TARPIT_ADDRESS_H
#define WEIR_TARPIT_ADDRESS_H

#include "answer/decoy.h"

/* IPv4 as ::ffff:a.b.c.d. crates/bpf/src/decoy.rs writes them. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TARPIT_PREFIXES);
	__type(key, struct tarpit_prefix_key);
	__type(value, __u32);
} tarpit_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARPIT_DARK);
	__type(key, __u32);
	__type(value, __u64);
} tarpit_dark SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tarpit_counter);
} tarpit_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARPIT_SOURCES);
	__type(key, __u32);
	__type(value, struct tarpit_source);
} tarpit_sources SEC(".maps");

/* When each was seen last, in seconds of CLOCK_BOOTTIME. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TARPIT_ALIVE);
	__type(key, struct in6_addr);
	__type(value, __u32);
} tarpit_alive SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TARPIT_LINKS);
	__type(key, __u32);
	__type(value, struct tarpit_link);
} tarpit_links SEC(".maps");

struct arp_packet {
	__be16 hardware, protocol;
	__u8 hardware_len, protocol_len;
	__be16 operation;
	__u8 sender_mac[6];
	__be32 sender;
	__u8 target_mac[6];
	__be32 target;
} __attribute__((packed));
_Static_assert(sizeof(struct arp_packet) == 28, "RFC 826");

/* A solicitation or an advertisement with the one option that it has room for. */
struct nd_packet {
	__u8 type, code;
	__be16 check;
	__be32 flags;
	struct in6_addr target;
	__u8 option, option_len; /* in units of 8 bytes */
	__u8 mac[6];
};
#define ND_BARE	  24 /* without the option */
#define ND_WHOLE  32
#define ND_SOURCE 1 /* the option: the sender's link-layer address */
#define ND_TARGET 2 /* the option: the target's link-layer address */
_Static_assert(sizeof(struct nd_packet) == ND_WHOLE, "RFC 4861");

/* The result of a question for an address; 0: it is not ours. */
#define LOCATED 1 /* the frame is the answer */
#define SILENT	2 /* above a limit */

/* The owner of an address that is asked for. */
#define SOMEBODYS 0
#define HELD	  1 /* a tarpit's */
#define UNKNOWN	  2 /* perhaps nobody's: who has it is to be asked */

/* The tag's lowest bit. */
#define DARK 1U

/* Takes one of the answers that this CPU and this source have now; not 0: there is
 * none left. CPUs that answer one source at once may give it a few more. */
static __always_inline int take_answer(struct tarpit_counter *c, const struct bait *b,
				       int v4, __u64 now)
{
	const __u64 *source = (const __u64 *)&b->source;
	__u64 window = now >> EVENT_WINDOW_SHIFT;
	__u32 index =
		lasting_hash64(source[0] ^ (v4 ? source[1] : 0)) & (TARPIT_SOURCES - 1);
	struct tarpit_source *of_source = bpf_map_lookup_elem(&tarpit_sources, &index);

	if (c->window != window) {
		c->window = window;
		c->answers = 0;
	}
	if (of_source && of_source->window != (__u32)window) {
		of_source->window = window;
		of_source->answers = 0;
	}
	if (!of_source ||
	    of_source->answers >> cfg.limit_shift >= TARPIT_SOURCE_ANSWERS ||
	    c->answers >> cfg.limit_shift >= TARPIT_ANSWERS) {
		c->silent++;
		return -1;
	}
	of_source->answers++;
	c->answers++;
	return 0;
}

static __always_inline __u32 boot_seconds(void)
{
	return bpf_ktime_get_boot_ns() / 1000000000;
}

/* In a prefix, and not this host's: after how many seconds without an answer it is a
 * tarpit's. NULL: never. `bits` of the key are set here. */
static __always_inline const __u32 *tarpit_prefix(struct tarpit_prefix_key *key)
{
	const __u32 *after;

	key->bits = 128;
	after = bpf_map_lookup_elem(&tarpit_prefixes, key);
	return after && !bpf_map_lookup_elem(&decoy_own, key->addr) ? after : NULL;
}

/* The place of an address, and its tag there. */
static __always_inline __u64 *dark_place(const struct in6_addr *addr, __u32 *tag)
{
	const __u64 *half = (const __u64 *)addr;
	__u64 hash = lasting_hash128(half[0], half[1]);
	__u32 index = hash & (TARPIT_DARK - 1);

	*tag = hash >> 32 | DARK;
	return bpf_map_lookup_elem(&tarpit_dark, &index);
}

/* A question for an address: may this host ask as well, and what is to be noted then. */
struct question {
	__u64 *place;
	__u64 word;
	int may_ask;
};

/* The owner of an address for which nobody is to answer for `after` seconds. */
static __always_inline int learn(struct question *q, __u32 tag, __u32 after, __u32 now,
				 struct tarpit_counter *c)
{
	__u64 word = *q->place, learning = (__u64)(tag ^ DARK) << 32;
	__u32 holder = word >> 32, age = now - (__u32)word;

	q->word = learning | now;
	if (holder == tag) {
		if (age < TARPIT_DARK_AGAIN)
			return HELD;
		/* Two seconds for whoever has come since. */
		q->word = learning | (__u32)(now + 2 - after);
	} else if ((holder | DARK) == tag) {
		if (age < after) {
			q->word = word;
		} else if (age < after + TARPIT_DARK_AGAIN) {
			*q->place = (__u64)tag << 32 | now;
			return HELD;
		}
	} else if (word && age < TARPIT_DARK_AGAIN) {
		c->crowded++;
		/* What is dark stays; what is being learned begins anew. */
		if (holder & DARK)
			return SOMEBODYS;
	}
	return UNKNOWN;
}

/* The owner of an address. `q`: the question for it; NULL: a packet is to it. */
static __always_inline int whose(const struct in6_addr *addr, struct question *q,
				 struct tarpit_counter *c)
{
	struct tarpit_prefix_key key = {};
	__u32 now = boot_seconds(), *seen, tag;
	const __u32 *after;
	__u64 *place;

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	after = tarpit_prefix(&key);
	if (!after)
		return SOMEBODYS;
	seen = bpf_map_lookup_elem(&tarpit_alive, addr);
	if (seen && now - *seen < TARPIT_ALIVE_SECONDS)
		return SOMEBODYS;
	if (!*after)
		return HELD;
	place = dark_place(addr, &tag);
	if (!place)
		return SOMEBODYS;
	if (!q || !q->may_ask)
		return *place >> 32 == tag ? HELD : SOMEBODYS;
	q->place = place;
	return learn(q, tag, *after, now, c);
}

/* What was found out of an address that is alive is found out anew. */
static __always_inline void note_alive(const struct in6_addr *addr)
{
	struct tarpit_prefix_key key = {};
	const __u32 *after;
	__u32 now, tag;
	__u64 *place;

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	after = tarpit_prefix(&key);
	if (!after)
		return;
	now = boot_seconds();
	bpf_map_update_elem(&tarpit_alive, addr, &now, BPF_ANY);
	place = *after ? dark_place(addr, &tag) : NULL;
	if (place && (*place >> 32 | DARK) == tag)
		*place = 0;
}

static __always_inline const struct tarpit_link *link_of(const struct bait *b)
{
	__u32 ifindex = b->result.ifindex;

	return bpf_map_lookup_elem(&tarpit_links, &ifindex);
}

/* Is the frame in `b` to this interface, and for an address that is held? What a
 * switch floods is somebody else's. */
static __always_inline int is_held_here(const struct bait *b)
{
	const struct tarpit_link *link = link_of(b);

	return link && is_same_mac(b->mac, link->mac) &&
	       whose(&b->own, NULL, NULL) == HELD;
}

/* The link of the frame in `b`, which asks everybody or this interface; takes one of the
 * answers that there are. `is_whose`: HELD; UNKNOWN, and then there is an address on the
 * interface to ask from; SOMEBODYS: there is no answer left. NULL: it is not ours. */
static __always_inline const struct tarpit_link *
may_locate(const struct bait *b, int v4, struct tarpit_counter *c, int *is_whose)
{
	const struct tarpit_link *link = link_of(b);
	int is_to_all = b->mac[0] & 1;
	struct question q = {};

	if (!link || b->mac[6] & 1)
		return NULL;
	if (!is_to_all && !is_same_mac(b->mac, link->mac))
		return NULL;
	q.may_ask = is_to_all && (v4 ? link->addr4 : link->addr6[0]);
	*is_whose = whose(&b->own, &q, c);
	if (*is_whose == SOMEBODYS)
		return NULL;
	if (take_answer(c, b, v4, bpf_jiffies64()))
		*is_whose = SOMEBODYS;
	else if (*is_whose == UNKNOWN && q.place)
		*q.place = q.word;
	return link;
}

/* Sets the addresses that the frame in `b` will be from and to, as `send_back` turns it
 * round: an answer goes to whoever asked, a question to all whom that one's went to. */
static __always_inline void address_frame(struct bait *b, const struct tarpit_link *link,
					  int is_whose)
{
	if (is_whose == UNKNOWN)
		__builtin_memcpy(b->mac + 6, b->mac, 6);
	__builtin_memcpy(b->mac, link->mac, 6);
}

static __always_inline __u32 answer_arp(void *ctx, int tc, struct bait *b, __u32 l3,
					struct tarpit_counter *c)
{
	const struct tarpit_link *link;
	struct arp_packet arp;
	int is_whose;
	__be16 proto;

	/* In a tagged frame as well, the type is the two bytes before. */
	if (l3 < sizeof(struct ethhdr) || reply_load(ctx, tc, l3 - 2, &proto, 2) ||
	    proto != bpf_htons(ETH_P_ARP) ||
	    reply_load(ctx, tc, 0, b->mac, sizeof(b->mac)) ||
	    reply_load(ctx, tc, l3, &arp, sizeof(arp)) || arp.hardware != bpf_htons(1) ||
	    arp.protocol != bpf_htons(ETH_P_IP) || arp.hardware_len != 6 ||
	    arp.protocol_len != 4)
		return 0;
	map_v4(b->source.s6_addr, arp.sender);
	map_v4(b->own.s6_addr, arp.target);
	note_alive(arp.sender ? &b->source : &b->own);
	if (arp.operation != bpf_htons(1) || arp.sender == arp.target ||
	    is_invalid_src4(arp.sender))
		return 0;
	link = may_locate(b, 1, c, &is_whose);
	if (!link)
		return 0;
	if (is_whose == SOMEBODYS)
		return SILENT;
	if (is_whose == HELD) {
		__builtin_memcpy(arp.target_mac, arp.sender_mac, 6);
		arp.operation = bpf_htons(2);
		arp.sender = b->own.s6_addr32[3];
		arp.target = b->source.s6_addr32[3];
		c->resolved++;
	} else {
		arp.sender = link->addr4;
		c->asked++;
	}
	__builtin_memcpy(arp.sender_mac, link->mac, 6);
	address_frame(b, link, is_whose);
	if (reply_store(ctx, tc, l3, &arp, sizeof(arp)))
		return SILENT;
	return LOCATED;
}

/* Directly behind the IPv6 header, where RFC 4861 has it. */
static __always_inline int is_neighbour_discovery(void *ctx, int tc, __u32 l3, int v4)
{
	__u8 next, type;

	return !v4 &&
	       !reply_load(ctx, tc, l3 + offsetof(struct ipv6hdr, nexthdr), &next, 1) &&
	       next == IPPROTO_ICMPV6 &&
	       !reply_load(ctx, tc, l3 + sizeof(struct ipv6hdr), &type, 1) &&
	       (type == ND_SOLICITATION || type == ND_ADVERTISEMENT);
}

static __always_inline __u64 nd_sum(const struct bait *b, const struct nd_packet *nd,
				    __u32 len)
{
	return sum_words(&b->ip.v6.saddr, 8) + bpf_htons(IPPROTO_ICMPV6) +
	       bpf_htons(len) + sum_words(nd, ND_WHOLE / 4);
}

static __always_inline __u32 answer_nd(void *ctx, int tc, struct bait *b, __u32 l3,
				       struct tarpit_counter *c)
{
	struct ipv6hdr *ip = &b->ip.v6;
	const struct tarpit_link *link;
	struct nd_packet nd = {};
	int is_whole, is_whose;
	__u32 len;

	if (reply_load(ctx, tc, 0, b->mac, sizeof(b->mac)) ||
	    reply_load(ctx, tc, l3, ip, sizeof(*ip)) ||
	    reply_load(ctx, tc, l3 + sizeof(*ip), &nd, ND_BARE))
		return 0;
	len = bpf_ntohs(ip->payload_len);
	if (ip->hop_limit != 255 || nd.code || len < ND_BARE)
		return 0;
	b->source = ip->saddr;
	b->own = nd.target;
	if (nd.type == ND_ADVERTISEMENT ||
	    !(b->source.s6_addr32[0] | b->source.s6_addr32[1] | b->source.s6_addr32[2] |
	      b->source.s6_addr32[3])) {
		note_alive(&b->own);
		return 0;
	}
	note_alive(&b->source);
	/* To all it has its sender's link-layer address (4.3), and the answer ours. */
	is_whole = len == ND_WHOLE;
	if (nd.type != ND_SOLICITATION || b->source.s6_addr[0] == 0xff ||
	    (!is_whole && (len != ND_BARE || b->mac[0] & 1)))
		return 0;
	if (is_whole && (reply_load(ctx, tc, l3 + sizeof(*ip) + ND_BARE, &nd.option, 8) ||
			 nd.option != ND_SOURCE || nd.option_len != 1))
		return 0;
	if (fold(nd_sum(b, &nd, len)) != 0xffff)
		return 0;
	link = may_locate(b, 0, c, &is_whose);
	if (!link)
		return 0;
	if (is_whose == SOMEBODYS)
		return SILENT;
	*(__be32 *)ip = bpf_htonl(6 << 28);
	if (is_whose == HELD) {
		ip->saddr = b->own;
		ip->daddr = b->source;
		nd.type = ND_ADVERTISEMENT;
		/* Solicited; it overrides nobody's. */
		nd.flags = bpf_htonl(1U << 30);
		nd.option = ND_TARGET;
		c->resolved++;
	} else {
		__builtin_memcpy(&ip->saddr, link->addr6, sizeof(ip->saddr));
		c->asked++;
	}
	if (is_whole)
		__builtin_memcpy(nd.mac, link->mac, 6);
	else
		nd.option = 0;
	nd.check = 0;
	nd.check = ~fold(nd_sum(b, &nd, len));
	address_frame(b, link, is_whose);
	if (reply_store(ctx, tc, l3, ip, sizeof(*ip)) ||
	    reply_store(ctx, tc, l3 + sizeof(*ip), &nd, ND_BARE) ||
	    (is_whole && reply_store(ctx, tc, l3 + sizeof(*ip) + ND_BARE, &nd.option, 8)))
		return SILENT;
	return LOCATED;
}

/* Not inline: few packets ask for an address, and what that takes of the stack is none
 * of the other ones', which may go on to a pool. `l3` of what is not ARP is an IPv6
 * header's. */
static __noinline __u32 locate_xdp(struct xdp_md *ctx, struct bait *b, __u32 l3,
				   struct tarpit_counter *c, int is_arp)
{
	return is_arp ? answer_arp(ctx, 0, b, l3, c) : answer_nd(ctx, 0, b, l3, c);
}

static __noinline __u32 locate_tc(struct __sk_buff *ctx, struct bait *b, __u32 l3,
				  struct tarpit_counter *c, int is_arp)
{
	return is_arp ? answer_arp(ctx, 1, b, l3, c) : answer_nd(ctx, 1, b, l3, c);
}

#endif
