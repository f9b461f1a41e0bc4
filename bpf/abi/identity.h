/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Application identity: which program may send where, and receive from where. */
#ifndef WEIR_ABI_IDENTITY_H
#define WEIR_ABI_IDENTITY_H

#include <linux/types.h>

/* Raised when a map below changes its form: pins of another number are replaced. */
#define IDENT_ABI 9

#define IDENT_RULES	 1024
#define IDENT_RULE_WORDS 16
/* Ranges of ports in a rule. */
#define IDENT_PORTS 8
/* Programs that hold one socket, with identities that differ: more are not told apart,
 * and count as an unknown one. */
#define IDENT_HOLDERS 4
/* Identities with rules of their own; number 0 is nobody's. */
#define IDENT_IDENTITIES 8192
/* Executable files of which rules are known to be met, or not, whatever else a program
 * has mapped. */
#define IDENT_EXECUTABLES 4096
/* Sets of mapped objects, address spaces and datagram flows that are remembered: the
 * least recently used one goes, and is looked up anew. */
#define IDENT_SETS   32768
#define IDENT_SPACES 16384
#define IDENT_FLOWS  65536
/* Flows that were refused, which anybody can begin from any address: they have a table of
 * their own, so that they take no room from flows that pass. */
#define IDENT_REFUSED 8192
/* New flows from outside of one socket in each window that may take room from those of
 * others: the rest has a table of its own, for anybody can begin very many at an open
 * port. */
#define IDENT_NEW_FLOWS 1024
#define IDENT_WINDOW_NS 10000000000ull
/* Networks of all rules, of two policies: the next one is written beside the last. */
#define IDENT_NETWORKS 1048576
#define IDENT_RING     524288
/* Bytes of the ring that what comes in may fill, which anybody can send: the rest is for
 * questions about programs, and for what these do. */
#define IDENT_RING_IN 262144
/* Each unknown identity is asked about once in so many nanoseconds. */
#define IDENT_ASK_NS 200000000
/* Code that is changed in place moves no mapping: so whoever sends is walked again once
 * in each period of 2^IDENT_PERIOD_SHIFT jiffies: 1.02 s of the usual 250 a second,
 * 2.56 s of 100. */
#define IDENT_PERIOD_SHIFT 8
/* A walk over the mappings that meets a writer is tried again so often. */
#define IDENT_TRIES 256
/* Places in the kernel's tree of mappings that one walk of level push looks at, at most:
 * of 65,530 mappings, which is what a process may have unless vm.max_map_count is raised,
 * at most about half of that, for each leaf is reached from the root again. */
#define IDENT_STEPS 1048576
/* Such a walk that meets changes is begun again for so long, in nanoseconds. */
#define IDENT_WALK_NS 1000000

/* Numbers beside those of rules, where one says what has decided. */
#define IDENT_BY_DEFAULT 1024 /* no rule */
#define IDENT_BY_UNKNOWN 1025 /* a rule might: who sends is not known yet */
#define IDENT_BY_KIND	 1026 /* sockets of this kind are nobody's (MPTCP, SMC) */
#define IDENT_HITS	 2064 /* IDENT_RULES of each policy, and these */

enum ident_verdict {
	IDENT_UNJUDGED,
	IDENT_ALLOW,
	IDENT_DROP,
	IDENT_REJECT,  /* connect and sendto fail with EPERM; else as IDENT_DROP */
	IDENT_PENDING, /* dropped until it is known who sends, or until somebody has said
			* whether a connection that no rule is about may pass */
	IDENT_LEARN,   /* passes, though it is not known who sends, and is told */
};

#define IDENT_OUT 1
#define IDENT_IN  2

/* Bits of ident_rule.protocols. */
#define IDENT_TCP   1
#define IDENT_UDP   2
#define IDENT_ICMP  4
#define IDENT_RAW   8  /* raw sockets, whatever they send */
#define IDENT_OTHER 16 /* SCTP, DCCP and so on */

struct ident_ports {
	__u16 low;
	__u16 high;
};

