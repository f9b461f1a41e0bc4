//! Tokens for turns: the client's connections are signed with a key of its own, and the
//! server's ports want that. The tables are those that are shipped; the daemon fills them
//! as this does.

use std::path::{Path, PathBuf};

use anyhow::Context;
use weir_bpf::{
    identity::{CgroupAt, Handle, Identity},
    token::{
        self, Claim, Conduit, DafStates, Forwarded, InterfaceSigner, Requirement, Scope,
        SignedKind, TokenPolicy,
    },
};
use weir_core::Prefix;
use weir_netlab::Namespace;
use weir_token::{KeyId, daf::DafKey};

use super::{
    SMALL, TokenUse,
    enforced::{self, Enforced, ROOT},
    server::{ACCEPT, DISCARD, ECHO},
};

/// The key of the client's identity, and what the identity is to the kernel.
pub const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
pub const IDENTITY: token::IdentityPrefix = *b"the client of it";

/// A port at which nothing listens.
const ELSEWHERE: u16 = 4;

/// What `[token.require]` would make of these ports.
pub fn requirement(ports: &[u16]) -> TokenPolicy {
    let id = KeyId::MIN.number();
    TokenPolicy {
        sign_to: Vec::new(),
        sign_scope: Scope::Flow,
        netns: 0,
        sign_udp_to: Vec::new(),
        requirements: vec![Requirement {
            ports: ports.iter().map(|port| (*port, *port)).collect(),
            udp_ports: Vec::new(),
            networks: None,
            identities: vec![IDENTITY],
            drops: true,
            scope: Scope::Flow,
            forwarded: None,
        }],
        keys: vec![id],
        claims: vec![Claim {
            key_id: id,
            key: KEY,
            identity: IDENTITY,
        }],
        keep: Vec::new(),
        daf: None,
    }
}

/// What `[token.forward]` would make of them, for the networks of the frames of verifiers.
pub fn forwarded(ports: &[u16]) -> anyhow::Result<TokenPolicy> {
    let mut policy = requirement(ports);
    policy.requirements[0].forwarded = Some(Forwarded {
        to: vec!["192.0.2.0/24".parse()?, "2001:db8::/32".parse()?],
        takes_up: 0,
    });
    Ok(policy)
}

/// What `compat` would make of it, with some key of DAF's.
fn with_daf(mut policy: TokenPolicy) -> anyhow::Result<TokenPolicy> {
    let states = DafKey::new(&[7; 32]).context("a key of DAF")?.states();
    policy.daf = Some(DafStates {
        inner: states.inner,
        outer: states.outer,
    });
    policy.claims = Vec::new();
    for requirement in &mut policy.requirements {
        requirement.scope = Scope::Daf;
        requirement.identities = Vec::new();
    }
    if !policy.sign_to.is_empty() {
        policy.sign_scope = Scope::Daf;
        for (_, conduit) in &mut policy.sign_to {
            *conduit = Conduit::Nothing;
        }
    }
    Ok(policy)
}

/// One side: what is loaded of it, and where its pins are.
struct Side {
    instance: String,
    tokens: token::Tokens,
    /// Attaches it; the side that verifies if that is said.
    attach: Box<dyn Fn(bool) -> weir_bpf::Result<()>>,
    /// Puts tokens into the IP headers of datagrams and SYNs, on the side that signs.
    datagram_signer: Option<InterfaceSigner>,
    /// Puts tokens into segments, there.
    segment_signer: Option<InterfaceSigner>,
    /// Puts signatures of DAF into segments.
    daf_signer: Option<InterfaceSigner>,
    pins: Vec<PathBuf>,
}

impl Side {
    fn load(instance: &str, cgroup: &Path, identity: Option<&Identity>) -> anyhow::Result<Self> {
        let at = CgroupAt::open(Some(cgroup))?;
        let (tokens, loaded) = token::Tokens::load(Path::new(ROOT), instance, &at, identity)?;
        Ok(Self {
            pins: enforced::pins(instance)?,
            instance: instance.to_owned(),
            tokens,
            datagram_signer: loaded.signer_at_interfaces(SignedKind::Datagrams)?,
            segment_signer: loaded.signer_at_interfaces(SignedKind::Segments)?,
            daf_signer: loaded.signer_at_interfaces(SignedKind::Daf)?,
            attach: Box::new(move |verify| loaded.attach(verify)),
        })
    }

    fn resume(&self, policy: &TokenPolicy, verify: bool) -> anyhow::Result<()> {
        enforced::make(&self.pins)?;
        self.tokens.put_clock(token::clock_offset())?;
        self.tokens.put_policy(policy)?;
        Ok((self.attach)(verify)?)
    }
}

