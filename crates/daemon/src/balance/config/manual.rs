//! The sections of pools in weir.toml(5).

use weir_config::manual::{
    Case, NONE, Table,
    Usual::{By, Is, Means, Required},
    key,
};

use super::super::proxy_config;

/// `[balance]` and `[pool.NAME]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[
    proxy_config::MANUAL,
    Table {
        name: "balance",
        about: "Load balancing by direct server return: packets for the virtual addresses of the pools go on to a real server, which answers the client itself.",
        needs: &[("interface", "\"eth0\"")],
        keys: &[
            key(
                "interface",
                Required,
                "The interface on whose network segment the reals are.",
            ),
            key(
                "announce",
                Is("false"),
                "With true, weir adds the virtual addresses to the interface itself, once nobody else on the segment has them, and announces them. Of several weirs with one configuration only one may.",
            ),
            key(
                "flows",
                Is("65536"),
                "The flows that are remembered and stay with their real when their pool changes: 1024-4194304, made the next power of two. Each takes 32 bytes of the kernel's memory, used or not: 2 MiB as it is, 32 MiB for 1048576. One for sixteen of them may begin on each processor in 256 timer ticks (about a second). The table is made with the first start of an instance; with another number it stays, and an alert says so, until weir is stopped, weir detach forgets all flows, and weir is started.",
            ),
        ],
    },
    Table {
        name: "pool.NAME",
        about: "Virtual addresses, and the reals (servers) that serve them. Each real has the virtual addresses on its loopback interface, but where a proxy serves it.",
        needs: &[
            ("vip", "[\"192.0.2.80\"]"),
            ("ports", "[\"80/tcp\"]"),
            ("reals", "[{ address = \"192.0.2.11\" }]"),
        ],
        keys: &[
            key(
                "vip",
                Required,
                "The virtual addresses, IPv4 and IPv6. This host has them on an interface, so that it answers ARP and neighbour discovery for them: by announce in [balance], or because an administrator has added them.",
            ),
            key(
                "ports",
                Required,
                "The ports that the pool serves: \"80/tcp\", \"8000-8003/tcp\". \"1-65535/tcp\" is all of TCP, \"all\" all of TCP and UDP, but for those that another pool names at the same virtual address; check then needs its port. Services of this host at that address are reached no more. Not all with forward = \"proxy\".",
            ),
            key(
                "reals",
                Required,
                "The reals, a table each; see below. One address is enough for both families, for packets are sent to its link-layer address.",
            ),
            key(
                "acl",
                Means("everybody is served"),
                "Which clients are served: rules of which the first that fits decides, such as \"deny 203.0.113.0/24\", \"allow country:DE\", \"deny continent:AF\", \"allow list:NAME\" (a [list.NAME]).",
            ),
            key(
                "acl_default",
                Means("required with acl"),
                "What becomes of clients that no rule of acl is about: \"allow\" or \"deny\".",
            ),
            key(
                "emergency",
                NONE,
                "Who takes new flows while no real of the pool takes any: a list of reals as in reals, or the name of another pool, whose reals then have these virtual addresses as well.",
            ),
            key(
                "method",
                Is("\"maglev\""),
                "How a new flow finds its real: \"maglev\" is a consistent hash of both addresses and ports with weights, the same on every weir; \"source-hash\" one of the client's address, so that all of a client's flows go to one real; \"source-port-hash\" one of its address and port; \"round-robin\" gives each real its turn, by weight; \"least-connections\" takes the real with fewer live connections for its weight: with forward = \"proxy\" of all reals, otherwise of two that a hash finds.",
            ),
            key(
                "slow_start",
                Is("\"0s\""),
                "So long the share of a real that comes back grows to its weight.",
            ),
            key(
                "forward",
                Is("\"l2\""),
                "How packets reach the reals: \"l2\" on the segment of the interface, by their link-layer addresses; \"ipip\" and \"gue\" beyond routers, in an outer packet to the real's own address: IP in IP, either family in either, or GUE (UDP). The real takes them out: weir real-side --decap. With \"proxy\" this host accepts connections and datagrams at the virtual addresses and relays them to the reals, wherever they are: it needs no [balance], and the reals need no virtual address.",
            ),
            key(
                "gue_port",
                By(&[Case {
                    value: "6080",
                    when: "",
                    with: &[("forward", "\"gue\"")],
                    without: &[],
                }]),
                "With forward = \"gue\": the UDP port of the reals.",
            ),
            key(
                "tunnel_source",
                Means("that of the route to the real"),
                "With \"ipip\" and \"gue\": the source of outer packets, one address of this host of each family.",
            ),
            key(
                "check",
                Means("a TCP connection to the pool's first TCP port each 2s"),
                "How it is found out whether a real lives; a table, see below.",
            ),
            proxy_config::PROXY_PROTOCOL,
            proxy_config::TRANSPARENT,
            proxy_config::MAX_CONNECTIONS,
            proxy_config::MAX_CONNECTIONS_PER_CLIENT,
            proxy_config::CONNECT_TIMEOUT,
            proxy_config::IDLE_TIMEOUT,
            proxy_config::UDP_TIMEOUT,
        ],
    },
    Table {
        name: "pool.NAME.reals",
        about: "A server of the pool; also as { address = ... } in the list.",
        needs: &[("address", "\"192.0.2.11\"")],
        keys: &[
            key(
                "address",
                Required,
                "Its own address, at which it is checked and found on the segment.",
            ),
            key(
                "weight",
                Is("1"),
                "Its share of the flows, beside those of the others; 0 takes no new flows, and flows that it has stay.",
            ),
            key(
                "port",
                Means("the one that the client asked for"),
                "With forward = \"proxy\": the port at which the real serves, whichever of the pool's the client asked for. It is checked there, too, unless check has a port.",
            ),
            key(
                "quic_server_id",
                Means("QUIC connections are known by addresses and ports"),
                "The server ID that the real's server writes into the QUIC connection IDs that it chooses, as QUIC-LB's configuration 0 has it in plaintext: 2 to 16 hexadecimal digits, as many for each real of the pool. A connection whose client changes its address or port then stays with the real. All ports of UDP that the pool serves are taken for QUIC's.",
            ),
        ],
    },
    Table {
        name: "pool.NAME.check",
        about: "Asks each real at its own address, and at the pool's virtual addresses as well (vip), unless forward is \"proxy\". Without http, dns and udp a TCP connection is all that is asked.",
        needs: &[],
        keys: &[
            key(
                "http",
                NONE,
                "Asks with GET for this path; the status of the answer decides. Redirects are not followed.",
            ),
            key(
                "host",
                Means("the real's address and port"),
                "With http: the Host of the request.",
            ),
            key(
                "status",
                Means("those of 2xx and 3xx"),
                "With http: which statuses the answer of a live real has.",
            ),
            key(
                "dns",
                NONE,
                "Asks for this name over UDP (type A); any answer without an error (NOERROR) is life.",
            ),
            key(
                "udp",
                NONE,
                "Sends this text as a datagram; \"port unreachable\" says that the real is down, silence does not.",
            ),
            key(
                "require_answer",
                Means("silence is life"),
                "With udp: silence says that the real is down, too.",
            ),
            key(
                "command",
                NONE,
                "Runs this command, without a shell and as the user of watches, with WEIR_REAL, WEIR_VIP, WEIR_PORT and WEIR_POOL in its environment; exit code 0 is life. Nobody but root may be able to change it.",
            ),
            key(
                "port",
                Means("the pool's first TCP port; with dns and udp the first UDP port"),
                "Which port.",
            ),
            key("interval", Is("\"2s\""), "How often."),
            key("timeout", Is("\"1s\""), "How long it may take."),
            key(
                "rise",
                Is("2"),
                "So many successes in a row bring a dead real back.",
            ),
            key("fall", Is("3"), "So many failures in a row make it dead."),
            key(
                "vip",
                Is("true"),
                "Whether a real that passes must answer at the pool's virtual addresses, too, by TCP and on the way of clients' packets (to its link-layer address, or through the tunnel): one that has them not on its loopback interface, or does not take the encapsulation off, is down. Of pools with a TCP port. Not true with forward = \"proxy\".",
            ),
        ],
    },
];
