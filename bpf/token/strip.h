/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* At an uplink: tokens of others are overwritten where packets come in, and where
 * forwarded ones go out. No operation stands in their place (in IPv6 zeros in the same
 * option), so that nothing changes its length; checksums of IPv4 and TCP follow, those
 * that a device is still to compute as well.
 *
 * A token that comes in stays if a requirement is about its port, for it is verified
 * then. What programs of this host send stays as it is. Neither is stripped what comes
 * from, or goes to, networks that are to be left alone (TOKEN_KEEP).
 *
 * A frame is looked through behind its tags of VLANs; one of more than FORWARD_TAGS does
 * not pass, for it cannot be told what it carries, nor does one with more than WALK_MOST
 * options in an IPv6 header. */
#ifndef WEIR_TOKEN_STRIP_H
#define WEIR_TOKEN_STRIP_H

#include "token/forward.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOKEN_STRIPPINGS);
	__type(key, __u32);
	__type(value, __u64);
} token_strippings SEC(".maps");

/* Options that are looked through, and where they stand. */
struct strip_place {
	__u32 begin;
	__u32 len;   /* of IPv4 and TCP at most OPTIONS_MOST */
	__u32 check; /* offset of the checksum that is over them; 0: none */
	__u8 kind;
	__u8 is_tcp;
	__u8 has_daf; /* that of DAF is another kind here */
	__u8 pad;
};

/* The way through options, one byte of them at a time where they are overwritten. */
struct strip_scan {
	union {
		__u8 bytes[64]; /* a power of two: offsets are masked for the verifier */
		__u32 words[16];
	};
	__u32 at;
	__u32 len;
	__u32 end; /* of what is overwritten */
	__u32 is_found;
	struct strip_place place;
};

static __always_inline int is_token(const struct strip_scan *scan, __u32 at, __u8 kind,
				    __u32 len)
{
	if (kind == scan->place.kind && len >= 4)
		return scan->bytes[(at + 2) & 63] == TOKEN_EXID >> 8 &&
		       scan->bytes[(at + 3) & 63] == (TOKEN_EXID & 0xff);
	return scan->place.has_daf && kind == TOKEN_DAF_KIND && len == TOKEN_DAF_BYTES;
}

static long strip_option(__u32 number, struct strip_scan *scan)
{
	__u32 at = scan->at, len;
	__u8 kind;

	if (at >= scan->len)
		return 1;
	if (at < scan->end) {
		scan->bytes[at & 63] = 1;
		scan->at = at + 1;
		return 0;
	}
	kind = scan->bytes[at & 63];
	if (!kind) /* the end of the list */
		return 1;
	if (kind == 1) { /* padding */
		scan->at = at + 1;
		return 0;
	}
	len = scan->bytes[(at + 1) & 63];
	if (at + 2 > scan->len || len < 2 || at + len > scan->len)
		return 1;
	if (!is_token(scan, at, kind, len)) {
		scan->at = at + len;
		return 0;
	}
	scan->is_found = 1;
	scan->end = at + len;
	return 0;
}

/* Options of an IPv6 header that are looked through, up to four bytes of padding as one:
 * Linux takes no more than eight, unless it is told to, and no more than seven bytes of
 * padding before each. */
#define WALK_MOST 128

static const __u8 zeros[256];

/* The way through an IPv6 extension header, which may have up to 2 KiB: from option to
 * option, in the packet itself. */
struct strip_walk {
	struct __sk_buff *skb;
	__u32 at;
	__u32 end;
	__u32 is_writing; /* else it ends at the first token */
	__u32 is_found;
	__u32 is_failed;
	__u32 pad;
};

