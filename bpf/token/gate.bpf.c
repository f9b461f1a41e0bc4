// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* What a rule of iptables refers to (`-m bpf --object-pinned`): a rule keeps the program
 * that was pinned when it was made. This one stays, and asks whichever is in the table
 * now: so a rule follows an upgrade of weir, and matches nothing once weir is taken away,
 * for the kernel empties the table when its pin goes. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} gate_match SEC(".maps");

SEC("socket")
int weir_token_gate(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &gate_match, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
