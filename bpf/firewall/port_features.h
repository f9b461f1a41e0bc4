/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What a port has beside the firewall: one look for all features, of packets that
 * would pass. Looked at: TCP and UDP directly behind an IPv4 header without options or
 * an IPv6 header. Fragments and ICMP have what addresses have. Anything else meets the
 * port as if nothing were there.
 *
 * Where addresses are tarpits, TCP and UDP to any port are handed over as well, and so is
 * ICMP, for neighbour solicitations (RFC 4861): whether an address is one, and what is
 * asked, the tarpit's program looks up. Telling them apart here would cost everybody's
 * firewall up to 3,000 verified instructions for each. */
#ifndef WEIR_PORT_FEATURES_H
#define WEIR_PORT_FEATURES_H

#include "lib/control.h"
#include "lib/frame.h"

/* crates/bpf/src/decoy.rs writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * PORT_FEATURE_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} port_features SEC(".maps");

/* The bits of the port that the packet is addressed to; `need_pull`: it cannot
 * be read. Two loads from lines that are in the cache, and one more. The frame is had
 * anew: whatever of it was read on the way here, the verifier goes on with one path. */
static __always_inline __u32 features_of_port(void *ctx, enum hook hook, __u32 l3_offset,
					      int v4, __u16 *need_pull)
{
	struct xdp_md *xdp = ctx;
	struct __sk_buff *skb = ctx;
	void *data = (void *)(long)(hook == IN_XDP ? xdp->data : skb->data);
	void *end = (void *)(long)(hook == IN_XDP ? xdp->data_end : skb->data_end);
	void *l3 = data + (l3_offset & L3_MOST);
	const __u32 of_addresses = control.port_features & PORT_BALANCE;
	const __u32 tarpits = control.port_features & PORT_ADDRESSES;
	struct ports *ports;
	__u8 protocol;
	__u32 index, features;
	__u64 *word;
	__u16 port;

	if (v4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > end || ip->ihl != 5)
			return 0;
		if (ip->frag_off & bpf_htons(IP_MF_OFFSET))
			return of_addresses;
		protocol = ip->protocol;
		ports = (void *)(ip + 1);
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return 0;
		protocol = ip->nexthdr;
		ports = (void *)(ip + 1);
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return is_one_of(protocol,
				 BIT(IPPROTO_ICMP) | BIT(IPPROTO_ICMPV6) |
					 BIT(IPPROTO_FRAGMENT),
				 0)
			       ? of_addresses | tarpits
			       : 0;
	if ((void *)(ports + 1) > end) {
		*need_pull = 1;
		return 0;
	}
	port = bpf_ntohs(ports->dest);
	index = (protocol == IPPROTO_UDP ? PORT_FEATURE_WORDS : 0) + port / PORTS_A_WORD;
	word = bpf_map_lookup_elem(&port_features, &index);
	if (!word)
		return 0;
	features = *word >> port % PORTS_A_WORD * PORT_FEATURE_BITS &
		   ((1 << PORT_FEATURE_BITS) - 1);
	return features | tarpits;
}

#endif
