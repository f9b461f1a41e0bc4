/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The side that verifies: who connects to a port that wants a token proves in the SYN
 * which program he is. Asked is the socket that a packet has come to, behind reassembly
 * and all extension headers: no form of a packet reaches the port by another way. A
 * listening socket takes a SYN with a token, and later segments of flows whose SYN had
 * one: so a SYN cookie is no way around. An accepted socket knows whose it is. */
#ifndef WEIR_TOKEN_VERIFY_H
#define WEIR_TOKEN_VERIFY_H

#include "token/maps.h"

#define TCP_LISTEN  10
#define SOCK_STREAM 1
#define SOCK_DGRAM  2
/* IPv6 headers before TCP's that are gone through. */
#define CHAIN	     6
#define OPTIONS_MOST 40
/* Bytes of a destination options header that are looked through. */
#define EXTENSION_MOST 62
/* Refused packets that are kept, of all outcomes. */
#define KEPT_OF_ALL (TOKEN_OUTCOMES * TOKEN_KEPT)

/* A bit for each requirement that is about a TCP port, of even generations, then of the
 * others. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * 65536);
	__type(key, __u32);
	__type(value, __u64);
} token_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * TOKEN_REQUIREMENTS);
	__type(key, __u32);
	__type(value, struct token_requirement);
} token_requirements SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TOKEN_CLAIMS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct token_claim);
	__type(value, struct token_claimed);
} token_claims SEC(".maps");

struct token_identity {
	__u8 identity[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * TOKEN_IDENTITIES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct token_identity);
	__type(value, struct token_met);
} token_identities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TOKEN_FLOWS);
	__type(key, struct token_flow_key);
	__type(value, struct token_flow);
} token_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct token_accepted);
} token_accepted SEC(".maps");

/* Of each requirement, of even generations, then of the others. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * TOKEN_REQUIREMENTS * TOKEN_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} token_outcomes SEC(".maps");

/* A ring for each outcome, so that what is refused often hides nothing else. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KEPT_OF_ALL);
	__type(key, __u32);
	__type(value, struct token_refused);
} token_refusals SEC(".maps");

/* How many there were of each outcome: so the place of the next one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TOKEN_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} token_refusal_counts SEC(".maps");

/* What is read of a packet. */
struct token_packet {
	struct token_flow_key flow;
	__u32 transport; /* offset of the TCP header */
	__u32 token;	 /* of a datagram: offset of its token; 0: it has none */
	/* Of a segment: where the options of IPv4 are, or those of the IPv6 destination
	 * options header right before TCP's, and how many bytes of them. */
	__u32 ip_options, ip_options_len;
	struct tcphdr tcp;
	__u8 identity[16]; /* whose token it has, if that is right */
	__u8 protocol;	   /* IPPROTO_TCP or IPPROTO_UDP */
	__u8 is_bad;	   /* of a datagram: its options contradict themselves */
	__u8 has_token;
	__u8 key;
	__u8 tag[4];
};

/* Headers that mostly follow each other: one call for both. */
struct token_headers4 {
	struct iphdr ip;
	struct tcphdr tcp;
};
struct token_headers6 {
	struct ipv6hdr ip;
	struct tcphdr tcp;
};

