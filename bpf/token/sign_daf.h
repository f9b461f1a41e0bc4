/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The signature of DAF on the side that signs: each TCP segment of this host to a network
 * that wants it gets the option in its IPv4 header, where it leaves an interface. Which
 * program sends is not asked, for the signature does not say it. A segment that cannot
 * get one is dropped and counted; superpackets are none, as for sign_segment.h.
 *
 * The kernel reckons TCP's options into the MSS, and knows nothing of these 36 bytes. So
 * what gets too long with them for the device is answered as by a router (ICMP,
 * "fragmentation needed", RFC 1191): TCP sends it again, in pieces that fit. And of what
 * a router says of a segment with the option, the 36 bytes are taken off on the way in.
 */
#ifndef WEIR_TOKEN_SIGN_DAF_H
#define WEIR_TOKEN_SIGN_DAF_H

#include "token/daf.h"
#include "token/sign_datagram.h"

/* What every path takes (RFC 791): less than this and the option is no MTU. */
#define MTU_LEAST (68 + TOKEN_DAF_ROOM)

/* Of a packet of IPv4. */
#define LENGTH_MOST 0xffff

/* ICMP: "fragmentation needed" (RFC 792, 1191). */
#define ICMP_UNREACHABLE 3
#define ICMP_TOO_BIG	 4

struct icmp_too_big {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be16 unused;
	__be16 mtu;
};

/* An ICMP message about a segment, of which it has both headers. */
struct daf_too_big {
	struct iphdr ip;
	struct icmp_too_big icmp;
	struct iphdr was;
	__u8 tcp[20];
};

/* The begin of what a router says of a segment with the option. */
struct daf_told {
	struct icmp_too_big icmp;
	struct iphdr was;
	__u8 option[4]; /* its begin */
};

_Static_assert(sizeof(struct daf_too_big) == 68 && sizeof(struct daf_told) == 32, "abi");

/* Control groups in each other that are looked through. */
#define DAF_DEPTH 32

/* Is it of the control group in which this holds? What has no socket of a program's any
 * more, as in TIME_WAIT, carries no data. */
static __noinline int is_of_daf(struct __sk_buff *skb,
				const struct token_control *control)
{
	__u64 cgroup;
	int level;

	if (!bpf_skb_cgroup_id(skb))
		return 1;
	for (level = 0; level < DAF_DEPTH; level++) {
		cgroup = bpf_skb_ancestor_cgroup_id(skb, level);
		if (!cgroup)
			return 0;
		if (cgroup == control->cgroup)
			return 1;
	}
	return 0;
}

/* Do segments to this address get the signature? */
static __always_inline int is_to_daf(const struct token_control *control, __be32 dest)
{
	struct token_network network = {.bits = 32 + 128};
	__u32 *to;

	network.networks = control->generation << 8 | TOKEN_SIGN_TO;
	map_v4(network.addr, dest);
	to = bpf_map_lookup_elem(&token_networks, &network);
	return to && *to >> TOKEN_SCOPE_SHIFT == TOKEN_SCOPE_DAF;
}

