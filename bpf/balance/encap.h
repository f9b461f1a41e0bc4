/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The way to a real beyond a router: the packet leaves in an outer one, addressed to the
 * real's own address, which takes it out again (decap.bpf.c, or a tunnel device). IP in
 * IP (RFC 2003, RFC 2473, RFC 4213), either family in either, or GUE variant 1.
 *
 * Functions of their own, which the verifier checks once each: a pool on the segment pays
 * for them with one comparison.
 *
 * The outer header says don't fragment, so that no router does (RFC 2003 3.1), and takes
 * the class of the inner one without its two bits of ECN, for who takes it off may not
 * know how to hand congestion on (RFC 6040 4.3). GUE over IPv6 has no UDP checksum
 * (RFC 6935), over IPv4 none either; its source port, and IPv6's flow label, are of the
 * flow, so that routers and network cards spread flows.
 *
 * A packet that is too big is dropped, and the client is told what fits: "fragmentation
 * needed" (RFC 1191), whether or not it may be fragmented, for nothing here can do that,
 * or "packet too big" (RFC 4443 3.2). */
#ifndef WEIR_ENCAP_H
#define WEIR_ENCAP_H

#include "answer/reject.h"
#include "balance/balance.h"

#define ENCAP_TTL	      64
#define ENCAP_QUOTE	      512 /* bytes of a packet that is too big, in what is said of it */
#define ICMP_FRAG_NEEDED      bpf_htons(3 << 8 | 4)
#define ICMPV6_PACKET_TOO_BIG bpf_htons(2 << 8)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_REALS);
	__type(key, __u32);
	__type(value, struct balance_tunnel);
} balance_tunnels SEC(".maps");

/* What stands before the inner packet. Nothing in it is padding. */
struct encap_head {
	__u8 pad[2]; /* IP at a multiple of four */
	struct ethhdr eth;
	union {
		struct {
			struct iphdr ip;
			struct udphdr udp;
		} v4;
		struct {
			struct ipv6hdr ip;
			struct udphdr udp;
		} v6;
	};
};

/* The inner packet. */
struct encap_packet {
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	__u64 hash;    /* hash of its flow; for a fragment, of its addresses */
	__u32 len;     /* bytes from its IP header on */
	__u32 largest; /* bytes of the largest packet that it is cut into */
	__u8 class;    /* traffic class: DSCP and ECN */
	__u8 protocol;
	__u8 hops; /* time to live, or hop limit */
};

/* Not on the stack, of which whoever calls has a part. */
struct encap_scratch {
	struct encap_head head;
	struct encap_packet packet;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct encap_scratch);
} encap_scratch SEC(".maps");

/* Reads it; not 0: it contradicts itself. `frame`: bytes from its IP header on. */
static __always_inline int encap_read(void *ctx, const int tc, const int v4, __u32 frame,
				      struct encap_packet *p)
{
	const __u32 l3 = sizeof(struct ethhdr);
	const __u32 head = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct __sk_buff *skb = ctx;
	struct ports ports = {};
	__u32 l4 = sizeof(struct udphdr);
	int is_part = 0;
	__u8 offset;

	p->hash = 0x243f6a8885a308d3ULL;
	if (v4) {
		if (balance_load(ctx, tc, l3, &p->ip.v4, sizeof(p->ip.v4)))
			return -1;
		p->len = bpf_ntohs(p->ip.v4.tot_len);
		p->class = p->ip.v4.tos;
		p->protocol = p->ip.v4.protocol;
		p->hops = p->ip.v4.ttl;
		is_part = (p->ip.v4.frag_off & bpf_htons(IP_MF_OFFSET)) != 0;
		p->hash = balance_mix(p->hash,
				      (__u64)p->ip.v4.saddr << 32 | p->ip.v4.daddr);
	} else {
		const __u64 *addr = (void *)&p->ip.v6.saddr;

		if (balance_load(ctx, tc, l3, &p->ip.v6, sizeof(p->ip.v6)))
			return -1;
		p->len = sizeof(p->ip.v6) + bpf_ntohs(p->ip.v6.payload_len);
		p->class = p->ip.v6.priority << 4 | p->ip.v6.flow_lbl[0] >> 4;
		p->protocol = p->ip.v6.nexthdr;
		p->hops = p->ip.v6.hop_limit;
		p->hash = balance_mix(p->hash, addr[0]);
		p->hash = balance_mix(p->hash, addr[1]);
		p->hash = balance_mix(p->hash, addr[2]);
		p->hash = balance_mix(p->hash, addr[3]);
	}
	if (!is_part && (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP) &&
	    !balance_load(ctx, tc, l3 + head, &ports, sizeof(ports)))
		p->hash = balance_mix(p->hash, (__u64)ports.source << 16 | ports.dest);
	p->hash = balance_mix(p->hash, p->hash >> 29);
	p->largest = p->len;
	/* One that was put together of several (GRO) leaves as those. */
	if (tc && skb->gso_size) {
		if (p->protocol == IPPROTO_TCP) {
			if (balance_load(ctx, tc, l3 + head + 12, &offset, 1))
				return -1;
			l4 = (offset >> 4) * 4;
		}
		p->len = frame;
		p->largest = head + l4 + skb->gso_size;
	}
	return p->len < head || p->len > frame;
}

