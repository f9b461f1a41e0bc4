/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Bans that say no aloud: a TCP segment is answered with a reset, anything else
 * with "administratively prohibited" (ICMP 3/13, ICMPv6 1/1). Both are made from
 * scratch; the packet itself is dropped, answered or not.
 *
 * Tail-called last, for packets that a ban denies which says so.
 *
 * Never answered: a reset; of ICMP all but echo requests; fragments; what came
 * or is addressed to many; what claims to come from nobody; a wrong checksum
 * (IPv4 header, TCP, UDP, ICMP; other protocols have none of that kind); a
 * packet that an ICMP reply with as much as the ports in it would outgrow; and
 * more than the token bucket of the CPU holds. Those are R_REJECTED_SILENT.
 *
 * The checksum of a request that comes from this machine may be a promise
 * (CHECKSUM_PARTIAL): its field holds the sum of the pseudo-header, and whoever
 * transmits writes there, in the reply's frame as well, the complement of the
 * sum from the transport header on. No hook of XDP and no helper of tc can tell
 * or take that back. So the reply to such a request is written so that keeping
 * the promise changes nothing: the sum of its own pseudo-header lies where the
 * promise is kept, and a field that nobody reads (TCP's urgent pointer; in ICMP
 * the checksum, the unused field being the place) makes the whole sum right. */
#ifndef WEIR_REJECT_H
#define WEIR_REJECT_H

#include <linux/tcp.h>
#include <linux/udp.h>
#include "lib/reply.h"
#include "lib/request.h"

#define REJECT_COST (1000000000ULL / REJECT_RATE) /* nanoseconds */

#define ICMP_ECHO	  8
#define ICMPV6_ECHO	  128
#define ICMP_PROHIBITED	  bpf_htons(3 << 8 | 13)
#define ICMPV6_PROHIBITED bpf_htons(1 << 8 | 1)
#define REJECT_QUOTE	  512 /* bytes of the request in an ICMP reply, at most */
#define REJECT_CHUNK	  512 /* bytes that bpf_csum_diff takes at once */
#define REJECT_CHUNKS	  32  /* a longer packet is not answered */
#define REJECT_HEADERS	  8   /* headers of IPv6, the first one included, at most */
#define REJECT_NOT_READ	  0x10000U

struct reject_bucket {
	__u64 at;     /* when it was filled up last, nanoseconds */
	__u64 credit; /* REJECT_COST an answer */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reject_bucket);
} reject_bucket SEC(".maps");

/* The request as far as it is read; then the reply. */
struct reject_packet {
	__u8 mac[12];
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	union {
		struct tcphdr tcp;
		struct udphdr udp;
		struct {
			__be16 type_and_code;
			__sum16 checksum;
			__be16 rest[2];
			__u8 quote[REJECT_QUOTE];
		} icmp;
		__u8 ext[8];
	} message;
	__u8 chunk[REJECT_CHUNK + 4];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reject_packet);
} reject_scratch SEC(".maps");

static __always_inline struct reject_packet *reject_packet(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&reject_scratch, &zero);
}

/* May one more be answered? `take`: and it is. */
static __always_inline int may_answer(int take)
{
	__u32 zero = 0;
	struct reject_bucket *bucket = bpf_map_lookup_elem(&reject_bucket, &zero);
	__u64 now, credit;

	if (!bucket)
		return 0;
	now = bpf_ktime_get_ns();
	credit = bucket->credit + (now - bucket->at);
	if (credit > REJECT_BURST * REJECT_COST)
		credit = REJECT_BURST * REJECT_COST;
	if (credit < REJECT_COST)
		return 0;
	if (take) {
		bucket->at = now;
		bucket->credit = credit - REJECT_COST;
	}
	return 1;
}

/* Sum of a part of the frame for the Internet checksum, 16 bits, or
 * REJECT_NOT_READ. `at` is even. */
