//! Measures between sites which options of packets pass, are stripped, altered or dropped.
//!
//! Without input and output: packets that carry an option (`probe_packet`), packets taken
//! apart (`packet`), what became of the option (`verdict`), results kept (`result_file`) and
//! shown (`matrix`), captures (`pcap`), what both sides say to each other (`agent_protocol`).
//! With it: the `agent` that sends and receives at a site, the `site` as it is reached, and a
//! pair of them measured (`measure`).
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod agent;
pub mod agent_protocol;
pub mod matrix;
pub mod measure;
pub mod own_file;
pub mod packet;
pub mod pcap;
pub mod probe_packet;
pub mod result_file;
pub mod site;
mod site_address;
pub mod verdict;
