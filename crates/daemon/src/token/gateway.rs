//! What this host does as a gateway: it judges packets that it forwards (`[token.forward]`), and
//! overwrites tokens of others (`[token.strip]`), at the interfaces that the configuration names.
//! They come and go; one that comes is covered within a tenth of a second.

use weir_bpf::{
    device::{Device, index_of},
    token::{GatewayKind, GatewayProgram, Loaded},
};
use weir_token::config::{StripDirection, TokenConfig};

/// The programs that are wanted, and where they are.
#[derive(Default)]
pub(super) struct Gateway {
    all: Vec<Covered>,
}

/// A program, the interfaces that have it, and those that have not though they should.
struct Covered {
    kind: GatewayKind,
    program: GatewayProgram,
    /// The names that the configuration has.
    wanted: Vec<String>,
    /// What does the same in the driver, where that can be had, or why it cannot be anywhere;
    /// `None`: that is not wanted.
    xdp: Option<Result<GatewayProgram, String>>,
    at: Interfaces,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Interfaces {
    /// The names of those that have the program.
    names: Vec<String>,
    /// Those of them that have it in the driver.
    by_xdp: Vec<String>,
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
                let by_xdp = config.forward.as_ref().is_some_and(|of| of.by_xdp);
                let xdp = (kind == GatewayKind::Forward && by_xdp).then(|| {
                    let loaded = loaded.gateway(GatewayKind::ForwardXdp);
                    loaded.map_err(|error| error.to_string())
                });
                all.push(Covered {
                    xdp,
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

    /// Those that have it in the driver.
    pub(super) fn by_xdp(&self) -> Vec<String> {
        let all = self.all.iter();
        all.flat_map(|one| one.at.by_xdp.clone()).collect()
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
        let (mut kept_by_xdp, mut by_xdp) = (Vec::new(), Vec::new());
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
                    if let Some(Err(error)) = &done {
                        problems.push(format!("{name}: {error} (tc judges there)"));
                    }
                    if let Some(Ok(())) = done {
                        kept_by_xdp.push(device.index);
                        by_xdp.push(name.clone());
                        names.push(name.clone());
                        continue;
                    }
                    // One that was refused keeps what it has.
                    kept.push(device.index);
                    let done = self.program.attach(device.index, device.is_ethernet());
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
        let next = Interfaces {
            names,
            by_xdp,
            problems,
            indexes,
        };
        let has_changed = self.at != next;
        self.at = next;
        has_changed
    }
}
