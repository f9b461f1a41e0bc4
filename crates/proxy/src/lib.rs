//! A proxy of layer 4: accepts connections and datagrams at virtual addresses and relays
//! them to the reals behind these. It knows nothing of pools, checks and configuration:
//! it is given [`ProxyService`]s, asks the [`Chooser`] of each for a real, holds its
//! [`Limits`], and counts. It logs nothing, because what a client can cause may not fill
//! a log: whoever reads the counters says so.
//!
//! [`Engine`] is the control's end, [`Worker`] the work of one thread. Every worker has a
//! listening socket of its own at each address (SO_REUSEPORT), and a connection stays in
//! the worker that accepted it.

mod clients;
mod counters;
mod datagrams;
mod direction;
mod engine;
mod pipes;
mod poller;
mod proxy_header;
mod relay;
mod service;
mod socket;
mod table;
mod worker;

pub use clients::MAX_TRACKED_CLIENTS;
pub use counters::{Counter, RealCounters, ServiceCounters};
pub use engine::{Engine, NotListening};
pub use service::{
    Chooser, Flow, Group, Limits, Protocol, ProxyHeader, ProxyService, Real, RealState,
};
pub use worker::Worker;