/* Writes what stands before it. */
static __always_inline void encap_write(struct encap_head *h,
					const struct balance_tunnel *tunnel,
					const struct balance_real *real,
					const struct encap_packet *p, const int v4)
{
	const __u8 next = v4 ? IPPROTO_IPIP : IPPROTO_IPV6;
	__u32 len = p->len;
	struct udphdr udp = {
		.source = bpf_htons(0xc000 | (p->hash & 0x3fff)),
		.dest = tunnel->port,
		.len = bpf_htons(p->len + sizeof(udp)),
	};

	__builtin_memcpy(h->eth.h_dest, real->dest, 6);
	__builtin_memcpy(h->eth.h_source, real->source, 6);
	if (tunnel->port)
		len += sizeof(udp);
	if (tunnel->v4) {
		h->eth.h_proto = bpf_htons(ETH_P_IP);
		h->v4.ip = (struct iphdr){
			.version = 4,
			.ihl = 5,
			.tos = p->class & ~3,
			.tot_len = bpf_htons(len + sizeof(h->v4.ip)),
			.frag_off = bpf_htons(0x4000), /* don't fragment */
			.ttl = ENCAP_TTL,
			.protocol = tunnel->port ? IPPROTO_UDP : next,
		};
		__builtin_memcpy(&h->v4.ip.saddr, tunnel->source + 12, 4);
		__builtin_memcpy(&h->v4.ip.daddr, tunnel->dest + 12, 4);
		h->v4.ip.check = ~fold(sum_words(&h->v4.ip, 5));
		h->v4.udp = udp;
	} else {
		h->eth.h_proto = bpf_htons(ETH_P_IPV6);
		*(__be32 *)&h->v6.ip =
			bpf_htonl(6 << 28 | (p->class & ~3) << 20 | (p->hash & 0xfffff));
		h->v6.ip.payload_len = bpf_htons(len);
		h->v6.ip.nexthdr = tunnel->port ? IPPROTO_UDP : next;
		h->v6.ip.hop_limit = ENCAP_TTL;
		__builtin_memcpy(&h->v6.ip.saddr, tunnel->source, 16);
		__builtin_memcpy(&h->v6.ip.daddr, tunnel->dest, 16);
		h->v6.udp = udp;
	}
}

/* Puts `bytes` of what is at `from` before the frame's IP header, with an Ethernet header
 * before them; 0: they are there. A constant, for XDP writes by packet pointers. */
static __always_inline int encap_put_xdp(struct xdp_md *xdp, const void *from,
					 const __u32 bytes)
{
	void *data;

	if (bpf_xdp_adjust_head(xdp, -(int)bytes))
		return -1;
	data = (void *)(long)xdp->data;
	if (data + sizeof(struct ethhdr) + bytes > (void *)(long)xdp->data_end)
		return -1;
	__builtin_memcpy(data, from, sizeof(struct ethhdr) + bytes);
	return 0;
}

