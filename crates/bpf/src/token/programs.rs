//! Loading, pinning and attaching the programs of tokens. Their pins are in a directory of
//! their own: `token-N` of the instance, with N the form of the tables. A later daemon loads
//! its programs over the tables that are there and puts them in the place of the earlier
//! one's, so that nothing passes meanwhile.

use std::{
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use libbpf_rs::{
    MapCore, MapHandle, OpenObject, libbpf_sys as sys,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use super::{
    GatewayKind, GatewayProgram, InterfaceSigner, PORTS, SignedKind, Tokens, dir_of, forms, gate,
    gateway, interface_signer, is_pinned,
};
use crate::{
    error::{Context, Result},
    fault,
    group_link::ControlGroup,
    identity::{CgroupAt, Identity},
    memory::Words,
    object, pins,
    skeleton::token::{OpenTokenSkel, TokenSkelBuilder},
};

/// The programs of the side that signs: their pins and places.
const SIGNING: [(&str, sys::bpf_attach_type); 2] = [
    ("sign", sys::BPF_CGROUP_SOCK_OPS),
    ("keep", sys::BPF_CGROUP_INET_EGRESS),
];
/// The programs of the side that verifies: their pins and places, in the order in which they
/// come: what is answered has been judged.
const VERIFYING: [(&str, sys::bpf_attach_type); 2] = [
    ("verify", sys::BPF_CGROUP_INET_INGRESS),
    ("own", sys::BPF_CGROUP_INET_EGRESS),
];

/// Programs that are loaded.
pub struct Loaded {
    /// In the order of [`SIGNING`]; `None`: nobody signs.
    signing: Option<[OwnedFd; 2]>,
    /// At interfaces with an Ethernet header, and at others: for datagrams, and for segments.
    signing_at: Option<[[OwnedFd; 2]; 2]>,
    /// The same for signatures of DAF, which need no rules about programs, and for what comes
    /// in about the path of these segments.
    daf_at: [[OwnedFd; 2]; 2],
    /// The table of interfaces at which segments are signed.
    interfaces: MapHandle,
    /// In the order of [`VERIFYING`].
    verifying: [OwnedFd; 2],
    matcher: OwnedFd,
    cgroup: PathBuf,
    /// The pins of the instance.
    of_instance: PathBuf,
    /// Those of tables and links, of this form.
    dir: PathBuf,
}

impl Tokens {
    /// Loads the programs over the tables that an earlier daemon has left, or over new
    /// ones; nothing of them is attached. `identity`: the rules about programs, whose
    /// sockets are signed; without them nobody signs. Tables for another control group go.
    ///
    /// # Errors
    /// The kernel refuses something, or the pins are not ours.
    pub fn load(
        root: &Path,
        instance: &str,
        cgroup: &CgroupAt,
        identity: Option<&Identity>,
    ) -> Result<(Self, Loaded)> {
        pins::require_bpffs(root.parent().unwrap_or(root))?;
        let dir = dir_of(root, instance);
        let of_instance = root.join(pins::escape(instance));
        for one in [root, of_instance.as_path(), dir.as_path()] {
            pins::make_ours(one)?;
        }
        let id = cgroup.id();
        let made = Self::load_in(&dir, cgroup, identity)?;
        let mut control = made.0.control()?;
        if control.cgroup == 0 {
            control.cgroup = id;
            made.0.put_control(&control)?;
        }
        if control.cgroup == id {
            return Ok(made);
        }
        drop(made);
        // Rules of iptables stay with the match, and get another program soon.
        detach_where(root, instance, |name| name != gate::DIRECTORY)?;
        pins::make_ours(&of_instance)?;
        pins::make_ours(&dir)?;
        let made = Self::load_in(&dir, cgroup, identity)?;
        let mut control = made.0.control()?;
        control.cgroup = id;
        made.0.put_control(&control)?;
        Ok(made)
    }

    fn load_in(
        dir: &Path,
        cgroup: &CgroupAt,
        identity: Option<&Identity>,
    ) -> Result<(Self, Loaded)> {
        let what = || "load the programs of [token] (needs CAP_BPF and CAP_NET_ADMIN)".to_owned();
        let mut storage = MaybeUninit::<OpenObject>::uninit();
        let mut open: OpenTokenSkel<'_> = TokenSkelBuilder::default()
            .open(&mut storage)
            .context(what)?;
        // A daemon that died while it pinned has left some. Where all were pinned, one that
        // is missing is of a later weir.
        let is_fresh = !dir.join("whole").exists();
        let is_pinned_before = |pin: &Path| !is_fresh && pin.exists();
        match identity {
            Some(identity) => {
                let maps = &mut open.maps;
                for map in [&mut maps.ident_sockets, &mut maps.ident_sets] {
                    let pin = identity.dir().join(map.name());
                    let pinned = MapHandle::from_pinned_path(&pin).context(what)?;
                    map.reuse_fd(pinned.as_fd()).context(what)?;
                }
            }
            None => {
                open.progs.weir_token_sign.set_autoload(false);
                open.progs.weir_token_keep.set_autoload(false);
                open.progs.weir_sign_udp.set_autoload(false);
                open.progs.weir_sign_udp_ip.set_autoload(false);
                open.progs.weir_sign_tcp.set_autoload(false);
                open.progs.weir_sign_tcp_ip.set_autoload(false);
                let maps = &mut open.maps;
                for map in [&mut maps.ident_sockets, &mut maps.ident_sets] {
                    map.set_autocreate(false).context(what)?;
                }
            }
        }
        for mut map in open.open_object_mut().maps_mut() {
            // The others are of [app], or the compiler's.
            if !is_pinned(map.name()) {
                continue;
            }
            let pin = dir.join(map.name());
            if is_pinned_before(&pin) {
                let pinned = MapHandle::from_pinned_path(&pin).context(what)?;
                map.reuse_fd(pinned.as_fd()).context(what)?;
            } else {
                let _ = fs::remove_file(&pin);
            }
        }
        let skel = open.load().context(what)?;
        let keep = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context(what);
        let maps = &skel.maps;
        let handle =
            |map: &libbpf_rs::MapImpl<'_, libbpf_rs::Mut>| MapHandle::try_from(map).context(what);
        let tokens = Self {
            control: handle(&maps.token_control)?,
            current: handle(&maps.token_current)?,
            clock: handle(&maps.token_clock)?,
            networks: handle(&maps.token_networks)?,
            signers: handle(&maps.token_signers)?,
            signings: handle(&maps.token_signings)?,
            udp_signings: handle(&maps.token_udp_signings)?,
            segment_signings: handle(&maps.token_segment_signings)?,
            ports: Words::map(maps.token_ports.as_fd(), 2 * PORTS, "ports of tokens")?,
            udp_ports: Words::map(maps.token_udp_ports.as_fd(), 2 * PORTS, "ports of tokens")?,
            udp_since: Words::map(maps.token_udp_since.as_fd(), 2 * PORTS, "ports of tokens")?,
            udp_flows: [
                handle(&maps.token_udp_proven)?,
                handle(&maps.token_udp_own)?,
                handle(&maps.token_udp_logged)?,
            ],
            udp_taken: handle(&maps.token_udp_taken)?,
            udp_evicted: Default::default(),
            dir: dir.to_owned(),
            forward_evicted: Default::default(),
            requirements: handle(&maps.token_requirements)?,
            claims: handle(&maps.token_claims)?,
            daf_keys: handle(&maps.token_daf_keys)?,
            identities: handle(&maps.token_identities)?,
            outcomes: handle(&maps.token_outcomes)?,
        };
        for map in skel.object().maps().filter(|map| is_pinned(map.name())) {
            let pin = dir.join(map.name());
            if !is_pinned_before(&pin) {
                object::pin(map.as_fd(), &pin)?;
            }
        }
        if is_fresh {
            object::pin(skel.progs.weir_token_verify.as_fd(), &dir.join("whole"))?;
        }
        let (signing, signing_at) = match identity {
            Some(_) => (
                Some([
                    keep(skel.progs.weir_token_sign.as_fd())?,
                    keep(skel.progs.weir_token_keep.as_fd())?,
                ]),
                Some([
                    [
                        keep(skel.progs.weir_sign_udp.as_fd())?,
                        keep(skel.progs.weir_sign_udp_ip.as_fd())?,
                    ],
                    [
                        keep(skel.progs.weir_sign_tcp.as_fd())?,
                        keep(skel.progs.weir_sign_tcp_ip.as_fd())?,
                    ],
                ]),
            ),
            None => (None, None),
        };
        let loaded = Loaded {
            signing,
            signing_at,
            daf_at: [
                [
                    keep(skel.progs.weir_sign_daf.as_fd())?,
                    keep(skel.progs.weir_sign_daf_ip.as_fd())?,
                ],
                [
                    keep(skel.progs.weir_daf_mtu.as_fd())?,
                    keep(skel.progs.weir_daf_mtu_ip.as_fd())?,
                ],
            ],
            interfaces: handle(&maps.token_interfaces)?,
            verifying: [
                keep(skel.progs.weir_token_verify.as_fd())?,
                keep(skel.progs.weir_token_own.as_fd())?,
            ],
            matcher: keep(skel.progs.weir_token_match.as_fd())?,
            cgroup: cgroup.path().to_owned(),
            of_instance: dir.parent().unwrap_or(dir).to_owned(),
            dir: dir.to_owned(),
        };
        Ok((tokens, loaded))
    }
}

impl Loaded {
    /// Attaches the side that signs, if there is one, and the one that verifies if `verify`
    /// says so; a side that is not wanted is taken away. Rules of iptables, for which the
    /// side that verifies has a pinned match, ask this one from now on.
    ///
    /// # Errors
    /// The kernel refuses one.
    pub fn attach(&self, verify: bool) -> Result<()> {
        self.attach_to_group(verify)?;
        // Where nothing is to be verified any more, it matches nothing.
        if verify || gate::exists(&self.of_instance) {
            gate::put(&self.of_instance, self.matcher())?;
        }
        // What a weir whose tables had another form has left would go on by its policy.
        self.other_forms().try_for_each(|dir| detach_form(&dir))
    }

    /// Has all hold for this control group, which has come in the place of the one before;
    /// `verify` as in [`Self::attach`].
    ///
    /// # Errors
    /// The kernel refuses it: then it is to be tried again.
    pub fn move_to(&mut self, tokens: &Tokens, cgroup: &CgroupAt, verify: bool) -> Result<()> {
        let mut control = tokens.control()?;
        control.cgroup = cgroup.id();
        tokens.put_control(&control)?;
        self.cgroup = cgroup.path().to_owned();
        self.attach_to_group(verify)
    }

    /// Nothing is attached to one that is not there.
    fn attach_to_group(&self, verify: bool) -> Result<()> {
        let group = ControlGroup::open(&self.cgroup)?;
        match &self.signing {
            // What keeps a connection to who has signed for it is there before anybody has.
            Some([sign, keep]) => {
                self.attach_one(SIGNING[1], keep.as_fd(), group.as_ref())?;
                self.attach_one(SIGNING[0], sign.as_fd(), group.as_ref())?;
            }
            None => SIGNING.iter().for_each(|(name, _)| self.take_away(name)),
        }
        for (place, program) in VERIFYING.into_iter().zip(&self.verifying) {
            match verify {
                true => self.attach_one(place, program.as_fd(), group.as_ref())?,
                false => self.take_away(place.0),
            }
        }
        Ok(())
    }

    /// Takes what puts in tokens at interfaces away from them, of a weir whose tables had
    /// another form: before this one's is there, so that each interface gets back what it had.
    pub fn end_other_forms_at_interfaces(&self) {
        self.other_forms()
            .for_each(|dir| interface_signer::end_all(&dir));
    }

    /// Pins of weirs whose tables had another form.
    fn other_forms(&self) -> impl Iterator<Item = PathBuf> + '_ {
        forms(&self.of_instance).filter(|dir| *dir != self.dir)
    }

    /// What puts tokens into datagrams or segments, or signatures of DAF, at interfaces; `None`:
    /// nobody signs.
    pub fn signer_at_interfaces(&self, kind: SignedKind) -> Result<Option<InterfaceSigner>> {
        let [of_daf, back] = &self.daf_at;
        let (programs, back) = match (kind, &self.signing_at) {
            (SignedKind::Daf, _) => (of_daf, Some(back)),
            (SignedKind::Datagrams, Some([udp, _])) => (udp, None),
            (SignedKind::Segments, Some([_, tcp])) => (tcp, None),
            (_, None) => return Ok(None),
        };
        let copy = |of: &OwnedFd| {
            let copied = of.try_clone();
            copied.context(|| "keep a program of [token]".into())
        };
        let copies = |of: &[OwnedFd; 2]| Ok([copy(&of[0])?, copy(&of[1])?]);
        let programs = copies(programs)?;
        let back = back.map(copies).transpose()?;
        let table = MapHandle::try_from(&self.interfaces);
        let table = table.context(|| "keep a table of [token]".into())?;
        Ok(Some(InterfaceSigner::new(
            kind, programs, back, table, &self.dir,
        )))
    }

    /// What this host does as a gateway, at interfaces: it is loaded now, over the tables that
    /// there are.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn gateway(&self, kind: GatewayKind) -> Result<GatewayProgram> {
        fault::refuse("token-gateway").context(|| "load the programs of a gateway".into())?;
        gateway::load(&self.dir, kind)
    }

    /// Takes what it does so away from every interface.
    pub fn end_gateway(&self, kind: GatewayKind) {
        gateway::end(&self.dir, kind);
    }

    /// Takes tokens of datagrams, or segments, away from every interface.
    pub fn end_signing_at_interfaces(&self, kind: SignedKind) {
        interface_signer::end(&self.dir, kind);
    }

    fn link(&self, name: &str) -> PathBuf {
        self.dir.join(format!("link-{name}"))
    }

    fn take_away(&self, name: &str) {
        let pin = self.link(name);
        if let Ok(link) = object::open_pin(&pin) {
            object::end_link(&link);
            let _ = fs::remove_file(&pin);
        }
    }

    fn attach_one(
        &self,
        (name, kind): (&str, sys::bpf_attach_type),
        program: BorrowedFd<'_>,
        group: Option<&ControlGroup>,
    ) -> Result<()> {
        let what = || format!("attach the program {name} of [token]");
        group.map_or(Ok(()), |group| {
            group.attach(program, kind, &self.link(name), &what)
        })
    }

    /// The program that iptables may ask about a packet.
    pub fn matcher(&self) -> BorrowedFd<'_> {
        self.matcher.as_fd()
    }

    /// The programs by their names, for tests of the verifier's budget.
    pub fn programs(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        let signing = self.signing.iter().flatten();
        let names = SIGNING.iter().map(|(name, _)| *name);
        let signing_at = self.signing_at.iter().flatten().flatten();
        let verifying = VERIFYING.iter().map(|(name, _)| *name);
        let verifying = verifying.zip(self.verifying.iter().map(AsFd::as_fd));
        names
            .zip(signing.map(AsFd::as_fd))
            .chain(
                ["sign-udp", "sign-udp-ip", "sign-tcp", "sign-tcp-ip"]
                    .into_iter()
                    .zip(signing_at.map(AsFd::as_fd)),
            )
            .chain(verifying)
            .chain([("match", self.matcher())])
            .chain(
                ["sign-daf", "sign-daf-ip", "daf-mtu", "daf-mtu-ip"]
                    .into_iter()
                    .zip(self.daf_at.iter().flatten().map(AsFd::as_fd)),
            )
    }
}

