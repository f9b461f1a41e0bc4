//! One Ethernet interface of this host as it is at a moment.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    ifaddrs::InterfaceAddress,
    net::if_::{InterfaceFlags, if_indextoname, if_nametoindex},
    sys::socket::LinkAddr,
};

use super::Mac;

/// An interface with a link-layer address.
#[derive(Debug, Clone)]
pub(crate) struct Interface {
    /// The interface's index in this network namespace.
    pub index: u32,
    /// The interface's own link-layer address.
    pub mac: Mac,
    /// Whether the interface is up and has a carrier.
    pub is_running: bool,
    /// The interface's addresses of both families, in the order of the kernel.
    pub addresses: Vec<IpAddr>,
    link: LinkAddr,
}

impl Interface {
    /// Has frames of this packet socket come from and go to this interface alone. (The
    /// socket says which frames.)
    pub fn bind(&self, socket: &OwnedFd) -> io::Result<()> {
        Ok(nix::sys::socket::bind(socket.as_raw_fd(), &self.link)?)
    }
}

/// The one of this name, or alternative name, if there is one.
pub(crate) fn interface(name: &str) -> io::Result<Option<Interface>> {
    let index = match if_nametoindex(name) {
        Ok(index) => index,
        // Of the ioctl, and of netlink.
        Err(Errno::ENODEV | Errno::ENXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let all: Vec<_> = nix::ifaddrs::getifaddrs()?.collect();
    let found = all.iter().find_map(|one| {
        let link = *one.address?.as_link_addr()?;
        let is_it = link.ifindex() == index as usize;
        is_it.then_some((one, link, link.addr()?))
    });
    let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    Ok(found.map(|(one, link, mac)| {
        let its = all
            .iter()
            .filter(|other| name_of(other) == one.interface_name);
        Interface {
            index,
            mac,
            is_running: one.flags.contains(running),
            addresses: its.filter_map(address_of).collect(),
            link,
        }
    }))
}

/// The one of this index, if there is one.
pub(crate) fn interface_of(index: u32) -> io::Result<Option<Interface>> {
    let name = match if_indextoname(index) {
        Ok(name) => name,
        Err(Errno::ENODEV | Errno::ENXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let name = name.to_str().map_err(io::Error::other)?;
    // Renamed since, it may be another one.
    Ok(interface(name)?.filter(|found| found.index == index))
}

/// Without the label of an IPv4 address, as in `eth0:1`.
fn name_of(one: &InterfaceAddress) -> &str {
    let name = one.interface_name.as_str();
    name.split_once(':').map_or(name, |(name, _)| name)
}

fn address_of(one: &InterfaceAddress) -> Option<IpAddr> {
    let address = one.address?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_loopback_interface() {
        assert!(interface("no-such-0").unwrap().is_none());
        let lo = interface("lo").unwrap().unwrap();
        assert_eq!((lo.index, lo.mac), (if_nametoindex("lo").unwrap(), [0; 6]));
        assert!(lo.addresses.contains(&IpAddr::from([127, 0, 0, 1])));
        let same = interface_of(lo.index).unwrap().unwrap();
        assert_eq!((same.index, same.mac), (lo.index, lo.mac));
        assert!(interface_of(u32::MAX >> 1).unwrap().is_none());
    }
}
