// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* For a real beyond a router: takes the outer header off what a balancer sends it, so
 * that the host's stack finds the packet of the client, addressed to a virtual address
 * that the host has on its loopback interface. No tunnel device is needed.
 *
 * On tc ingress; of no instance and without the firewall: `weir real-side` attaches it.
 *
 * Taken off only if the outer header is addressed to this host and, where balancers are
 * named, comes from one of them, and the inner one is addressed to a virtual address. The
 * rest is left as it came: it may be for a tunnel of the administrator's.
 *
 * Of what is taken off nobody else checks lengths and the IPv4 header, so both are
 * checked here. GUE's UDP checksum is not: what is in it has its own (RFC 6936 4).
 * Nothing is copied from the outer to the inner header: balancers of weir say that it
 * takes no part in ECN (RFC 6040 4.3). */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include "lib/reply.h"

/* Flags of bpf_skb_adjust_room since Linux 6.3: headers of before lack them. */
#define ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)

struct decap_address {
	__u8 addr[16];
};

const volatile struct {
	__u32 ipip;	   /* 1: packets are taken out of IP in IP */
	__be16 gue_port;   /* UDP port at which they are taken out of GUE; 0: none */
	__u8 any_balancer; /* 1: outer headers may be from any address */
	__u8 pad;
} decap = {};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DECAP_ADDRESSES);
	__type(key, struct decap_address);
	__type(value, __u32);
} decap_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DECAP_MAX);
	__type(key, __u32);
	__type(value, __u64);
} decap_counters SEC(".maps");

static __always_inline int finish(enum decap_count what, int verdict)
{
	__u32 key = what;
	__u64 *count = bpf_map_lookup_elem(&decap_counters, &key);

	if (count)
		(*count)++;
	return verdict;
}

static __always_inline int is_one(const struct decap_address *addr, __u32 of)
{
	__u32 *bits = bpf_map_lookup_elem(&decap_addresses, addr);

	return bits && *bits & of;
}

/* An IP header as far as it counts here. */
struct ip_head {
	struct decap_address source;
	struct decap_address dest;
	__u32 len;   /* bytes of the packet, as its header says */
	__u32 bytes; /* bytes of the header */
	__u8 next;
	__u8 is_fragment;
	__u8 is_right; /* 1: the header does not contradict itself */
};

/* Reads an IP header; 0: it is there. */
static __always_inline int read_ip(struct __sk_buff *skb, __u32 at, int v4,
				   struct ip_head *head)
{
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;

	if (v4) {
		if (bpf_skb_load_bytes(skb, at, &ip.v4, sizeof(ip.v4)))
			return -1;
		map_v4(head->source.addr, ip.v4.saddr);
		map_v4(head->dest.addr, ip.v4.daddr);
		head->len = bpf_ntohs(ip.v4.tot_len);
		head->bytes = ip.v4.ihl * 4;
		head->next = ip.v4.protocol;
		head->is_fragment = (ip.v4.frag_off & bpf_htons(IP_MF_OFFSET)) != 0;
		head->is_right = ip.v4.version == 4 && ip.v4.ihl >= 5;
		/* The checksum of an outer header, which has no options: see below. */
		if (ip.v4.ihl == 5 && fold(sum_words(&ip.v4, 5)) != 0xffff)
			head->is_right = 0;
	} else {
		if (bpf_skb_load_bytes(skb, at, &ip.v6, sizeof(ip.v6)))
			return -1;
		__builtin_memcpy(head->source.addr, &ip.v6.saddr, 16);
		__builtin_memcpy(head->dest.addr, &ip.v6.daddr, 16);
		head->len = sizeof(ip.v6) + bpf_ntohs(ip.v6.payload_len);
		head->bytes = sizeof(ip.v6);
		head->next = ip.v6.nexthdr;
		head->is_right = ip.v6.version == 6;
	}
	return 0;
}

