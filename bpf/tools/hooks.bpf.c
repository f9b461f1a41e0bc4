// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* One rule at every hook that takes a program: UDP to port 12345 is dropped
 * and counted, everything else passes; and a deny list of sources in a hash of the
 * kernel's. For weir-bench hooks, which compares what they cost; weir's own packet
 * path is firewall.bpf.c. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netfilter.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PORT	  bpf_htons(12345)
#define IP_OFFSET 0x1fff /* of a fragment; lib/headers.h brings more than this needs */

/* What a helper that reads a packet must bring along at most. */
#define HEADERS (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr))

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

static __always_inline void count(void)
{
	__u32 key = 0;
	__u64 *n = bpf_map_lookup_elem(&dropped, &key);

	if (n)
		(*n)++;
}

/* Is this, from its IP header on, UDP to the port? Fragments behind the first
 * and IPv6 extension headers are not looked through: the rule is the paper's. */
static __always_inline int is_meant(void *l3, void *end, __be16 proto)
{
	struct iphdr *ip4 = l3;
	struct ipv6hdr *ip6 = l3;
	struct udphdr *udp;

	if (proto == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip4 + 1) > end || ip4->ihl < 5 ||
		    ip4->protocol != IPPROTO_UDP || ip4->frag_off & bpf_htons(IP_OFFSET))
			return 0;
		udp = l3 + ip4->ihl * 4;
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		if ((void *)(ip6 + 1) > end || ip6->nexthdr != IPPROTO_UDP)
			return 0;
		udp = (void *)(ip6 + 1);
	} else {
		return 0;
	}
	return (void *)(udp + 1) <= end && udp->dest == PORT;
}

SEC("xdp")
int hook_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end || !is_meant(eth + 1, end, eth->h_proto))
		return XDP_PASS;
	count();
	return XDP_DROP;
}

/* Denied addresses; sized and filled before attaching. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct in_addr);
	__type(value, __u8);
} denied4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct in6_addr);
	__type(value, __u8);
} denied6 SEC(".maps");

static __always_inline int is_denied(void *l3, void *end, __be16 proto)
{
	struct iphdr *ip4 = l3;
	struct ipv6hdr *ip6 = l3;

	if (proto == bpf_htons(ETH_P_IP))
		return (void *)(ip4 + 1) <= end &&
		       bpf_map_lookup_elem(&denied4, &ip4->saddr);
	return proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end &&
	       bpf_map_lookup_elem(&denied6, &ip6->saddr);
}

/* The least that a deny list can be: no ban ends or is of some ports, no tag or tunnel
 * is looked through, nothing is allowed, told or malformed. */
SEC("xdp")
int hook_xdp_hash(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end || !is_denied(eth + 1, end, eth->h_proto))
		return XDP_PASS;
	count();
	return XDP_DROP;
}

/* cls_bpf (direct action) and tcx. */
static __always_inline int judge_skb(struct __sk_buff *skb)
{
	struct ethhdr *eth;

	/* Some drivers leave little of a packet in its linear part. */
	if (skb->data_end - skb->data < HEADERS)
		bpf_skb_pull_data(skb, skb->len < HEADERS ? skb->len : HEADERS);
	eth = (void *)(long)skb->data;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end ||
	    !is_meant(eth + 1, (void *)(long)skb->data_end, eth->h_proto))
		return 0;
	count();
	return 1;
}

SEC("tc")
int hook_cls_bpf(struct __sk_buff *skb)
{
	return judge_skb(skb) ? TC_ACT_SHOT : TC_ACT_OK;
}

SEC("tcx/ingress")
int hook_tcx(struct __sk_buff *skb)
{
	return judge_skb(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* The packet begins at its IP header. Not counted unless a socket of the
 * cgroup would get it. */
SEC("cgroup_skb/ingress")
int hook_cgroup(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!is_meant(data, end, skb->protocol))
		return 1;
	count();
	return 0;
}

/* On a UDP socket the packet begins at its UDP header. */
SEC("socket")
int hook_socket(struct __sk_buff *skb)
{
	__be16 port;

	if (bpf_skb_load_bytes(skb, offsetof(struct udphdr, dest), &port, sizeof(port)) ||
	    port != PORT)
		return -1;
	count();
	return 0;
}

/* What uapi headers lack; read by BTF. */
struct sk_buff;
struct bpf_nf_ctx {
	const void *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer,
			      __u32 buffer__szk) __ksym;

static __always_inline int udp_at(struct bpf_dynptr *packet, __u32 offset)
{
	struct udphdr room, *udp = bpf_dynptr_slice(packet, offset, &room, sizeof(room));

	if (!udp || udp->dest != PORT)
		return NF_ACCEPT;
	count();
	return NF_DROP;
}

SEC("netfilter")
int hook_netfilter(struct bpf_nf_ctx *ctx)
{
	struct bpf_dynptr packet;
	struct iphdr room4, *ip4;
	struct ipv6hdr room6, *ip6;

	if (bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &packet))
		return NF_ACCEPT;
	ip4 = bpf_dynptr_slice(&packet, 0, &room4, sizeof(room4));
	if (!ip4)
		return NF_ACCEPT;
	if (ip4->version == 4) {
		if (ip4->ihl < 5 || ip4->protocol != IPPROTO_UDP ||
		    ip4->frag_off & bpf_htons(IP_OFFSET))
			return NF_ACCEPT;
		return udp_at(&packet, ip4->ihl * 4);
	}
	ip6 = bpf_dynptr_slice(&packet, 0, &room6, sizeof(room6));
	if (!ip6 || ip6->version != 6 || ip6->nexthdr != IPPROTO_UDP)
		return NF_ACCEPT;
	return udp_at(&packet, sizeof(*ip6));
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
