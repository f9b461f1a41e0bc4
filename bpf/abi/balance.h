/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Load balancing by direct server return: who serves which address and port. */
#ifndef WEIR_ABI_BALANCE_H
#define WEIR_ABI_BALANCE_H

#include <linux/types.h>

/* Slots of a pool's ring. */
#define BALANCE_SLOTS	 65537
#define BALANCE_POOLS	 32
#define BALANCE_REALS	 1024
#define BALANCE_SERVICES 16384
/* Flows that stay with their real when the pool changes: so many find room, in buckets
 * of a cache line that have it for twice as many (bpf/balance/flows.h). The map is made
 * with as many as the configuration says, these if it says nothing; a power of two. */
#define BALANCE_FLOWS	65536
#define BALANCE_BUCKET	4
#define BALANCE_BUCKETS (2 * BALANCE_FLOWS / BALANCE_BUCKET)
/* `state` of a flow in the table, which user space reads to count flows. */
#define FLOW_USED	0xffffULL /* when: jiffies >> EVENT_WINDOW_SHIFT, its lower bits */
#define FLOW_CONFIRMED	0x10000ULL  /* the flow has had a second packet */
#define FLOW_THERE	0x20000ULL  /* always */
#define FLOW_ENDED	0x400000ULL /* its client has ended it: BALANCE_BY_LEAST */
#define FLOW_UDP	0x800000ULL
#define FLOW_SILENT	0x1000000ULL /* counted no more, until its next packet */
#define FLOW_REAL_SHIFT 32	     /* number of the real */
#define FLOW_ID_SHIFT	48	     /* lower bits of the real's id */
/* One flow for so many buckets is remembered of a CPU in one EVENT_WINDOW (256 ticks),
 * 4,096 of 65,536: a flood of packets that each begin a flow cannot empty the table. */
#define BALANCE_NEW_FLOWS_SHIFT 3
/* Packets in fragments of which the first one was seen. */
#define BALANCE_FRAGMENTS 8192
/* Networks for which the default of an access list does not hold, of all pools; twice as
 * many as a configuration may have, for the next ones are written beside the last. */
#define BALANCE_ACL_NETWORKS 1048576
/* Bit of balance_rules.acl: clients in none of the networks are denied. */
#define BALANCE_ACL_DENY 0x80000000
/* Bit of a key of the networks: IPv6 is apart from IPv4, which ::/0 does not hold. */
#define BALANCE_ACL_V6 0x40000000
/* A slot of a pool without a live real. */
#define BALANCE_NOBODY 0xffff

/* Services stand in a table of which a quarter is used at most, each in one of the
 * BALANCE_PROBES slots from its hash on, and in that as long as it is one. (Of full
 * tables one in 20,000 has a service in the twentieth.) */
#define BALANCE_SERVICE_SLOTS (4 * BALANCE_SERVICES)
#define BALANCE_PROBES	      24

/* A virtual address with a port and a protocol. User space writes a slot by whole words,
 * the last one last. */
struct balance_service {
	__u64 addr[2]; /* as in memory; IPv4 as ::ffff:a.b.c.d */
	__u64 port;  /* as in a packet, 0: all that no other service of the address has |
			protocol << 16; all 0: the slot never was a service's */
	__u64 place; /* number of its counter + 1 | number of its pool << 32; 0: none */
};

/* By what a new flow finds its slot in the ring of its pool. */
#define BALANCE_BY_FLOW	       0 /* a hash of both addresses and ports */
#define BALANCE_BY_TURN	       1 /* the next one, on each CPU */
#define BALANCE_BY_SOURCE      2 /* a hash of the client's address */
#define BALANCE_BY_SOURCE_PORT 3 /* a hash of the client's address and port */
#define BALANCE_BY_LEAST       4 /* of two slots that with the fewer flows for its weight */

/* Beside the number of a pool: balance_rules has something of it, or some real drains. */
#define BALANCE_HAS_RULES 0x10000