static long walk_option(__u32 number, struct strip_walk *walk)
{
	__u32 at = walk->at, len, more;
	__u8 head[4];

	if (at >= walk->end)
		return 1;
	/* Behind the options is the header of TCP or UDP. */
	if (bpf_skb_load_bytes(walk->skb, at, head, sizeof(head))) {
		walk->is_failed = 1;
		return 1;
	}
	if (!head[0]) { /* padding of one byte each */
		walk->at = at + (head[1] ? 1 : head[2] ? 2 : head[3] ? 3 : 4);
		return 0;
	}
	len = head[1] + 2;
	if (at + len > walk->end) { /* what is behind it is no option */
		walk->at = walk->end;
		return 1;
	}
	if (head[0] != TOKEN_IP_KIND || len < 4 || head[2] != TOKEN_EXID >> 8 ||
	    head[3] != (TOKEN_EXID & 0xff)) {
		walk->at = at + len;
		return 0;
	}
	walk->is_found = 1;
	if (!walk->is_writing)
		return 1;
	/* Less one, and in one register: as in find_option. */
	more = head[1] - 1;
	barrier_var(more);
	if (more >= sizeof(zeros) - 1 ||
	    bpf_skb_store_bytes(walk->skb, at + 2, zeros, more + 1,
				BPF_F_RECOMPUTE_CSUM)) {
		walk->is_failed = 1;
		return 1;
	}
	walk->at = at + len;
	return 0;
}

/* 0: it came to its end, or to a token. */
static __always_inline int walk_options(struct strip_walk *walk)
{
	bpf_loop(WALK_MOST, walk_option, walk, 0);
	return walk->is_failed ||
	       (walk->at < walk->end && (walk->is_writing || !walk->is_found));
}

/* Does what is in a packet stay? */
static __noinline int keeps_tokens(struct token_packet *packet,
				   const struct token_control *control, int is_out)
{
	__u32 generation = control->generation;
	struct token_network network = {
		.bits = 32 + 128,
		.networks = generation << 8 | TOKEN_KEEP,
	};
	__u64 about;

	__builtin_memcpy(network.addr, is_out ? packet->flow.dest : packet->flow.source,
			 16);
	if (bpf_map_lookup_elem(&token_networks, &network))
		return 1;
	if (is_out)
		return 0;
	about = candidates_of(packet, generation);
	return about & ~control->forward ||
	       (about && find_forward(packet, about & control->forward, generation, 0));
}

/* 1: there is a token, and it is to go (`scan`, as it is afterwards). */
static __always_inline int find_foreign(struct __sk_buff *skb, struct strip_scan *scan)
{
	/* Less one, and in one register: as in find_option. */
	__u32 more = scan->place.len - 1;

	scan->len = scan->place.len;
	barrier_var(more);
	if (more >= OPTIONS_MOST ||
	    bpf_skb_load_bytes(skb, scan->place.begin, scan->bytes, more + 1))
		return 0;
	bpf_loop(2 * OPTIONS_MOST, strip_option, scan, 0);
	return scan->is_found;
}

static __always_inline void count_stripped(int is_tcp, int is_out)
{
	__u32 key = (is_out ? TOKEN_STRIPPED_OUT_TCP : TOKEN_STRIPPED_IN_TCP) +
		    (is_tcp ? 0 : 1);
	__u64 *number = bpf_map_lookup_elem(&token_strippings, &key);

	if (number)
		__sync_fetch_and_add(number, 1);
}

/* Overwrites the tokens at a place. 0: done, or there are none. */
static __noinline int strip_place(struct __sk_buff *skb, struct token_packet *packet,
				  const struct strip_place *place, int is_out)
{
	struct token_control *control = control_get();
	struct strip_scan scan = {.place = *place};
	__u32 before[OPTIONS_MOST / 4] = {}, more;
	__s64 diff;

	if (!control || !find_foreign(skb, &scan) ||
	    keeps_tokens(packet, control, is_out))
		return 0;
	more = scan.len - 1;
	barrier_var(more);
	if (more >= OPTIONS_MOST ||
	    bpf_skb_load_bytes(skb, place->begin, before, more + 1))
		return -1;
	diff = bpf_csum_diff(before, sizeof(before), scan.words, sizeof(before), 0);
	if (diff < 0 || bpf_skb_store_bytes(skb, place->begin, scan.bytes, more + 1, 0))
		return -1;
	if (place->is_tcp ? bpf_l4_csum_replace(skb, place->check, 0, diff, 0)
			  : bpf_l3_csum_replace(skb, place->check, 0, diff, 0))
		return -1;
	count_stripped(place->is_tcp, is_out);
	return 0;
}

/* The same for the destination options of IPv6. The option stays, without a word in it:
 * Linux takes no padding of more than seven bytes. -1 also: it has more than WALK_MOST
 * options, so it cannot be told what it carries. */
