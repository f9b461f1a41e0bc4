/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Decoy (honeypot) ports: no service listens on them, so a client that connects is
 * scanning. A SYN is answered with the kernel's own SYN cookie, and only who
 * sends that cookie back (R_DECOY_HANDSHAKE) has an address worth banning: everything
 * before it can be sent in anybody's name. A RST proves nothing, the owner of
 * a forged source sends one too.
 *
 * Tail-called last, for packets that would pass (port_features.h), and looked at
 * when they are to an address of this host. Anything else, and everything from the
 * allow list, meets the port as if weir were not there: bait, not a wall.
 *
 * Connections that this host opened from such a port go on: their SYN-ACKs and
 * data are not answers to a cookie (`decoy_asked`), and pass. */
#ifndef WEIR_DECOY_H
#define WEIR_DECOY_H

#include <linux/tcp.h>
#include "firewall/allow.h"
#include "lib/hash.h"
#include "lib/reply.h"
#include "lib/request.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_OWN);
	__type(key, struct in6_addr);
	__type(value, __u8);
} decoy_own SEC(".maps");

/* Conversations that were sent a cookie, by a keyed hash: a slot holds the
 * tag of the last one, its lowest bit until the cookie came back. Without it
 * each segment of an own connection would cost a cookie check, and an attacker
 * could guess at cookies as fast as he can send. */
#define DECOY_SLOTS 65536
#define ASKED	    1U
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DECOY_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} decoy_asked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct decoy_counter);
} decoy_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct decoy_guesses);
} decoy_guesses SEC(".maps");

#define DECOY_WINDOW 512

/* A reply in place: what was read of the request, then what is sent. */
struct bait {
	__u8 mac[12];
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	struct {
		struct tcphdr tcp;
		__u8 options[40];
	} segment;
	struct in6_addr source;
	struct in6_addr own;
	struct pkt_result result; /* here, for there is no room for it on the stack */
};
_Static_assert(sizeof(((struct bait *)0)->segment) == 60, "a TCP header at its longest");

/* Too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bait);
} decoy_scratch SEC(".maps");

/* The part of TCP's checksum that is not in the segment: the pseudo-header. */
static __always_inline __u64 pseudo_header(const struct bait *b, int v4, __u32 len)
{
	__u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(len);

	return sum + (v4 ? sum_words(&b->ip.v4.saddr, 2) : sum_words(&b->ip.v6.saddr, 8));
}

/* Between the ports of servers and clients, as parse.h has it. */
static __always_inline int is_dhcp(__u16 source, __u16 dest, int v4)
{
	return v4 ? (source == DHCP_SERVER && dest == DHCP_CLIENT) ||
			       (source == DHCP_CLIENT && dest == DHCP_SERVER)
		  : (source == DHCPV6_SERVER && dest == DHCPV6_CLIENT) ||
			       (source == DHCPV6_CLIENT && dest == DHCPV6_SERVER);
}

/* The implementations that send SYNs no operating system sends. */
static __always_inline __u8 scanner_of(const struct tcphdr *tcp)
{
	__u16 window = bpf_ntohs(tcp->window);

	if (tcp->doff == 5)
		return window == 1024	 ? SCANNER_MASSCAN
		       : window == 65535 ? SCANNER_ZMAP
					 : SCANNER_BARE;
	return tcp->doff == 6 && window == 1024 ? SCANNER_NMAP : SCANNER_NONE;
}

static __always_inline struct decoy_counter *decoy_counter(__u64 now)
{
	__u32 zero = 0;
	struct decoy_counter *c = bpf_map_lookup_elem(&decoy_counters, &zero);

	if (c && c->window != now >> EVENT_WINDOW_SHIFT) {
		c->window = now >> EVENT_WINDOW_SHIFT;
		c->answers = 0;
	}
	return c;
}

/* Takes one of this second's looks at a cookie; NULL when there is none left. It
 * is given back by `decoy_guesses.wrong -= 1` when the cookie is right. Asked by
 * few: conversations that were sent one.
 *
 * What counts is how far `wrong`, which no second sets back, has come since the
 * second began, and it moves before it is read: of CPUs that take the last look
 * at once each reads that all of them have. (Linux before 5.12 has no atomic
 * instruction that returns a value.) `wrong` is read before `second`: who begins
 * a second late finds it begun, or notes a number from before it. */