static __always_inline __u32 sum_frame(void *ctx, int tc, __u32 at, __u32 len)
{
	struct reject_packet *r = reject_packet();
	__u64 rest = (len - 1) % REJECT_CHUNK;
	__u32 sum = 0, i;

	if (!r || !len)
		return REJECT_NOT_READ;
	for (i = 0; i < (len - 1) / REJECT_CHUNK; i++) {
		if (i >= REJECT_CHUNKS || reply_load(ctx, tc, at, r->chunk, REJECT_CHUNK))
			return REJECT_NOT_READ;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)r->chunk, REJECT_CHUNK, sum);
		at += REJECT_CHUNK;
	}
	/* 1 to REJECT_CHUNK, and not "other than 0", of which verifiers before
	 * Linux 6.8 conclude nothing. */
	barrier_var(rest);
	rest++;
	/* Behind the last byte the checksum has zeros. */
	*(__u32 *)(r->chunk + (rest & ~3ULL)) = 0;
	if (reply_load(ctx, tc, at, r->chunk, rest))
		return REJECT_NOT_READ;
	return fold(bpf_csum_diff(NULL, 0, (__be32 *)r->chunk, (rest + 3) & ~3ULL, sum) &
		    0xffffffff);
}

/* Global, so that the verifier follows the loop once each. */
__noinline __u32 sum_xdp(struct xdp_md *ctx, __u32 at, __u32 len)
{
	return sum_frame(ctx, 0, at, len);
}

__noinline __u32 sum_skb(struct __sk_buff *ctx, __u32 at, __u32 len)
{
	return sum_frame(ctx, 1, at, len);
}

/* Where the transport header begins, from the IPv6 header on; 0: unknown, or it
 * is a fragment. The protocol in the upper half. */
static __always_inline __u32 transport6(void *ctx, int tc, __u32 l3)
{
	struct reject_packet *r = reject_packet();
	__u32 off = sizeof(struct ipv6hdr), i;
	__u8 next;

	if (!r)
		return 0;
	next = r->ip.v6.nexthdr;
	for (i = 0; i < REJECT_HEADERS; i++) {
		struct ext_header *ext = (void *)r->message.ext;

		if (!is_extension(next))
			return off | (__u32)next << 16;
		if (next == IPPROTO_FRAGMENT ||
		    reply_load(ctx, tc, (l3 & L3_MOST) + (off & CHAIN_MOST), ext,
			       sizeof(*ext)))
			return 0;
		off += next == IPPROTO_AH ? (ext->len + 2) * 4 : (ext->len + 1) * 8;
		next = ext->next;
	}
	return 0;
}

__noinline __u32 transport6_xdp(struct xdp_md *ctx, __u32 l3)
{
	return transport6(ctx, 0, l3);
}

__noinline __u32 transport6_skb(struct __sk_buff *ctx, __u32 l3)
{
	return transport6(ctx, 1, l3);
}

/* The part of a transport checksum that is not in the segment: the pseudo-header. */
static __always_inline __u64 pseudo_sum(const struct reject_packet *r, int v4,
					__u8 protocol, __u32 len)
{
	__u64 sum = bpf_htons(protocol) + bpf_htons(len);

	return sum + (v4 ? sum_words(&r->ip.v4.saddr, 2) : sum_words(&r->ip.v6.saddr, 8));
}

/* Is the request's checksum right (1), promised (2), or wrong (0)? `at`: its
 * transport header, `len` bytes of the packet from there on. */
