/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Tokens: what a SYN, a UDP datagram, or each segment of a connection carries to prove
 * which program sends it. How the MAC is made is said in docs/guide/token.md, and in
 * crates/token, which is the reference. */
#ifndef WEIR_ABI_TOKEN_H
#define WEIR_ABI_TOKEN_H

#include <linux/types.h>

/* Raised when a map below changes its form: pins of another number are replaced. */
#define TOKEN_ABI 5

#define TOKEN_VERSION 1
/* A TCP option for experiments (RFC 4727), told from others by its ExID (RFC 6994). */
#define TOKEN_KIND  254
#define TOKEN_EXID  0x7765
#define TOKEN_BYTES 20
/* Of a datagram: an IPv4 option for experiments, or an option of an IPv6 destination
 * options header that is passed over by who does not know it (both RFC 4727: number 30).
 */
#define TOKEN_IP_KIND 30
/* That header: next header, length, two bytes of padding, the option. */
#define TOKEN_EXTENSION 24
/* Of each segment of a connection whose scope is its payload: a TCP option likewise, the
 * last one in the header, with this bit beside the version. */
#define TOKEN_SEGMENT_BYTES 16
#define TOKEN_SEGMENT_BIT   0x80
/* An epoch in seconds; the one before and the next one are accepted as well. */
#define TOKEN_EPOCH 64
#define TOKEN_SLACK 1

/* [token.require.NAME]: so many. */
#define TOKEN_REQUIREMENTS 64
/* Networks of all of them and of sign_to, of two policies: the next one is written beside
 * the last. */
#define TOKEN_NETWORKS 65536
/* In token_network.networks, the number of sign_to among those of requirements. */
#define TOKEN_SIGN_TO 255
/* The same of sign_udp_to. */
#define TOKEN_SIGN_UDP_TO 254
/* The same of the networks to or from which tokens are not stripped. */
#define TOKEN_KEEP 253
/* From this number on those to which requirements about forwarded packets are. */
#define TOKEN_FORWARD_TO 128
/* Where tokens stand that go to a network of sign_to or sign_udp_to: the lowest byte of
 * the value of token_networks. Nowhere: a network in a larger one to which they go. */
#define TOKEN_BY_NOTHING    0
#define TOKEN_BY_TCP_OPTION 1
#define TOKEN_BY_IP_OPTION  2 /* of IPv6: a destination option */
#define TOKEN_BY_ALL	    0xff
/* Identities that requirements name, and these for each key. */
#define TOKEN_IDENTITIES 1024
#define TOKEN_CLAIMS	 16384
/* Flows between their SYN and the first packet of the accepted socket; the least recently
 * used one goes, and its client begins anew. */
#define TOKEN_FLOWS 65536

/* Connections that a gateway forwards, of those that have proved themselves; the least
 * recently used one goes. */
#define TOKEN_FORWARD_FLOWS 65536

/* Flows of datagrams, of each of three kinds: whose sender has proved himself, that a
 * program here has begun, and that a requirement only logs. The least recently used goes.
 */
#define TOKEN_DATAGRAM_FLOWS 65536
/* So many seconds after its last token, or the last datagram of the program here, a flow
 * goes on without. */
#define TOKEN_DATAGRAM_IDLE 120

/* Interfaces at which segments get their tokens. */
#define TOKEN_INTERFACES 64

/* What a token is about: the flow; or each segment, and what it carries, as well. Of a
 * network of sign_to it stands in the value of token_networks above where tokens go,
 * which is in the TCP header for the payload: so segments have theirs. */
#define TOKEN_SCOPE_FLOW    1
#define TOKEN_SCOPE_PAYLOAD 2
#define TOKEN_SCOPE_SHIFT   8
/* No token at all, but the signature of DAF in each segment: no conduit is beside it. */
#define TOKEN_SCOPE_DAF 3

/* The signature of DAF: an IPv4 option for experiments (RFC 4727), the first one of the
 * header, with HMAC-SHA256 of the TCP payload and of nothing else. */
#define TOKEN_DAF_KIND	0x5e
#define TOKEN_DAF_BYTES 34
/* With the padding behind it. */
#define TOKEN_DAF_ROOM 36