/* Rules of a pool, for all its services. */
struct balance_rules {
	__u32 acl;   /* number of the access list, and its default; 0: all clients */
	__u8 method; /* BALANCE_BY_* */
	__u8 quic_server_id; /* bytes of the server IDs of its reals; 0: they have none */
	__u16 udp_silence;   /* after so many windows of 256 ticks without a packet a flow
				of UDP leaves a real that drains; 0: never */
};

/* Bytes of the longest server ID, and what may stand in balance_quic: two configurations,
 * for the next one is written beside the last. */
#define BALANCE_QUIC_SERVER_ID_MAX 8
#define BALANCE_QUIC_SERVERS	   (2 * BALANCE_REALS)

/* What the connection IDs of a real's QUIC connections hold. */
struct balance_quic_key {
	__u32 pool; /* its number */
	__u32 pad;
	__u8 server_id[BALANCE_QUIC_SERVER_ID_MAX]; /* zeros behind it */
};

/* Whose it is. */
struct balance_quic_server {
	__u64 id;   /* of balance_real; 0: nobody's */
	__u32 real; /* number in balance_reals */
	__u32 pad;
};

struct balance_services {
	struct balance_service slots[BALANCE_SERVICE_SLOTS];
	__u64 all_ports; /* 1: there are services of all ports */
};

/* The real that takes a new flow, by slot: its number in balance_reals. */
struct balance_ring {
	__u16 reals[BALANCE_SLOTS + 3];
};

/* Bit of balance_real.id: the real takes no new flows, and keeps those that it has. */
#define BALANCE_DRAINS 0x8000000000000000

/* In place of a VLAN: what goes there has an outer header (abi/tunnel.h). */
#define BALANCE_TUNNELED 0x8000

/* A server behind virtual addresses. The first twelve bytes are those of a frame's. */
struct balance_real {
	__u8 dest[6];	/* link-layer address of the real, or of a router */
	__u8 source[6]; /* link-layer address of the interface below */
	__u32 ifindex;	/* interface through which the real is reached */
	__u64 id;	/* hash of the name: another real in its place has another;
			   0: the real takes nothing; and BALANCE_DRAINS */
	__u8 here[6];	/* `source` again */
	__u16 vlan;	/* VLAN of the frames that the real takes; 0: without a tag; or
			   BALANCE_TUNNELED */
};

struct balance_real_counter {
	__u64 packets;
	__u64 bytes;
	__u64 flows; /* new flows */
};

/* What a real has, where that decides (BALANCE_BY_LEAST). */
struct balance_load {
	__s64 flows;  /* that live, as far as is known; below 0: none */
	__u64 weight; /* its share of new flows, of the shares of its pool */
};

struct balance_service_counter {
	__u64 packets; /* packets sent to a real */
	__u64 bytes;
	__u64 unserved;	    /* packets dropped: there was no real for them */
	__u64 unremembered; /* packets of flows that are too many */
	__u64 denied;	    /* packets dropped: the access list denies the client */
	__u64 displaced; /* flows that may live, forgotten for new ones of the service */
	__u64 quic_placed;  /* packets whose QUIC connection ID says their real */
	__u64 quic_unknown; /* packets with the server ID of no real that is there: they
			       go by their flow */
	__u64 flows;	    /* new flows that are remembered */
};

_Static_assert(sizeof(struct balance_service) == 32, "abi");
_Static_assert(sizeof(struct balance_rules) == 8, "abi");
_Static_assert(sizeof(struct balance_quic_key) == 16, "abi");
_Static_assert(sizeof(struct balance_quic_server) == 16, "abi");
_Static_assert(sizeof(struct balance_ring) == 131080, "abi");
_Static_assert(sizeof(struct balance_real) == 32, "abi");
_Static_assert(sizeof(struct balance_real_counter) == 24, "abi");
_Static_assert(sizeof(struct balance_load) == 16, "abi");
_Static_assert(sizeof(struct balance_service_counter) == 72, "abi");

#endif
