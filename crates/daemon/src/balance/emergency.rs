//! Who takes the new flows of a pool: its reals, and while none of them does, those that
//! the configuration has for an emergency. Flows that these have stay with them when the
//! reals are back.

use super::{
    Pool, RealState,
    config::{Emergency, PoolConfig},
};

/// The servers that take a pool's new flows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Servers {
    /// The reals that it has for every day.
    #[default]
    Reals,
    /// The pool's own servers for an emergency.
    Emergency,
    /// The reals of the pool of this name.
    Pool(String),
    /// No server takes them: new flows are dropped.
    Nobody,
}

impl Servers {
    /// The servers as status and API show them.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Reals => "reals".to_owned(),
            Self::Emergency => "emergency".to_owned(),
            Self::Pool(name) => format!("pool {name}"),
            Self::Nobody => "nobody".to_owned(),
        }
    }

    /// What becomes of new flows, in the words of an alert.
    pub(super) fn consequence(&self, pool: &PoolConfig) -> String {
        match self {
            Self::Reals => "its reals take new flows".to_owned(),
            Self::Emergency => "its emergency reals take new flows".to_owned(),
            Self::Pool(name) => format!("pool {name} takes new flows"),
            Self::Nobody if pool.is_proxied() => "new connections are reset".to_owned(),
            Self::Nobody => "new flows are dropped".to_owned(),
        }
    }
}

/// Who takes new flows of this one of the pools, and which reals these are.
pub(super) fn servers<'a>(pool: &'a Pool, pools: &'a [Pool]) -> (Servers, Vec<&'a RealState>) {
    let of = |pool: &'a Pool, is_emergency| -> Vec<&'a RealState> {
        let reals = pool.reals.iter();
        let reals = reals.filter(|real| real.is_emergency == is_emergency);
        reals.filter(|real| real.takes_new_flows()).collect()
    };
    let (mut servers, mut takers) = (Servers::Reals, of(pool, false));
    if takers.is_empty() {
        (servers, takers) = match &pool.config.emergency {
            None => (Servers::Nobody, takers),
            Some(Emergency::Reals(_)) => (Servers::Emergency, of(pool, true)),
            Some(Emergency::Pool(name)) => {
                let named = pools.iter().find(|other| other.config.name == *name);
                let mut takers = named.map(|named| of(named, false)).unwrap_or_default();
                // Where none has the virtual addresses, an alert says so.
                let has_vips = |real: &&RealState| real.lacks_vips_of(&pool.config.name).is_none();
                if takers.iter().any(has_vips) {
                    takers.retain(has_vips);
                }
                (Servers::Pool(name.clone()), takers)
            }
        };
    }
    if takers.is_empty() {
        servers = Servers::Nobody;
    }
    (servers, takers)
}