/* Refused packets that are kept, of each outcome: the last ones. */
#define TOKEN_KEPT 64

/* As it stands in the SYN, or in the IP header of a datagram; in IPv6's its length is
 * without the first two bytes. */
struct token_option {
	__u8 kind;
	__u8 len;
	__be16 exid;
	__u8 version;
	__u8 key;
	__be16 epoch; /* the lower half of its number */
	__u8 tag[4];  /* the first bytes of the aggregate */
	__u8 mac[8];
};

/* As it stands in a segment behind the SYN, which has said who it is. */
struct token_segment {
	__u8 kind;
	__u8 len;
	__be16 exid;
	__u8 version; /* with TOKEN_SEGMENT_BIT */
	__u8 key;
	__be16 epoch;
	__u8 mac[8];
};

/* What the MAC is about; of a segment with its length, and then comes the segment itself,
 * from the TCP header on, filled up with zeros to words of eight bytes. In it the
 * checksum and the MAC are zeros. IPv4 as ::ffff:a.b.c.d. */
struct token_statement {
	__u8 version;
	__u8 key;
	__u8 protocol;
	__u8 zero;
	__be32 isn; /* the sequence number of the connection's SYN; of a datagram 0 */
	__be64 epoch;
	__u8 source[16];
	__u8 dest[16];
	__be16 source_port;
	__be16 dest_port;
	__be32 bytes; /* of a segment its length with its header, else 0 */
};

/* A key of SipHash that is one identity's: made of the secret and the aggregate. */
struct token_key {
	__u64 words[2];
};

/* Who signs, at the number of its identity. */
struct token_signer {
	struct token_key key;
	__u8 identity[16]; /* the first half of the aggregate */
	__u32 handle;	   /* ident_program.handle; 0: nobody */
	__u8 key_id;
	__u8 pad[3];
};

/* A socket that begins a connection to where tokens go. */
struct token_socket {
	__u8 identity[16]; /* for which it has signed */
	__u32 changes;	   /* ident_socket.changes when its holders were looked at */
	__u8 is_signed;
	__u8 had_callbacks; /* BPF_SOCK_OPS_WRITE_HDR_OPT_CB was on before */
	__u8 is_payload;    /* each of its segments is to have a token */
	__u8 conduit;	    /* TOKEN_BY_TCP_OPTION, TOKEN_BY_IP_OPTION */
	__be32 isn;	    /* the sequence number of its SYN */
};

struct token_control {
	__u64 keys[4]; /* a bit for each key id that is accepted */
	__u64 cgroup;  /* the id of the control group in which this holds */
	__u64 netns;   /* the cookie of the network namespace of token_interfaces; 0: no
			* segments are signed */
	/* A bit for each requirement of TOKEN_SCOPE_DAF. */
	__u64 daf;
	/* A bit for each requirement about forwarded packets; the others are about
	 * sockets, and about what iptables asks. */
	__u64 forward;
	__u32 generation; /* counts up; its lowest bit says which policy */
	__u32 requirements;
};

/* HMAC-SHA256 with the key of DAF, as it is before the first byte of a message: the state
 * of the inner and of the outer hash behind the block of the key. */
struct token_daf_key {
	__u32 inner[8];
	__u32 outer[8];
	__u32 is_there;
};

/* As it stands in an IPv4 header of 14 words. */
struct token_daf_option {
	__u8 kind;
	__u8 len;
	__u8 mac[32];
	__u8 padding[2]; /* no operation, and the end of the list */
};

#define TOKEN_LOG     0 /* counted, and passes */
#define TOKEN_REQUIRE 1 /* counted, and dropped */

struct token_requirement {
	__u32 networks; /* their number; 0: all sources */
	__u32 to;	/* of forwarded packets: the number of their destinations */
	/* Of forwarded packets: until then (CLOCK_BOOTTIME, nanoseconds) a connection
	 * that is not known is taken for one that was there before; 0: none is. */
	__u64 before_until;
	/* What user space knows it by from one policy to the next. */
	__u64 name;
	__u8 mode;  /* TOKEN_LOG, TOKEN_REQUIRE */
	__u8 scope; /* TOKEN_SCOPE_FLOW, TOKEN_SCOPE_PAYLOAD, TOKEN_SCOPE_DAF */
	__u8 pad[6];
};

