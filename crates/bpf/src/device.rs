//! What kind of interface is this? Layer-2 length, driver, index.

use std::io;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use weir_netlink::{Attributes, NLM_F_ACK, Protocol, Request, ask, word};

/// Facts about one interface of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The number of the interface.
    pub index: u32,
    /// `ARPHRD_*` of linux/if_arp.h: 1 is Ethernet.
    pub kind: u16,
    /// Driver name as ethtool shows it; empty when it tells none.
    pub driver: String,
}

#[repr(C)]
struct EthtoolRequest {
    name: [u8; 16],
    data: *mut libc::c_void,
    pad: [u64; 2],
}

/// One ethtool request about an interface.
///
/// # Safety
/// `data` must point to the structure of the command that it begins with, whole,
/// and nobody else's meanwhile.
pub(crate) unsafe fn ethtool(name: &str, data: *mut libc::c_void) -> io::Result<()> {
    let mut request = EthtoolRequest {
        name: padded(name),
        data,
        pad: [0; 2],
    };
    let socket = any_socket()?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: SIOCETHTOOL reads an ifreq whose data is as the caller promises;
    // both outlive the call.
    if unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as _, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A socket of the calling thread's namespace, for requests about its interfaces.
fn any_socket() -> io::Result<std::os::fd::OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// `struct ethtool_drvinfo` of linux/ethtool.h.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}
const ETHTOOL_GDRVINFO: u32 = 3;
const _: () = assert!(size_of::<DriverInfo>() == 196);

/// The name of an interface of the calling thread's namespace; `None` when it
/// is gone.
///
/// # Errors
/// Others than that there is no such interface.
pub fn name_of(index: u32) -> io::Result<Option<String>> {
    present(netdevice::index_to_name(any_socket()?, index).map_err(Into::into))
}

/// The number of the interface of this name in the calling thread's namespace; `None`: there is
/// none, or that cannot be told.
pub fn index_of(name: &str) -> Option<u32> {
    netdevice::name_to_index(any_socket().ok()?, name).ok()
}

/// Makes "no such interface" an answer: `None` in place of the error.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        found => found.map(Some),
    }
}

