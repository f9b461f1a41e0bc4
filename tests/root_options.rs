//! `weir options` on real traffic: what it puts on packets arrives, and curl and UDP work with
//! it; paths that strip, change and drop options are measured as what they are.

mod common;
#[path = "root_options/connections.rs"]
mod connections;
#[path = "root_options/inject.rs"]
mod inject;
#[path = "root_options/lab.rs"]
mod lab;
#[path = "root_options/output.rs"]
mod output;
#[path = "root_options/probe.rs"]
mod probe;
#[path = "root_options/queue.rs"]
mod queue;
