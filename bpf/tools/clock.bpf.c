// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Lets user space read jiffies beside CLOCK_MONOTONIC: ban expiries are in
 * jiffies, because comparing them costs the packet path no call. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

/* Ring buffers have no value type; this gives the skeleton `struct event`. */
struct event event_layout;
/* Nor is a struct that only a program uses among the skeleton's. */
struct clock_sample clock_sample_layout;
/* So have the parts of a class table's lines. */
struct class_header class_header_layout;
struct cover cover_layout;
struct class_node class_node_layout;
struct class class_layout;

/* Run on a packet of user space's, in place of which the sample comes back:
 * programs of type syscall, made for this, are of Linux 5.14. */
SEC("tc")
int weir_clock(struct __sk_buff *skb)
{
	struct clock_sample sample = {
		.jiffies = bpf_jiffies64(),
		.mono_ns = bpf_ktime_get_ns(),
	};

	return bpf_skb_store_bytes(skb, 0, &sample, sizeof(sample), 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
