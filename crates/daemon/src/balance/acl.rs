//! The access lists of pools as the kernel has them: joined from their rules, the
//! database of countries and the lists, and again when one of these is another.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use serde::Serialize;
use weir_core::{
    Prefix, Protocol,
    balance::acl::{Acl, Exceptions},
    geo::GeoTable,
};

use super::{Balancer, State, config::PoolConfig};
use crate::access::lists::CurrentList;

/// One that is joined, and what it was made of.
pub(super) struct Joined {
    of: Acl,
    geography: u64,
    lists: Arc<Vec<CurrentList>>,
    exceptions: Arc<Exceptions>,
}

/// What an access list says of a client, as shown.
#[derive(Debug, Clone, Serialize)]
pub struct PoolAccess {
    /// The pool that has the list.
    pub pool: String,
    /// The virtual addresses of the pool.
    pub vips: Vec<IpAddr>,
    /// Whether the pool's access list drops the client's packets.
    pub denied: bool,
    /// The rule that decides, or `acl_default`.
    pub rule: String,
}

fn prefixes<'a>(lists: &'a [CurrentList], name: &str) -> &'a [Prefix] {
    let list = lists.iter().find(|list| list.name == name);
    list.map_or(&[], |list| &list.prefixes)
}

impl State {
    /// The access list of this pool; `None`: every client is allowed.
    pub(super) fn acl(&self, pool: &str) -> Option<Arc<Exceptions>> {
        let joined = self.acls.get(pool)?;
        Some(joined.exceptions.clone())
    }
}

/// Whether the pool, one of these, serves this port of its virtual address: it names the
/// port, or has all that no other names there.
fn is_served_by<'a>(
    pool: &PoolConfig,
    mut pools: impl Iterator<Item = &'a PoolConfig>,
    vip: IpAddr,
    protocol: Protocol,
    port: u16,
) -> bool {
    let of = |pool: &PoolConfig, all: bool| {
        let mut ports = pool.ports.iter().filter(move |of| of.is_all() == all);
        ports.any(|of| of.contains(protocol, port))
    };
    // Of several protocols another pool may have one, and this pool the others.
    let is_named = |other: &PoolConfig| of(other, false) && other.vips.contains(&vip);
    of(pool, false) || (of(pool, true) && (protocol == Protocol::Any || !pools.any(is_named)))
}

impl Balancer {
    /// Joins those that are new, or made of what has changed.
    pub(super) fn join_acls(&self, state: &mut State) {
        // The number before what it counts: news in between is seen next time.
        let geography = self.geography.changes();
        let lists = self.lists.current();
        let mut before = std::mem::take(&mut state.acls);
        let mut joined = BTreeMap::new();
        for PoolConfig { name, acl, .. } in state.pools.iter().map(|pool| &pool.config) {
            let Some(acl) = acl else {
                continue;
            };
            let is_current = |known: &Joined| {
                known.of == *acl
                    && (known.geography == geography || !acl.names_places())
                    && (Arc::ptr_eq(&known.lists, &lists) || acl.lists().next().is_none())
            };
            let known = before.remove(name).filter(is_current);
            let known = known.unwrap_or_else(|| {
                state.is_new = true;
                let table = self.geography.geo_table();
                let none = GeoTable::default();
                let table = table.as_deref().unwrap_or(&none);
                Joined {
                    of: acl.clone(),
                    geography,
                    exceptions: Arc::new(acl.exceptions(table, |name| prefixes(&lists, name))),
                    lists: lists.clone(),
                }
            });
            joined.insert(name.clone(), known);
        }
        state.acls = joined;
    }

    /// What the pools with an access list say of this client; of those that serve this
    /// port, and of the virtual addresses at which they do, if one is named.
    pub fn access(&self, client: IpAddr, port: Option<(Protocol, u16)>) -> Vec<PoolAccess> {
        let state = self.state();
        let pools = || state.pools.iter().map(|pool| &pool.config);
        let with = pools().filter_map(|pool| Some((pool, pool.acl.as_ref()?)));
        let with = with.filter_map(|(pool, acl)| {
            let vips: Vec<_> = match port {
                None => pool.vips.clone(),
                Some((protocol, port)) => {
                    let serves = |vip: &&IpAddr| is_served_by(pool, pools(), **vip, protocol, port);
                    pool.vips.iter().filter(serves).copied().collect()
                }
            };
            (!vips.is_empty()).then_some((pool, acl, vips))
        });
        let lists = self.lists.current();
        with.map(|(pool, acl, vips)| {
            let place = match acl.names_places() {
                true => self.geography.place(client),
                false => Default::default(),
            };
            let is_on = |name: &str| prefixes(&lists, name).iter().any(|p| p.contains(client));
            let rule = acl.deciding(client, &place, is_on);
            let access = rule.map_or(acl.default, |rule| rule.access);
            PoolAccess {
                pool: pool.name.clone(),
                vips,
                denied: access == weir_core::balance::acl::Access::Deny,
                rule: match rule {
                    Some(rule) => rule.to_string(),
                    None => format!("acl_default = {:?}", acl.default.name()),
                },
            }
        })
        .collect()
    }
}
