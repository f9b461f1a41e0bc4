//! What this host does as a gateway: it judges packets that it forwards (`[token.forward]`), and
//! overwrites tokens of others (`[token.strip]`), at the interfaces that the configuration names.
//! They come and go; one that comes is covered within a tenth of a second.

use serde::Serialize;
use weir_bpf::{
    device::{Device, index_of},
    token::{GatewayKind, GatewayProgram, Loaded},
};
use weir_token::config::{ForwardHook, StripDirection, TokenConfig};

/// The programs that are wanted, and where they are.
#[derive(Default)]
pub(super) struct Gateway {
    all: Vec<Covered>,
}

/// Where the packets that come in at an interface are judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForwardHookStatus {
    /// Name of the interface.
    pub interface: String,
    /// `xdp`: in the driver, or `tc`.
    pub hook: &'static str,
    /// The reason for this hook; `None`: the configuration names it.
    pub reason: Option<String>,
}

/// Why it is the driver where either may be it.
const NATIVE: &str = "the driver has it, and no other program is there";

/// A program, the interfaces that have it, and those that have not though they should.
struct Covered {
    kind: GatewayKind,
    program: GatewayProgram,
    /// The names that the configuration has.
    wanted: Vec<String>,
    /// What does the same in the driver, where that can be had, or why it cannot be anywhere;
    /// `None`: that is not wanted.
    xdp: Option<Result<GatewayProgram, String>>,
    /// Something is wrong where the driver cannot do it.
    wants_xdp: bool,
    at: Interfaces,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Interfaces {
    /// The names of those that have the program.
    names: Vec<String>,
    /// Where each of them has it.
    hooks: Vec<ForwardHookStatus>,
    /// Why others have not.
    problems: Vec<String>,
    /// The numbers of all that are wanted, when it was looked last; `None`: there was none of
    /// this name.
    indexes: Vec<Option<u32>>,
}

/// The names of the interfaces at which a configuration wants this; `None`: nowhere.
fn wanted(config: &TokenConfig, kind: GatewayKind) -> Option<&[String]> {
    let strips = |other| {
        let strip = config.strip.as_ref()?;
        (strip.direction != other).then_some(&strip.interfaces[..])
    };
    match kind {
        // Beside that on tc, if at all.
        GatewayKind::ForwardXdp => None,
        GatewayKind::Forward => config.forward.as_ref().map(|of| &of.interfaces[..]),
        GatewayKind::StripIn => strips(StripDirection::Out),
        GatewayKind::StripOut => strips(StripDirection::In),
    }
}

impl Gateway {
    /// What a configuration wants, which is nowhere yet.
    pub(super) fn new(config: &TokenConfig, loaded: &Loaded) -> Result<Self, weir_bpf::Error> {
        let mut all = Vec::new();
        for kind in GatewayKind::ALL {
            if let Some(names) = wanted(config, kind) {
                let hook = config.forward.as_ref().map(|of| of.hook);
                let hook = hook.filter(|_| kind == GatewayKind::Forward);
                let may_be_xdp = matches!(hook, Some(ForwardHook::Xdp | ForwardHook::Auto));
                let xdp = may_be_xdp.then(|| {
                    let loaded = loaded.gateway(GatewayKind::ForwardXdp);
                    loaded.map_err(|error| error.to_string())
                });
                all.push(Covered {
                    xdp,
                    wants_xdp: hook == Some(ForwardHook::Xdp),
                    kind,
                    program: loaded.gateway(kind)?,
                    wanted: names.to_vec(),
                    at: Interfaces::default(),
                });
            }
        }
        Ok(Self { all })
    }

    /// Takes away what is not wanted any more.
    pub(super) fn end_others(&self, loaded: &Loaded) {
        let is_over = |kind: &GatewayKind| {
            !self.all.iter().any(|one| match kind {
                GatewayKind::ForwardXdp => matches!(one.xdp, Some(Ok(_))),
                kind => one.kind == *kind,
            })
        };
        let over = GatewayKind::ALL.into_iter().filter(is_over);
        over.for_each(|kind| loaded.end_gateway(kind));
    }

    /// Puts the programs at the interfaces of their names where one of these is another one
    /// since, or everywhere if that is `due`, and takes them from all others. True: something
    /// has changed.
    pub(super) fn follow(&mut self, due: bool) -> bool {
        let mut has_changed = false;
        for one in &mut self.all {
            has_changed |= one.follow(due);
        }
        has_changed
    }

