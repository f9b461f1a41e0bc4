/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* May the holders of a socket talk to this peer? The first rule that holds decides: one
 * that drops holds for a socket if any holder meets it, one that allows if all do.
 *
 * While one of them is not known, a rule that is about some programs may or may not hold:
 * then what the policy says of unknown programs decides. Rules that are about all
 * programs, and before which no such rule stands, decide for everybody. Of one whose
 * executable file is known those rules decide that ask for nothing else, and rules about
 * other executables are passed over. */
#ifndef WEIR_IDENTITY_JUDGE_H
#define WEIR_IDENTITY_JUDGE_H

#include "identity/who.h"

/* What is to be decided. */
struct ident_case {
	__u64 netns;
	__u64 executable; /* of one more who is not known but for that; 0: no such one */
	__u8 peer[16];
	__u32 handles[IDENT_HOLDERS];
	__u32 unknown; /* 1: and somebody who is not known */
	__u16 port;
	__u8 has_port;
	__u8 protocol; /* IDENT_TCP and so on */
	__u8 direction;
	__u8 pad[3];
};

/* The rules are gone through from the first to the last. */
struct ident_search {
	__u64 hold; /* of the rules of `word`, those whose programs these are */
	struct ident_network network;
	const struct ident_case *about;
	const struct ident_policy *policy;
	const struct ident_executable *executable;
	__u32 word;
	__u32 second; /* 1: of the policy of odd epochs */
	__u32 unknown;
	__u32 found; /* verdict | rule << 8 */
};

static __always_inline int in_networks(struct ident_search *search, __u32 networks)
{
	search->network.bits = 32 + 128;
	search->network.networks = networks;
	return bpf_map_lookup_elem(&ident_networks, &search->network) != NULL;
}

/* By numbers, not by branches: these are one path for the verifier. */
static __always_inline int has_port(const struct ident_rule *rule, __u32 port)
{
	__u64 found = 0;
	int i;

	for (i = 0; i < IDENT_PORTS; i++) {
		__u64 low = rule->ports[i].low, high = rule->ports[i].high;
		__u64 out = ((__u64)port - low) | (high - port) |
			    ((__u64)rule->ranges - i - 1);

		asm volatile("" : "+r"(out));
		found |= ~out >> 63;
	}
	return found != 0;
}

/* Is the rule about this peer? */
static __always_inline int is_where(struct ident_search *search,
				    const struct ident_rule *rule)
{
	const struct ident_case *about = search->about;
	int denies = rule->verdict != IDENT_ALLOW;
	__u32 networks;

	if (!(rule->directions & about->direction))
		return 0;
	if (rule->protocols) {
		if (!(rule->protocols & about->protocol))
			return 0;
	} else if (!denies && about->protocol >= IDENT_RAW) {
		/* Whoever may send anything at all is told by name. */
		return 0;
	}
	if (rule->netns && rule->netns != about->netns)
		return 0;
	if (rule->ranges) {
		if (about->protocol == IDENT_ICMP)
			return 0;
		if (!about->has_port)
			return denies;
		if (!has_port(rule, about->port))
			return 0;
	}
	networks = rule->networks[about->direction == IDENT_IN];
	if (networks) {
		int outside = (rule->not_in & about->direction) != 0;

		if (in_networks(search, networks) == outside)
			return 0;
	}
	return 1;
}

/* Who a holder is; NULL: nobody has said so for these rules. */
static __always_inline const struct ident_program *
program_of(const struct ident_search *search, __u32 handle)
{
	__u32 number = handle & 0xffff;
	const struct ident_program *program;

	if (!handle)
		return NULL;
	program = bpf_map_lookup_elem(&ident_programs, &number);
	if (!program || program->handle != handle)
		return NULL;
	return (search->second ? program->generation[1] : program->generation[0]) ==
			       search->policy->generation
		       ? program
		       : NULL;
}

static __always_inline __u64 bits_of(const struct ident_search *search,
				     const struct ident_program *program, __u32 word)
{
	word &= IDENT_RULE_WORDS - 1;
	return search->second ? program->rules[1][word] : program->rules[0][word];
}

/* Is the rule about one of those that are known? */
static __always_inline int is_about_known(const struct ident_search *search, __u32 bit)
{
	int i;

	for (i = 0; i < IDENT_HOLDERS; i++) {
		const struct ident_program *program =
			program_of(search, search->about->handles[i]);

		if (program && bits_of(search, program, search->word) >> bit & 1)
			return 1;
	}
	return 0;
}