/* 0: it is a TCP segment. No packet that is one is shorter than both headers. */
static __always_inline int read_packet(struct __sk_buff *skb, struct token_packet *packet)
{
	__u32 at, i;
	__u8 next;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct token_headers4 headers;

		if (bpf_skb_load_bytes(skb, 0, &headers, sizeof(headers)))
			return -1;
		map_v4(packet->flow.source, headers.ip.saddr);
		map_v4(packet->flow.dest, headers.ip.daddr);
		next = headers.ip.protocol;
		at = headers.ip.ihl * 4;
		packet->tcp = headers.tcp;
		/* Sockets get whole packets; a gateway without reassembly may not. */
		if (headers.ip.version != 4 || at < sizeof(headers.ip) ||
		    headers.ip.frag_off & bpf_htons(0x3fff) || next != IPPROTO_TCP)
			return -1;
		if (at != sizeof(headers.ip) &&
		    bpf_skb_load_bytes(skb, at, &packet->tcp, sizeof(packet->tcp)))
			return -1;
		packet->ip_options = sizeof(headers.ip);
		packet->ip_options_len = at - sizeof(headers.ip);
	} else {
		struct token_headers6 headers;

		if (bpf_skb_load_bytes(skb, 0, &headers, sizeof(headers)))
			return -1;
		if (headers.ip.version != 6)
			return -1;
		__builtin_memcpy(packet->flow.source, &headers.ip.saddr, 16);
		__builtin_memcpy(packet->flow.dest, &headers.ip.daddr, 16);
		next = headers.ip.nexthdr;
		at = sizeof(headers.ip);
		packet->tcp = headers.tcp;
		for (i = 0; i < CHAIN; i++) {
			__u8 head[2];

			if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING &&
			    next != IPPROTO_DSTOPTS)
				break;
			if (bpf_skb_load_bytes(skb, at, head, sizeof(head)))
				return -1;
			if (next == IPPROTO_DSTOPTS && head[0] == IPPROTO_TCP) {
				packet->ip_options = at + 2;
				packet->ip_options_len = head[1] * 8 + 6;
			}
			next = head[0];
			at += (head[1] + 1) * 8;
		}
		if (next != IPPROTO_TCP)
			return -1;
		if (at != sizeof(headers.ip) &&
		    bpf_skb_load_bytes(skb, at, &packet->tcp, sizeof(packet->tcp)))
			return -1;
	}
	packet->protocol = IPPROTO_TCP;
	packet->transport = at;
	packet->flow.source_port = packet->tcp.source;
	packet->flow.dest_port = packet->tcp.dest;
	return 0;
}

/* The way through the options of a TCP or IPv4 header, or of an IPv6 extension header. */
struct token_scan {
	__u8 bytes[64]; /* a power of two: offsets are masked for the verifier */
	__u32 at;
	__u32 len;
	__u32 found; /* offset of the token + 1 */
	__u32 is_bad;
	__u32 kind; /* of the option that is looked for */
	__u32 is_ipv6;
};

static long scan_option(__u32 number, struct token_scan *scan)
{
	__u32 at = scan->at, len;
	__u8 kind;

	if (at >= scan->len)
		return 1;
	kind = scan->bytes[at & 63];
	if (!kind && !scan->is_ipv6) /* the end of the list */
		return 1;
	if (kind + scan->is_ipv6 == 1) { /* padding: 0 in IPv6, else 1 */
		scan->at = at + 1;
		return 0;
	}
	len = scan->bytes[(at + 1) & 63];
	if (scan->is_ipv6)
		len += 2;
	if (at + 2 > scan->len || len < 2 || at + len > scan->len) {
		scan->is_bad = 1;
		return 1;
	}
	if (kind == scan->kind && len >= 4 &&
	    scan->bytes[(at + 2) & 63] == TOKEN_EXID >> 8 &&
	    scan->bytes[(at + 3) & 63] == (TOKEN_EXID & 0xff)) {
		if (scan->found || len != TOKEN_BYTES) {
			scan->is_bad = 1;
			return 1;
		}
		scan->found = at + 1;
	}
	scan->at = at + len;
	return 0;
}

/* The same in the IP header of a SYN. */
static __noinline enum token_outcome read_ip_option(struct __sk_buff *skb,
						    const struct token_packet *packet,
						    struct token_option *option)
{
	struct token_scan scan = {.kind = TOKEN_IP_KIND, .len = packet->ip_options_len};
	__u32 begin = packet->ip_options, more = scan.len - 1;