/// Are there tables of tokens of this instance?
pub fn is_attached(root: &Path, instance: &str) -> bool {
    dir_of(root, instance).exists()
}

/// Takes the programs and tables of an instance away, of every form: nobody signs, no
/// port wants a token any more, and rules of iptables with its match match nothing.
///
/// # Errors
/// A pin cannot be removed.
pub fn detach(root: &Path, instance: &str) -> Result<()> {
    detach_where(root, instance, |_| true)
}

fn detach_where(root: &Path, instance: &str, is_over: impl Fn(&str) -> bool) -> Result<()> {
    let Ok(entries) = fs::read_dir(root.join(pins::escape(instance))) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("token-") || !is_over(&name) {
            continue;
        }
        detach_form(&entry.path())?;
    }
    Ok(())
}

/// Takes away what is pinned in this directory.
fn detach_form(dir: &Path) -> Result<()> {
    for pin in fs::read_dir(dir).into_iter().flatten().flatten() {
        if pin.file_name().to_string_lossy().starts_with("link-")
            && let Ok(link) = object::open_pin(&pin.path())
        {
            object::end_link(&link);
        }
    }
    interface_signer::end_all(dir);
    for kind in GatewayKind::ALL {
        gateway::end(dir, kind);
    }
    pins::remove_tree(dir)
}
