// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Floods for benchmarks and tests: run by BPF_PROG_RUN with live frames, it
 * writes a whole UDP packet, or a TCP SYN, from the next source into each recycled page
 * and redirects it. Two kinds: packets that are only to be dropped (generate), and
 * requests of many clients to a server, whose answers are counted (request,
 * answer). Beside them the bare programs that rows are compared with. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "abi/generator.h"

struct flood {
	__u8 dest_mac[6];
	__u8 source_mac[6];
	__u32 mask;    /* sources - 1; a power of two of them */
	__u32 salt;    /* another salt, other sources */
	__u32 ifindex; /* where to; 0: drop here (the generator alone) */
	__u32 seq;
	__u16 port;
	__u16 payload; /* bytes behind the UDP header, all zero */
	__u8 ipv6;
	__u8 syn; /* 1: TCP SYNs with no option instead of UDP */
	__u8 pad[2];
	__u8 dest[16]; /* IPv4 in the first four bytes */
	__u32 dests;   /* so many destinations, from `dest` on; 0: it alone */
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

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* `sum`: that of the addresses. */
static __always_inline int build_syn(struct tcphdr *tcp, void *end, __u32 n, __u64 sum)
{
	__u32 *word = (void *)tcp;
	int i;

	if ((void *)(tcp + 1) > end)
		return -1;
	*tcp = (struct tcphdr){
		.source = bpf_htons(1024 + (n & 0x7fff)),
		.dest = bpf_htons(flood.port),
		.seq = bpf_htonl(mix32(n)),
		.doff = sizeof(*tcp) / 4,
		.syn = 1,
		.window = bpf_htons(64240),
	};
	sum += bpf_htons(IPPROTO_TCP) + bpf_htons(sizeof(*tcp));
#pragma unroll
	for (i = 0; i < 5; i++)
		sum += word[i];
	tcp->check = ~fold(sum);
	return 0;
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
	ip->tot_len = bpf_htons(sizeof(*ip) + (flood.syn ? sizeof(struct tcphdr)
							 : sizeof(*udp) + flood.payload));
	ip->id = 0;
	ip->frag_off = 0;
	ip->ttl = 64;
	ip->protocol = flood.syn ? IPPROTO_TCP : IPPROTO_UDP;
	ip->check = 0;
	ip->saddr = bpf_htonl(source_v4(n));
	__builtin_memcpy(&ip->daddr, flood.dest, 4);
	if (flood.dests)
		ip->daddr = bpf_htonl(bpf_ntohl(ip->daddr) + n % flood.dests);
#pragma unroll
	for (i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	if (flood.syn)
		return build_syn((void *)(ip + 1), end, n, (__u64)ip->saddr + ip->daddr);
	udp->source = bpf_htons(1024 + (n & 0x7fff));
	udp->dest = bpf_htons(flood.port);
	udp->len = bpf_htons(sizeof(*udp) + flood.payload);
	udp->check = 0;
	return 0;
}

static __always_inline int build_v6(void *data, void *end, __u32 n)
{
	struct ethhdr *eth = data;
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u64 hi = mix64(n), lo = mix64(hi);
	__u16 len = bpf_htons(sizeof(*udp) + flood.payload);
	__u64 sum = (__u64)len + len + bpf_htons(IPPROTO_UDP), addresses = 0;
	int i;

	if ((void *)(udp + 1) > end)
		return -1;
	hi = (0x2a00ULL << 48) | (hi >> 16);
	__builtin_memcpy(eth->h_dest, flood.dest_mac, 6);
	__builtin_memcpy(eth->h_source, flood.source_mac, 6);
	eth->h_proto = bpf_htons(ETH_P_IPV6);
	*(__be32 *)ip = bpf_htonl(0x60000000);
	ip->payload_len = flood.syn ? bpf_htons(sizeof(struct tcphdr)) : len;
	ip->nexthdr = flood.syn ? IPPROTO_TCP : IPPROTO_UDP;
	ip->hop_limit = 64;
	ip->saddr.s6_addr32[0] = bpf_htonl(hi >> 32);
	ip->saddr.s6_addr32[1] = bpf_htonl(hi);
	ip->saddr.s6_addr32[2] = bpf_htonl(lo >> 32);
	ip->saddr.s6_addr32[3] = bpf_htonl(lo);
	__builtin_memcpy(&ip->daddr, flood.dest, 16);
	if (flood.dests)
		ip->daddr.s6_addr32[3] =
			bpf_htonl(bpf_ntohl(ip->daddr.s6_addr32[3]) + n % flood.dests);
#pragma unroll
	for (i = 0; i < 4; i++)
		addresses += (__u64)ip->saddr.s6_addr32[i] + ip->daddr.s6_addr32[i];
	if (flood.syn)
		return build_syn((void *)(ip + 1), end, n, addresses);
	udp->source = bpf_htons(1024 + (n & 0x7fff));
	udp->dest = bpf_htons(flood.port);
	udp->len = len;
	/* No socket gets UDP over IPv6 with a wrong checksum. The payload adds
	 * nothing to it. */
	sum = fold(sum + addresses + udp->source + udp->dest);
	udp->check = (__u16)~sum ? ~sum : 0xffff;
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

/* What any filter of sources does at least: checks the headers, hashes the address, reads
 * one word of a table that the cache holds, and counts by CPU. The table is all zero, so
 * whatever has an address is dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} looked_up SEC(".maps");

/* A hash of the packet's source; 0: it has none. */
static __always_inline __u64 hash_of_source(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	__u64 hash, length;

	if ((void *)(ip + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		/* The verifier of Linux 6.1 knows of no bound of swapped bytes. */
		length = bpf_ntohs(ip->tot_len);
		barrier_var(length);
		length &= 0xffff;
		if (ip->version != 4 || ip->ihl < 5 || (void *)ip + length > end)
			return 0;
		return mix64(ip->saddr);
	}
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end ||
	    ip6->version != 6)
		return 0;
	hash = mix64((__u64)ip6->saddr.s6_addr32[0] << 32 | ip6->saddr.s6_addr32[1]);
	return mix64(hash ^
		     ((__u64)ip6->saddr.s6_addr32[2] << 32 | ip6->saddr.s6_addr32[3]));
}

/* The word of an address that the packet has, or 1 where it has none. */
static __always_inline __u64 word_of_source(void *data, void *end)
{
	__u64 hash = hash_of_source(data, end), *word;
	__u32 index = hash & 1023;

	word = hash ? bpf_map_lookup_elem(&sources, &index) : NULL;
	return word ? *word : 1;
}

SEC("xdp.frags")
int weir_look_up_xdp(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 *count;

	if (word_of_source((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	count = bpf_map_lookup_elem(&looked_up, &key);
	if (count)
		(*count)++;
	return XDP_DROP;
}

/* What any balancer does at least: new link-layer addresses, and out again. Those that
 * the flood was made with, turned round. */
static __always_inline int forward(void *data, void *end)
{
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return -1;
	__builtin_memcpy(eth->h_dest, flood.source_mac, 6);
	__builtin_memcpy(eth->h_source, flood.dest_mac, 6);
	return 0;
}

SEC("xdp.frags")
int weir_forward_xdp(struct xdp_md *ctx)
{
	return forward((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? XDP_DROP
									     : XDP_TX;
}

/* What any balancer that remembers its flows does at least: it reads a cache line of its
 * table, by the source, as well. */
struct line {
	__u64 words[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries,
	       1); /* or another power of two: Generator::load_with_lines() */
	__type(key, __u32);
	__type(value, struct line);
} lines SEC(".maps");

const volatile __u32 line_mask = 0;

SEC("xdp.frags")
int weir_forward_known_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 hash = hash_of_source(data, end);
	__u32 index = hash & line_mask;
	struct line *line = bpf_map_lookup_elem(&lines, &index);

	if (!hash || !line || line->words[hash >> 61])
		return XDP_DROP;
	return forward(data, end) ? XDP_DROP : XDP_TX;
}

SEC("tcx/ingress")
int weir_forward_tcx(struct __sk_buff *skb)
{
	return forward((void *)(long)skb->data, (void *)(long)skb->data_end)
		       ? TC_ACT_SHOT
		       : bpf_redirect(skb->ifindex, 0);
}

/* Counts what comes back to the generator's end, and drops it. */
struct sunk {
	__u64 count;
};
SEC(".data.sunk") struct sunk sunk = {};

SEC("xdp")
int weir_sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end || eth->h_proto == bpf_htons(ETH_P_ARP))
		return XDP_PASS;
	__sync_fetch_and_add(&sunk.count, 1);
	return XDP_DROP;
}

/* On the generator's end of a veth pair: native redirect needs NAPI there. */
SEC("xdp")
int weir_accept(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* The clients of a server. Written by user space between two runs. */
struct clients {
	__u8 dest_mac[6];
	__u8 source_mac[6];
	__u32 ifindex;
	__u32 unwanted; /* number of clients that send unwanted requests */
	__u32 wanted;	/* number of clients that send wanted ones */
	__u32 share;	/* share of wanted requests, times 2^32 */
	__u16 port;
	__u8 families; /* enum families */
	__u8 pad;
	__u8 dest4[4];
	__u8 dest6[16];
};
SEC(".data.clients") struct clients clients = {.unwanted = 1, .wanted = 1};

/* Written by weir_request alone, which runs on one CPU at a time. */
struct requests {
	__u64 unwanted; /* sent */
	__u64 wanted;
	__u32 next_unwanted; /* number of the next client */
	__u32 next_wanted;
	__u32 phase; /* sum of `share` so far: a carry makes a wanted request */
	__u32 pad;
};
SEC(".data.requests") struct requests requests = {};

/* Written by weir_answer, on any CPU. */
struct answers {
	__u64 count;
};
SEC(".data.answers") struct answers answers = {};

/* 16.0.0.0/8, permuted: the multiplier is odd, so all clients differ. */
static __always_inline __u32 unwanted_v4(__u32 n)
{
	return 0x10000000 | ((n * 0x9e3779b1U) & 0xffffff);
}

static __always_inline __u32 wanted_v4(__u32 n)
{
	return 0x0b000001 + n;
}

/* A /64 each; below 2a00::/16, and 2a01::/16 for the wanted. */
static __always_inline __u64 unwanted_v6(__u32 n)
{
	return (0x2a00ULL << 48) | (mix64(n) >> 16);
}

static __always_inline __u64 wanted_v6(__u32 n)
{
	return (0x2a01ULL << 48) | ((__u64)n << 16);
}

static __always_inline void request_eth(struct ethhdr *eth, __u16 proto)
{
	__builtin_memcpy(eth->h_dest, clients.dest_mac, 6);
	__builtin_memcpy(eth->h_source, clients.source_mac, 6);
	eth->h_proto = bpf_htons(proto);
}

static __always_inline void request_udp(struct udphdr *udp, __u32 n, __u16 len,
					__u8 payload)
{
	__u8 *text = (void *)(udp + 1);

	udp->source = bpf_htons(1024 + (n & 0x7fff));
	udp->dest = bpf_htons(clients.port);
	udp->len = bpf_htons(len);
	udp->check = 0;
	text[0] = payload;
	text[1] = 0;
}

static __always_inline void request_v4(void *data, __u32 n, __u8 payload)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	__u16 *word = (void *)ip;
	__u32 sum = 0;
	int i;

	request_eth(eth, ETH_P_IP);
	*(__u8 *)ip = 0x45;
	ip->tos = 0;
	ip->tot_len = bpf_htons(REQUEST_LEN - sizeof(*eth));
	ip->id = 0;
	ip->frag_off = 0;
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->check = 0;
	ip->saddr = bpf_htonl(payload == WANTED_PAYLOAD ? wanted_v4(n) : unwanted_v4(n));
	__builtin_memcpy(&ip->daddr, clients.dest4, 4);
#pragma unroll
	for (i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	request_udp((void *)(ip + 1), n, REQUEST_LEN - sizeof(*eth) - sizeof(*ip),
		    payload);
}

/* The stack drops UDP over IPv6 with a wrong checksum, or none. */
static __always_inline void request_v6(void *data, __u32 n, __u8 payload)
{
	const __u16 len = REQUEST_LEN - sizeof(struct ethhdr) - sizeof(struct ipv6hdr);
	struct ethhdr *eth = data;
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u64 hi = payload == WANTED_PAYLOAD ? wanted_v6(n) : unwanted_v6(n);
	__u64 sum = (__u64)bpf_htonl(len) + bpf_htonl(IPPROTO_UDP);
	__u16 *word = (void *)udp;
	int i;

	request_eth(eth, ETH_P_IPV6);
	*(__be32 *)ip = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = 64;
	ip->saddr.s6_addr32[0] = bpf_htonl(hi >> 32);
	ip->saddr.s6_addr32[1] = bpf_htonl(hi);
	ip->saddr.s6_addr32[2] = 0;
	ip->saddr.s6_addr32[3] = bpf_htonl(1);
	__builtin_memcpy(&ip->daddr, clients.dest6, 16);
	request_udp(udp, n, len, payload);
#pragma unroll
	for (i = 0; i < 4; i++)
		sum += (__u64)ip->saddr.s6_addr32[i] + ip->daddr.s6_addr32[i];
#pragma unroll
	for (i = 0; i < 5; i++)
		sum += word[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	udp->check = (__u16)~sum ? ~sum : 0xffff;
}

static __always_inline __u32 take_turn(__u32 *next, __u32 of)
{
	__u32 n = *next;

	*next = n + 1 < of ? n + 1 : 0;
	return n;
}

SEC("xdp")
int weir_request(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 phase = requests.phase + clients.share, n;
	__u8 payload = UNWANTED_PAYLOAD, families = clients.families;

	if (data + REQUEST_LEN > end)
		return XDP_ABORTED;
	if (phase < clients.share) {
		payload = WANTED_PAYLOAD;
		n = take_turn(&requests.next_wanted, clients.wanted);
		requests.wanted++;
	} else {
		n = take_turn(&requests.next_unwanted, clients.unwanted);
		requests.unwanted++;
	}
	requests.phase = phase;
	if (families == FAMILY_BOTH) {
		families = n & 1 ? FAMILY_IPV6 : FAMILY_IPV4;
		n >>= 1;
	}
	if (families == FAMILY_IPV6)
		request_v6(data, n, payload);
	else
		request_v4(data, n, payload);
	return bpf_redirect(clients.ifindex, 0);
}

/* On the clients' end of the wire: nobody there reads what is counted. */
SEC("xdp")
int weir_answer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip4 = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct udphdr *udp;

	if ((void *)(ip4 + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && *(__u8 *)ip4 == 0x45 &&
	    ip4->protocol == IPPROTO_UDP) {
		udp = (void *)(ip4 + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end &&
		   ip6->nexthdr == IPPROTO_UDP) {
		udp = (void *)(ip6 + 1);
	} else {
		return XDP_PASS;
	}
	if ((void *)(udp + 1) > end || udp->source != bpf_htons(clients.port))
		return XDP_PASS;
	__sync_fetch_and_add(&answers.count, 1);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