	scan.is_ipv6 = skb->protocol != bpf_htons(ETH_P_IP);
	/* As in read_option. */
	barrier_var(more);
	if (more >= EXTENSION_MOST)
		return TOKEN_MISSING;
	if (bpf_skb_load_bytes(skb, begin, scan.bytes, more + 1))
		return TOKEN_MALFORMED;
	bpf_loop(EXTENSION_MOST, scan_option, &scan, 0);
	if (scan.is_bad)
		return TOKEN_MALFORMED;
	if (!scan.found)
		return TOKEN_MISSING;
	if (bpf_skb_load_bytes(skb, begin + scan.found - 1, option, sizeof(*option)))
		return TOKEN_MALFORMED;
	return TOKEN_VALID;
}

/* TOKEN_VALID: there is one, in `option`. */
static __noinline enum token_outcome read_option(struct __sk_buff *skb,
						 const struct token_packet *packet,
						 struct token_option *option)
{
	struct token_scan scan = {.kind = TOKEN_KIND};
	__u32 begin = packet->transport + sizeof(packet->tcp), more;

	if (packet->tcp.doff < 5)
		return TOKEN_MALFORMED;
	scan.len = packet->tcp.doff * 4 - sizeof(packet->tcp);
	/* Less one: of "other than 0" verifiers before Linux 6.8 conclude nothing. In one
	 * register, for clang 19 compares another one. */
	more = scan.len - 1;
	barrier_var(more);
	if (more < OPTIONS_MOST && bpf_skb_load_bytes(skb, begin, scan.bytes, more + 1))
		return TOKEN_MALFORMED;
	bpf_loop(OPTIONS_MOST, scan_option, &scan, 0);
	if (scan.is_bad)
		return TOKEN_MALFORMED;
	if (!scan.found)
		return TOKEN_MISSING;
	if (bpf_skb_load_bytes(skb, begin + scan.found - 1, option, sizeof(*option)))
		return TOKEN_MALFORMED;
	return TOKEN_VALID;
}

/* Does an identity meet a requirement? */
static __always_inline int is_named(const struct token_control *control,
				    const __u8 identity[16], __u32 requirement)
{
	__u32 second = control->generation & 1;
	struct token_met *met = bpf_map_lookup_elem(&token_identities, identity);
	__u64 bits;

	if (!met ||
	    (second ? met->generation[1] : met->generation[0]) != control->generation)
		return 0;
	bits = second ? met->requirements[1] : met->requirements[0];
	return bits >> (requirement & 63) & 1;
}

/* Is this token one of the packet that it was read of? TOKEN_VALID: of packet->identity.
 */
static __noinline enum token_outcome verify_token(struct token_packet *packet,
						  const struct token_option *option,
						  const struct token_control *control,
						  __u32 requirement)
{
	struct token_claim claim = {};
	struct token_claimed *claimed;
	union token_input input = {};
	__u64 epoch, mac;
	__s16 ahead;

	packet->has_token = 1;
	packet->key = option->key;
	__builtin_memcpy(packet->tag, option->tag, sizeof(packet->tag));
	if (option->version != TOKEN_VERSION)
		return TOKEN_OTHER_VERSION;
	if (!(control->keys[option->key >> 6 & 3] >> (option->key & 63) & 1))
		return TOKEN_UNKNOWN_KEY;
	epoch = epoch_now();
	ahead = bpf_ntohs(option->epoch) - (__u16)epoch;
	if (ahead > TOKEN_SLACK || ahead < -TOKEN_SLACK)
		return TOKEN_OTHER_EPOCH;
	__builtin_memcpy(claim.tag, option->tag, sizeof(claim.tag));
	claim.key_id = option->key;
	claimed = bpf_map_lookup_elem(&token_claims, &claim);
	if (!claimed)
		return TOKEN_NOT_NAMED;
	input.statement.version = TOKEN_VERSION;
	input.statement.key = option->key;
	/* So that a token of the one protocol is none of the other. */
	input.statement.protocol = packet->protocol;
	if (packet->protocol == IPPROTO_TCP)
		input.statement.isn = packet->tcp.seq;
	input.statement.epoch = bpf_cpu_to_be64(epoch + ahead);
	__builtin_memcpy(input.statement.source, packet->flow.source, 16);
	__builtin_memcpy(input.statement.dest, packet->flow.dest, 16);
	input.statement.source_port = packet->flow.source_port;
	input.statement.dest_port = packet->flow.dest_port;
	__builtin_memcpy(&mac, option->mac, sizeof(mac));
	if (mac != mac_of(&claimed->key, &input))
		return TOKEN_WRONG_MAC;
	copy_identity(packet->identity, claimed->identity);
	if (!is_named(control, packet->identity, requirement))
		return TOKEN_NOT_NAMED;
	return TOKEN_VALID;
}

