//! What the kernel tells about programs.

use std::{fmt, net::Ipv6Addr, time::Duration};

use libbpf_rs::MapHandle;

use super::{DecidedBy, Executable, Handle, Key, value_of};
use crate::{abi, error::Result, ring_reader::RingReader, skeleton::identity::types::ident_event};

/// The kind of an event about programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityEventKind {
    /// A program is not known: who is it?
    Unknown,
    /// Something was refused or dropped; once for each connection or flow.
    Denied,
    /// Something was decided, and all of that is told.
    Judged,
    /// A connection that the rules allow no longer was ended.
    Cut,
}

/// The name of a process that it may give itself (`PR_SET_NAME`): at most 15 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Comm([u8; 16]);

impl Comm {
    /// As text; bytes that are none are replaced.
    pub fn to_text(self) -> String {
        let length = self.0.iter().position(|byte| *byte == 0);
        let name = &self.0[..length.unwrap_or(self.0.len())];
        String::from_utf8_lossy(name).into_owned()
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_text(), f)
    }
}

/// One thing that the kernel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentityEvent {
    /// What has happened.
    pub kind: IdentityEventKind,
    /// The program that is unknown; its set is 0 where nobody is, or nobody can be told.
    pub key: Key,
    /// The process that used the socket last, as the initial PID namespace has it.
    pub pid: u32,
    /// The effective user of that process.
    pub uid: u32,
    /// What that process calls itself, its own word; empty: another one ran meanwhile.
    pub comm: Comm,
    /// The executable of who is unknown, where it can be told.
    pub executable: Option<Executable>,
    /// The control group of that process.
    pub cgroup: u64,
    /// The network namespace of the socket, by its inode.
    pub netns: u64,
    /// The identity that has held the socket first, if it is known.
    pub holder: Option<Handle>,
    /// All identities that hold the socket and are known, the one of `holder` first.
    pub holders: [Option<Handle>; abi::IDENT_HOLDERS as usize],
    /// The other side, IPv4 as IPv4-mapped.
    pub peer: Ipv6Addr,
    /// The port of the peer; of what comes in, one's own.
    pub port: u16,
    /// `IDENT_TCP` and so on.
    pub protocol: u8,
    /// The program has begun it.
    pub is_out: bool,
    /// What has decided.
    pub by: DecidedBy,
    /// Whether the connection or flow passes.
    pub passes: bool,
    /// In which of the two policies the rule has that number.
    pub is_of_second: bool,
}

/// Reads the ring.
pub struct IdentityEvents(RingReader<IdentityEvent>);

impl IdentityEvents {
    pub(super) fn new(map: &MapHandle) -> Result<Self> {
        Ok(Self(RingReader::new(map, "events about programs", decode)?))
    }

    /// What has come, at once when something does, else after `timeout`.
    pub fn read(&self, timeout: Duration) -> Result<Vec<IdentityEvent>> {
        self.0.read(timeout)
    }
}

fn decode(bytes: &[u8]) -> Option<IdentityEvent> {
    let raw: ident_event = value_of(bytes.get(..size_of::<ident_event>())?)?;
    let kind = match raw.kind.into() {
        abi::IDENT_EV_UNKNOWN => IdentityEventKind::Unknown,
        abi::IDENT_EV_DENIED => IdentityEventKind::Denied,
        abi::IDENT_EV_JUDGED => IdentityEventKind::Judged,
        abi::IDENT_EV_CUT => IdentityEventKind::Cut,
        _ => return None,
    };
    Some(IdentityEvent {
        kind,
        key: Key::of(&raw.key),
        pid: raw.tgid,
        uid: raw.uid,
        comm: Comm(raw.comm),
        executable: Executable::of(raw.executable),
        cgroup: raw.cgroup,
        netns: raw.netns,
        holder: Handle::of(raw.handles[0]),
        holders: raw.handles.map(Handle::of),
        peer: raw.peer.into(),
        port: raw.port,
        protocol: raw.protocol,
        is_out: u32::from(raw.direction) == abi::IDENT_OUT,
        by: DecidedBy::of(raw.rule),
        passes: [abi::IDENT_ALLOW, abi::IDENT_LEARN].contains(&raw.verdict.into()),
        is_of_second: raw.policy == 1,
    })
}