static __always_inline int check_request(void *ctx, int tc, const struct reject_packet *r,
					 int v4, __u8 protocol, __u32 at, __u32 len)
{
	__u64 pseudo = 0;
	__sum16 field;
	__u32 sum;

	if (protocol == IPPROTO_TCP)
		field = r->message.tcp.check;
	else if (protocol == IPPROTO_UDP)
		field = r->message.udp.check;
	else if (protocol == (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		field = 1; /* anything */
	else
		return 1;
	if (v4 && protocol == IPPROTO_UDP && !field)
		return 1;
	if (!v4 || protocol != IPPROTO_ICMP)
		pseudo = pseudo_sum(r, v4, protocol, len);
	sum = tc ? sum_skb(ctx, at, len) : sum_xdp(ctx, at, len);
	if (sum & REJECT_NOT_READ)
		return 0;
	if (fold(pseudo + sum) == 0xffff)
		return 1;
	return (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP) &&
			       field == fold(pseudo)
		       ? 2
		       : 0;
}

/* The reply's IP header, from the request's. */
static __always_inline void write_ip(struct reject_packet *r, int v4, __u8 protocol,
				     __u32 len)
{
	if (v4) {
		struct iphdr *ip = &r->ip.v4;
		__be32 from = ip->saddr;

		*ip = (struct iphdr){
			.version = 4,
			.ihl = 5,
			.tot_len = bpf_htons(sizeof(*ip) + len),
			.frag_off = bpf_htons(0x4000), /* don't fragment */
			.ttl = REPLY_TTL,
			.protocol = protocol,
			.saddr = ip->daddr,
			.daddr = from,
		};
		ip->check = ~fold(sum_words(ip, 5));
	} else {
		struct ipv6hdr *ip = &r->ip.v6;
		struct in6_addr from = ip->saddr;

		*(__be32 *)ip = bpf_htonl(6 << 28);
		ip->payload_len = bpf_htons(len);
		ip->nexthdr = protocol;
		ip->hop_limit = REPLY_TTL;
		ip->saddr = ip->daddr;
		ip->daddr = from;
	}
}

/* RFC 9293 3.10.7.1. `len`: of the segment. */
static __always_inline void write_reset(struct reject_packet *r, int v4, __u32 len,
					int csum_partial)
{
	struct tcphdr *tcp = &r->message.tcp, asked = *tcp;
	__u64 pseudo;

	len += asked.syn + asked.fin - asked.doff * 4;
	*tcp = (struct tcphdr){
		.source = asked.dest,
		.dest = asked.source,
		.seq = asked.ack ? asked.ack_seq : 0,
		.ack_seq = asked.ack ? 0 : bpf_htonl(bpf_ntohl(asked.seq) + len),
		.doff = sizeof(*tcp) / 4,
		.rst = 1,
		.ack = !asked.ack,
	};
	write_ip(r, v4, IPPROTO_TCP, sizeof(*tcp));
	pseudo = pseudo_sum(r, v4, IPPROTO_TCP, sizeof(*tcp));
	if (csum_partial) {
		tcp->check = fold(pseudo);
		tcp->urg_ptr = ~fold(pseudo + sum_words(tcp, 5));
	} else {
		tcp->check = ~fold(pseudo + sum_words(tcp, 5));
	}
}

/* `quoted`: bytes of the request that are in r->message.icmp.quote, a multiple
 * of 4. */
static __always_inline void write_unreachable(struct reject_packet *r, int v4,
					      __u64 quoted, int csum_partial)
{
	__u32 len = 8 + quoted;
	__u64 pseudo = 0;
	__u32 sum;

	r->message.icmp.type_and_code = v4 ? ICMP_PROHIBITED : ICMPV6_PROHIBITED;
	r->message.icmp.checksum = 0;
	r->message.icmp.rest[0] = 0;
	write_ip(r, v4, v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6, len);
	if (!v4)
		pseudo = pseudo_sum(r, v4, IPPROTO_ICMPV6, len);
	r->message.icmp.rest[1] = csum_partial ? fold(pseudo) : 0;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)r->message.icmp.quote, quoted, 0);
	r->message.icmp.checksum = ~fold(pseudo + sum_words(&r->message, 2) + sum);
}