/* A SYN. TOKEN_VALID: its flow is remembered. */
static __noinline enum token_outcome verify_syn(struct __sk_buff *skb,
						struct token_packet *packet,
						const struct token_control *control,
						__u32 requirement)
{
	struct token_option option = {};
	enum token_outcome outcome = read_option(skb, packet, &option);
	struct token_flow flow = {}, *before;

	if (outcome == TOKEN_MISSING && packet->ip_options_len)
		outcome = read_ip_option(skb, packet, &option);
	if (outcome != TOKEN_VALID)
		return outcome;
	outcome = verify_token(packet, &option, control, requirement);
	if (outcome != TOKEN_VALID)
		return outcome;
	copy_identity(flow.identity, packet->identity);
	flow.isn = packet->tcp.seq;
	before = bpf_map_lookup_elem(&token_flows, &packet->flow);
	if (before && before->isn == flow.isn &&
	    is_same(before->identity, flow.identity)) {
		/* Sent again, because the answer was lost, or by somebody who has seen
		 * it. */
		return before->used ? TOKEN_REPLAYED : TOKEN_VALID;
	}
	bpf_map_update_elem(&token_flows, &packet->flow, &flow, BPF_ANY);
	return TOKEN_VALID;
}

/* Which requirement is about a source. */
struct token_search {
	struct token_network network;
	__u64 candidates;
	__u32 second;
	__u32 found;	     /* its number + 1 */
	__u32 is_sourceless; /* the first one, whatever sources it is about */
};

static long try_requirement(__u32 number, struct token_search *search)
{
	__u32 key = (number & 63) + (search->second ? TOKEN_REQUIREMENTS : 0);
	struct token_requirement *requirement;

	if (!(search->candidates >> (number & 63) & 1))
		return 0;
	requirement = bpf_map_lookup_elem(&token_requirements, &key);
	if (!requirement)
		return 0;
	search->network.networks = requirement->networks;
	if (requirement->networks && !search->is_sourceless &&
	    !bpf_map_lookup_elem(&token_networks, &search->network))
		return 0;
	search->found = (number & 63) + 1;
	return 1;
}

/* Keeps a packet that was refused, for whoever asks why. */
static __noinline int keep_refused(const struct token_packet *packet,
				   enum token_outcome outcome, int is_dropped)
{
	__u32 key = outcome;
	__u64 *count = bpf_map_lookup_elem(&token_refusal_counts, &key);
	struct token_refused *kept;

	if (!count)
		return 0;
	key = outcome * TOKEN_KEPT + __sync_fetch_and_add(count, 1) % TOKEN_KEPT;
	kept = bpf_map_lookup_elem(&token_refusals, &key);
	if (!kept)
		return 0;
	kept->at = bpf_ktime_get_boot_ns();
	kept->flow = packet->flow;
	kept->outcome = outcome;
	kept->is_dropped = is_dropped;
	kept->has_token = packet->has_token;
	kept->key = packet->key;
	kept->protocol = packet->protocol;
	__builtin_memcpy(kept->tag, packet->tag, sizeof(kept->tag));
	return 0;
}

