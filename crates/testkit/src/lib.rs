//! What tests, the bench and the demo have beside a virtual network
//! (`weir-netlab`): packets, random ones by a seed, real clients and servers, a file
//! system that hangs, GeoIP databases. No part of weir links it. Nothing here asserts:
//! what is right is for the caller to say. The exception is knowledge, not judgement:
//! `decode` holds the reference decoder and verdict, written from the RFCs and
//! sharing no code with the packet path.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod agents;
pub mod decode;
pub mod fuse;
pub mod mmdb;
pub mod packet;
pub mod random;
pub mod sshd;
pub mod traffic;