impl Device {
    /// Looks an interface up by name in the calling thread's namespace.
    pub fn find(name: &str) -> io::Result<Self> {
        let socket = any_socket()?;
        let index = netdevice::name_to_index(&socket, name)?;
        let mut info = DriverInfo {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            rest: [0; 160],
        };
        // SAFETY: an ethtool_drvinfo, which the command wants.
        let told = unsafe { ethtool(name, (&raw mut info).cast()) }.is_ok();
        let driver = if told {
            info.driver
                .iter()
                .take_while(|c| **c != 0)
                .map(|c| *c as char)
                .collect()
        } else {
            String::new()
        };

        // SAFETY: an all-zero ifreq is valid.
        let mut hw: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in hw.ifr_name.iter_mut().zip(padded(name)) {
            *to = from as libc::c_char;
        }
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        // SAFETY: SIOCGIFHWADDR fills the ifreq, which outlives the call.
        if unsafe { libc::ioctl(fd, libc::SIOCGIFHWADDR as _, &raw mut hw) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: SIOCGIFHWADDR fills this variant.
        let kind = unsafe { hw.ifr_ifru.ifru_hwaddr.sa_family };
        Ok(Self {
            index,
            kind,
            driver,
        })
    }

    /// As [`Self::find`]; `None` where there is no interface of this name.
    ///
    /// # Errors
    /// Others than that: they do not say that there is none.
    pub fn find_present(name: &str) -> io::Result<Option<Self>> {
        present(Self::find(name))
    }

    /// Frames begin with an Ethernet header? (loopback's do, too)
    pub fn is_ethernet(&self) -> bool {
        self.kind == libc::ARPHRD_ETHER || self.kind == libc::ARPHRD_LOOPBACK
    }

    /// A device without hardware, where native XDP costs TCP more than it
    /// saves drops (measured on veth: 19.6 against 7.8 Gbit/s).
    pub fn is_virtual(&self) -> bool {
        matches!(
            self.driver.as_str(),
            "" | "veth"
                | "bridge"
                | "tun"
                | "dummy"
                | "bonding"
                | "team"
                | "macvlan"
                | "ipvlan"
                | "802.1Q VLAN Support"
                | "vxlan"
                | "loopback"
                | "ifb"
                | "openvswitch"
        )
    }
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}
const ETHTOOL_SGRO: u32 = 0x2c;

/// Switches generic receive offload; a veth end with it has NAPI, and takes
/// redirected frames without an XDP program of its own.
pub fn set_gro(name: &str, on: bool) -> io::Result<()> {
    let mut value = EthtoolValue {
        cmd: ETHTOOL_SGRO,
        data: on.into(),
    };
    // SAFETY: an ethtool_value, which the command wants.
    unsafe { ethtool(name, (&raw mut value).cast()) }
}

/// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_GSO_MAX_SEGS: u16 = 40;
/// Bytes of `struct ifinfomsg`.
const IFINFOMSG: usize = 16;

/// `struct ifinfomsg` that names an interface.
fn link_head(ifindex: u32) -> [u8; IFINFOMSG] {
    let mut head = [0; IFINFOMSG];
    head[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    head
}

/// Of how many segments a superpacket may be that the kernel makes for an interface of the
/// calling thread's namespace.
///
/// # Errors
/// The interface is not there, or the kernel does not say it.
pub fn gso_max_segments(ifindex: u32) -> io::Result<u32> {
    let request = Request::new(RTM_GETLINK, 0, &link_head(ifindex)).finish();
    let found = ask(Protocol::Route, &request, |message| {
        let is_link = message.kind == RTM_NEWLINK;
        let attributes = Attributes::behind(message.body, IFINFOMSG);
        is_link.then(|| word(attributes.get(IFLA_GSO_MAX_SEGS)?, 0))?
    })?;
    let found = found.into_iter().next();
    found.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Says of how many segments a superpacket may be; 1: none are made. It holds for sockets that
/// connect from now on.
///
/// # Errors
/// The interface is not there, or the device takes another number only.
pub fn set_gso_max_segments(ifindex: u32, segments: u32) -> io::Result<()> {
    let request = Request::new(RTM_NEWLINK, NLM_F_ACK, &link_head(ifindex))
        .attribute(IFLA_GSO_MAX_SEGS, &segments.to_ne_bytes())
        .finish();
    ask(Protocol::Route, &request, |_| None::<()>).map(drop)
}

/// The largest packet that an interface of the calling thread's namespace
/// takes (/sys may show another one's).
pub fn mtu(name: &str) -> io::Result<u32> {
    let socket = any_socket()?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(padded(name)) {
        *to = from as libc::c_char;
    }
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: SIOCGIFMTU fills the ifreq, which outlives the call.
    if unsafe { libc::ioctl(fd, libc::SIOCGIFMTU as _, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU fills this variant.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}

/// An interface name as `struct ifreq` has it; longer ones exist nowhere.
fn padded(name: &str) -> [u8; 16] {
    let mut padded = [0u8; 16];
    let len = name.len().min(15);
    padded[..len].copy_from_slice(&name.as_bytes()[..len]);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_a_virtual_ethernet() {
        let lo = Device::find("lo").unwrap();
        assert!(lo.is_ethernet() && lo.is_virtual(), "{lo:?}");
        assert!(Device::find("no-such-device").is_err());
        assert_eq!(Device::find_present("no-such-device").unwrap(), None);
        assert_eq!(Device::find_present("lo").unwrap(), Some(lo.clone()));
        assert_eq!(name_of(lo.index).unwrap().as_deref(), Some("lo"));
        assert_eq!(name_of(i32::MAX as u32).unwrap(), None);
    }
}