/* 1: it passes. `packet`: NULL if nothing was read of it. */
static __always_inline int finish(const struct token_control *control,
				  const struct token_packet *packet,
				  enum token_outcome outcome, __u32 requirement)
{
	__u32 second = control->generation & 1;
	__u32 place = (requirement & 63) + (second ? TOKEN_REQUIREMENTS : 0);
	struct token_requirement *about;
	int passes;
	__u32 key = place * TOKEN_OUTCOMES + outcome;
	__u64 *number = bpf_map_lookup_elem(&token_outcomes, &key);

	if (number)
		__sync_fetch_and_add(number, 1);
	if (outcome < TOKEN_MISSING)
		return 1;
	about = bpf_map_lookup_elem(&token_requirements, &place);
	passes = about && about->mode == TOKEN_LOG;
	if (packet)
		keep_refused(packet, outcome, !passes);
	return passes;
}

/* A packet for a socket at a port of `candidates`. 1: it passes. */
static __noinline int judge_packet(struct __sk_buff *skb, struct bpf_sock *sk,
				   const struct token_control *control, __u64 candidates)
{
	struct token_search search = {};
	struct token_accepted *accepted = NULL;
	struct token_packet packet = {};
	struct token_flow *flow;
	enum token_outcome outcome;
	int listens = sk->state == TCP_LISTEN;

	if (!listens) {
		accepted = bpf_sk_storage_get(&token_accepted, sk, 0,
					      BPF_SK_STORAGE_GET_F_CREATE);
		if (!accepted)
			return 0;
		if (sk->state == TCP_SYN_SENT)
			accepted->is_own = 1;
		if (accepted->is_own)
			return 1;
		if (accepted->generation == control->generation) {
			if (accepted->outcome == TOKEN_FREE)
				return 1;
			return finish(control, NULL, accepted->outcome,
				      accepted->requirement);
		}
	}
	search.is_sourceless = read_packet(skb, &packet) != 0;
	search.network.bits = 32 + 128;
	__builtin_memcpy(search.network.addr, packet.flow.source, 16);
	search.candidates = candidates;
	search.second = control->generation & 1;
	bpf_loop(TOKEN_REQUIREMENTS, try_requirement, &search, 0);
	if (search.is_sourceless)
		return finish(control, &packet, TOKEN_MALFORMED, search.found - 1);
	if (!search.found) {
		if (accepted) {
			accepted->outcome = TOKEN_FREE;
			accepted->generation = control->generation;
		}
		return 1;
	}
	search.found--;
	if (listens && packet.tcp.syn && !packet.tcp.ack)
		return finish(control, &packet,
			      verify_syn(skb, &packet, control, search.found),
			      search.found);
	if (accepted && !accepted->is_proven) {
		flow = bpf_map_lookup_elem(&token_flows, &packet.flow);
		if (flow) {
			copy_identity(accepted->identity, flow->identity);
			accepted->is_proven = 1;
			/* What a gateway here has noted stays. */
			if (!flow->used)
				flow->used = TOKEN_USED;
		}
	}
	outcome = TOKEN_NO_FLOW;
	if (accepted) {
		if (accepted->is_proven)
			outcome = is_named(control, accepted->identity, search.found)
					  ? TOKEN_PROVEN
					  : TOKEN_NOT_NAMED;
		accepted->outcome = outcome;
		accepted->requirement = search.found;
		accepted->generation = control->generation;
	} else {
		flow = bpf_map_lookup_elem(&token_flows, &packet.flow);
		if (flow)
			outcome = is_named(control, flow->identity, search.found)
					  ? TOKEN_PROVEN
					  : TOKEN_NOT_NAMED;
	}
	return finish(control, &packet, outcome, search.found);
}

#endif