/* Network `networks`; IPv4 as ::ffff:a.b.c.d. */
struct token_network {
	__u32 bits; /* 32 and the prefix's length */
	__u32 networks;
	__u8 addr[16];
};

/* An identity that a token may claim with this key. */
struct token_claim {
	__u8 tag[4];
	__u32 key_id;
};

struct token_claimed {
	struct token_key key;
	__u8 identity[16];
};

/* Which requirements an identity meets, of both policies. */
struct token_met {
	__u64 requirements[2];
	__u32 generation[2];
};

struct token_flow_key {
	__u8 source[16];
	__u8 dest[16];
	__be16 source_port;
	__be16 dest_port;
};

/* In token_flow.used: always, then the number of a requirement, and the generation of the
 * control (token_control.generation, of 24 bits). */
#define TOKEN_USED	       1
#define TOKEN_USED_BEFORE      2 /* forwarded: it was there before its requirement */
#define TOKEN_USED_REQUIREMENT 2 /* from this bit on, six */
#define TOKEN_USED_GENERATION  8 /* from this bit on */

/* Who has proved to be its client. */
struct token_flow {
	__u8 identity[16];
	__be32 isn;
	/* 0 until its handshake is over: from then on the same SYN is a replay. With a
	 * generation: in that one a gateway has found the requirement that is about the
	 * flow, and that it names the flow's program. */
	__u32 used;
};

/* A flow of datagrams whose sender has proved himself. */
struct token_datagrams {
	__u8 identity[16];
	__u64 at; /* of the last token: CLOCK_BOOTTIME, nanoseconds */
};

/* An accepted socket, or one that began its connection itself. */
struct token_accepted {
	__u8 identity[16];
	__u32 generation; /* in which `outcome` was found; 0: never */
	__u8 outcome;	  /* token_outcome */
	__u8 requirement;
	__u8 is_proven;
	__u8 is_own;	 /* this host began the connection */
	__u8 is_payload; /* each of its segments is to have a token */
	__u8 pad[3];
	__be32 isn; /* the sequence number of its SYN */
};

/* An interface at which segments get their tokens. */
struct token_interface {
	__u32 segments; /* of a superpacket there, before weir said that it is one */
};

/* What becomes of a packet to a port that wants a token. */
enum token_outcome {
	TOKEN_VALID,  /* a SYN or datagram whose token is right */
	TOKEN_PROVEN, /* a later packet, or datagram without a token, of such a flow */
	TOKEN_FREE,   /* of a source of which none is wanted, of an own connection, of one
		       * that was there before, or what ends one for the next */
	/* From here on refused. */
	TOKEN_MISSING,	 /* a SYN or datagram without one */
	TOKEN_MALFORMED, /* options that contradict themselves, or no header */
	TOKEN_OTHER_VERSION,
	TOKEN_UNKNOWN_KEY, /* or a key that is retired */
	TOKEN_OTHER_EPOCH, /* a replay, or clocks that differ */
	TOKEN_NOT_NAMED,   /* of a program that the requirement does not name */
	TOKEN_WRONG_MAC,   /* forged, or of another flow */
	TOKEN_REPLAYED,	   /* the SYN of a connection that has been */
	TOKEN_NO_FLOW,	   /* a later packet of a flow whose SYN has proved nothing, or a
			    * datagram of one whose last token is too long ago */
	TOKEN_OUTCOMES,
};

/* A packet that was refused. Two CPUs that meet in one entry may mix it. */
struct token_refused {
	__u64 at; /* CLOCK_BOOTTIME, nanoseconds; 0: none yet */
	struct token_flow_key flow;
	__u8 outcome;
	__u8 is_dropped; /* 0: it passed, for its requirement only logs */
	__u8 has_token;	 /* `key` and `tag` are those of its token */
	__u8 key;
	__u8 tag[4];
	__u8 protocol; /* IPPROTO_UDP, or else TCP */
	__u8 pad[3];
};

