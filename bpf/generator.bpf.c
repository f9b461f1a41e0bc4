// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Floods for benchmarks and tests: run by BPF_PROG_RUN with live frames, it
 * writes a whole UDP packet from the next source into each recycled page and
 * redirects it. Beside it the bare programs that rows are compared with. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct flood {
	__u8 dest_mac[6];
	__u8 source_mac[6];
	__u32 mask;    /* sources - 1; a power of two of them */
	__u32 salt;    /* another salt, other sources */
	__u32 ifindex; /* where to; 0: drop here (the generator alone) */
	__u32 seq;
	__u16 port;
	__u8 ipv6;
	__u8 pad;
	__u8 dest[16]; /* IPv4 in the first four bytes */
};
struct flood flood;

/* Finalisers of MurmurHash3 (public domain, A. Appleby): all sources differ,
 * and follow no order that a cache could like. generator.rs has them too. */
static __always_inline __u32 mix32(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	h ^= h >> 16;
	return h;
}

static __always_inline __u64 mix64(__u64 h)
{
	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdULL;
	h ^= h >> 33;
	h *= 0xc4ceb9fe1a85ec53ULL;
	h ^= h >> 33;
	return h;
}

/* 16.0.0.0 to 191.255.255.255 without 127/8. */
static __always_inline __u32 source_v4(__u32 n)
{
	__u32 addr = (((__u64)mix32(n) * 0xb0000000ULL) >> 32) + 0x10000000;

	return (addr >> 24) == 127 ? addr - 0x01000000 : addr;
}

static __always_inline int build_v4(void *data, void *end, __u32 n)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u16 *word = (void *)ip;
	__u32 sum = 0;
	int i;

	if ((void *)(udp + 1) > end)
		return -1;
	__builtin_memcpy(eth->h_dest, flood.dest_mac, 6);
	__builtin_memcpy(eth->h_source, flood.source_mac, 6);
	eth->h_proto = bpf_htons(ETH_P_IP);
	*(__u8 *)ip = 0x45;
	ip->tos = 0;
	ip->tot_len = bpf_htons(46);
	ip->id = 0;
	ip->frag_off = 0;
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->check = 0;
	ip->saddr = bpf_htonl(source_v4(n));
	__builtin_memcpy(&ip->daddr, flood.dest, 4);
#pragma unroll
	for (i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	udp->source = bpf_htons(1024 + (n & 0x7fff));
	udp->dest = bpf_htons(flood.port);
	udp->len = bpf_htons(26);
	udp->check = 0;
	return 0;
}

static __always_inline int build_v6(void *data, void *end, __u32 n)
{
	struct ethhdr *eth = data;
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u64 hi = mix64(n), lo = mix64(hi);

	if ((void *)(udp + 1) > end)
		return -1;
	hi = (0x2a00ULL << 48) | (hi >> 16);
	__builtin_memcpy(eth->h_dest, flood.dest_mac, 6);
	__builtin_memcpy(eth->h_source, flood.source_mac, 6);
	eth->h_proto = bpf_htons(ETH_P_IPV6);
	*(__be32 *)ip = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(8);
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = 64;
	ip->saddr.s6_addr32[0] = bpf_htonl(hi >> 32);
	ip->saddr.s6_addr32[1] = bpf_htonl(hi);
	ip->saddr.s6_addr32[2] = bpf_htonl(lo >> 32);
	ip->saddr.s6_addr32[3] = bpf_htonl(lo);
	__builtin_memcpy(&ip->daddr, flood.dest, 16);
	udp->source = bpf_htons(1024 + (n & 0x7fff));
	udp->dest = bpf_htons(flood.port);
	udp->len = bpf_htons(8);
	udp->check = 0xffff;
	return 0;
}

SEC("xdp")
int weir_generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 n = (flood.seq++ & flood.mask) + flood.salt;

	if (flood.ipv6 ? build_v6(data, end, n) : build_v4(data, end, n))
		return XDP_ABORTED;
	return flood.ifindex ? bpf_redirect(flood.ifindex, 0) : XDP_DROP;
}

/* The limits that rows are compared with. */
SEC("xdp.frags")
int weir_drop_xdp(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("tcx/ingress")
int weir_drop_tcx(struct __sk_buff *skb)
{
	return TC_ACT_SHOT;
}

/* On the generator's end of a veth pair: native redirect needs NAPI there. */
SEC("xdp")
int weir_accept(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
