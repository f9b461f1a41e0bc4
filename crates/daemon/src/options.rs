//! What `weir options` does on this host, without a daemon: puts options on packets that
//! leave (`inject`).

pub mod inject;
mod queue;
