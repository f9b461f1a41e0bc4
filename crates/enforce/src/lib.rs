//! Desired versus actual state. [`Backend`] is the trait behind which a decision
//! is carried out, and small ones beside it for what not every backend can; one
//! file or directory per backend, and [`hooks`] for where programs sit. What a ban is *for* (its
//! reason, its evidence) is the daemon's to remember: a backend holds subject,
//! policy and expiry, and outlives the daemon where the kernel lets it.
#![deny(missing_docs)]

pub mod app_queue;
mod backend;
mod backend_feature;
mod backend_kind;
pub mod backend_swap;
mod claim;
mod command;
mod desired_bans;
mod dry_run;
mod entry;
mod error;
mod features;
mod firewall;
pub mod hook_selection;
pub mod hooks;
pub mod ipset;
pub mod kernel;
pub mod nft;
pub mod queue_rules;
mod ranges;
mod settings;

pub use backend::{
    Backend, Balance, ClassCounter, ClassFilter, Counter, DecoyResponder, Decoys, Forwarder,
    InsertError, InsertSummary, NeighbourSnapshot, PacketEvent, PacketEvents, Usage, Work,
};
pub use backend_feature::Feature;
pub use backend_kind::{BackendChoice, Limit};
pub use dry_run::{DryRun, Step};
pub use entry::{BootNanos, Entry, Expiry, Policy};
pub use error::Error;
pub use features::{set_balance, set_classes, set_decoys};
pub use hooks::attachment::Attachment;
pub use settings::Settings;
pub use weir_bpf::decoy::MAX_TARPIT_PREFIXES;
pub use weir_bpf::{
    BanCounts,
    balance::{
        CountedReal, DEFAULT_FLOWS, FLOW_BYTES, FLOWS, KnownReal, MAX_POOLS, MAX_REALS,
        MAX_SERVICES, PoolRules, QuicServer, Real, RealCount, SLOTS, ServiceCount, SlotBy, Tunnel,
        VirtualService, real_id, table_for,
    },
    decoy::{DecoyCounts, TarpitCounts, TarpitLink},
    lock::is_stopped,
};
