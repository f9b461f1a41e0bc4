//! Joins what the lists hold, what the database says and what the geofence's
//! rules want into classes, and hands them to the backend whenever one of the
//! three has changed. What cannot be joined leaves the last ones in force.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use serde::Serialize;
use weir_core::{
    Prefix, Protocol, Reason,
    address_class::{ClassVerdict, Classes, ListLayer, Plan, TooMany},
    geo::GeoTable,
    geofence::Fence,
};
use weir_enforce::Backend;

use crate::access::{
    geo::GeoService,
    lists::{CurrentList, ListAction, Lists},
};

/// Why classes are not in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClassError {
    /// More than the table has places for.
    #[error("{0}; the lists and the geofence stay as they were")]
    TooMany(#[from] TooMany),
    /// The backend does not take them.
    #[error(transparent)]
    Backend(#[from] weir_enforce::Error),
}

impl ClassError {
    /// Will it be the same until the configuration or the kernel is another? Then
    /// a start is refused as well; otherwise it is no reason to enforce nothing.
    pub fn is_for_good(&self) -> bool {
        matches!(
            self,
            Self::Backend(
                weir_enforce::Error::Unsupported(_) | weir_enforce::Error::NotOffered { .. }
            )
        )
    }
}

/// Keeps the kernel's classes what lists, databases and rules say; knows those
/// in force and what they were made of.
pub struct ClassSync {
    backend: Arc<dyn Backend>,
    lists: Lists,
    geography: Arc<GeoService>,
    state: Mutex<State>,
    /// Held while classes are made, so that older ones never follow newer.
    making: Mutex<()>,
}

#[derive(Default, Clone)]
struct State {
    made_of: Option<Inputs>,
    classes: Arc<Classes>,
    took: Duration,
}

#[derive(Clone)]
struct Inputs {
    geography: u64,
    lists: Arc<Vec<CurrentList>>,
    fences: Vec<Fence>,
}

impl Inputs {
    fn is_same(&self, other: &Self) -> bool {
        self.geography == other.geography
            && Arc::ptr_eq(&self.lists, &other.lists)
            && self.fences == other.fences
    }

    fn join(&self, geo_table: &GeoTable) -> Result<Classes, TooMany> {
        let denied = |list: &&CurrentList| list.action == ListAction::Deny;
        let layers: Vec<ListLayer<'_>> = self
            .lists
            .iter()
            .filter(denied)
            .map(|list| ListLayer {
                name: &list.name,
                scope: &list.scope,
                direction: list.direction,
                prefixes: &list.prefixes,
            })
            .collect();
        Plan {
            geo_table,
            fences: &self.fences,
            lists: &layers,
        }
        .join()
    }
}

/// The classes as shown.
#[derive(Debug, Clone, Serialize)]
pub struct ClassStatus {
    /// The rules of the geofence in the order in which they are asked.
    pub rules: Vec<String>,
    /// The databases in force.
    pub databases: Vec<crate::access::geo::DatabaseInfo>,
    /// Ranges of addresses that somebody says something about, IPv4 and IPv6.
    pub ranges: [usize; 2],
    /// Different things said about them.
    pub count: usize,
    /// What the last rebuild and swap took, milliseconds.
    pub rebuilt_in_ms: u64,
}

/// What lists and geofence say about an address.
#[derive(Debug, Clone, Serialize)]
pub struct Listing {
    /// The name of the list.
    pub list: String,
    /// The URL, file or service that the list is from.
    pub source: String,
    /// The action of the list: `deny` or `allow`.
    pub action: &'static str,
    /// The entry of the list that holds the address.
    pub prefix: Prefix,
}

impl ClassSync {
    /// No classes in force yet; from these lists and this database, for this backend.
    pub fn new(backend: Arc<dyn Backend>, lists: Lists, geography: Arc<GeoService>) -> Self {
        Self {
            backend,
            lists,
            geography,
            state: Mutex::default(),
            making: Mutex::default(),
        }
    }

    fn inputs(&self, fences: Vec<Fence>) -> (Inputs, Option<Arc<GeoTable>>) {
        // The number before what it counts: news in between is seen next time.
        let geography = self.geography.changes();
        let inputs = Inputs {
            geography,
            lists: self.lists.current(),
            fences,
        };
        (inputs, self.geography.geo_table())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// The classes in force.
    pub fn classes(&self) -> Arc<Classes> {
        self.state().classes.clone()
    }

    /// The lock for a change of configuration: nobody else makes classes meanwhile.
    pub fn change(&self) -> MutexGuard<'_, ()> {
        self.making.lock().expect("no holder of this lock panics")
    }

    /// Puts the classes of the current inputs into force, if they have changed.
    /// The geofence's rules are asked for when no others can come any more.
    pub fn follow(&self, fences: impl FnOnce() -> Vec<Fence>) -> Result<(), ClassError> {
        let alone = self.change();
        self.apply(&alone, fences())
    }

    /// Puts the classes of the current lists and of `fences` into force, which are not yet.
    pub fn apply(&self, _alone: &MutexGuard<'_, ()>, fences: Vec<Fence>) -> Result<(), ClassError> {
        let (inputs, geo_table) = self.inputs(fences);
        let known = self.state().made_of.clone();
        if known.as_ref().is_some_and(|known| known.is_same(&inputs)) {
            return Ok(());
        }
        let begin = Instant::now();
        let classes = Arc::new(inputs.join(geo_table.as_deref().unwrap_or(&GeoTable::default()))?);
        // At the first start with nothing to enforce there is nothing to tell.
        let filter = self.backend.classes();
        let enforces_some = filter.is_some_and(|filter| filter.has_classes());
        if known.is_some() || !classes.is_empty() || enforces_some {
            weir_enforce::set_classes(&*self.backend, &classes)?;
        }
        let took = begin.elapsed();
        if !classes.is_empty() {
            tracing::info!(
                "geofence and lists: {} IPv4 and {} IPv6 ranges in {} classes, in force after {} ms",
                classes.v4.len(),
                classes.v6.len(),
                classes.classes.len(),
                took.as_millis()
            );
        }
        *self.state() = State {
            made_of: Some(inputs),
            classes,
            took,
        };
        Ok(())
    }

    /// What denies this address without a ban, the geofence or a list, in words.
    pub fn denies(&self, addr: IpAddr) -> Option<String> {
        let (_, denied) = self.judge(addr, None)?;
        Some(denied)
    }

    /// What the kernel says about the first packet of a flow from this address
    /// to this port, or to any: the reason, and in words.
    pub fn judge(&self, addr: IpAddr, port: Option<(Protocol, u16)>) -> Option<(Reason, String)> {
        let classes = self.classes();
        let protocols = match port {
            Some((Protocol::Any, port)) => [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
                .map(|p| Some((p.number(), port)))
                .to_vec(),
            Some((protocol, port)) => vec![Some((protocol.number(), port))],
            None => vec![None],
        };
        let said = protocols
            .into_iter()
            .map(|port| classes.judge(addr, false, port))
            .find(|said| *said != ClassVerdict::Nothing)?;
        match said {
            ClassVerdict::Nothing => None,
            ClassVerdict::Listed(bit) => {
                let name = &classes.lists.get(bit)?.name;
                let entry = self.listings(addr).into_iter().find(|l| l.list == *name);
                let text = match entry {
                    Some(entry) => format!("list {name} has {} ({})", entry.prefix, entry.source),
                    None => format!("list {name} has it"),
                };
                Some((Reason::Listed, text))
            }
            ClassVerdict::GeoDenied(bit) => {
                let rule = &classes.fences.get(bit)?.name;
                let place = match self.geography.place(addr).country {
                    Some(country) => format!("country {country}"),
                    None => "an unknown country".to_owned(),
                };
                let text = format!("{rule} denies flows from {place}");
                Some((Reason::Fenced, text))
            }
        }
    }

    /// The lists that hold this address.
    pub fn listings(&self, addr: IpAddr) -> Vec<Listing> {
        let state = self.state();
        let lists = state.made_of.iter().flat_map(|inputs| inputs.lists.iter());
        lists
            .filter_map(|list| {
                Some(Listing {
                    list: list.name.clone(),
                    source: list.source.clone(),
                    action: match list.action {
                        ListAction::Deny => "deny",
                        ListAction::Allow => "allow",
                    },
                    prefix: list.lookup(addr)?,
                })
            })
            .collect()
    }

    /// The state for `weir status`; `None` while there is nothing.
    pub fn status(&self) -> Option<ClassStatus> {
        let state = self.state().clone();
        let inputs = state.made_of?;
        if inputs.fences.is_empty() && inputs.lists.is_empty() {
            return None;
        }
        Some(ClassStatus {
            rules: inputs.fences.iter().map(describe).collect(),
            databases: self.geography.databases(),
            ranges: [state.classes.v4.len(), state.classes.v6.len()],
            count: state.classes.classes.len(),
            rebuilt_in_ms: state.took.as_millis() as u64,
        })
    }
}

fn describe(fence: &Fence) -> String {
    let places = |selectors: &[weir_core::geo::Selector]| {
        let words: Vec<_> = selectors.iter().map(ToString::to_string).collect();
        words.join(" ")
    };
    let default = match fence.default {
        weir_core::geofence::RuleAction::Pass => "pass",
        weir_core::geofence::RuleAction::Drop => "drop",
    };
    let mut text = format!(
        "{}: {} {}, {default}",
        fence.name,
        fence.direction.name(),
        fence.scope
    );
    if !fence.deny.is_empty() {
        text += &format!(", deny {}", places(&fence.deny));
    }
    if !fence.allow.is_empty() {
        text += &format!(", allow {}", places(&fence.allow));
    }
    text
}