static __always_inline struct decoy_guesses *take_guess(void)
{
	__u32 zero = 0, second = bpf_ktime_get_boot_ns() / 1000000000;
	struct decoy_guesses *g = bpf_map_lookup_elem(&decoy_guesses, &zero);
	__u32 wrong;

	if (!g)
		return NULL;
	wrong = *(volatile __u64 *)&g->wrong;
	/* Another CPU's clock may have been read a moment later. */
	if ((__s32)(second - *(volatile __u32 *)&g->second) > 0) {
		*(volatile __u32 *)&g->before = wrong;
		*(volatile __u32 *)&g->second = second;
	}
	if ((__s32)(wrong - *(volatile __u32 *)&g->before) >= DECOY_GUESSES)
		return NULL;
	__sync_fetch_and_add(&g->wrong, 1);
	wrong = *(volatile __u64 *)&g->wrong;
	if ((__s32)(wrong - *(volatile __u32 *)&g->before) <= DECOY_GUESSES)
		return g;
	__sync_fetch_and_add(&g->wrong, -1);
	return NULL;
}

static __always_inline __u64 lasting_hash128(__u64 hi, __u64 lo)
{
	return lasting_hash64(lasting_hash64(hi) ^ lo);
}

/* The slot of a conversation, and its tag there. */
static __always_inline __u32 *asked_slot(const struct bait *b, __u32 *tag)
{
	const __u64 *source = (const __u64 *)&b->source, *own = (const __u64 *)&b->own;
	__u64 ports = *(const __u32 *)&b->segment.tcp;
	__u64 from = lasting_hash128(source[0], source[1]);
	__u64 hash = lasting_hash128(from, lasting_hash128(own[0] ^ ports, own[1]));
	__u32 index = hash & (DECOY_SLOTS - 1);

	*tag = hash >> 32 | ASKED;
	return bpf_map_lookup_elem(&decoy_asked, &index);
}

/* Over the request in `b` the reply: `answer` with the ports turned round and its
 * checksum, behind it one option where `len` has room for it, and an IP header of its
 * own. `csum_partial`: whoever transmits completes the checksum (see write_syn_ack). */
static __always_inline void write_segment(struct bait *b, int v4, int csum_partial,
					  struct tcphdr *answer, __be32 option, __u32 len)
{
	struct tcphdr *tcp = &b->segment.tcp;
	__u64 pseudo;
	__be32 addr;

	if (v4) {
		struct iphdr *ip = &b->ip.v4;

		addr = ip->saddr;
		*ip = (struct iphdr){
			.version = 4,
			.ihl = 5,
			.tot_len = bpf_htons(sizeof(*ip) + len),
			.frag_off = bpf_htons(0x4000), /* don't fragment */
			.ttl = REPLY_TTL,
			.protocol = IPPROTO_TCP,
			.saddr = ip->daddr,
			.daddr = addr,
		};
		ip->check = ~fold(sum_words(ip, 5));
	} else {
		struct ipv6hdr *ip = &b->ip.v6;

		*(__be32 *)ip = bpf_htonl(6 << 28);
		ip->payload_len = bpf_htons(len);
		ip->hop_limit = REPLY_TTL;
		ip->saddr = b->own;
		ip->daddr = b->source;
	}
	answer->source = tcp->dest;
	answer->dest = tcp->source;
	answer->doff = len / 4;
	*tcp = *answer;
	*(__be32 *)b->segment.options = option;
	pseudo = pseudo_header(b, v4, len);
	if (csum_partial)
		tcp->check = fold(pseudo);
	else
		tcp->check = ~fold(pseudo + sum_words(&b->segment, 6));
}

/* From the request in `b` the SYN-ACK; returns its TCP header's length, 0: none
 * is due. Never longer than the request. The checksum of a request that comes
 * from this machine may be a promise (CHECKSUM_PARTIAL): then the field holds
 * the sum of the pseudo-header only, and in an skb whoever transmits keeps the
 * promise for the reply as well. Native XDP has nobody to keep it. (Nor has
 * generic XDP a way to tell: such a reply is right on a veth pair, and wrong on
 * a virtio device; those are tcx's.) A request with a wrong checksum is
 * nobody's. */
static __always_inline __u32 write_syn_ack(struct bait *b, int v4, int tc, __u32 len,
					   __u16 window)
{
	struct tcphdr *tcp = &b->segment.tcp, answer;
	__u64 pseudo = pseudo_header(b, v4, len);
	int csum_partial = 0;
	__s64 cookie;

	if (fold(pseudo + sum_words(&b->segment, 15)) != 0xffff) {
		if (tcp->check != fold(pseudo))
			return 0;
		csum_partial = tc;
	}
	cookie = v4 ? bpf_tcp_raw_gen_syncookie_ipv4(&b->ip.v4, tcp, len)
		    : bpf_tcp_raw_gen_syncookie_ipv6(&b->ip.v6, tcp, len);
	if (cookie < 0)
		return 0;
	len = len > sizeof(*tcp) ? sizeof(*tcp) + 4 : sizeof(*tcp);
	answer = (struct tcphdr){
		.seq = bpf_htonl((__u32)cookie),
		.ack_seq = bpf_htonl(bpf_ntohl(tcp->seq) + 1),
		.syn = 1,
		.ack = 1,
		.window = bpf_htons(window),
	};
	/* Maximum segment size, as the cookie encodes it. */
	write_segment(b, v4, csum_partial, &answer,
		      len > sizeof(*tcp) ? bpf_htonl(0x02040000 | (cookie >> 32 & 0xffff))
					 : 0,
		      len);
	return len;
}

