//! The interface of the reals, and by which one frames for them leave.

use std::io;

use weir_enforce::KnownReal;

use crate::host::{
    Interface, Mac, interface,
    vlan::{Vlan, vlan},
};

/// The interface of the reals as it is now.
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) mac: Mac,
    /// The interface by which frames for the reals leave: this one, or the one at which a
    /// VLAN's frames have their tag.
    pub(super) out: u32,
    /// The VLAN of these frames' tag; 0: they have no tag there.
    pub(super) vlan: u16,
}

impl Link {
    /// The link-layer address of a real that an earlier daemon has left in the kernel, if its
    /// packets went by this link: behind another interface, or in a tunnel, it is another's.
    pub(super) fn left_by(&self, before: &KnownReal) -> Option<Mac> {
        let way = (before.ifindex, before.vlan, before.is_tunneled);
        (way == (self.out, self.vlan, false)).then_some(before.dest)
    }
}

/// `is_protected`: is it among weir's interfaces, by its number? A VLAN's device that is
/// not is served where its frames have their tag.
pub(super) fn link(name: &str, is_protected: impl Fn(u32) -> bool) -> io::Result<Option<Link>> {
    let Some(Interface { index, mac, .. }) = interface(name)? else {
        return Ok(None);
    };
    let (out, vlan) = leaves_by(index, vlan(index)?, is_protected);
    Ok(Some(Link {
        index,
        mac,
        out,
        vlan,
    }))
}

/// The interface, and the VLAN whose tag frames have there; 0: none.
pub(super) fn leaves_by(
    index: u32,
    vlan: Option<Vlan>,
    is_protected: impl Fn(u32) -> bool,
) -> (u32, u16) {
    match vlan {
        Some(vlan) if !is_protected(index) => (vlan.parent, vlan.id),
        _ => (index, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_is_served_by_its_own_device_where_weir_protects_that() {
        let vlan = Some(Vlan { parent: 2, id: 10 });
        assert_eq!(leaves_by(7, vlan, |index| index == 2), (2, 10));
        assert_eq!(leaves_by(7, vlan, |index| index == 7), (7, 0));
        assert_eq!(leaves_by(2, None, |_| false), (2, 0));
    }

    #[test]
    fn what_an_earlier_daemon_left_counts_on_the_same_way_only() {
        let link = Link {
            index: 2,
            mac: [2; 6],
            out: 2,
            vlan: 0,
        };
        let same = KnownReal {
            number: 1,
            dest: [6; 6],
            ifindex: 2,
            vlan: 0,
            is_tunneled: false,
        };
        assert_eq!(link.left_by(&same), Some([6; 6]));
        let others = [
            KnownReal { ifindex: 3, ..same },
            KnownReal { vlan: 10, ..same },
            KnownReal {
                is_tunneled: true,
                ..same
            },
        ];
        for other in others {
            assert_eq!(link.left_by(&other), None, "{other:?}");
        }
    }

    /// Without a descriptor nothing is known of it: the reals stay where they are.
    #[test]
    fn an_interface_that_cannot_be_asked_for_is_not_gone() {
        use rustix::process::{Resource::Nofile, Rlimit, setrlimit};
        const ALONE: &str = "WEIR_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(ALONE).is_none() {
            // The limit is the process's, so this test is run in one of its own.
            let name = std::thread::current().name().unwrap().to_owned();
            let test = std::env::current_exe().unwrap();
            let mut alone = std::process::Command::new(test);
            let done = alone.args(["--exact", &name]).env(ALONE, "1").output();
            let done = done.unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(said.contains(" 1 passed"), "{said}");
            return;
        }
        assert!(link("no-such-0", |_| false).unwrap().is_none());
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        setrlimit(Nofile, none).unwrap();
        // Which error, the C library does not say.
        assert!(link("lo", |_| false).is_err());
    }
}
