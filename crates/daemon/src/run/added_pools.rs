//! Pools and reals that commands have added, as a start, a reload and a change of pools meet
//! them: what they need, and what is told of them.

use std::collections::BTreeMap;

use crate::{
    config::{Config, WithAdded},
    instance,
    service::Service,
};

/// What pools need that was given up at the start, because none needed it then.
pub(super) fn pools_need(old: &Config, new: &Config) -> Vec<&'static str> {
    let mut needs = Vec::new();
    if !new.vips().is_empty() && !instance::may_open_raw_sockets() {
        needs.push(
            "virtual addresses that weir holds from none (it needs CAP_NET_RAW, given up at the start)",
        );
    }
    if !old.runs_commands() && new.runs_commands() && !instance::may_run_watches() {
        needs.push(
            "watches and commands of checks from none (the first needs CAP_SETUID, CAP_SETGID and CAP_KILL, given up at the start)",
        );
    }
    if new.has_privileged_proxy_port() && !instance::may_bind_low_ports() {
        needs.push(
            "pools to a proxy at ports below 1024 (the first needs CAP_NET_BIND_SERVICE, given up at the start)",
        );
    }
    needs
}

/// What was said of reals that are no more counts no more.
pub(super) fn forget_settings(service: &Service, config: &Config) {
    let (balance, added) = (config.balance.as_ref(), &config.added.all);
    if added.unreadable.is_none() {
        service.balancer.forget_settings(balance, added);
    }
}

/// What the alert about what was added to a pool is about.
fn about_added(pool: &str) -> String {
    format!("pool-{pool}:added")
}

/// Alerts of what commands have added that is not in force. `before`: of which there may be
/// alerts that are over.
pub(super) fn tell_of_added(service: &Service, before: &WithAdded, now: &WithAdded) {
    const ABOUT: &str = "balance:added";
    match &now.all.unreadable {
        None => service.alerts.clear(ABOUT),
        Some(why) => service.alerts.raise(
            ABOUT,
            format!("{why}; pools and reals that weir pool add and weir real add have added are not in force; mend or remove it, and restart weir"),
        ),
    }
    let mut by_pool = BTreeMap::<_, Vec<String>>::new();
    for one in &now.not_in_force {
        let why = format!("{} is not in force: {}", one.subject(), one.why);
        by_pool.entry(&one.pool).or_default().push(why);
    }
    let over = { before.not_in_force.iter() }.filter(|one| !by_pool.contains_key(&one.pool));
    over.for_each(|one| service.alerts.clear(&about_added(&one.pool)));
    for (pool, why) in by_pool {
        let message = format!(
            "what commands have added ({}); weir pool del or weir real del forgets it",
            why.join("; ")
        );
        service.alerts.raise(&about_added(pool), message);
    }
}
