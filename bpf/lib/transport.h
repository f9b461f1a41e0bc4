/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The transport header of a packet on its way to a drop, for each kind of program, by
 * a function of its own: the verifier follows each chain of headers once, and not from
 * every state in which a caller asks. In the caller's code that way is 830,000
 * instructions long for Linux 6.1, and differs threefold between compilers. */
#ifndef WEIR_TRANSPORT_H
#define WEIR_TRANSPORT_H

#include "lib/parse.h"

/* `l3`: offset of the IP header. */
__noinline __u64 l4_of_xdp(struct xdp_md *ctx, __u32 l3, __u32 total, int v6)
{
	struct frame f = {.data = (void *)(long)ctx->data,
			  .end = (void *)(long)ctx->data_end};

	f.l3 = f.data + (l3 & L3_MOST);
	return pack_l4(&f, total, v6);
}

__noinline __u64 l4_of_skb(struct __sk_buff *ctx, __u32 l3, __u32 total, int v6)
{
	struct frame f = {.data = (void *)(long)ctx->data,
			  .end = (void *)(long)ctx->data_end};

	f.l3 = f.data + (l3 & L3_MOST);
	return pack_l4(&f, total, v6);
}

/* Where a netfilter program has the headers (netfilter.h). Larger than what is
 * read into it: no chain of headers that the parser follows ends behind it. */
#define HEAD_FIRST 64
#define HEAD_MOST  16384
struct head {
	__u8 bytes[HEAD_MOST + 64];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct head);
} nf_head SEC(".maps");

static __always_inline struct head *head_of_packet(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&nf_head, &zero);
}

__noinline __u64 l4_of_head(__u32 have, __u32 total, int v6)
{
	struct head *head = head_of_packet();
	struct frame f = {};

	if (!head || have > HEAD_MOST)
		return L4_PORTS_UNKNOWN;
	f.data = f.l3 = head->bytes;
	f.end = head->bytes + have;
	return pack_l4(&f, total, v6);
}

static __always_inline void parse_l4(void *ctx, int tc, struct frame *f, __u32 total,
				     int v6, struct l4 *l4)
{
	__u32 l3 = f->l3 - f->data;

	unpack_l4(tc == IN_NETFILTER ? l4_of_head(f->end - f->data, total, v6)
		  : tc		     ? l4_of_skb(ctx, l3, total, v6)
				     : l4_of_xdp(ctx, l3, total, v6),
		  f, l4);
}

#endif