/* Where a rule holds; for whom is a bit of ident_program.rules. */
struct ident_rule {
	__u8 verdict;	 /* ident_verdict */
	__u8 has_who;	 /* it is about some programs, not about all */
	__u8 directions; /* IDENT_OUT, IDENT_IN */
	__u8 protocols;	 /* IDENT_TCP and so on */
	__u8 ranges;	 /* of ports; 0: any */
	__u8 not_in;	 /* bits of directions: holds outside of its networks */
	__u16 pad;
	struct ident_ports
		ports[IDENT_PORTS]; /* of the peer; of what comes in, the own */
	__u32 networks[2]; /* their number, of what goes out and of what comes in; 0: all
			    */
	__u64 netns;	   /* the inode of a network namespace; 0: any */
};

/* Bits of ident_policy.flags. */
#define IDENT_BY_UID	1 /* a rule is about users */
#define IDENT_BY_CGROUP 2 /* a rule is about control groups */
#define IDENT_OBSERVE	4 /* nothing is dropped, and it is told what would be */
#define IDENT_TELL_ALL	8 /* each decision is told, for learning */
#define IDENT_BY_SPACE                                                                   \
	16 /* a rule is about what two processes of one program differ in */

/* The rules of one configuration as a whole. */
struct ident_policy {
	__u64 deny[IDENT_RULE_WORDS]; /* which rules drop or reject */
	__u32 generation; /* identities that were compiled for another one are unknown */
	__u32 rules;	  /* how many there are */
	__u8 verdict;	  /* where no rule holds; IDENT_PENDING: it is asked */
	__u8 unknown;	  /* IDENT_ALLOW, IDENT_PENDING or IDENT_LEARN */
	__u8 flags;
	__u8 pad[5];
};

struct ident_control {
	__u64 secret[4]; /* of the hash of mapped objects */
	__u64 cgroup;	 /* the id of the control group in which this holds */
	__u32 level;	 /* its depth; 0: the root */
	__u32 epoch; /* counts up with each change; its lowest bit says which policy */
	struct ident_policy policies[2];
};

/* A program as it runs: all objects that it has mapped executable. */
struct ident_key {
	__u64 set[2]; /* keyed sums over the objects, the executable counted apart */
	__u64 cgroup; /* 0 unless IDENT_BY_CGROUP */
	__u32 uid;    /* 0 unless IDENT_BY_UID */
	__u32 flags;  /* IDENT_ANONYMOUS, IDENT_ALTERED */
	__u64 space;  /* 0 unless IDENT_BY_SPACE; as in ident_holder */
};

/* It has executable memory that is of no file, or of one on no disk. */
#define IDENT_ANONYMOUS 1
/* Its code differs from its files, or another process has traced it: what it does may be
 * somebody else's will. It stays so as long as the address space does. */
#define IDENT_ALTERED 2

/* Who an identity is, and when it was asked about. */
struct ident_known {
	__u32 handle; /* number | serial << 16; 0: not known */
	__u32 pad;
	__u64 asked; /* CLOCK_MONOTONIC, nanoseconds */
};

/* An identity that is known, at its number. */
struct ident_program {
	__u64 rules[2][IDENT_RULE_WORDS]; /* whom they are about, of each policy */
	__u32 generation[2];
	__u32 handle;
	__u32 pad;
};

/* What an executable file alone tells of a program that runs it, while the rest is not
 * known: some rules are about it for certain, some may be, all others are not. */
struct ident_executable {
	__u64 meets[2][IDENT_RULE_WORDS]; /* of each policy */
	__u64 may[2][IDENT_RULE_WORDS];	  /* `meets` and those that may be about it */
	__u32 revision[2];
};

/* An address space, by its mm. */
struct ident_space {
	__u64 set[2];
	__u64 executable; /* the key of its executable file; 0: it has none */
	__u32 sequence;	  /* mm_lock_seq, or what stands for it, when it was walked */
	__u16 flags;	  /* IDENT_ANONYMOUS, IDENT_ALTERED */
	__u16 period;	  /* in which that was: jiffies >> IDENT_PERIOD_SHIFT */
};

struct ident_holder {
	__u64 space;  /* which address space that is: no later one has the same number; a
		       * thread with a user of its own has another one */
	__u32 handle; /* 0: free */
	__u32 pad;
};