/* Answers in place; what the hook shall return, or -1: no answer is due. */
static __always_inline int answer(void *ctx, int tc, struct reject_packet *r, int v4,
				  __u32 l3, __u32 frame_len)
{
	const __u32 head = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u64 quoted; /* at full width, or clang moves it through other registers */
	__u32 total, off, len;
	__u8 protocol;
	int checked;

	if (reply_load(ctx, tc, 0, r->mac, sizeof(r->mac)) || r->mac[0] & 1)
		return -1;
	if (v4) {
		struct iphdr *ip = &r->ip.v4;

		off = ip->ihl * 4;
		total = bpf_ntohs(ip->tot_len);
		protocol = ip->protocol;
		if (ip->frag_off & bpf_htons(IP_MF_OFFSET) ||
		    is_invalid_src4(ip->saddr) || is_invalid_src4(ip->daddr))
			return -1;
		if ((tc ? sum_skb(ctx, l3, off) : sum_xdp(ctx, l3, off)) != 0xffff)
			return -1;
	} else {
		struct ipv6hdr *ip = &r->ip.v6;

		if (!ip->payload_len || is_invalid_src6(&ip->saddr) ||
		    ip->daddr.s6_addr[0] == 0xff)
			return -1;
		total = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		off = tc ? transport6_skb(ctx, l3) : transport6_xdp(ctx, l3);
		protocol = off >> 16;
		off &= 0xffff;
		if (!off)
			return -1;
	}
	if (total < off + 8)
		return -1;
	len = total - off;
	if (reply_load(ctx, tc, l3 + off, &r->message, 8))
		return -1;
	if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = &r->message.tcp;

		if (len < sizeof(*tcp) ||
		    reply_load(ctx, tc, l3 + off, tcp, sizeof(*tcp)) || tcp->rst ||
		    tcp->doff < 5 || len < tcp->doff * 4)
			return -1;
	} else if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) {
		if (r->message.ext[0] != (v4 ? ICMP_ECHO : ICMPV6_ECHO) ||
		    protocol != (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
			return -1;
	} else if (protocol == IPPROTO_UDP &&
		   bpf_ntohs(r->message.udp.len) < sizeof(struct udphdr)) {
		return -1;
	}
	/* An ICMP reply has the request's headers with its ports at least. */
	quoted = total < head + 8 ? 0 : total - head - 8;
	if (protocol != IPPROTO_TCP && quoted < off + 8)
		return -1;
	if (!may_answer(0))
		return -1;
	checked = check_request(ctx, tc, r, v4, protocol, l3 + off, len);
	/* A promise is kept at the request's place. */
	if (!checked || (checked == 2 && off != head))
		return -1;
	if (protocol == IPPROTO_TCP) {
		write_reset(r, v4, len, checked == 2);
		len = sizeof(struct tcphdr);
	} else {
		quoted &= ~3ULL;
		if (quoted > REJECT_QUOTE)
			quoted = REJECT_QUOTE;
		/* Clang knows; the verifier is to see it, of one register. */
		barrier_var(quoted);
		if (quoted < 8 || quoted > REJECT_QUOTE ||
		    reply_load(ctx, tc, l3, r->message.icmp.quote, quoted))
			return -1;
		write_unreachable(r, v4, quoted, checked == 2);
		len = 8 + quoted;
	}
	if (!may_answer(1) || shorten(ctx, tc, frame_len, l3 + head + len) ||
	    reply_store(ctx, tc, l3, &r->ip, head) ||
	    reply_store(ctx, tc, l3 + head, &r->message, len))
		return -1;
	return send_back(ctx, tc, r->mac);
}

/* Drops it and, where an answer is due, answers: what the hook shall return. */
static __always_inline int handle_reject(void *ctx, int tc)
{
	const int drop = tc ? TC_ACT_SHOT : XDP_DROP;
	struct answer_request *request = answer_request_here();
	struct reject_packet *r = reject_packet();
	int verdict = -1;
	__u32 l3, v4;

	if (!request || !r)
		return drop;
	l3 = request->result.l3 & L3_MOST;
	v4 = request->result.v4;
	if (!reply_load(ctx, tc, l3, &r->ip, v4 ? sizeof(r->ip.v4) : sizeof(r->ip.v6)))
		verdict = answer(ctx, tc, r, v4 != 0, l3, request->result.bytes);
	request->result.reason = verdict < 0 ? R_REJECTED_SILENT : R_REJECTED;
	count_and_report(&request->result, bpf_jiffies64());
	return verdict < 0 ? drop : verdict;
}

SEC("xdp")
int weir_reject_xdp(struct xdp_md *ctx)
{
	return handle_reject(ctx, 0);
}

SEC("tcx/ingress")
int weir_reject_tc(struct __sk_buff *skb)
{
	return handle_reject(skb, 1);
}

#endif