static __always_inline int meets_by_executable(const struct ident_search *search,
					       __u32 bit)
{
	const struct ident_executable *executable = search->executable;
	__u32 word = search->word & (IDENT_RULE_WORDS - 1);

	if (!executable)
		return 0;
	return (search->second ? executable->meets[1][word]
			       : executable->meets[0][word]) >>
		       bit &
	       1;
}

/* Does the rule, which is about some programs, hold for certain? */
static __always_inline int is_certain(const struct ident_search *search,
				      const struct ident_rule *rule, __u32 bit)
{
	if (!search->unknown && !search->executable)
		return 1;
	if (rule->verdict != IDENT_ALLOW)
		return is_about_known(search, bit) || meets_by_executable(search, bit);
	return !search->unknown && meets_by_executable(search, bit);
}

static long try_rule(__u32 bit, struct ident_search *search)
{
	__u32 number = search->word << 6 | (bit & 63), key;
	struct ident_rule *rule;

	bit &= 63;
	if (!(search->hold >> bit & 1))
		return 0;
	if (number >= search->policy->rules)
		return 1;
	key = number + (search->second ? IDENT_RULES : 0);
	rule = bpf_map_lookup_elem(&ident_rules, &key);
	if (!rule || !is_where(search, rule))
		return 0;
	if (rule->has_who && !is_certain(search, rule, bit))
		search->found = search->policy->unknown | IDENT_BY_UNKNOWN << 8;
	else
		search->found = rule->verdict | number << 8;
	return 1;
}

static long try_word(__u32 word, struct ident_search *search)
{
	__u64 any = 0, all = ~0ull, deny;
	int i;

	if (word << 6 >= search->policy->rules)
		return 1;
	deny = search->policy->deny[word & (IDENT_RULE_WORDS - 1)];
	for (i = 0; i < IDENT_HOLDERS; i++) {
		const struct ident_program *program =
			program_of(search, search->about->handles[i]);
		__u64 bits;

		if (!program)
			continue;
		bits = bits_of(search, program, word);
		any |= bits;
		all &= bits;
	}
	if (search->executable) {
		const struct ident_executable *executable = search->executable;
		__u32 of = word & (IDENT_RULE_WORDS - 1);
		__u64 may =
			search->second ? executable->may[1][of] : executable->may[0][of];

		any |= may;
		all &= may;
	}
	/* Who is not known may meet any rule, or none. */
	if (search->unknown)
		any = ~0ull;
	search->hold = (all & ~deny) | (any & deny);
	if (!search->hold)
		return 0;
	search->word = word;
	bpf_loop(64, try_rule, search, 0);
	return search->found != 0;
}

/* By a key of its own: Linux 6.1 takes none from what a function is given. */
static __noinline void find_executable(struct ident_search *search, __u64 key)
{
	const struct ident_executable *executable;

	executable = bpf_map_lookup_elem(&ident_executables, &key);
	if (executable &&
	    (search->second ? executable->revision[1] : executable->revision[0]) ==
		    search->policy->generation)
		search->executable = executable;
	else
		search->unknown = 1;
}

/* verdict | number of the rule << 8 */
__noinline int ident_judge(const struct ident_case *about)
{
	struct ident_control *control = control_get();
	struct ident_search search = {};
	int i;

	if (!about || !control)
		return IDENT_DROP | IDENT_BY_DEFAULT << 8;
	search.second = control->epoch & 1;
	search.policy = policy_of(control);
	search.about = about;
	search.unknown = about->unknown;
	for (i = 0; i < IDENT_HOLDERS; i++)
		if (about->handles[i] && !program_of(&search, about->handles[i]))
			search.unknown = 1;
	if (about->executable)
		find_executable(&search, about->executable);
	__builtin_memcpy(search.network.addr, about->peer, sizeof(search.network.addr));
	bpf_loop(IDENT_RULE_WORDS, try_word, &search, 0);
	if (!search.found)
		search.found = search.policy->verdict | IDENT_BY_DEFAULT << 8;
	if (search.unknown || search.found >> 8 == IDENT_BY_UNKNOWN)
		count(IDENT_C_UNKNOWN);
	count(IDENT_C_JUDGED);
	return search.found;
}

#endif
