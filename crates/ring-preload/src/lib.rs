//! Loaded into an unmodified server with `LD_PRELOAD`, this library diverts
//! what it writes to its log files into a weir ring, line by line.
//!
//! It stands in for the functions of libc that open, write, duplicate and
//! close files. Whatever goes wrong on the way to the ring, the server sees
//! what it would see without the library: its lines in its files.
//!
//! `README.md` says how to use it and what it cannot see.
#![allow(
    unsafe_code,
    reason = "stands in for functions of libc and calls the real ones"
)]
#![cfg_attr(
    test,
    allow(dead_code, reason = "a unit test must not stand in for its own libc")
)]

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("weir-ring-preload needs 64-bit Linux with glibc");

mod config;
mod files;
mod interpose;
mod process;
mod real;
mod rings;
