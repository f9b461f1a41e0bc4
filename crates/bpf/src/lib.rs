//! The only crate with libbpf: builds `bpf/`, loads and pins the packet path,
//! and gives typed access to its tables. What to put into them is decided in
//! `weir-enforce`.
#![deny(missing_docs)]
#![allow(
    unsafe_code,
    reason = "system calls and shared memory with the kernel live here"
)]

pub mod abi;
pub mod allow;
pub mod answers;
pub mod arenas;
pub mod attachment;
pub mod balance;
pub mod bare;
pub mod class;
pub mod clients;
pub mod clock;
pub mod cls_bpf;
pub mod decap;
pub mod decoy;
pub mod device;
mod error;
pub mod events;
pub mod fault;
pub mod generator;
mod group_link;
#[cfg(test)]
mod headers;
pub mod identity;
pub mod inject;
mod interfaces;
pub mod lease;
pub mod lock;
pub mod loop_device;
mod mapped;
mod maps;
mod memory;
mod netfilter;
pub mod object;
pub mod offload;
pub mod pins;
pub mod power;
pub mod prefix_bans;
pub mod probe;
pub mod prog_test_run;
pub mod programs;
pub mod rcu;
mod ring_reader;
pub mod small_maps;
pub mod table;
pub mod tables;
pub mod token;
pub mod writers;

pub use answers::AnswerProgram;
pub use class::{ClassImage, ClassTable};
pub use clock::JiffyClock;
pub use error::{Error, Result};
pub use prefix_bans::{PrefixBan, PrefixBanPlaced, PrefixBans};
pub use table::{BanCounts, BanTable, Geometry, Key, Placed, PortFeatures, Slot};
pub use tables::{Generation, Options};

/// The generated skeletons: types of `bpf/abi/*.h`, maps, programs.
#[allow(
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]
pub mod skeleton {
    /// `bpf/firewall/firewall.bpf.c`
    pub mod firewall {
        include!(concat!(env!("OUT_DIR"), "/firewall.skel.rs"));
    }
    /// `bpf/answer/answer.bpf.c`
    pub mod answer {
        include!(concat!(env!("OUT_DIR"), "/answer.skel.rs"));
    }
    /// `bpf/balance/decap.bpf.c`
    pub mod decap {
        include!(concat!(env!("OUT_DIR"), "/decap.skel.rs"));
    }
    /// `bpf/identity/identity.bpf.c`
    pub mod identity {
        include!(concat!(env!("OUT_DIR"), "/identity.skel.rs"));
    }
    /// `bpf/identity/writers.bpf.c`
    pub mod writers {
        include!(concat!(env!("OUT_DIR"), "/writers.skel.rs"));
    }
    /// `bpf/options/connections.bpf.c`
    pub mod connections {
        include!(concat!(env!("OUT_DIR"), "/connections.skel.rs"));
    }
    /// `bpf/options/inject.bpf.c`
    pub mod inject {
        include!(concat!(env!("OUT_DIR"), "/inject.skel.rs"));
    }
    /// `bpf/token/token.bpf.c`
    pub mod token {
        include!(concat!(env!("OUT_DIR"), "/token.skel.rs"));
    }
    /// `bpf/token/gateway.bpf.c`
    pub mod gateway {
        include!(concat!(env!("OUT_DIR"), "/gateway.skel.rs"));
    }
    /// `bpf/token/forward_xdp.bpf.c`
    pub mod forward_xdp {
        include!(concat!(env!("OUT_DIR"), "/forward_xdp.skel.rs"));
    }
    /// `bpf/token/gate.bpf.c`
    pub mod gate {
        include!(concat!(env!("OUT_DIR"), "/gate.skel.rs"));
    }
    /// `bpf/tools/generator.bpf.c`
    pub mod generator {
        include!(concat!(env!("OUT_DIR"), "/generator.skel.rs"));
    }
    /// `bpf/tools/hooks.bpf.c`
    pub mod hooks {
        include!(concat!(env!("OUT_DIR"), "/hooks.skel.rs"));
    }
    /// `bpf/tools/clock.bpf.c`
    pub mod clock {
        include!(concat!(env!("OUT_DIR"), "/clock.skel.rs"));
    }
}
