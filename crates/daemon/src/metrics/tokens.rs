//! Tokens: connections that leave with one, and ports that want one.

use weir_metrics::{Gauges, Registry, Samples, Totals};

use crate::token::TokenStatus;

/// What the side that signs has counted, and each requirement of the one that verifies.
#[derive(Debug)]
pub struct TokenMetrics {
    syns: Totals<1>,
    changed: Totals<0>,
    datagrams: Totals<1>,
    segments: Totals<1>,
    signers: Gauges<0>,
    packets: Totals<2>,
    refused: Totals<1>,
    flows: Gauges<1>,
    evicted: Totals<1>,
    connections: Gauges<0>,
    connections_evicted: Totals<0>,
    stripped: Totals<2>,
    strip_broken: Totals<0>,
}

impl TokenMetrics {
    pub(super) fn declare(registry: &mut Registry) -> Self {
        Self {
            syns: registry.totals(
                "weir_token_syns_total",
                "SYNs to networks of sign_to: signed, or why not: without-signer, without-room.",
                &["result"],
            ),
            changed: registry.totals(
                "weir_token_changed_packets_total",
                "Packets dropped because another program held the connection than the one that had signed.",
                &[],
            ),
            datagrams: registry.totals(
                "weir_token_datagrams_total",
                "UDP datagrams to networks of sign_udp_to: signed, or why not: without-signer, too-big, without-room, fragment, refused; dropped are broken ones.",
                &["result"],
            ),
            segments: registry.totals(
                "weir_token_segments_total",
                "Segments to networks of sign_to with scope payload or compat: signed, or why they were dropped: without-signer, superpacket, without-interface, without-room (fragments too), broken, too-big (compat: TCP was told, and sends them again).",
                &["result"],
            ),
            signers: registry.gauges("weir_token_signers", "Programs that can sign.", &[]),
            packets: registry.totals(
                "weir_token_packets_total",
                "Packets to ports that want a token, by what became of them: valid and proven, free (UDP: answers to what a program here has begun), or why they are refused.",
                &["requirement", "outcome"],
            ),
            refused: registry.totals(
                "weir_token_refused_total",
                "Packets refused for want of a valid token: dropped, or in mode log only counted.",
                &["requirement"],
            ),
            flows: registry.gauges(
                "weir_token_udp_flows",
                "Flows of UDP datagrams that are remembered: proven, own (a program here has begun them), logged; 65,536 of each at most.",
                &["table"],
            ),
            evicted: registry.totals(
                "weir_token_udp_flows_evicted_total",
                "Flows of UDP datagrams that were forgotten because 65,536 others were used later.",
                &["table"],
            ),
            connections: registry.gauges(
                "weir_token_forward_connections",
                "TCP connections that this host forwards and that have proved themselves; 65,536 at most.",
                &[],
            ),
            connections_evicted: registry.totals(
                "weir_token_forward_connections_evicted_total",
                "Such connections that were forgotten because 65,536 others were used later.",
                &[],
            ),
            stripped: registry.totals(
                "weir_token_stripped_packets_total",
                "Packets whose tokens were overwritten at an uplink, by where these stood: tcp, or ip (signatures of DAF too).",
                &["direction", "header"],
            ),
            strip_broken: registry.totals(
                "weir_token_strip_dropped_total",
                "Packets dropped at an uplink because they could not be looked through (more than 4 VLAN tags, more than 128 options in an IPv6 header), or the kernel failed while a token was overwritten.",
                &[],
            ),
        }
    }

    pub(crate) fn say(&self, samples: &mut Samples, token: &TokenStatus) {
        if let Some(signing) = &token.signing {
            samples.total(self.syns, ["signed"], signing.signed);
            samples.total(self.syns, ["without-signer"], signing.without_signer);
            samples.total(self.syns, ["without-room"], signing.without_room);
            samples.total(self.changed, [], signing.changed);
            if let Some(udp) = &signing.udp {
                for (result, count) in [
                    ("signed", udp.signed),
                    ("without-signer", udp.without_signer),
                    ("too-big", udp.too_big),
                    ("without-room", udp.without_room),
                    ("fragment", udp.fragments),
                    ("refused", udp.refused),
                    ("broken", udp.broken),
                ] {
                    samples.total(self.datagrams, [result], count);
                }
            }
            if let Some(segments) = &signing.segments {
                for (result, count) in [
                    ("signed", segments.signed),
                    ("without-signer", segments.without_signer),
                    ("superpacket", segments.superpacket),
                    ("without-interface", segments.without_interface),
                    ("without-room", segments.without_room),
                    ("broken", segments.broken),
                    ("too-big", segments.too_big),
                ] {
                    samples.total(self.segments, [result], count);
                }
            }
            samples.gauge(self.signers, [], signing.programs as u64);
        }
        for requirement in &token.requirements {
            for (outcome, count) in &requirement.outcomes {
                samples.total(self.packets, [&requirement.name, outcome], *count);
            }
            samples.total(self.refused, [&requirement.name], requirement.refused);
        }
        if let Some(forward) = &token.forward {
            let of = &forward.connections;
            samples.gauge(self.connections, [], of.flows);
            samples.total(self.connections_evicted, [], of.evicted);
        }
        if let Some(strip) = &token.strip {
            for (direction, header, count) in [
                ("in", "tcp", strip.in_tcp),
                ("in", "ip", strip.in_ip),
                ("out", "tcp", strip.out_tcp),
                ("out", "ip", strip.out_ip),
            ] {
                samples.total(self.stripped, [direction, header], count);
            }
            samples.total(self.strip_broken, [], strip.broken);
        }
        if let Some(flows) = &token.datagram_flows {
            for (table, of) in [
                ("proven", &flows.proven),
                ("own", &flows.own),
                ("logged", &flows.logged),
            ] {
                samples.gauge(self.flows, [table], of.flows);
                samples.total(self.evicted, [table], of.evicted);
            }
        }
    }
}
