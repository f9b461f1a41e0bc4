//! Load balancing: which real of a pool takes which flow. Pure.

pub mod maglev;
