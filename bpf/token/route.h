/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the path of a packet takes: the route that was chosen for it knows, from the
 * configuration or from routers that have sent something back. */
#ifndef WEIR_TOKEN_ROUTE_H
#define WEIR_TOKEN_ROUTE_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Of the kernel's structs what is read. */
struct dst_metrics {
	__u32 metrics[17];
};

struct dst_entry {
	unsigned long _metrics;
	unsigned long expires;
};

struct rtable {
	struct dst_entry dst;
	__u32 rt_mtu_locked : 1, rt_pmtu : 31;
};

struct sk_buff {
	unsigned long _skb_refdst;
};

#pragma clang attribute pop

#define DST_NOREF  1ul /* of _skb_refdst: beside the address */
#define DST_FLAGS  3ul /* of _metrics: the same */
#define METRIC_MTU 1   /* RTAX_MTU - 1 */

/* 0: not known, or it is the device's. What the program is given is the kernel's own
 * packet: read as all of its structs are, that takes no function that says so (which is
 * there since Linux 6.2). */
static __always_inline __u32 path_mtu(struct __sk_buff *ctx, int v4)
{
	struct sk_buff *skb = (void *)ctx;
	struct dst_entry *dst = (void *)(BPF_CORE_READ(skb, _skb_refdst) & ~DST_NOREF);
	struct dst_metrics *metrics;
	struct rtable *route = (void *)dst;
	__u32 mtu;

	if (!dst)
		return 0;
	if (v4) {
		mtu = BPF_CORE_READ_BITFIELD_PROBED(route, rt_pmtu);
		if (mtu &&
		    (long)(bpf_jiffies64() - BPF_CORE_READ(route, dst.expires)) < 0)
			return mtu;
	}
	metrics = (void *)(BPF_CORE_READ(dst, _metrics) & ~DST_FLAGS);
	return metrics ? BPF_CORE_READ(metrics, metrics[METRIC_MTU]) : 0;
}

#endif