/* Answers the SYN in a frame: its options are read first. `at`: the TCP header, `total`
 * bytes of the packet from there on. */
static __always_inline __u32 answer_syn(void *ctx, int tc, struct bait *b, int v4,
					__u32 at, __u32 total, __u16 window)
{
	struct tcphdr *tcp = &b->segment.tcp;
	__u32 more;

	/* With data (Fast Open) there is nothing to prove that is worth it. */
	if (tcp->doff < 5 || total != tcp->doff * 4)
		return 0;
	/* Bounds that clang knows, for the verifier, each of one register. Less one:
	 * of "other than 0" verifiers before Linux 6.8 conclude nothing. */
	total = tcp->doff * 4 - sizeof(*tcp);
	barrier_var(total);
	if (total > sizeof(b->segment.options))
		return 0;
	barrier_var(total);
	more = total - 1;
	barrier_var(more);
	if (more < sizeof(b->segment.options) &&
	    reply_load(ctx, tc, at + sizeof(*tcp), b->segment.options, more + 1))
		return 0;
	return write_syn_ack(b, v4, tc, total + sizeof(*tcp), window);
}

/* Reads the request's IP header and ports, of TCP the whole header. Where they begin;
 * 0: nobody answers this. `total`: bytes of the packet from there on. */
static __always_inline __u32 read_request(void *ctx, int tc, struct bait *b, __u32 l3,
					  __u32 v4, int elsewhere, __u32 *total)
{
	struct tcphdr *tcp = &b->segment.tcp;
	__u32 at;

	if (reply_load_head(ctx, tc, 0, b->mac, sizeof(b->mac)) || b->mac[0] & 1)
		return 0;
	if (v4) {
		if (reply_load_head(ctx, tc, l3, &b->ip, sizeof(b->ip.v4)))
			return 0;
		b->source.s6_addr32[2] = b->own.s6_addr32[2] = bpf_htonl(0xffff);
		b->source.s6_addr32[3] = b->ip.v4.saddr;
		b->own.s6_addr32[3] = b->ip.v4.daddr;
		*total = bpf_ntohs(b->ip.v4.tot_len) - sizeof(b->ip.v4);
		b->result.protocol = b->ip.v4.protocol;
		at = l3 + sizeof(b->ip.v4);
	} else {
		if (reply_load_head(ctx, tc, l3, &b->ip, sizeof(b->ip.v6)))
			return 0;
		b->source = b->ip.v6.saddr;
		b->own = b->ip.v6.daddr;
		*total = bpf_ntohs(b->ip.v6.payload_len);
		b->result.protocol = b->ip.v6.nexthdr;
		at = l3 + sizeof(b->ip.v6);
	}
	/* What goes elsewhere is not this host's to answer, but where the caller says. */
	if ((!elsewhere && !bpf_map_lookup_elem(&decoy_own, &b->own)) ||
	    (v4 ? is_invalid_src4(b->ip.v4.saddr) : is_invalid_src6(&b->ip.v6.saddr)))
		return 0;
	if (b->result.protocol == IPPROTO_TCP
		    ? reply_load_head(ctx, tc, at, tcp, sizeof(*tcp))
		    : reply_load(ctx, tc, at, tcp, sizeof(struct ports)))
		return 0;
	b->result.port = bpf_ntohs(tcp->dest);
	return at;
}

/* Does the ACK in `b` bring the cookie back that its conversation was sent? Asked of a
 * slot that says so, with one of this second's looks taken. */
static __always_inline int is_cookie_right(struct bait *b, int v4,
					   struct decoy_guesses *guesses)
{
	struct tcphdr *tcp = &b->segment.tcp;

	if (v4 ? bpf_tcp_raw_check_syncookie_ipv4(&b->ip.v4, tcp)
	       : bpf_tcp_raw_check_syncookie_ipv6(&b->ip.v6, tcp))
		return 0;
	__sync_fetch_and_add(&guesses->wrong, -1);
	return 1;
}

