/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The access list of a pool. User space has made of its rules the networks for which its
 * default does not hold (crates/core/src/balance/acl.rs): one look decides, and only
 * pools that have rules pay for it. A trie, for a country is ten thousand networks; it
 * costs some 0.1 to 0.5 µs. */
#ifndef WEIR_BALANCE_ACL_H
#define WEIR_BALANCE_ACL_H

#include "balance/pools.h"
#include "lib/request.h"

struct balance_acl_key {
	__u32 bits; /* length of the prefix: bits of the members below */
	__u32 acl;
	__u64 addr[2]; /* as in memory */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BALANCE_ACL_NETWORKS);
	__type(key, struct balance_acl_key);
	__type(value, __u8);
} balance_acls SEC(".maps");

/* Does the access list of a pool that has rules deny a client? Global, so that the
 * verifier checks it once. */
__noinline int balance_is_denied(__u64 source0, __u64 source1, __u32 pool, int v4)
{
	const struct balance_rules *rules = balance_rules_of(pool);
	struct balance_acl_key key = {
		.bits = 8 * (sizeof(key) - sizeof(key.bits)),
		.addr = {source0, source1},
	};
	int is_exception;

	if (!rules || !rules->acl)
		return 0;
	key.acl = (rules->acl & ~BALANCE_ACL_DENY) | (v4 ? 0 : BALANCE_ACL_V6);
	is_exception = bpf_map_lookup_elem(&balance_acls, &key) != NULL;
	return is_exception == !(rules->acl & BALANCE_ACL_DENY);
}

/* Is the client of a flow denied by its pool? Then it is counted; it is not where what
 * would be dropped is observed. */
static __always_inline int balance_denies(struct answer_request *request,
					  const struct balance_flow_key *flow, __u32 pool,
					  struct balance_service_counter *served)
{
	if (!balance_is_denied(flow->source[0], flow->source[1], pool,
			       request->result.v4))
		return 0;
	served->denied++;
	if (request->observe) {
		request->result.reason = R_OBSERVED;
		return 0;
	}
	count(R_POOL_DENIED, request->result.bytes);
	return 1;
}

#endif