static __noinline int strip_extension(struct __sk_buff *skb, struct token_packet *packet,
				      int is_out)
{
	struct token_control *control = control_get();
	struct strip_walk walk = {
		.skb = skb,
		.at = packet->ip_options,
		.end = packet->ip_options + packet->ip_options_len,
	};

	if (!control)
		return 0;
	if (walk_options(&walk))
		return keeps_tokens(packet, control, is_out) ? 0 : -1;
	if (!walk.is_found || keeps_tokens(packet, control, is_out))
		return 0;
	walk.is_writing = 1;
	if (walk_options(&walk))
		return -1;
	count_stripped(0, is_out);
	return 0;
}

/* Options of TCP that are only times, as they mostly are. */
#define ONLY_TIMES bpf_htonl(0x0101080a)

/* -1: the kernel failed, perhaps with a part of it written; or it cannot be read. */
static __always_inline int strip_packet(struct __sk_buff *skb, __u32 base, int is_out)
{
	struct token_packet packet = {};
	struct forward_path path = {};
	struct strip_place place = {};
	__u32 first;

	packet.link = skb->protocol;
	if (is_tag(packet.link)) {
		base = skip_tags(skb, base, &packet);
		if (!base)
			return -1;
	}
	if (!is_ip(packet.link))
		return 0;
	if (read_path(skb, base, &packet, &path))
		return 0;
	packet.protocol = path.next;
	if (!path.is_later && path.next == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, path.at, &packet.tcp, sizeof(packet.tcp)))
			return 0;
		packet.flow.source_port = packet.tcp.source;
		packet.flow.dest_port = packet.tcp.dest;
		place.begin = path.at + sizeof(packet.tcp);
		place.len = packet.tcp.doff * 4 - sizeof(packet.tcp);
		place.check = path.at + offsetof(struct tcphdr, check);
		place.kind = TOKEN_KIND;
		place.is_tcp = 1;
		if (packet.tcp.doff > 5 &&
		    !(packet.tcp.doff == 8 &&
		      !bpf_skb_load_bytes(skb, place.begin, &first, sizeof(first)) &&
		      first == ONLY_TIMES) &&
		    strip_place(skb, &packet, &place, is_out))
			return -1;
	} else if (!path.is_later && path.next == IPPROTO_UDP) {
		__be16 ports[2];

		if (bpf_skb_load_bytes(skb, path.at, ports, sizeof(ports)))
			return 0;
		packet.flow.source_port = ports[0];
		packet.flow.dest_port = ports[1];
	}
	if (!packet.ip_options_len)
		return 0;
	if (packet.link != bpf_htons(ETH_P_IP))
		return strip_extension(skb, &packet, is_out);
	place.begin = packet.ip_options;
	place.len = packet.ip_options_len;
	place.check = base + offsetof(struct iphdr, check);
	place.kind = TOKEN_IP_KIND;
	place.is_tcp = 0;
	place.has_daf = 1;
	return strip_place(skb, &packet, &place, is_out);
}

static __always_inline int strip_frame(struct __sk_buff *skb, __u32 base, int is_out)
{
	__u32 key = TOKEN_STRIP_BROKEN;
	__u64 *number;

	/* A program of this host sends it. */
	if (is_out && skb->sk)
		return TC_ACT_UNSPEC;
	if (!strip_packet(skb, base, is_out))
		return TC_ACT_UNSPEC;
	number = bpf_map_lookup_elem(&token_strippings, &key);
	if (number)
		__sync_fetch_and_add(number, 1);
	return TC_ACT_SHOT;
}

/* At devices whose frames have an Ethernet header, and at others. */
SEC("tcx/ingress")
int weir_strip_in(struct __sk_buff *skb)
{
	return strip_frame(skb, ETHERNET, 0);
}

SEC("tcx/ingress")
int weir_strip_in_ip(struct __sk_buff *skb)
{
	return strip_frame(skb, 0, 0);
}

SEC("tcx/egress")
int weir_strip_out(struct __sk_buff *skb)
{
	return strip_frame(skb, ETHERNET, 1);
}

SEC("tcx/egress")
int weir_strip_out_ip(struct __sk_buff *skb)
{
	return strip_frame(skb, 0, 1);
}

#endif
