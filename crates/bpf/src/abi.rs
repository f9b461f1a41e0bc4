//! Every number that the packet path and user space agree on: made at build of
//! `bpf/abi/*.h`, which says what each means. What other crates have numbers for
//! of their own is compared here, when this is compiled.

#![allow(missing_docs, reason = "generated: each names its header")]

use weir_core::{
    Reason,
    address_class::{MAX_FENCES, MAX_LISTS},
    decoy::Scanner,
    port_set,
};

include!(concat!(env!("OUT_DIR"), "/abi.rs"));

/// Each of them, by its name, and so that none is left out.
const _: () = {
    assert!(Reason::Pass as u32 == R_PASS);
    assert!(Reason::NotIp as u32 == R_NOT_IP);
    assert!(Reason::Malformed as u32 == R_MALFORMED);
    assert!(Reason::Allowed as u32 == R_ALLOWED);
    assert!(Reason::OtherPort as u32 == R_OTHER_PORT);
    assert!(Reason::Essential as u32 == R_ESSENTIAL);
    assert!(Reason::Reply as u32 == R_REPLY);
    assert!(Reason::Observed as u32 == R_OBSERVED);
    assert!(Reason::BannedAll as u32 == R_BANNED_ALL);
    assert!(Reason::BannedScope as u32 == R_BANNED_SCOPE);
    assert!(Reason::Listed as u32 == R_LISTED);
    assert!(Reason::Fenced as u32 == R_FENCED);
    assert!(Reason::ListedOut as u32 == R_LISTED_OUT);
    assert!(Reason::FencedOut as u32 == R_FENCED_OUT);
    assert!(Reason::Decoy as u32 == R_DECOY);
    assert!(Reason::DecoyHandshake as u32 == R_DECOY_HANDSHAKE);
    assert!(Reason::Rejected as u32 == R_REJECTED);
    assert!(Reason::RejectedSilent as u32 == R_REJECTED_SILENT);
    assert!(Reason::Tarpit as u32 == R_TARPIT);
    assert!(Reason::TarpitHandshake as u32 == R_TARPIT_HANDSHAKE);
    assert!(Reason::InvalidSource as u32 == R_INVALID_SOURCE);
    assert!(Reason::TooManyTags as u32 == R_TOO_MANY_TAGS);
    assert!(Reason::NoReal as u32 == R_NO_REAL);
    assert!(Reason::PoolDenied as u32 == R_POOL_DENIED);
    assert!(Reason::TooBig as u32 == R_TOO_BIG);
    assert!(Reason::NoRoom as u32 == R_NO_ROOM);
    assert!(Reason::ALL.len() == R_MAX as usize);
};

const _: () = {
    assert!(SCANNER_NONE == 0);
    assert!(Scanner::Bare as u32 == SCANNER_BARE);
    assert!(Scanner::Masscan as u32 == SCANNER_MASSCAN);
    assert!(Scanner::Zmap as u32 == SCANNER_ZMAP);
    assert!(Scanner::Nmap as u32 == SCANNER_NMAP);
};

const _: () = {
    assert!(MAX_LISTS == CLASS_MAX_LISTS as usize);
    assert!(MAX_FENCES == CLASS_MAX_FENCES as usize);
    assert!(port_set::MAX_RANGES == MAX_RANGES as usize);
};
