// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* A host proves to another which program began a connection: by a token in the SYN, as a
 * TCP option, which is bound to the flow; or which one sends UDP datagrams, by the same
 * in their IP headers; or it signs each segment of the connection with what it carries.
 *
 *   sockops             the SYN of a known program gets its token (sign.h)
 *   cgroup_skb/egress   on such a connection nobody else sends (sign.h)
 *   tc egress           a datagram of a known program gets its token (sign_datagram.h)
 *   tc egress           so does each segment, where the scope is the payload
 *                       (sign_segment.h)
 *   tc egress           so does each segment where the other side has DAF (sign_daf.h)
 *   tc ingress          and what the path takes is reckoned with it (sign_daf.h)
 *   cgroup_skb/ingress  a port that wants tokens takes no other connections (receive.h),
 *                       and no other datagrams (datagram.h)
 *   cgroup_skb/egress   datagrams that begin a flow from such a port (datagram.h)
 *   socket filter       the same for iptables on a gateway (match.h)
 *
 * What a gateway forwards is judged by programs of their own (gateway.bpf.c).
 *
 * In a control group, not at an interface, where that is possible: there the sender's and
 * the receiver's sockets are known, and packets are whole. */
#include "token/match.h"
#include "token/sign_segment.h"
#include "token/sign_daf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
