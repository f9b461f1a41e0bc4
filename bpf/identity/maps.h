/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The tables of identity, all of them pinned, and what is counted and told. */
#ifndef WEIR_IDENTITY_MAPS_H
#define WEIR_IDENTITY_MAPS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "abi/identity.h"
#include "identity/holders.h"
#include "identity/kernel.h"

/* Written before the programs are loaded: the verifier leaves out what is not used. */
const volatile struct {
	__u8 push; /* level push: changes are counted, and mappings are read, here */
	__u8 diag; /* connections are ended by user space, which is told of them */
	__u8 pad[6];
} ident_cfg = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ident_control);
} ident_control SEC(".maps");

/* Those of the policy of even epochs, then those of the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * IDENT_RULES);
	__type(key, __u32);
	__type(value, struct ident_rule);
} ident_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, IDENT_NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ident_network);
	__type(value, __u32);
} ident_networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IDENT_IDENTITIES);
	__type(key, __u32);
	__type(value, struct ident_program);
} ident_programs SEC(".maps");

/* By the key of the file. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, IDENT_EXECUTABLES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct ident_executable);
} ident_executables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, IDENT_SPACES);
	__type(key, __u64);
	__type(value, struct ident_space);
} ident_spaces SEC(".maps");

/* At level push, of address spaces that were looked at: a number that is another one
 * after each change of the mappings. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, IDENT_SPACES);
	__type(key, __u64);
	__type(value, __u64);
} ident_changes SEC(".maps");

/* Flows that a program here has begun, and that pass. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, IDENT_FLOWS);
	__type(key, struct ident_flow_key);
	__type(value, struct ident_flow);
} ident_flows SEC(".maps");

/* Flows that somebody else has begun, and that pass. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, IDENT_FLOWS);
	__type(key, struct ident_flow_key);
	__type(value, struct ident_flow);
} ident_flows_in SEC(".maps");

/* The same, of sockets that get more new ones than IDENT_NEW_FLOWS. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, IDENT_FLOWS);
	__type(key, struct ident_flow_key);
	__type(value, struct ident_flow);
} ident_overflow SEC(".maps");

/* Flows that do not pass, each direction by itself. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, IDENT_REFUSED);
	__type(key, struct ident_flow_key);
	__type(value, struct ident_flow);
} ident_refused SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, IDENT_RING);
} ident_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, IDENT_C_MAX);
	__type(key, __u32);
	__type(value, __u64);
} ident_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, IDENT_HITS);
	__type(key, __u32);
	__type(value, struct ident_hits);
} ident_hits SEC(".maps");

static __always_inline void count(enum ident_count what)
{
	__u32 key = what;
	__u64 *number = bpf_map_lookup_elem(&ident_counters, &key);

	if (number)
		__sync_fetch_and_add(number, 1);
}

static __always_inline struct ident_control *control_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&ident_control, &zero);
}

/* Of a rule, or of what stands in its place. */
static __always_inline struct ident_hits *hits_of(__u32 rule, __u32 epoch)
{
	__u32 key = rule < IDENT_RULES ? rule + (epoch & 1) * IDENT_RULES
				       : rule + IDENT_RULES;

	return bpf_map_lookup_elem(&ident_hits, &key);
}

#endif
