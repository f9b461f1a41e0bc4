/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The side that verifies: who connects to a port that wants a token proves in the SYN
 * which program he is; where the scope is the payload, each later segment proves itself
 * as well. Here is what a token proves, which requirement is about a packet, and what is
 * counted; which connection a packet is of says receive.h at a socket, match.h for
 * iptables and forward.h at a gateway. */
#ifndef WEIR_TOKEN_VERIFY_H
#define WEIR_TOKEN_VERIFY_H

#include "token/daf.h"

#define SOCK_DGRAM 2
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

/* Where a requirement of a generation stands: those of even ones, then the others. */
static __always_inline __u32 place_of(__u32 generation, __u32 requirement)
{
	return (requirement & 63) + (generation & 1 ? TOKEN_REQUIREMENTS : 0);
}

static __always_inline struct token_requirement *requirement_at(__u32 generation,
								__u32 requirement)
{
	__u32 place = place_of(generation, requirement);

	return bpf_map_lookup_elem(&token_requirements, &place);
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
	__u32 wanted; /* bytes that a token has to have */
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
		if (scan->found || len != scan->wanted) {
			scan->is_bad = 1;
			return 1;
		}
		scan->found = at + 1;
	}
	scan->at = at + len;
	return 0;
}

/* Goes through all options, which begin at `begin`: at most so many. */
static __always_inline enum token_outcome scan_options(struct token_scan *scan,
						       struct token_packet *packet,
						       __u32 begin, const __u32 most)
{
	bpf_loop(most, scan_option, scan, 0);
	if (scan->is_bad)
		return TOKEN_MALFORMED;
	if (!scan->found)
		return TOKEN_MISSING;
	packet->token = begin + scan->found - 1;
	return TOKEN_VALID;
}

/* TOKEN_VALID: there is one in the IP header of this SYN, at packet->token. */
static __noinline enum token_outcome find_ip_option(struct __sk_buff *skb,
						    struct token_packet *packet)
{
	struct token_scan scan = {
		.kind = TOKEN_IP_KIND,
		.wanted = TOKEN_BYTES,
		.len = packet->ip_options_len,
	};
	__u32 begin = packet->ip_options, more = scan.len - 1;

	scan.is_ipv6 = link_protocol(skb, packet) != bpf_htons(ETH_P_IP);
	/* As in find_option. */
	barrier_var(more);
	if (more >= EXTENSION_MOST)
		return TOKEN_MISSING;
	if (bpf_skb_load_bytes(skb, begin, scan.bytes, more + 1))
		return TOKEN_MALFORMED;
	return scan_options(&scan, packet, begin, EXTENSION_MOST);
}