/* Bits of ident_socket.flags. */
#define IDENT_S_PENDING 1 /* `pending` is a holder that is not known yet */
#define IDENT_S_LOST	2 /* there are more holders than are remembered */

/* A connection that is being ended. */
enum ident_cut {
	IDENT_CUT_NOT,
	IDENT_CUT_NOW,	/* whatever leaves now is its reset */
	IDENT_CUT_SOON, /* by user space: its reset may leave */
};

/* What is known of a socket. */
struct ident_socket {
	__u64 space; /* the mm of the last sender that was checked */
	__u64 life;  /* which process that is, and which of its programs: the kernel gives
		      * the space of one that has ended to others */
	__u64 cgroup;
	__u64 netns;
	struct ident_key pending;
	__u64 pending_space; /* of `pending`; as in ident_holder; 0: of several processes
			      */
	__u64 pending_executable;
	struct ident_holder holders[IDENT_HOLDERS];
	__u32 sequence;
	__u32 uid;
	__u32 tgid;
	__u32 noted;	 /* the epoch in which that sender was checked */
	__u32 epoch;	 /* in which `verdict` was found; 0: never */
	__u32 changes;	 /* of its holders */
	__u32 window;	 /* in which new flows were counted last, of IDENT_WINDOW_NS */
	__u32 new_flows; /* from outside, in that window */
	__u16 rule;
	__u8 verdict;
	__u8 direction; /* IDENT_OUT of a connection that it began */
	__u8 flags;
	__u8 raw;
	__u8 is_cut;	   /* ident_cut */
	__u8 has_overflow; /* 1: some of its flows are beyond IDENT_NEW_FLOWS */
	__u16 period;	   /* in which that sender was checked, as ident_space.period */
	__u8 is_traced;	   /* 1: that sender was, by another process */
	__u8 pad[5];
};

/* A flow of datagrams. */
struct ident_flow_key {
	__u64 cookie;
	__u8 peer[16];
	__u32 port;	 /* of the peer; where that is one's own, of both */
	__u32 direction; /* of a refused flow IDENT_OUT or IDENT_IN; else 0 */
};

struct ident_flow {
	__u32 epoch;
	__u32 changes;
	__u16 rule;
	__u8 verdict;
	__u8 direction;
	__u32 told; /* the epoch in which it was said that its socket is ended */
};

/* Network `networks` of a rule; IPv4 as ::ffff:a.b.c.d. */
struct ident_network {
	__u32 bits; /* 32 and the prefix's length */
	__u32 networks;
	__u8 addr[16];
};

enum ident_event_kind {
	IDENT_EV_UNKNOWN, /* who is this? */
	IDENT_EV_DENIED,
	IDENT_EV_JUDGED, /* with IDENT_TELL_ALL */
	IDENT_EV_CUT,	 /* a connection that is no longer allowed was ended */
};

struct ident_event {
	struct ident_key key; /* of who is not known; 0: all holders are known */
	__u64 netns;
	__u64 cookie;
	__u64 cgroup;
	__u8 peer[16];
	__u32 tgid;
	__u32 uid;
	__u32 handles[IDENT_HOLDERS]; /* of the socket's holders that are known */
	__u16 rule;
	__u16 port;
	__u8 kind;
	__u8 verdict;
	__u8 protocol;
	__u8 direction;
	__u32 policy; /* the lowest bit of the epoch */
	__u32 pad;
	__u64 executable; /* of who is not known; 0: nobody, or nobody can tell */
	__u8 comm[16];	  /* that process's own name, if it runs; its own word */
};

/* What is asked about one process. */
struct ident_question {
	__u32 tgid;
	__u32 found; /* 1: the process is there and has an address space */
	struct ident_key key;
	__u64 space;
	__u32 sequence;
	__u32 uid;
	__u64 cgroup;
	__u64 nanoseconds; /* that the walk took */
	__u64 executable;
};

/* What is asked about a file that the asking process has open. */
struct ident_file {
	__u32 fd;
	__u32 found;	  /* 1: it is open */
	__u64 executable; /* the key of a program that runs it */
};

