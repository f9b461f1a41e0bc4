//! Load balancing: which real of a pool takes which flow, and of whom; and the reference that
//! the kernel's programs are tested against (`decision`). Pure.

pub mod acl;
pub mod decision;
pub mod maglev;
pub mod probe;
pub mod quic;
pub mod slot;
pub mod turns;