/// Rules about programs and tokens on both sides, loaded once: each turn attaches the part
/// that it measures. The traffic of a turn meets nothing else.
pub struct Tokens {
    client: Side,
    server: Side,
    enforced: Enforced,
}

impl Tokens {
    /// Loads everything for the control groups of the client and of the server, and
    /// attaches nothing.
    pub fn load(client: &Path, server: &Path) -> anyhow::Result<Self> {
        let enforced = Enforced::start(client, SMALL, true, None)?;
        let instance = enforced.instance().to_owned();
        let signing = Side::load(&instance, client, Some(&enforced.identity))?;
        signing
            .tokens
            .put_signer(Handle::new(1, 1), KeyId::MIN.number(), KEY, IDENTITY)?;
        let tokens = Self {
            client: signing,
            server: Side::load(&format!("{instance}-server"), server, None)?,
            enforced,
        };
        tokens.pause(None)?;
        Ok(tokens)
    }

    /// Attaches the rules about programs, and the tokens of this use.
    /// What the client sends leaves by this device of its namespace.
    pub fn resume(
        &self,
        used: Option<TokenUse>,
        (client, device): (&Namespace, &str),
    ) -> anyhow::Result<()> {
        self.enforced.resume()?;
        let Some(used) = used else { return Ok(()) };
        let (signed_to, ports) = match used {
            TokenUse::Elsewhere => (["192.0.2.1", "2001:db8:1::1"], [ELSEWHERE].as_slice()),
            _ => (["10.9.0.2", "2001:db8::2"], [DISCARD, ACCEPT].as_slice()),
        };
        let is_udp = matches!(used, TokenUse::Datagrams | TokenUse::DatagramsSigned);
        let by_ip = is_udp || used == TokenUse::RequiredByIp;
        let conduit = match by_ip {
            true => Conduit::IpOption,
            false => Conduit::TcpOption,
        };
        let signed_to: Vec<(Prefix, Conduit)> = signed_to
            .iter()
            .map(|text| Ok((text.parse()?, conduit)))
            .collect::<anyhow::Result<_>>()?;
        let is_payload = matches!(used, TokenUse::Segments | TokenUse::SegmentsSigned);
        let signing = match is_udp {
            true => TokenPolicy {
                sign_udp_to: signed_to,
                ..TokenPolicy::default()
            },
            false => TokenPolicy {
                sign_to: signed_to,
                sign_scope: match is_payload {
                    true => Scope::Payload,
                    false => Scope::Flow,
                },
                netns: client.enter(token::network_namespace)??,
                ..TokenPolicy::default()
            },
        };
        let signing = match used {
            TokenUse::Daf => with_daf(signing)?,
            _ => signing,
        };
        self.client.resume(&signing, false)?;
        if let (TokenUse::Daf, Some(daf_signer)) = (used, &self.client.daf_signer) {
            let index = client.ifindex(device)?;
            client.enter(|| daf_signer.attach(index, true))??;
        }
        if let (true, Some(datagram_signer)) = (by_ip, &self.client.datagram_signer) {
            let index = client.ifindex(device)?;
            client.enter(|| datagram_signer.attach(index, true))??;
        }
        if let (true, Some(segment_signer)) = (is_payload, &self.client.segment_signer) {
            let index = client.ifindex(device)?;
            client.enter(|| segment_signer.attach(index, true))??;
        }
        match used {
            TokenUse::Signed | TokenUse::DatagramsSigned | TokenUse::SegmentsSigned => Ok(()),
            TokenUse::Daf => self.server.resume(&with_daf(requirement(ports))?, true),
            TokenUse::Segments => {
                let mut policy = requirement(ports);
                policy.requirements[0].scope = Scope::Payload;
                self.server.resume(&policy, true)
            }
            TokenUse::Datagrams => {
                let mut policy = requirement(ports);
                policy.requirements[0].udp_ports = vec![(ECHO, ECHO)];
                self.server.resume(&policy, true)
            }
            _ => self.server.resume(&requirement(ports), true),
        }
    }

    /// Takes everything out of the way of the traffic; `client`: the namespace whose device
    /// may have signed.
    pub fn pause(&self, client: Option<&Namespace>) -> anyhow::Result<()> {
        // The device gets its superpackets back.
        let signers = [&self.client.segment_signer, &self.client.daf_signer];
        for signer in signers.into_iter().flatten() {
            if let Some(client) = client {
                client.enter(|| signer.keep_only(&[]))?;
            }
        }
        for side in [&self.client, &self.server] {
            token::detach(Path::new(ROOT), &side.instance)?;
        }
        self.enforced.pause()
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        if let Err(error) = self.pause(None) {
            eprintln!("{error:#}");
        }
        let of_server = Path::new(ROOT).join(&self.server.instance);
        // There may be none.
        let _ = std::fs::remove_dir(of_server);
    }
}