/* What is asked about a file that a process has mapped. */
struct ident_writers {
	__u64 address; /* of the mapping */
	__u32 thread;  /* of the process; of the asking one it is not asked for */
	__u32 found;   /* 1: there is one, of a file; 2: there is none; 0: ask again */
	__u64 inode;   /* whose address this is */
	__s32 writers; /* that have it open to write, above 0 */
	__s32 shared;  /* mappings through which it can be written, above 0 */
	__u32 magic;   /* of its file system (linux/magic.h) */
	__u32 device;  /* of that: major << 20 | minor */
	__u32 pinned;  /* 1: a page of it is, or there are too many to say */
	__u32 pad;
};

/* A connection that is to be ended, where no program can do that. */
struct ident_ended {
	__u64 cookie;
	__be32 own[4]; /* IPv4 in the first one */
	__be32 peer[4];
	__be16 own_port;
	__be16 peer_port;
	__u32 interface; /* that the socket is bound to */
	__u32 found;	 /* verdict | rule << 8, by which it is denied */
	__u8 family;
	__u8 protocol;
	__u8 what; /* ident_count: as what it is counted once it has been ended */
	__u8 pad;
};

/* A socket as it is, and who has a descriptor of it: what is said to whoever asks about
 * one. Its record stands behind it, if it has one. */
struct ident_listed {
	__u64 cookie;
	__u64 inode; /* by which user space knows it; 0: nobody has a descriptor */
	__u64 netns;
	__be32 own[4]; /* IPv4 in the first one */
	__be32 peer[4];
	__u32 tgid; /* 0: found in the kernel's table of sockets */
	__u32 fd;
	__u32 interface; /* that it is bound to */
	__u16 own_port;	 /* of a raw socket its protocol */
	__u16 peer_port;
	__u16 type;
	__u16 protocol;
	__u8 family;
	__u8 state;
	__u8 kind; /* IDENT_TCP and so on */
	__u8 has_record;
};

struct ident_hits {
	__u64 judged;  /* connections and flows */
	__u64 dropped; /* packets, and calls that were refused */
};

enum ident_count {
	IDENT_C_WALKS,	  /* over the mappings of a process */
	IDENT_C_BUSY,	  /* walks that never found the mappings unlocked */
	IDENT_C_CHANGED,  /* sends by another program than the one before */
	IDENT_C_JUDGED,	  /* decisions */
	IDENT_C_OUT,	  /* packets dropped on their way out */
	IDENT_C_IN,	  /* packets dropped on their way in */
	IDENT_C_REFUSED,  /* connect and sendto with EPERM */
	IDENT_C_SOCKETS,  /* sockets that were refused: raw, MPTCP, SMC, no memory */
	IDENT_C_UNKNOWN,  /* decisions about programs that were not known */
	IDENT_C_HOLDERS,  /* sockets with more holders than are remembered */
	IDENT_C_LOST,	  /* events that found the ring full */
	IDENT_C_ADOPTED,  /* sockets that were there before */
	IDENT_C_CUT,	  /* connections that were ended */
	IDENT_C_UNTOLD,	  /* events about what comes in that found their part full */
	IDENT_C_FLOWS,	  /* flows of datagrams that were refused, and noted as such */
	IDENT_C_OVERFLOW, /* new flows from outside beyond IDENT_NEW_FLOWS of their socket
			   */
	IDENT_C_LARGE,	  /* walks that ended at IDENT_STEPS */
	IDENT_C_MAX,
};

_Static_assert(sizeof(struct ident_rule) == 56, "abi");
_Static_assert(sizeof(struct ident_policy) == 144, "abi");
_Static_assert(sizeof(struct ident_control) == 336, "abi");
_Static_assert(sizeof(struct ident_key) == 40, "abi");
_Static_assert(sizeof(struct ident_program) == 272, "abi");
_Static_assert(sizeof(struct ident_executable) == 520, "abi");
_Static_assert(sizeof(struct ident_socket) == 200, "abi");
_Static_assert(sizeof(struct ident_flow_key) == 32, "abi");
_Static_assert(sizeof(struct ident_flow) == 16, "abi");
_Static_assert(sizeof(struct ident_event) == 144, "abi");
_Static_assert(sizeof(struct ident_ended) == 56, "abi");
_Static_assert(sizeof(struct ident_listed) == 80, "abi");

#endif
