//! A packet path with a few bans, the reference with the same, and how a hook is asked.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_bpf::{
    BanCounts, Generation, Geometry, Key, Options, Slot, attachment::Hook, prog_test_run,
    small_maps, table::NEVER, tables::POLICY_SCOPED,
};
use weir_core::{Action, PortSet, Prefix, Reason};
use weir_testkit::decode::{self, Allow, Decoded, Table, Verdict, reference_verdict};

pub(crate) const HOST4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);
pub(crate) const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];

/// A generation with bans, and the same bans as the reference has them.
pub(crate) struct Path {
    pub(crate) generation: Generation,
    pub(crate) table: Table,
    pub(crate) allow: Allow,
    pub(crate) observe: bool,
}

impl Path {
    pub(crate) fn new() -> Self {
        let options = Options {
            seed: [11, 22, 33],
            v4_length: 24,
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        // Where BPF_PROG_RUN has its packets come in.
        generation.judge_interface(0).unwrap();
        let table = Table {
            fixed_v4: Some(24),
            ..Table::default()
        };
        let mut path = Self {
            generation,
            table,
            allow: Allow::default(),
            observe: false,
        };
        for subject in [
            "192.0.2.7",
            "198.51.100.0/24",
            "2001:db8:1::/64",
            "2001:db8:2::7",
        ] {
            path.ban(subject, "all", 1);
        }
        for subject in [
            "192.0.2.8",
            "198.51.101.0/24",
            "2001:db8:3::/64",
            "2001:db8:2::8",
        ] {
            path.ban(subject, "22/tcp,6000-6010/udp,53", 2);
        }
        // Two bans on one subject: of two jails, of host and net.
        path.ban("192.0.2.9", "22/tcp", 3);
        path.ban("192.0.2.9", "80/tcp", 4);
        path.ban("2001:db8:3::9", "80/tcp", 4);
        path.ban("198.51.101.5", "all", 1);
        path.allow(&[
            "198.51.100.64/26",
            "192.0.2.10",
            "2001:db8:1:0:8::/80",
            "2001:db8:2::a",
            "0.1.2.10",
            "::a",
        ]);
        path.ban("192.0.2.10", "all", 1);
        path.ban("2001:db8:2::a", "22", 5);
        path
    }

    pub(crate) fn ban(&mut self, subject: &str, scope: &str, number: u16) {
        let prefix: Prefix = subject.parse().unwrap();
        let scope: PortSet = scope.parse().unwrap();
        small_maps::write_policy(
            &self.generation.policies,
            number.into(),
            &scope,
            Action::Drop,
            "test",
        )
        .unwrap();
        let policy = if scope.is_all() {
            number
        } else {
            number | POLICY_SCOPED
        };
        let key = Key::of(prefix).unwrap();
        self.generation.table.insert(Slot {
            key,
            policy,
            expiry: NEVER,
        });
        let ranges = scope.ranges().iter().map(|r| decode::PortRange {
            proto: Some(r.protocol.number()).filter(|n| *n != 0),
            lo: r.low,
            hi: r.high,
        });
        let scope = if scope.is_all() {
            decode::Scope::all()
        } else {
            decode::Scope::ports(ranges)
        };
        self.table
            .ban(decode::Prefix::new(prefix.addr(), prefix.bits()), scope);
    }

    pub(crate) fn allow(&mut self, prefixes: &[&str]) {
        let prefixes: Vec<Prefix> = prefixes.iter().map(|p| p.parse().unwrap()).collect();
        self.allow.prefixes = prefixes
            .iter()
            .map(|p| decode::Prefix::new(p.addr(), p.bits()))
            .collect();
        self.generation
            .allow
            .write(&prefixes.into_iter().collect())
            .unwrap();
    }

    pub(crate) fn run(&self, hook: Hook, frame: &[u8]) -> prog_test_run::RunResult {
        let program = self.generation.program(hook).unwrap();
        match hook {
            Hook::Netfilter => prog_test_run::netfilter(program, frame),
            _ => prog_test_run::packet(program, frame, 1),
        }
        .expect("the program runs")
    }

    /// What the reference says, in the packet path's words.
    pub(crate) fn expected(&self, decoded: &Decoded) -> (bool, Reason) {
        use decode::Reason as R;
        let (verdict, reason) = reference_verdict(decoded, &self.table, &self.allow);
        let reason = match reason {
            R::BannedAll | R::BannedScope if self.observe => Reason::Observed,
            R::Pass => Reason::Pass,
            R::NotIp => Reason::NotIp,
            R::Malformed => Reason::Malformed,
            R::InvalidSource | R::TooManyTags if self.observe => Reason::Observed,
            R::InvalidSource => Reason::InvalidSource,
            R::TooManyTags => Reason::TooManyTags,
            R::Allowed => Reason::Allowed,
            R::BannedAll => Reason::BannedAll,
            R::BannedScope => Reason::BannedScope,
            R::OtherPort => Reason::OtherPort,
            R::Essential => Reason::Essential,
        };
        (verdict == Verdict::Drop && !self.observe, reason)
    }

    pub(crate) fn counters(&self) -> [(u64, u64); Reason::ALL.len()] {
        small_maps::read_counters(&self.generation.counters)
            .unwrap()
            .try_into()
            .unwrap()
    }
}

pub(crate) fn word(hook: Hook, drop: bool) -> u32 {
    match (hook, drop) {
        (Hook::Tcx, false) => u32::MAX,
        (Hook::Tcx, true) => 2,
        (Hook::Netfilter, drop) => u32::from(!drop),
        (_, false) => 2,
        (_, true) => 1,
    }
}

/// BPF_PROG_RUN of tc programs refuses (EINVAL) an skb whose IP header is not whole,
/// and that of netfilter programs what is not IP besides; the NAPI_FRAGS test sends
/// such ones over a device.
pub(crate) fn runs_on(hook: Hook, frame: &[u8]) -> bool {
    let least = match frame[12..14] {
        [0x08, 0x00] => 34,
        [0x86, 0xdd] => 54,
        _ => 15,
    };
    match hook {
        Hook::Tcx => frame.len() >= least,
        Hook::Netfilter => least > 15 && frame.len() >= least,
        _ => true,
    }
}