    /// The interfaces that have this program.
    pub(super) fn names(&self, kind: GatewayKind) -> Vec<String> {
        let of = self.all.iter().find(|one| one.kind == kind);
        of.map(|one| one.at.names.clone()).unwrap_or_default()
    }

    /// Where forwarded packets are judged, at each of its interfaces.
    pub(super) fn forward_hooks(&self) -> Vec<ForwardHookStatus> {
        let mut all = self.all.iter();
        let of = all.find(|one| one.kind == GatewayKind::Forward);
        of.map(|one| one.at.hooks.clone()).unwrap_or_default()
    }

    /// The text of an alert about packets that are not judged; `None`: nothing is wrong.
    pub(super) fn forward_problem(&self) -> Option<String> {
        let what = "forwarded packets are not judged, or not by XDP";
        self.problem(what, |kind| kind == GatewayKind::Forward)
    }

    /// The same about tokens that are not overwritten.
    pub(super) fn strip_problem(&self) -> Option<String> {
        let what = "tokens of others are not overwritten";
        self.problem(what, |kind| kind != GatewayKind::Forward)
    }

    fn problem(&self, what: &str, is_about: impl Fn(GatewayKind) -> bool) -> Option<String> {
        let about = self.all.iter().filter(|one| is_about(one.kind));
        let mut problems: Vec<_> = about.flat_map(|one| &one.at.problems).collect();
        problems.dedup();
        let texts: Vec<_> = problems.into_iter().map(String::as_str).collect();
        (!texts.is_empty()).then(|| format!("{what} where this is so: {}", texts.join("; ")))
    }
}

impl Covered {
    fn follow(&mut self, due: bool) -> bool {
        let indexes: Vec<_> = self.wanted.iter().map(|name| index_of(name)).collect();
        if !due && indexes == self.at.indexes {
            return false;
        }
        let (mut kept, mut names, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        let (mut kept_by_xdp, mut hooks) = (Vec::new(), Vec::new());
        let mut is_known = true;
        for name in &self.wanted {
            let done = match Device::find_present(name) {
                Ok(Some(device)) => {
                    let done = match &self.xdp {
                        None => None,
                        Some(Ok(xdp)) => {
                            let done = xdp.attach(device.index, device.is_ethernet());
                            Some(done.map_err(|error| error.to_string()))
                        }
                        Some(Err(error)) => Some(Err(error.clone())),
                    };
                    let at = |hook, reason: Option<&str>| ForwardHookStatus {
                        interface: name.clone(),
                        hook,
                        reason: reason.map(str::to_owned),
                    };
                    let by_tc = match done {
                        Some(Ok(())) => {
                            kept_by_xdp.push(device.index);
                            hooks.push(at("xdp", (!self.wants_xdp).then_some(NATIVE)));
                            names.push(name.clone());
                            continue;
                        }
                        Some(Err(error)) => {
                            if self.wants_xdp {
                                problems.push(format!("{name}: {error} (tc judges there)"));
                            }
                            at("tc", Some(&error))
                        }
                        None => at("tc", None),
                    };
                    // One that was refused keeps what it has.
                    kept.push(device.index);
                    let done = self.program.attach(device.index, device.is_ethernet());
                    if done.is_ok() {
                        hooks.push(by_tc);
                    }
                    done.map_err(|error| error.to_string())
                }
                Ok(None) => Err("it is not there".to_owned()),
                Err(error) => {
                    is_known = false;
                    Err(error.to_string())
                }
            };
            match done {
                Ok(()) => names.push(name.clone()),
                Err(error) => problems.push(format!("{name}: {error}")),
            }
        }
        if is_known {
            self.program.keep_only(&kept);
            if let Some(Ok(xdp)) = &self.xdp {
                xdp.keep_only(&kept_by_xdp);
            }
        }
        if self.xdp.is_some() && !self.wants_xdp {
            for at in hooks.iter().filter(|at| !self.at.hooks.contains(at)) {
                let ForwardHookStatus {
                    interface,
                    hook,
                    reason,
                } = at;
                let reason = reason.as_deref().unwrap_or_default();
                tracing::info!("[token.forward]: {hook} judges at {interface}: {reason}");
            }
        }
        let next = Interfaces {
            names,
            hooks,
            problems,
            indexes,
        };
        let has_changed = self.at != next;
        self.at = next;
        has_changed
    }
}
