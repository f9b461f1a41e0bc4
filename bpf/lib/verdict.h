/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The only way out of the packet path: counts the packet under its reason,
 * tells user space about drops (rate-limited), and says pass or drop. */
#ifndef WEIR_VERDICT_H
#define WEIR_VERDICT_H

#include "lib/cfg.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, R_MAX);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

struct pkt_result {
	enum reason reason;
	__u32 ifindex;
	__u32 bytes;
	__u8 source[16];
	__u8 protocol;
	__u8 scanner;
	__u8 rejecting; /* a ban that covers it rejects */
	__u8 l3;	/* for who answers: offset of the IP header */
	__u8 v4;
	__u16 port;
	__u32 class_verdict; /* by judge_class, 0: nothing */
};

/* Not inlined: only packets on their way to a drop come here, at most
 * EVENT_LIMIT of them a window and CPU. The wake-up is adaptive (0.07 µs an
 * event against 6 µs when each one wakes); user space polls for the tail. */
static __noinline int send_event(const struct pkt_result *result, struct counter *c,
				 __u64 now)
{
	struct event *e;

	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		c->event_lost++;
		return 0;
	}
	e->at_ns = bpf_ktime_get_boot_ns();
	e->jiffies = now;
	__builtin_memcpy(e->source, result->source, sizeof(e->source));
	e->ifindex = result->ifindex;
	e->reason = result->reason;
	e->port = result->port;
	e->protocol = result->protocol;
	e->scanner = result->scanner;
	__builtin_memset(e->pad, 0, sizeof(e->pad));
	/* A proof is to become a ban before the next port is tried. */
	bpf_ringbuf_submit(
		e, result->reason == R_DECOY_HANDSHAKE ||
				   bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >=
					   EVENT_WAKE_BYTES
			   ? BPF_RB_FORCE_WAKEUP
			   : BPF_RB_NO_WAKEUP);
	return 0;
}

/* Per CPU, and neither XDP nor tc ingress is re-entered on a CPU: a plain
 * increment cannot be lost. */
static __always_inline struct counter *count(enum reason reason, __u32 bytes)
{
	__u32 key = reason;
	struct counter *c = bpf_map_lookup_elem(&counters, &key);

	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
	return c;
}

/* R_BANNED_ALL of which no event is due: no `struct pkt_result` is filled for it. A value
 * and not a field, for verifiers that do not follow bytes of the stack. */
#define R_BANNED_NO_EVENT ((enum reason)R_MAX)

/* Would a packet that leaves by this reason now be told of? On this CPU, on
 * which nothing else leaves before it. */
static __always_inline int is_event_due(enum reason reason, __u64 now)
{
	__u32 key = reason;
	struct counter *c = bpf_map_lookup_elem(&counters, &key);

	return c && (c->event_window != now >> EVENT_WINDOW_SHIFT ||
		     c->event_count < EVENT_LIMIT);
}

static __always_inline void count_no_event(enum reason reason, __u32 bytes)
{
	struct counter *c = count(reason, bytes);

	if (c)
		c->event_lost++;
}

static __always_inline void count_and_report(const struct pkt_result *result, __u64 now)
{
	struct counter *c = count(result->reason, result->bytes);
	__u64 window = now >> EVENT_WINDOW_SHIFT;

	if (!c)
		return;
	if (c->event_window != window) {
		c->event_window = window;
		c->event_count = 0;
	}
	if (c->event_count >=
	    (result->reason == R_DECOY_HANDSHAKE ? PROOF_LIMIT : EVENT_LIMIT)) {
		c->event_lost++;
		return;
	}
	c->event_count++;
	send_event(result, c, now);
}

#endif
