//! libzmq, opened when it is first asked for: a daemon without a ZeroMQ sink
//! never maps it, nor what Debian's brings along (Kerberos, PGM, NORM and
//! libstdc++). `functions` has the part of its C interface that is called
//! here, `socket` what a sink and the tests' subscriber need of it. What is
//! sent is not known here.
#![deny(missing_docs)]
#![allow(unsafe_code, reason = "the C interface of libzmq")]

mod functions;
mod socket;

pub use functions::{Libzmq, LoadError, SONAME};
pub use socket::{CurveKeys, Error, Kind, Socket};