static __always_inline __u16 fold_checksum(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* A segment that had the option when it came here: from a device above this one, or from
 * a DAF on this host. */
static __noinline int write_daf_anew(struct __sk_buff *skb, __u32 l2,
				     struct daf_hash *hash)
{
	__u32 at = l2 + sizeof(struct iphdr) + offsetof(struct token_daf_option, mac);
	__u32 was[8];

	if (bpf_skb_load_bytes(skb, at, was, sizeof(was)) ||
	    bpf_l3_csum_replace(
		    skb, l2 + offsetof(struct iphdr, check), 0,
		    bpf_csum_diff(was, sizeof(was), hash->state.words, sizeof(was), 0),
		    0) ||
	    bpf_skb_store_bytes(skb, at, hash->state.words, sizeof(was), 0))
		return -1;
	return 0;
}

/* Makes room behind a header without options, and writes the option there. 0: it is. */
static __noinline int write_daf(struct __sk_buff *skb, __u32 l2,
				const struct daf_hash *hash, __u32 bytes)
{
	struct token_daf_option option = {
		.kind = TOKEN_DAF_KIND,
		.len = TOKEN_DAF_BYTES,
		.padding = {1, 0},
	};
	__u32 check = l2 + offsetof(struct iphdr, check);
	__be16 old = bpf_htons(bytes), new = bpf_htons(bytes + TOKEN_DAF_ROOM);
	__be16 first, grown;

	__builtin_memcpy(option.mac, hash->state.words, sizeof(option.mac));
	if (bpf_skb_load_bytes(skb, l2, &first, sizeof(first)) ||
	    bpf_skb_adjust_room(skb, TOKEN_DAF_ROOM, BPF_ADJ_ROOM_NET, 0))
		return -1;
	grown = bpf_htons(bpf_ntohs(first) + (TOKEN_DAF_ROOM / 4 << 8));
	if (bpf_skb_store_bytes(skb, l2 + sizeof(struct iphdr), &option, sizeof(option),
				0) ||
	    bpf_skb_store_bytes(skb, l2, &grown, sizeof(grown), 0) ||
	    bpf_skb_store_bytes(skb, l2 + offsetof(struct iphdr, tot_len), &new,
				sizeof(new), 0) ||
	    bpf_l3_csum_replace(skb, check, first, grown, 2) ||
	    bpf_l3_csum_replace(skb, check, old, new, 2) ||
	    bpf_l3_csum_replace(
		    skb, check, 0,
		    bpf_csum_diff(NULL, 0, (void *)&option, sizeof(option), 0), 0))
		return -1;
	return 0;
}

/* TOKEN_SEGMENT_TOO_BIG with a number in `mtu`: the device takes so much. */
static __noinline enum token_segment_signing
sign_daf_segment(struct __sk_buff *skb, __u32 l2, const struct token_control *control,
		 __u32 *mtu)
{
	struct daf_hash hash = {.skb = skb};
	struct token_daf_key *key = daf_key_of(control);
	__u32 bytes, header;
	struct iphdr ip;
	int is_there;
	__u8 words, head[2];

	if (!key)
		return TOKEN_SEGMENT_NO_SIGNER;
	if (skb->gso_size)
		return TOKEN_SEGMENT_SUPER;
	if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)))
		return TOKEN_SEGMENT_BROKEN;
	if (ip.frag_off & bpf_htons(FRAGMENT))
		return TOKEN_SEGMENT_NO_ROOM;
	header = ip.ihl * 4;
	bytes = bpf_ntohs(ip.tot_len);
	is_there = header == sizeof(ip) + TOKEN_DAF_ROOM &&
		   !bpf_skb_load_bytes(skb, l2 + sizeof(ip), head, sizeof(head)) &&
		   head[0] == TOKEN_DAF_KIND && head[1] == TOKEN_DAF_BYTES;
	if (!is_there && header != sizeof(ip))
		return TOKEN_SEGMENT_NO_ROOM;
	if (bpf_skb_load_bytes(skb, l2 + header + 12, &words, sizeof(words)))
		return TOKEN_SEGMENT_BROKEN;
	hash.at = l2 + header + (words >> 4) * 4;
	if (l2 + bytes != skb->len || hash.at > skb->len)
		return TOKEN_SEGMENT_BROKEN;
	if (!is_there && bpf_check_mtu(skb, 0, mtu, TOKEN_DAF_ROOM, 0))
		return *mtu > MTU_LEAST ? TOKEN_SEGMENT_TOO_BIG : TOKEN_SEGMENT_NO_ROOM;
	/* At a device that takes more than its length can say, as lo does. */
	if (!is_there && bytes + TOKEN_DAF_ROOM > LENGTH_MOST) {
		*mtu = LENGTH_MOST;
		return TOKEN_SEGMENT_TOO_BIG;
	}
	hash.left = skb->len - hash.at;
	if (daf_mac(&hash, key) || (is_there ? write_daf_anew(skb, l2, &hash)
					     : write_daf(skb, l2, &hash, bytes)))
		return TOKEN_SEGMENT_BROKEN;
	return TOKEN_SEGMENT_SIGNED;
}

/* Makes of a segment the message that the path takes no more than so much, and gives it
 * to this host as if it had come in. */
