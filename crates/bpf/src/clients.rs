//! Many clients of one UDP server, wanted and unwanted ones, as live frames
//! (`weir_request` and `weir_answer` in `bpf/tools/generator.bpf.c`). Who paces them
//! and what the server makes of them is for the caller.

use std::{
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    abi,
    error::{Context, Result},
    prog_test_run,
    skeleton::generator::{
        GeneratorSkelBuilder,
        types::{answers, clients, requests},
    },
};

/// Bytes of a frame, the Ethernet header included.
pub const REQUEST_LEN: usize = abi::REQUEST_LEN as usize;
/// The first byte of a wanted request's payload.
pub const WANTED: u8 = abi::WANTED_PAYLOAD as u8;
/// The first byte of an unwanted request's payload.
pub const UNWANTED: u8 = abi::UNWANTED_PAYLOAD as u8;

const _: () = assert!(size_of::<clients>() == 52, "abi");
const _: () = assert!(size_of::<requests>() == 32, "abi");
const _: () = assert!(size_of::<answers>() == 8, "abi");

/// The clients' address families; with both, IPv4 and IPv6 clients alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// All clients have IPv4 addresses.
    Ipv4,
    /// All clients have IPv6 addresses.
    Ipv6,
    /// Clients have IPv4 and IPv6 addresses by turns.
    Both,
}

/// The clients, the server and the port of a flood of requests.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// The clients' addresses.
    pub families: Families,
    /// How many clients send unwanted requests, each in its turn; at most 2^24.
    pub unwanted: u32,
    /// The number of clients that send wanted requests.
    pub wanted: u32,
    /// The server's addresses.
    pub dest: (Ipv4Addr, Ipv6Addr),
    /// The UDP port that they send to.
    pub port: u16,
    /// Destination and source on the wire.
    pub macs: [[u8; 6]; 2],
    /// Out through this interface of the sending thread's namespace.
    pub ifindex: u32,
}

impl Crowd {
    /// The address of a client that sends unwanted requests, by its turn.
    pub fn unwanted_client(&self, turn: u32) -> IpAddr {
        let ipv4 = |n: u32| {
            IpAddr::from(Ipv4Addr::from(
                0x1000_0000 | n.wrapping_mul(0x9e37_79b1) & 0x00ff_ffff,
            ))
        };
        let ipv6 = |n: u32| {
            let hi = 0x2a00 << 48 | super::generator::mix64(n.into()) >> 16;
            IpAddr::from(Ipv6Addr::from(u128::from(hi) << 64 | 1))
        };
        match self.families {
            Families::Ipv4 => ipv4(turn),
            Families::Ipv6 => ipv6(turn),
            Families::Both if turn & 1 == 1 => ipv6(turn >> 1),
            Families::Both => ipv4(turn >> 1),
        }
    }
}

/// Requests sent so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Requests of clients that are to be banned.
    pub unwanted: u64,
    /// Requests of clients that are to be served.
    pub wanted: u64,
}

/// The loaded programs with their state.
pub struct Clients {
    request: OwnedFd,
    answer: OwnedFd,
    settings: MapHandle,
    requests: MapHandle,
    answers: MapHandle,
    crowd: Crowd,
}

impl Clients {
    /// Loads the programs for this crowd.
    pub fn load(crowd: Crowd) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let skel = GeneratorSkelBuilder::default()
            .open(&mut storage)
            .and_then(|open| open.load())
            .context(|| "load the generator".into())?;
        let program =
            |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context(|| "keep a program".into());
        Ok(Self {
            request: program(skel.progs.weir_request.as_fd())?,
            answer: program(skel.progs.weir_answer.as_fd())?,
            settings: keep(&skel.maps.data_clients)?,
            requests: keep(&skel.maps.data_requests)?,
            answers: keep(&skel.maps.data_answers)?,
            crowd,
        })
    }

    /// The XDP program that counts the answers; for the clients' end of the wire.
    pub fn answer(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }

    /// The XDP program that sends. Attached to any idle device while requests
    /// are sent, it makes a call of [`Self::send`] some 25 ms cheaper: without,
    /// each call enters it into the kernel's XDP dispatcher and takes it out.
    pub fn request(&self) -> BorrowedFd<'_> {
        self.request.as_fd()
    }

    /// Sends this many requests as fast as they go, this share of them wanted
    /// ones, spread evenly. One caller at a time.
    pub fn send(&self, packets: u32, wanted_share: f64) -> Result<()> {
        let crowd = &self.crowd;
        let settings = clients {
            dest_mac: crowd.macs[0],
            source_mac: crowd.macs[1],
            ifindex: crowd.ifindex,
            unwanted: crowd.unwanted,
            wanted: crowd.wanted,
            share: (wanted_share * f64::from(u32::MAX)) as u32,
            port: crowd.port,
            families: match crowd.families {
                Families::Ipv4 => abi::FAMILY_IPV4,
                Families::Ipv6 => abi::FAMILY_IPV6,
                Families::Both => abi::FAMILY_BOTH,
            } as u8,
            pad: 0,
            dest4: crowd.dest.0.octets(),
            dest6: crowd.dest.1.octets(),
        };
        // SAFETY: plain old data without padding (its size is asserted).
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const settings).cast::<u8>(), size_of_val(&settings))
        };
        self.settings
            .update(&0u32.to_ne_bytes(), bytes, MapFlags::ANY)
            .context(|| "set the clients up".into())?;
        prog_test_run::live(self.request.as_fd(), packets, REQUEST_LEN, crowd.ifindex)
    }

    /// Requests sent so far, wanted and unwanted; may be called while another thread sends.
    pub fn sent(&self) -> Result<Sent> {
        let [unwanted, wanted] = words(&self.requests)?;
        Ok(Sent { unwanted, wanted })
    }

    /// How many answers of the server have come.
    pub fn answered(&self) -> Result<u64> {
        let [count] = words(&self.answers)?;
        Ok(count)
    }
}

/// A handle that outlives the skeleton.
fn keep(map: &impl MapCore) -> Result<MapHandle> {
    let id = map
        .info()
        .context(|| "ask a map for its id".into())?
        .info
        .id;
    MapHandle::from_map_id(id).context(|| "keep a map".into())
}

/// The first words of a one-element map.
fn words<const N: usize>(map: &MapHandle) -> Result<[u64; N]> {
    let bytes = map
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .context(|| "read what was counted".into())?
        .unwrap_or_default();
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(words)
}