/* Behind an outer header that is IPv4 or not; what the hook shall return. */
static __always_inline int take_out(struct __sk_buff *skb, const int v4)
{
	const __u32 l3 = sizeof(struct ethhdr);
	const __u32 outer = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct ip_head head = {}, inner = {};
	__u32 bytes = outer, frame;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	struct udphdr udp;
	__be16 type;
	__u8 first;
	int inner4;

	if (read_ip(skb, l3, v4, &head))
		return TC_ACT_UNSPEC;
	if (head.bytes != outer)
		return TC_ACT_UNSPEC;
	if (head.next == IPPROTO_UDP) {
		if (!decap.gue_port ||
		    bpf_skb_load_bytes(skb, l3 + outer, &udp, sizeof(udp)) ||
		    udp.dest != decap.gue_port)
			return TC_ACT_UNSPEC;
		bytes += sizeof(udp);
	} else if (!decap.ipip ||
		   (head.next != IPPROTO_IPIP && head.next != IPPROTO_IPV6)) {
		return TC_ACT_UNSPEC;
	}
	if (!is_one(&head.dest, DECAP_OWN))
		return TC_ACT_UNSPEC;
	if (!decap.any_balancer && !is_one(&head.source, DECAP_BALANCER))
		return finish(DECAP_STRANGER, TC_ACT_UNSPEC);
	if (head.is_fragment)
		return finish(DECAP_FRAGMENT, TC_ACT_UNSPEC);
	frame = skb->len - l3;
	/* One that was put together of several (GRO) is as long as it is. */
	if (skb->gso_size)
		head.len = frame;
	if (!head.is_right || head.len > frame)
		return finish(DECAP_MALFORMED, TC_ACT_SHOT);
	if (head.next == IPPROTO_UDP) {
		if (!skb->gso_size && bpf_ntohs(udp.len) != head.len - outer)
			return finish(DECAP_MALFORMED, TC_ACT_SHOT);
		/* Variant 0 has a header of its own; with optional fields, or about
		 * the tunnel itself, it is not understood here. */
		if (bpf_skb_load_bytes(skb, l3 + bytes, &first, 1))
			return finish(DECAP_MALFORMED, TC_ACT_SHOT);
		if (!(first >> 6)) {
			struct {
				__u8 first;
				__u8 protocol;
				__be16 flags;
			} gue;

			if (bpf_skb_load_bytes(skb, l3 + bytes, &gue, sizeof(gue)) ||
			    gue.first || gue.flags ||
			    (gue.protocol != IPPROTO_IPIP &&
			     gue.protocol != IPPROTO_IPV6))
				return finish(DECAP_MALFORMED, TC_ACT_SHOT);
			bytes += sizeof(gue);
			head.next = gue.protocol;
		} else if (first >> 4 == 4) {
			head.next = IPPROTO_IPIP;
		} else if (first >> 4 == 6) {
			head.next = IPPROTO_IPV6;
		} else {
			return finish(DECAP_MALFORMED, TC_ACT_SHOT);
		}
	}
	inner4 = head.next == IPPROTO_IPIP;
	if (inner4 ? read_ip(skb, l3 + bytes, 1, &inner)
		   : read_ip(skb, l3 + bytes, 0, &inner))
		return finish(DECAP_MALFORMED, TC_ACT_SHOT);
	if (skb->gso_size)
		inner.len = head.len - bytes;
	if (!inner.is_right || inner.len < inner.bytes || bytes + inner.len > head.len)
		return finish(DECAP_MALFORMED, TC_ACT_SHOT);
	if (!is_one(&inner.dest, DECAP_VIP))
		return finish(DECAP_OTHER, TC_ACT_UNSPEC);
	/* Another family is of Linux 6.3. */
	if (inner4 != v4)
		flags |= inner4 ? ADJ_ROOM_DECAP_L3_IPV4 : ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -(__s32)bytes, BPF_ADJ_ROOM_MAC, flags))
		return finish(DECAP_REFUSED, TC_ACT_SHOT);
	type = inner4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type,
				sizeof(type), 0))
		return finish(DECAP_REFUSED, TC_ACT_SHOT);
	return finish(DECAP_TAKEN, TC_ACT_UNSPEC);
}

SEC("tcx/ingress")
int weir_decap(struct __sk_buff *skb)
{
	/* What has a tag is for another interface, which is above this one. */
	if (skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return take_out(skb, 1);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return take_out(skb, 0);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