static __noinline int answer_too_big(struct __sk_buff *skb, __u32 l2, __u32 mtu)
{
	struct daf_too_big answer = {};
	__u8 ends[12], back[12];

	if (bpf_skb_load_bytes(skb, l2, &answer.was,
			       sizeof(answer.was) + sizeof(answer.tcp)))
		return TC_ACT_SHOT;
	answer.ip.version = 4;
	answer.ip.ihl = sizeof(answer.ip) / 4;
	answer.ip.tot_len = bpf_htons(sizeof(answer));
	answer.ip.ttl = 64;
	answer.ip.protocol = IPPROTO_ICMP;
	answer.ip.saddr = answer.was.daddr;
	answer.ip.daddr = answer.was.saddr;
	answer.ip.check = fold_checksum(
		bpf_csum_diff(NULL, 0, (void *)&answer.ip, sizeof(answer.ip), 0));
	answer.icmp.type = ICMP_UNREACHABLE;
	answer.icmp.code = ICMP_TOO_BIG;
	answer.icmp.mtu = bpf_htons(mtu);
	answer.icmp.checksum = fold_checksum(
		bpf_csum_diff(NULL, 0, (void *)&answer.icmp,
			      sizeof(answer) - offsetof(struct daf_too_big, icmp), 0));
	if (bpf_skb_change_tail(skb, l2 + sizeof(answer), 0) ||
	    bpf_skb_store_bytes(skb, l2, &answer, sizeof(answer), 0))
		return TC_ACT_SHOT;
	if (l2) {
		if (bpf_skb_load_bytes(skb, 0, ends, sizeof(ends)))
			return TC_ACT_SHOT;
		__builtin_memcpy(back, ends + 6, 6);
		__builtin_memcpy(back + 6, ends, 6);
		if (bpf_skb_store_bytes(skb, 0, back, sizeof(back), 0))
			return TC_ACT_SHOT;
	}
	return (int)bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

static __always_inline int sign_daf(struct __sk_buff *skb, __u32 l2)
{
	struct token_control *control = control_get();
	enum token_segment_signing what;
	struct iphdr ip;
	__u32 mtu = 0;

	/* What is forwarded has no socket. */
	if (!skb->sk || !control || skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.version != 4 ||
	    ip.protocol != IPPROTO_TCP || !is_to_daf(control, ip.daddr) ||
	    !is_of_daf(skb, control))
		return TC_ACT_UNSPEC;
	what = sign_daf_segment(skb, l2, control, &mtu);
	count_segment(what);
	if (what == TOKEN_SEGMENT_TOO_BIG)
		return answer_too_big(skb, l2, mtu - TOKEN_DAF_ROOM);
	return what == TOKEN_SEGMENT_SIGNED ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* What a router says of the path of a segment with the option holds for the kernel
 * without it. */
static __always_inline int correct_too_big(struct __sk_buff *skb, __u32 l2)
{
	struct token_control *control = control_get();
	struct daf_told told;
	struct iphdr ip;
	__be16 mtu;
	__u32 at;

	if (!control || skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.version != 4 ||
	    ip.protocol != IPPROTO_ICMP || ip.frag_off & bpf_htons(OFFSET))
		return TC_ACT_UNSPEC;
	at = l2 + ip.ihl * 4;
	if (bpf_skb_load_bytes(skb, at, &told, sizeof(told)) ||
	    told.icmp.type != ICMP_UNREACHABLE || told.icmp.code != ICMP_TOO_BIG ||
	    told.was.version != 4 || told.was.protocol != IPPROTO_TCP ||
	    told.was.ihl * 4 != sizeof(told.was) + TOKEN_DAF_ROOM ||
	    told.option[0] != TOKEN_DAF_KIND || told.option[1] != TOKEN_DAF_BYTES ||
	    bpf_ntohs(told.icmp.mtu) <= MTU_LEAST || !is_to_daf(control, told.was.daddr))
		return TC_ACT_UNSPEC;
	mtu = bpf_htons(bpf_ntohs(told.icmp.mtu) - TOKEN_DAF_ROOM);
	bpf_l4_csum_replace(skb, at + offsetof(struct icmp_too_big, checksum),
			    told.icmp.mtu, mtu, sizeof(mtu));
	bpf_skb_store_bytes(skb, at + offsetof(struct icmp_too_big, mtu), &mtu,
			    sizeof(mtu), 0);
	return TC_ACT_UNSPEC;
}

/* At a device whose frames have an Ethernet header. */
SEC("tcx/egress")
int weir_sign_daf(struct __sk_buff *skb)
{
	return sign_daf(skb, ETHERNET);
}

SEC("tcx/ingress")
int weir_daf_mtu(struct __sk_buff *skb)
{
	return correct_too_big(skb, ETHERNET);
}

/* At one whose frames begin with the IP header. */
SEC("tcx/egress")
int weir_sign_daf_ip(struct __sk_buff *skb)
{
	return sign_daf(skb, 0);
}

SEC("tcx/ingress")
int weir_daf_mtu_ip(struct __sk_buff *skb)
{
	return correct_too_big(skb, 0);
}

#endif