/* Sends the reply out where the request came in. */
static __always_inline int send_reply(void *ctx, int tc, struct bait *b, __u32 l3, int v4,
				      __u32 frame_len, __u32 len)
{
	__u32 head = v4 ? sizeof(b->ip.v4) : sizeof(b->ip.v6);

	if (shorten(ctx, tc, frame_len, l3 + head + len) ||
	    (v4 ? reply_store_head(ctx, tc, l3, &b->ip, sizeof(b->ip.v4))
		: reply_store_head(ctx, tc, l3, &b->ip, sizeof(b->ip.v6))) ||
	    (len > sizeof(struct tcphdr)
		     ? reply_store_head(ctx, tc, l3 + head, &b->segment, 24)
		     : reply_store_head(ctx, tc, l3 + head, &b->segment, 20)))
		return tc ? TC_ACT_SHOT : XDP_DROP;
	return send_back(ctx, tc, b->mac);
}

/* A packet to a decoy port: what the hook shall return for it. */
static __always_inline int handle_decoy(void *ctx, int tc)
{
	const int drop = tc ? TC_ACT_SHOT : XDP_DROP;
	const int innocent = tc ? TC_ACT_UNSPEC : XDP_PASS;
	const int pass = cfg.final_pass == XDP_PASS ? innocent : drop;
	const struct answer_request *request = answer_request_here();
	__u32 zero = 0, total, len, tag, *slot, is_tcp, l3, v4, frame_len;
	struct decoy_guesses *guesses;
	enum reason otherwise;
	struct decoy_counter *c;
	struct bait *b;
	struct tcphdr *tcp;

	if (!request)
		return drop;
	l3 = request->result.l3 & L3_MOST;
	v4 = request->result.v4;
	frame_len = request->result.bytes;
	otherwise = request->result.reason;
	b = bpf_map_lookup_elem(&decoy_scratch, &zero);
	if (!b)
		goto none;
	*b = (struct bait){
		.result = {.ifindex = request->result.ifindex, .bytes = frame_len}};
	tcp = &b->segment.tcp;
	len = read_request(ctx, tc, b, l3, v4, 0, &total);
	if (!len)
		goto none;
	is_tcp = b->result.protocol == IPPROTO_TCP;
	if (is_tcp && (tcp->rst || tcp->syn == tcp->ack || (tcp->syn && tcp->fin)))
		goto none;

	slot = NULL;
	if (is_tcp) {
		slot = asked_slot(b, &tag);
		if (!slot || (tcp->ack && (*slot | ASKED) != tag))
			goto none;
	} else if (is_dhcp(bpf_ntohs(tcp->source), b->result.port, v4)) {
		otherwise = R_ESSENTIAL;
		goto none;
	}
	if (v4 ? allowed4(b->ip.v4.saddr) : allowed6(&b->ip.v6.saddr)) {
		otherwise = R_ALLOWED;
		goto none;
	}
	__builtin_memcpy(b->result.source, &b->source, sizeof(b->result.source));
	if (request->observe) {
		b->result.reason = R_OBSERVED;
		count_and_report(&b->result, bpf_jiffies64());
		return pass;
	}
	b->result.reason = R_DECOY;
	if (!slot) { /* UDP */
		count_and_report(&b->result, bpf_jiffies64());
		return drop;
	}

	c = decoy_counter(bpf_jiffies64());
	if (!c)
		goto none;
	if (tcp->ack) {
		if (!(*slot & ASKED)) {
			/* Proven already: what follows until the ban is in. */
			count(R_DECOY, frame_len);
			return drop;
		}
		guesses = take_guess();
		if (!guesses)
			goto none;
		if (!is_cookie_right(b, v4, guesses)) {
			/* One guess a SYN. And should this be a connection of
			 * our own, for which somebody forged that SYN, the next
			 * segment is past all this. */
			*slot = 0;
			goto none;
		}
		*slot = tag ^ ASKED;
		b->result.reason = R_DECOY_HANDSHAKE;
		count_and_report(&b->result, bpf_jiffies64());
		return drop;
	}

	b->result.scanner = scanner_of(tcp);
	count_and_report(&b->result, bpf_jiffies64());
	if (c->answers >= DECOY_ANSWERS) {
		c->silent++;
		return drop;
	}
	total = answer_syn(ctx, tc, b, v4, len, total, DECOY_WINDOW);
	if (!total)
		return drop;
	*slot = tag;
	c->answers++;
	c->answered++;
	return send_reply(ctx, tc, b, l3, v4, b->result.bytes, total);
none:
	count(otherwise, frame_len);
	return pass;
}

SEC("xdp")
int weir_decoy_xdp(struct xdp_md *ctx)
{
	return handle_decoy(ctx, 0);
}

SEC("tcx/ingress")
int weir_decoy_tc(struct __sk_buff *skb)
{
	return handle_decoy(skb, 1);
}

#endif