/* TOKEN_VALID: there is one of so many bytes, at packet->token. */
static __noinline enum token_outcome
find_option(struct __sk_buff *skb, struct token_packet *packet, __u32 wanted)
{
	struct token_scan scan = {.kind = TOKEN_KIND, .wanted = wanted};
	__u32 begin = packet->transport + sizeof(packet->tcp), more;

	if (packet->tcp.doff < 5 ||
	    !is_within(packet, packet->transport, packet->tcp.doff * 4))
		return TOKEN_MALFORMED;
	scan.len = packet->tcp.doff * 4 - sizeof(packet->tcp);
	/* Less one: of "other than 0" verifiers before Linux 6.8 conclude nothing. In one
	 * register, for clang 19 compares another one. */
	more = scan.len - 1;
	barrier_var(more);
	if (more < OPTIONS_MOST && bpf_skb_load_bytes(skb, begin, scan.bytes, more + 1))
		return TOKEN_MALFORMED;
	return scan_options(&scan, packet, begin, OPTIONS_MOST);
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

/* What a requirement wants tokens to be about; 0: it is none. */
static __always_inline __u32 scope_of(const struct token_control *control,
				      __u32 requirement)
{
	struct token_requirement *about =
		requirement_at(control->generation, requirement);

	return about ? about->scope : 0;
}

/* Does a requirement let pass what it counts? */
static __always_inline int only_logs(const struct token_control *control,
				     __u32 requirement)
{
	struct token_requirement *about =
		requirement_at(control->generation, requirement);

	return about && about->mode == TOKEN_LOG;
}

/* Does a requirement want a token in each segment? */
static __always_inline int wants_payload(const struct token_control *control,
					 __u32 requirement)
{
	return scope_of(control, requirement) == TOKEN_SCOPE_PAYLOAD;
}

/* A segment behind the SYN of a connection whose segments are to have tokens, and whose
 * SYN, with the number packet->isn, was of this identity. TOKEN_PROVEN: it is as it was
 * sent. */
static __noinline enum token_outcome verify_segment(struct __sk_buff *skb,
						    struct token_packet *packet,
						    const struct token_control *control,
						    const __u8 identity[16])
{
	enum token_outcome outcome = find_option(skb, packet, TOKEN_SEGMENT_BYTES);
	struct token_segment token = {};
	struct token_claim claim = {};
	struct token_claimed *claimed;
	__u64 epoch, mac = 0, said;
	__s16 ahead;

	if (outcome != TOKEN_VALID)
		return outcome;
	if (packet->token + sizeof(token) != packet->transport + packet->tcp.doff * 4 ||
	    bpf_skb_load_bytes(skb, packet->token, &token, sizeof(token)))
		return TOKEN_MALFORMED;
	packet->has_token = 1;
	packet->key = token.key;
	__builtin_memcpy(packet->tag, identity, sizeof(packet->tag));
	if (token.version != (TOKEN_VERSION | TOKEN_SEGMENT_BIT))
		return TOKEN_OTHER_VERSION;
	if (!(control->keys[token.key >> 6 & 3] >> (token.key & 63) & 1))
		return TOKEN_UNKNOWN_KEY;
	epoch = epoch_now();
	ahead = bpf_ntohs(token.epoch) - (__u16)epoch;
	if (ahead > TOKEN_SLACK || ahead < -TOKEN_SLACK)
		return TOKEN_OTHER_EPOCH;
	__builtin_memcpy(claim.tag, identity, sizeof(claim.tag));
	claim.key_id = token.key;
	claimed = bpf_map_lookup_elem(&token_claims, &claim);
	if (!claimed || !is_same(claimed->identity, identity))
		return TOKEN_NOT_NAMED;
	if (mac_of_segment(skb, &claimed->key, packet, epoch + ahead, &mac))
		return TOKEN_MALFORMED;
	__builtin_memcpy(&said, token.mac, sizeof(said));
	return mac == said ? TOKEN_PROVEN : TOKEN_WRONG_MAC;
}

/* A SYN. TOKEN_VALID: it is of packet->identity. */
static __always_inline enum token_outcome judge_syn(struct __sk_buff *skb,
						    struct token_packet *packet,
						    const struct token_control *control,
						    __u32 requirement)
{
	enum token_outcome outcome = find_option(skb, packet, TOKEN_BYTES);
	struct token_option option = {};

	if (outcome == TOKEN_MISSING && packet->ip_options_len)
		outcome = find_ip_option(skb, packet);
	if (outcome != TOKEN_VALID)
		return outcome;
	if (bpf_skb_load_bytes(skb, packet->token, &option, sizeof(option)))
		return TOKEN_MALFORMED;
	outcome = verify_token(packet, &option, control, requirement);
	if (outcome != TOKEN_VALID)
		return outcome;
	/* What a SYN carries already (Fast Open) is signed by nobody. */
	if (packet->end > packet->transport + packet->tcp.doff * 4 &&
	    wants_payload(control, requirement))
		return TOKEN_MISSING;
	return TOKEN_VALID;
}

/* Is `before` what is known of the flow of a SYN whose token is right, so that this very
 * SYN was there? Sent again, because the answer was lost, or by somebody who has seen it.
 */
static __always_inline int is_sent_again(const struct token_flow *before,
					 const struct token_packet *packet)
{
	return before && before->isn == packet->tcp.seq &&
	       is_same(before->identity, packet->identity);
}

/* Forgets who had the ports of a SYN that proves nothing, where that is only logged: it
 * passes, and begins a connection for which the one before speaks no more. 1: it did. */
static __always_inline int forget_before(void *flows, const struct token_packet *packet,
					 const struct token_control *control,
					 __u32 requirement)
{
	struct token_flow *before = bpf_map_lookup_elem(flows, &packet->flow);

	if (!before || before->isn == packet->tcp.seq || !only_logs(control, requirement))
		return 0;
	return !bpf_map_delete_elem(flows, &packet->flow);
}

/* The same as judge_syn. TOKEN_VALID: its flow is remembered. */
static __noinline enum token_outcome verify_syn(struct __sk_buff *skb,
						struct token_packet *packet,
						const struct token_control *control,
						__u32 requirement)
{
	enum token_outcome outcome = judge_syn(skb, packet, control, requirement);
	struct token_flow flow = {}, *before;

	if (outcome != TOKEN_VALID) {
		forget_before(&token_flows, packet, control, requirement);
		return outcome;
	}
	before = bpf_map_lookup_elem(&token_flows, &packet->flow);
	if (is_sent_again(before, packet))
		return before->used ? TOKEN_REPLAYED : TOKEN_VALID;
	copy_identity(flow.identity, packet->identity);
	flow.isn = packet->tcp.seq;
	bpf_map_update_elem(&token_flows, &packet->flow, &flow, BPF_ANY);
	return TOKEN_VALID;
}

/* Which requirement is about a source. */
struct token_search {
	struct token_network network;
	__u64 candidates;
	__u32 second;
	__u32 found;	     /* its number + 1 */
	__u32 is_sourceless; /* whatever sources it is about; one that drops first */
};

static long try_requirement(__u32 number, struct token_search *search)
{
	struct token_requirement *requirement;

	if (!(search->candidates >> (number & 63)))
		return 1; /* nor any behind it */
	if (!(search->candidates >> (number & 63) & 1))
		return 0;
	requirement = requirement_at(search->second, number);
	if (!requirement)
		return 0;
	search->network.networks = requirement->networks;
	if (requirement->networks && !search->is_sourceless &&
	    !bpf_map_lookup_elem(&token_networks, &search->network))
		return 0;
	if (!search->found || requirement->mode != TOKEN_LOG)
		search->found = (number & 63) + 1;
	return !search->is_sourceless || requirement->mode != TOKEN_LOG;
}

/* The first requirement about a source, of those about a port. */
static __always_inline void find_requirement(struct token_search *search,
					     const __u8 *source, __u64 candidates,
					     __u32 generation)
{
	search->network.bits = 32 + 128;
	__builtin_memcpy(search->network.addr, source, 16);
	search->candidates = candidates;
	search->second = generation & 1;
	bpf_loop(TOKEN_REQUIREMENTS, try_requirement, search, 0);
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
	__u32 place = place_of(control->generation, requirement);
	__u32 key = place * TOKEN_OUTCOMES + outcome;
	__u64 *number = bpf_map_lookup_elem(&token_outcomes, &key);
	int passes;

	if (number)
		__sync_fetch_and_add(number, 1);
	if (outcome < TOKEN_MISSING)
		return 1;
	passes = only_logs(control, requirement);
	if (packet)
		keep_refused(packet, outcome, !passes);
	return passes;
}

/* Nobody sends from this address: the source of a packet was not read. */
static __always_inline int is_unset(const __u8 addr[16])
{
	__u64 words[2];

	__builtin_memcpy(words, addr, sizeof(words));
	return !(words[0] | words[1]);
}

#define UNREAD_FREE 2

/* A packet that could not be read, for a socket at a port of `candidates`: of the first
 * one that is about its source. Where not even that was read of the first one that drops:
 * it passes where all of them only log. 1: it passes. UNREAD_FREE: none is about it. */
static __noinline int judge_unread(const struct token_packet *packet,
				   const struct token_control *control, __u64 candidates)
{
	struct token_search search = {};

	search.is_sourceless = is_unset(packet->flow.source);
	find_requirement(&search, packet->flow.source, candidates, control->generation);
	return search.found ? finish(control, packet, TOKEN_MALFORMED, search.found - 1)
			    : UNREAD_FREE;
}

#endif
