//! The one table of what is compared: a row's name, which sources the flood
//! has, how it is set up, and where its drops are counted. A row is taken away
//! by its [`Running`] value's end. To add one, add a line to [`HOOKS`].

use weir_bpf::{attachment::Hook as KernelHook, bare::BareHook};
use weir_enforce::BackendChoice;

use super::{
    programs,
    rules::{self, Ends},
    sockets,
    task::{Running, Sources, Task},
    weir,
};

/// A row of the table.
pub struct Hook {
    /// The row's name in tables, and for `--hooks`.
    pub name: &'static str,
    /// The paper's word for it, if it is there.
    pub paper: Option<&'static str>,
    /// The flood's sources.
    pub sources: Sources,
    /// The counter that counts the row's drops.
    pub counted: &'static str,
    /// Sets it up. An error means that this machine does not have it, and
    /// names the step that found out.
    pub start: fn(&Task) -> anyhow::Result<Box<dyn Running>>,
}

const SOCKET: &str = "datagrams received";
const REFUSED: &str = "UDP InErrors";
const RULE: &str = "the rule's counter";
const MAP: &str = "the program's map";
const REASONS: &str = "weir's reasons";
/// A row of the paper's rule: any source.
const fn any(
    name: &'static str,
    paper: Option<&'static str>,
    counted: &'static str,
    start: fn(&Task) -> anyhow::Result<Box<dyn Running>>,
) -> Hook {
    Hook {
        name,
        paper,
        sources: Sources::Any,
        counted,
        start,
    }
}

/// A row with a table of [`BANS`].
const fn banned(
    name: &'static str,
    counted: &'static str,
    start: fn(&Task) -> anyhow::Result<Box<dyn Running>>,
) -> Hook {
    Hook {
        name,
        paper: None,
        sources: Sources::Banned,
        counted,
        start,
    }
}

/// A row with a table of a single source.
const fn one(
    name: &'static str,
    counted: &'static str,
    start: fn(&Task) -> anyhow::Result<Box<dyn Running>>,
) -> Hook {
    Hook {
        name,
        paper: None,
        sources: Sources::One,
        counted,
        start,
    }
}

/// From the top of the stack to the bottom.
pub const HOOKS: &[Hook] = &[
    any("userspace", Some("userspace"), SOCKET, |t| {
        sockets::receive(t, true)
    }),
    any("userspace-notrack", Some("sem conntrack"), SOCKET, |t| {
        sockets::receive(t, false)
    }),
    any("cbpf-socket", Some("BPF socket"), REFUSED, sockets::classic),
    any("ebpf-socket", Some("eBPF socket"), MAP, sockets::extended),
    any("cgroup_skb", None, MAP, sockets::cgroup),
    any("iptables-input", Some("ipt input"), RULE, rules::input),
    any("iptables-raw", Some("ipt prerouting"), RULE, rules::raw),
    any("nft-prerouting", None, RULE, rules::nft_prerouting),
    any("netfilter-bpf", None, MAP, |t| {
        programs::attach(t, BareHook::Netfilter)
    }),
    any("nft-ingress", Some("nft ingress"), RULE, rules::nft_ingress),
    any("tc-u32", Some("tc"), "the qdisc's drops", rules::u32_drop),
    any("cls_bpf", None, MAP, |t| {
        programs::attach(t, BareHook::ClsBpf)
    }),
    any("tcx", None, MAP, |t| programs::attach(t, BareHook::Tcx)),
    any("xdp-generic", Some("XDP"), MAP, |t| {
        programs::attach(t, BareHook::XdpGeneric)
    }),
    any("xdp", None, MAP, |t| programs::attach(t, BareHook::Xdp)),
    banned("ipset-131k", RULE, |t| rules::ipset(t, Ends::Never)),
    banned("ipset-timeout-131k", RULE, |t| {
        rules::ipset(t, Ends::InADay)
    }),
    banned("nft-set-131k", RULE, |t| rules::nft_set(t, Ends::Never)),
    banned("nft-set-timeout-131k", RULE, |t| {
        rules::nft_set(t, Ends::InADay)
    }),
    banned("xdp-hash-131k", MAP, |t| {
        programs::attach(t, BareHook::XdpHash)
    }),
    banned("weir-ipset-131k", REASONS, |t| {
        weir::start(t, BackendChoice::Ipset)
    }),
    banned("weir-nft-131k", REASONS, |t| {
        weir::start(t, BackendChoice::Nft)
    }),
    banned("weir-netfilter-131k", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::Netfilter))
    }),
    banned("weir-cls_bpf-131k", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::ClsBpf))
    }),
    banned("weir-tcx-131k", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::Tcx))
    }),
    banned("weir-xdp-generic-131k", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::XdpGeneric))
    }),
    banned("weir-xdp-131k", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::Xdp))
    }),
    one("xdp-hash-1", MAP, |t| {
        programs::attach(t, BareHook::XdpHash)
    }),
    one("weir-ipset-1", REASONS, |t| {
        weir::start(t, BackendChoice::Ipset)
    }),
    one("weir-nft-1", REASONS, |t| {
        weir::start(t, BackendChoice::Nft)
    }),
    one("weir-netfilter-1", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::Netfilter))
    }),
    one("weir-cls_bpf-1", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::ClsBpf))
    }),
    one("weir-tcx-1", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::Tcx))
    }),
    one("weir-xdp-generic-1", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::XdpGeneric))
    }),
    one("weir-xdp-1", REASONS, |t| {
        weir::start(t, BackendChoice::Kernel(KernelHook::Xdp))
    }),
];