/* What the side that signs has counted. */
enum token_signing {
	TOKEN_SIGNED,	 /* SYNs with a token */
	TOKEN_NO_SIGNER, /* SYNs without: no key, or not one known program */
	TOKEN_NO_ROOM,	 /* SYNs without: other options are in the way */
	TOKEN_CHANGED,	 /* packets dropped: another program than the one that signed */
	TOKEN_SIGNINGS,
};

/* Datagrams to networks of sign_udp_to. */
enum token_udp_signing {
	TOKEN_UDP_SIGNED,    /* with a token */
	TOKEN_UDP_NO_SIGNER, /* without: no key, or not one known program */
	TOKEN_UDP_TOO_BIG,   /* without: longer than the path or the device takes */
	TOKEN_UDP_NO_ROOM,   /* without: other options or extension headers are in the way
			      */
	TOKEN_UDP_FRAGMENT,  /* without: in fragments */
	TOKEN_UDP_REFUSED, /* without: the kernel made no room, or a frame of another form
			    */
	TOKEN_UDP_BROKEN,  /* dropped: the kernel failed with a part of it written */
	TOKEN_UDP_SIGNINGS,
};

/* Tables of flows of datagrams (TOKEN_DATAGRAM_FLOWS). */
enum token_udp_table {
	TOKEN_UDP_PROVEN, /* whose sender has proved himself */
	TOKEN_UDP_OWN,	  /* that a program here has begun */
	TOKEN_UDP_LOGGED, /* that a requirement only logs */
	TOKEN_UDP_TABLES,
};

/* Segments of connections whose scope is the payload, or with the signature of DAF. All
 * but the first kind are dropped. */
enum token_segment_signing {
	TOKEN_SEGMENT_SIGNED,
	TOKEN_SEGMENT_NO_SIGNER, /* no key, or not one known program */
	TOKEN_SEGMENT_SUPER,	 /* several in one superpacket (GSO) */
	TOKEN_SEGMENT_NO_PLACE,	 /* leaves by an interface where none are signed, or from
				  * another network namespace: then it is the SYN */
	TOKEN_SEGMENT_NO_ROOM,	 /* other options are in the way */
	TOKEN_SEGMENT_BROKEN,	 /* the kernel failed */
	TOKEN_SEGMENT_TOO_BIG, /* of DAF: longer than the device takes, or in fragments */
	TOKEN_SEGMENT_SIGNINGS,
};

/* Packets whose tokens were overwritten (strip.h), by where these stood. */
enum token_stripping {
	TOKEN_STRIPPED_IN_TCP,
	TOKEN_STRIPPED_IN_IP, /* an option of IPv4, that of DAF as well, or of IPv6 */
	TOKEN_STRIPPED_OUT_TCP,
	TOKEN_STRIPPED_OUT_IP,
	TOKEN_STRIP_BROKEN, /* dropped: the kernel failed */
	TOKEN_STRIPPINGS,
};

_Static_assert(sizeof(struct token_option) == TOKEN_BYTES, "abi");
_Static_assert(sizeof(struct token_segment) == TOKEN_SEGMENT_BYTES, "abi");
_Static_assert(sizeof(struct token_statement) == 56, "abi");
_Static_assert(sizeof(struct token_signer) == 40, "abi");
_Static_assert(sizeof(struct token_socket) == 28, "abi");
_Static_assert(sizeof(struct token_control) == 72, "abi");
_Static_assert(sizeof(struct token_requirement) == 32, "abi");
_Static_assert(sizeof(struct token_daf_key) == 68, "abi");
_Static_assert(sizeof(struct token_daf_option) == TOKEN_DAF_ROOM, "abi");
_Static_assert(sizeof(struct token_network) == 24, "abi");
_Static_assert(sizeof(struct token_claim) == 8, "abi");
_Static_assert(sizeof(struct token_claimed) == 32, "abi");
_Static_assert(sizeof(struct token_met) == 24, "abi");
_Static_assert(sizeof(struct token_flow_key) == 36, "abi");
_Static_assert(sizeof(struct token_flow) == 24, "abi");
_Static_assert(sizeof(struct token_datagrams) == 24, "abi");
_Static_assert(sizeof(struct token_accepted) == 32, "abi");
_Static_assert(sizeof(struct token_refused) == 56, "abi");

#endif