static __always_inline int encap_put_tc(struct __sk_buff *skb, const void *from,
					const __u32 bytes, __u64 flags)
{
	return bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_MAC, flags) ||
	       bpf_skb_store_bytes(skb, 0, from, sizeof(struct ethhdr) + bytes,
				   BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int encap_put(void *ctx, const int tc, struct encap_head *h,
				     const struct balance_tunnel *tunnel)
{
	const __u32 v4 = sizeof(struct iphdr), v6 = sizeof(struct ipv6hdr);
	const __u32 udp = sizeof(struct udphdr);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;

	if (tc) {
		flags |= tunnel->v4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
				    : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
		if (tunnel->port)
			flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
		if (tunnel->v4)
			return tunnel->port ? encap_put_tc(ctx, &h->eth, v4 + udp, flags)
					    : encap_put_tc(ctx, &h->eth, v4, flags);
		return tunnel->port ? encap_put_tc(ctx, &h->eth, v6 + udp, flags)
				    : encap_put_tc(ctx, &h->eth, v6, flags);
	}
	if (tunnel->v4)
		return tunnel->port ? encap_put_xdp(ctx, &h->eth, v4 + udp)
				    : encap_put_xdp(ctx, &h->eth, v4);
	return tunnel->port ? encap_put_xdp(ctx, &h->eth, v6 + udp)
			    : encap_put_xdp(ctx, &h->eth, v6);
}

/* Reads the beginning of the packet to be quoted; 0: it is there. */
static __always_inline int encap_quote(void *ctx, const int tc, struct reject_packet *r)
{
	const __u32 l3 = sizeof(struct ethhdr);
	__u32 *quote = (void *)r->message.icmp.quote;
	struct xdp_md *xdp = ctx;
	void *from;
	__u32 i;

	if (tc)
		return bpf_skb_load_bytes(ctx, l3, quote, ENCAP_QUOTE);
	from = (void *)(long)xdp->data + l3;
	if (from + ENCAP_QUOTE > (void *)(long)xdp->data_end)
		return -1;
	for (i = 0; i < ENCAP_QUOTE / sizeof(*quote); i++)
		quote[i] = ((__u32 *)from)[i];
	return 0;
}

/* Tells the client what fits, in front of the beginning of his packet, which so keeps its
 * place: a transport checksum that is promised only (reject.h) is kept where he promised
 * it. What the hook shall return, or -1: nothing is said. */
static __always_inline int encap_too_big(void *ctx, const int tc, const int v4,
					 const struct encap_packet *p,
					 struct encap_head *h, __u32 mtu, __u32 frame)
{
	const __u32 l3 = sizeof(struct ethhdr);
	const __u32 head = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct reject_packet *r = reject_packet();
	struct __sk_buff *skb = ctx;
	__u64 sum, pseudo = 0;
	int csum_partial = 0;

	/* An ICMP error is not answered (RFC 1122 3.2.2, RFC 4443 2.4). */
	if (!r || p->len < ENCAP_QUOTE || p->protocol == IPPROTO_ICMP ||
	    p->protocol == IPPROTO_ICMPV6)
		return -1;
	if (v4 ? is_invalid_src4(p->ip.v4.saddr) : is_invalid_src6(&p->ip.v6.saddr))
		return -1;
	/* Nor is a later fragment of IPv4 (RFC 1122 3.2.2): the first one was as large.
	 */
	if (v4 && p->ip.v4.frag_off & bpf_htons(IP_OFFSET))
		return -1;
	if (balance_load(ctx, tc, 0, r->mac, sizeof(r->mac)) || r->mac[0] & 1 ||
	    !may_answer(0))
		return -1;
	if (v4)
		r->ip.v4 = p->ip.v4;
	else
		r->ip.v6 = p->ip.v6;
	if (tc && (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP) &&
	    !(v4 && p->ip.v4.frag_off & bpf_htons(IP_MF_OFFSET))) {
		if (bpf_skb_load_bytes(ctx, l3 + head, &r->message,
				       sizeof(r->message.tcp)))
			return -1;
		/* What was put together of several has promises only. */
		csum_partial = skb->gso_size ? 2
					     : check_request(ctx, tc, r, v4, p->protocol,
							     l3 + head, p->len - head);
		if (!csum_partial)
			return -1;
	}
	/* The promise, kept: what is from there on sums up to its complement. */
	if (csum_partial == 2)
		pseudo = (__u16) ~(p->protocol == IPPROTO_TCP ? r->message.tcp.check
							      : r->message.udp.check);
	if (encap_quote(ctx, tc, r) || !may_answer(1))
		return -1;
	if (csum_partial == 2)
		sum = pseudo + sum_words(r->message.icmp.quote, v4 ? 5 : 10);
	else
		sum = (__u32)bpf_csum_diff(NULL, 0, (__be32 *)r->message.icmp.quote,
					   ENCAP_QUOTE, 0);
	write_ip(r, v4, v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6, 8 + ENCAP_QUOTE);
	if (!v4)
		sum += pseudo_sum(r, v4, IPPROTO_ICMPV6, 8 + ENCAP_QUOTE);
	/* Its four words stand where an outer packet has UDP: type and code, checksum,
	 * and the MTU in the last one, or two. */
	if (v4) {
		h->v4.ip = r->ip.v4;
		h->v4.udp.source = ICMP_FRAG_NEEDED;
		h->v4.udp.check = bpf_htons(mtu);
		h->v4.udp.dest = ~fold(sum + sum_words(&h->v4.udp, 2));
	} else {
		h->v6.ip = r->ip.v6;
		h->v6.udp.source = ICMPV6_PACKET_TOO_BIG;
		h->v6.udp.check = bpf_htons(mtu);
		h->v6.udp.dest = ~fold(sum + sum_words(&h->v6.udp, 2));
	}
	__builtin_memcpy(h->eth.h_dest, r->mac + 6, 6);
	__builtin_memcpy(h->eth.h_source, r->mac, 6);
	h->eth.h_proto = v4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	if (tc) {
		/* First, for it also makes one of many that were put together. */
		if (bpf_skb_change_tail(ctx, l3 + ENCAP_QUOTE, 0) ||
		    encap_put_tc(ctx, &h->eth, head + 8, 0))
			return -1;
		return bpf_redirect(skb->ifindex, 0);
	}
	if (bpf_xdp_adjust_tail(ctx, (int)(l3 + ENCAP_QUOTE) - (int)frame) ||
	    encap_put_xdp(ctx, &h->eth, head + 8))
		return -1;
	return XDP_TX;
}

/* What the hook shall return. */
static __always_inline int encap(void *ctx, const int tc, const int v4, __u32 number,
				 __u32 of)
{
	struct xdp_md *xdp = ctx;
	struct __sk_buff *skb = ctx;
	const int drop = tc ? TC_ACT_SHOT : XDP_DROP;
	const int pass = tc ? TC_ACT_UNSPEC : (int)cfg.final_pass;
	struct answer_request *request = answer_request_here();
	struct balance_service_counter *served;
	struct balance_real_counter *sent;
	struct balance_tunnel *tunnel;
	struct balance_real *real;
	struct encap_scratch *scratch;
	struct encap_packet *p;
	struct encap_head *h;
	__u32 frame, outer, here, zero = 0;
	void *data, *end;
	int verdict;

	real = bpf_map_lookup_elem(&balance_reals, &number);
	tunnel = bpf_map_lookup_elem(&balance_tunnels, &number);
	served = bpf_map_lookup_elem(&balance_served, &of);
	sent = bpf_map_lookup_elem(&balance_sent, &number);
	scratch = bpf_map_lookup_elem(&encap_scratch, &zero);
	if (!request || !real || !tunnel || !served || !sent || !scratch)
		return drop;
	p = &scratch->packet;
	h = &scratch->head;
	*h = (struct encap_head){};
	frame = request->result.bytes;
	/* User space is about to write it. */
	if (!real->id) {
		served->unserved++;
		count(R_NO_REAL, frame);
		return drop;
	}
	if (encap_read(ctx, tc, v4, frame - sizeof(h->eth), p)) {
		count(R_MALFORMED, frame);
		return pass;
	}
	/* Before its size, as in a router: the host's stack says that it has no hop left.
	 */
	if (p->hops < 2) {
		balance_count(&request->result);
		return pass;
	}
	outer = tunnel->v4 ? sizeof(h->v4.ip) : sizeof(h->v6.ip);
	if (tunnel->port)
		outer += sizeof(struct udphdr);
	if (p->largest + outer > tunnel->mtu) {
		count(R_TOO_BIG, frame);
		verdict = encap_too_big(ctx, tc, v4, p, h, tunnel->mtu - outer, frame);
		return verdict < 0 ? drop : verdict;
	}
	data = (void *)(long)(tc ? skb->data : xdp->data);
	end = (void *)(long)(tc ? skb->data_end : xdp->data_end);
	if (!balance_take_hop(ctx, tc, data + sizeof(h->eth), end, v4))
		return drop;
	here = tc ? skb->ifindex : xdp->ingress_ifindex;
	encap_write(h, tunnel, real, p, v4);
	if (p->len + outer > 0xffff || encap_put(ctx, tc, h, tunnel)) {
		count(R_NO_ROOM, frame);
		return drop;
	}
	served->packets++;
	served->bytes += frame;
	sent->packets++;
	sent->bytes += frame;
	balance_count(&request->result);
	if (!tc && here == real->ifindex)
		return XDP_TX;
	return bpf_redirect(real->ifindex, 0);
}

static __always_inline int encap_either(void *ctx, const int tc, __u32 number, __u32 of)
{
	struct answer_request *request = answer_request_here();

	if (!request)
		return tc ? TC_ACT_SHOT : XDP_DROP;
	/* A priority tag. */
	if (request->result.l3 != sizeof(struct ethhdr) ||
	    (tc && ((struct __sk_buff *)ctx)->vlan_present))
		return balance_pass(request, tc);
	return request->result.v4 ? encap(ctx, tc, 1, number, of)
				  : encap(ctx, tc, 0, number, of);
}

__noinline int encap_xdp(struct xdp_md *ctx, __u32 number, __u32 of)
{
	return encap_either(ctx, 0, number, of);
}

__noinline int encap_skb(struct __sk_buff *ctx, __u32 number, __u32 of)
{
	return encap_either(ctx, 1, number, of);
}

#endif
