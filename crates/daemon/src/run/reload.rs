//! A reload, all of it or nothing: what a configuration asks of the kernel is
//! put there by the code of a start, before anything else of it is in force,
//! and taken back by the same code when the kernel refuses some of it.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use weir_core::Prefix;
use weir_enforce::{BackendChoice, Feature, Settings};
use weir_sinks::Sinks;
use weir_token::key_ring::KeyRing;

use super::{handles, start_error::StartError};
use crate::{
    access::geo::DatabasesInForce,
    api::{JailChange, PoolsChanged, Reload},
    balance::{
        self,
        added::{PoolChange, PoolChangeError},
    },
    config::{Config, NotInForce, WithAdded},
    host::Host,
    instance, interfaces,
    jails::JailConfig,
    log_worker::Workers,
    service::{Refusal, Service, is_a_jail},
    watch::Watches,
};

/// What the alert is about that says that added pools are not on disk.
const ABOUT_SAVING: &str = "balance:saving";

/// What becomes of a step that has failed: an error ends the steps behind it, too.
type OnFailure<'a> = dyn FnMut(StartError) -> Result<(), StartError> + 'a;

/// Has a step that is done end those behind it, or not.
fn step<E: Into<StartError>>(
    done: Result<(), E>,
    failed: &mut OnFailure<'_>,
) -> Result<(), StartError> {
    match done {
        Ok(()) => Ok(()),
        Err(error) => failed(error.into()),
    }
}

/// Databases and keys as they were read before a reload: a roll-back puts these back, whatever
/// their files have become.
struct Before {
    databases: DatabasesInForce,
    keys: Option<KeyRing>,
}

impl Before {
    fn of(service: &Service) -> Self {
        Self {
            databases: service.geography.in_force(),
            keys: service.tokens.keys(),
        }
    }
}

/// Puts exemptions, rules about programs, tokens, decoy ports, geofence, lists and pools of a
/// configuration into force; nobody else may change them meanwhile. `keys`: those of before,
/// with which a roll-back puts tokens back.
///
/// What the configuration goes without goes last, when little can refuse it any more: a
/// reload that is refused leaves no moment without a geofence or without tokens, unless the
/// backend cannot be had beside them. What it
/// changes of them is in force while pools wait for their first checks, and then taken back.
fn put_rules_alone(
    service: &Service,
    config: &Config,
    alone: &Alone<'_>,
    keys: Option<KeyRing>,
    failed: &mut OnFailure<'_>,
) -> Result<(), StartError> {
    let exempt = service.allow_list.refresh_exemptions_by(config);
    step(exempt, failed)?;
    let observe = config.enforcement.observe;
    let apps = || service.apps.apply(config.app.as_ref(), observe);
    let tokens = || match &keys {
        Some(keys) => service
            .tokens
            .put_back(config.token.as_ref(), observe, keys.clone()),
        None => service.tokens.apply(config.token.as_ref(), observe),
    };
    let decoys = || {
        let (decoy, tarpit) = (config.decoy.as_ref(), config.tarpit.as_ref());
        let own = service.own.get();
        service.decoy.apply(&alone.decoy, decoy, tarpit, &own)
    };
    let geography = || service.geography.configure(config.geography().as_deref());
    let classes = || service.classes.apply(&alone.classes, config.fences());
    let has_decoys = config.decoy.is_some() || config.tarpit.is_some();
    let has_geography = config.geography().is_some();
    // First, for rules about programs and access lists of pools ask it, too.
    if has_geography {
        geography();
    }
    if config.app.is_some() {
        step(apps(), failed)?;
    }
    if config.token.is_some() {
        step(tokens(), failed)?;
    }
    if has_decoys {
        step(decoys(), failed)?;
    }
    if config.geofence.is_some() {
        step(classes(), failed)?;
    }
    // Behind all that is likely to refuse the configuration: pools that it changes or drops
    // lose flows, which no roll-back brings back.
    let pools = service.balancer.apply(config.balance.as_ref());
    step(pools, failed)?;
    service.vips.apply(&config.vips());
    if !has_geography {
        geography();
    }
    if config.geofence.is_none() {
        step(classes(), failed)?;
    }
    if !has_decoys {
        step(decoys(), failed)?;
    }
    if config.token.is_none() {
        step(tokens(), failed)?;
    }
    if config.app.is_none() {
        step(apps(), failed)?;
    }
    Ok(())
}

/// Puts the rules of the configuration into force, for a start. Geofence and lists that
/// cannot be had yet are an alert, and are tried again.
pub(super) fn put_rules(service: &Service, config: &Config) -> Result<(), StartError> {
    put_rules_alone(
        service,
        config,
        &Alone::of(service),
        None,
        &mut |error| match error {
            StartError::Classes(error) if !error.is_for_good() => {
                service.alerts.raise("classes", error.to_string());
                Ok(())
            }
            error => Err(error),
        },
    )
}

/// Held while a configuration is exchanged: what follows the host each second
/// waits, and finds the next one.
struct Alone<'a> {
    interfaces: MutexGuard<'a, interfaces::State>,
    decoy: MutexGuard<'a, ()>,
    classes: MutexGuard<'a, ()>,
}

impl<'a> Alone<'a> {
    fn of(service: &'a Service) -> Self {
        Self {
            interfaces: service.interfaces.change(),
            decoy: service.decoy.change(),
            classes: service.classes.change(),
        }
    }
}

/// Has the kernel enforce another configuration: the backend changes first, pools change
/// when all else is in force, and what the configuration goes without goes last.
fn enforce(
    service: &Service,
    config: &Config,
    alone: &mut Alone<'_>,
    keys: Option<KeyRing>,
    failed: &mut OnFailure<'_>,
) -> Result<(), StartError> {
    let settings = alone.interfaces.settings(&config.enforcement);
    if alone.interfaces.in_force() != Some(&settings) {
        // Half of it may be, if it is refused.
        alone.interfaces.put_in_force(None);
        match change_backend(service, config, alone, &settings) {
            Ok(()) => alone.interfaces.put_in_force(Some(settings)),
            Err(error) => failed(error)?,
        }
    }
    put_rules_alone(service, config, alone, keys, failed)
}

/// Has the backend take on these settings. What it refuses to take over of what is in force,
/// and the configuration goes without, goes before it is asked again, and nothing else does.
fn change_backend(
    service: &Service,
    config: &Config,
    alone: &Alone<'_>,
    settings: &Settings,
) -> Result<(), StartError> {
    let pools = config.balance.iter().flat_map(|balance| &balance.pools);
    let forwards = { pools }.any(|pool| !pool.is_proxied());
    let mut dispensable = Vec::new();
    if config.decoy.is_none() && config.tarpit.is_none() {
        dispensable.push(Feature::Decoys);
    }
    if config.geofence.is_none() {
        dispensable.push(Feature::Geofence);
    }
    if !forwards {
        dispensable.push(Feature::Balance);
    }
    loop {
        let Err(refused) = service.backend.reconfigure(settings) else {
            return Ok(());
        };
        let about = dispensable.iter().position(|of| refused.is_about(*of));
        match about.map(|at| dispensable.swap_remove(at)) {
            Some(Feature::Decoys) => service.decoy.apply(&alone.decoy, None, None, &[])?,
            Some(Feature::Geofence) => service.classes.apply(&alone.classes, config.fences())?,
            Some(Feature::Balance) => service.balancer.apply(config.balance.as_ref())?,
            _ => return Err(refused.into()),
        }
    }
}

/// What pools need that was given up at the start, because none needed it then.
fn pools_need(old: &Config, new: &Config) -> Vec<&'static str> {
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

/// Puts the pools of a configuration into force that has all else as it is in force.
fn put_pools(service: &Service, config: &Config) -> Result<(), StartError> {
    service.allow_list.refresh_exemptions_by(config)?;
    // Access lists ask it. It is given up when the configuration is in force.
    if let Some(geography) = config.geography() {
        service.geography.configure(Some(&geography));
    }
    service.balancer.apply(config.balance.as_ref())?;
    service.vips.apply(&config.vips());
    Ok(())
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

/// Carries out a reload, all of it or nothing.
pub struct Reloader {
    service: Arc<Service>,
    workers: Mutex<Workers>,
    watches: Mutex<Watches>,
    sinks: Mutex<Sinks>,
    /// Whether what commands have added is not on disk.
    is_unsaved: AtomicBool,
}

impl Reloader {
    /// Runs sinks and watches of the configuration in force, beside its workers.
    pub fn new(service: Arc<Service>, workers: Workers) -> Self {
        let sinks = Sinks::new(service.metrics.sinks.clone());
        let reloader = Self {
            service,
            workers: Mutex::new(workers),
            watches: Mutex::default(),
            sinks: Mutex::new(sinks),
            is_unsaved: AtomicBool::new(false),
        };
        reloader.run_sinks();
        reloader.run_watches();
        reloader
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().expect("no holder of this lock panics")
    }

    /// Puts on disk what commands have added, and tells if it cannot be.
    fn save_added(&self, config: &Config) -> io::Result<()> {
        let saved = config.added.all.save(&config.state_dir);
        self.is_unsaved.store(saved.is_err(), Ordering::Relaxed);
        match &saved {
            Ok(()) => self.service.alerts.clear(ABOUT_SAVING),
            Err(error) => {
                let message = format!(
                    "cannot save what was added to pools or deleted ({error}): the next start has the pools as they were last saved; the next change and weir reload try again"
                );
                self.service.alerts.raise(ABOUT_SAVING, message);
            }
        }
        saved
    }

    fn reload_wholly(&self) -> Result<Vec<String>, Refusal> {
        let refuse = |why: String| Refusal::Reload(why);
        let mut workers = self.workers();
        let old = self.service.config.get();
        let new = Config::load(&old.file).map_err(|e| refuse(e.to_string()))?;
        let new = new.with_added(old.added.all.clone(), &Host);
        let broken = old.jails_that_would_break(&new);
        if !broken.is_empty() {
            let each = broken
                .iter()
                .map(|(jail, why)| format!("jail {jail}, which runs: {why}"));
            return Err(refuse(format!(
                "{}; what runs goes on. Mend it, or say enabled = false, and reload again",
                each.collect::<Vec<_>>().join("; ")
            )));
        }
        let mut restart = old.restart_needed(&new);
        if new.enforcement.backend == BackendChoice::Ipset && !instance::may_open_raw_sockets() {
            restart.push("backend to \"ipset\" (it needs CAP_NET_RAW, given up at the start)");
        }
        restart.extend(pools_need(&old, &new));
        if new.has_actions() && !instance::may_run_actions() {
            restart.push(
                "actions that run commands from none (what they may need is given up at the start)",
            );
        }
        if new.app.is_some() && !instance::may_identify_programs() {
            restart.push(
                "[app] from none (it needs CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE and CAP_LEASE, given up at the start)",
            );
        }
        if !restart.is_empty() {
            return Err(refuse(format!(
                "{}: a change of {} needs a restart (systemctl restart weir; what is banned stays banned meanwhile)",
                new.file.display(),
                restart.join(", ")
            )));
        }
        let new = Arc::new(new);
        {
            let mut alone = Alone::of(&self.service);
            let before = Before::of(&self.service);
            // Workers that are new may ban before the actions of their jails run.
            self.service.actions.begin_change();
            let refused = |error: StartError, alone: Option<&mut Alone<'_>>| {
                self.service.actions.stay();
                if let Some(alone) = alone {
                    self.roll_back(&old, before, alone);
                }
                self.service.forget_counters_of_others();
                Err(refuse(error.to_string()))
            };
            let prepared = match workers.prepare(&new) {
                Ok(prepared) => prepared,
                Err(error) => return refused(error.into(), None),
            };
            let enforced = enforce(
                &self.service,
                &new,
                &mut alone,
                None,
                &mut Err::<(), StartError>,
            );
            if let Err(error) = enforced {
                return refused(error, Some(&mut alone));
            }
            workers.replace(&old, &new, prepared);
            self.service.set_config(new.clone());
        }
        forget_settings(&self.service, &new);
        tell_of_added(&self.service, &old.added, &new.added);
        if self.is_unsaved.load(Ordering::Relaxed) {
            // An alert says so if it fails again.
            let _ = self.save_added(&new);
        }
        for about in ["reload", "allow-list", "decoy", "classes"] {
            self.service.alerts.clear(about);
        }
        self.service.lists.configure(&new.lists);
        self.run_sinks();
        self.run_watches();
        self.service.run_actions();
        // Of a jail that can run now and could not before.
        self.service.fail2ban_state.take_over_once();
        self.service.forget_counters_of_others();
        self.service.configure_decoy();
        // Lists that are new, or are no more.
        if let Err(error) = self
            .service
            .classes
            .follow(|| self.service.config.get().fences())
        {
            self.service.alerts.raise("classes", error.to_string());
        }
        if let Err(error) = self.service.allow_list.refresh_exemptions() {
            self.service.alerts.raise("allow-list", error.to_string());
        }
        tracing::info!("reloaded {}", new.file.display());
        let mut warnings = new.warnings.clone();
        warnings.extend(new.added.complaints());
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        Ok(warnings)
    }

    /// The old configuration was in force a moment ago: that the kernel refuses some of
    /// it now is an alert, until a reload is done, and keeps none of the rest from being
    /// taken back. Files that it names may have changed or gone, or are what has refused the
    /// next one: what was read of them before is in force again.
    fn roll_back(&self, old: &Config, before: Before, alone: &mut Alone<'_>) {
        let mut refused = Vec::new();
        self.service.geography.put_back(before.databases);
        let done = enforce(&self.service, old, alone, before.keys, &mut |error| {
            refused.push(error.to_string());
            Ok(())
        });
        refused.extend(done.err().map(|error| error.to_string()));
        if !refused.is_empty() {
            let message = format!(
                "after a refused reload the configuration before it is not wholly in force: {}",
                refused.join("; ")
            );
            self.service.alerts.raise("reload", message);
        }
    }

    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().expect("no holder of this lock panics")
    }

    /// Has the watches of the configuration in force run, and no others.
    fn run_watches(&self) {
        let (service, config) = (&self.service, self.service.config.get());
        self.watches().run(
            &handles::of_watches(service),
            &service.watches,
            &config.watches,
        );
    }

    fn sinks(&self) -> MutexGuard<'_, Sinks> {
        self.sinks.lock().expect("no holder of this lock panics")
    }

    /// Has the sinks of the configuration in force run, and no others.
    fn run_sinks(&self) {
        let (service, mut sinks) = (&self.service, self.sinks());
        let config = service.config.get();
        sinks.run(&service.events, &service.alerts, &config.sinks);
        service.questions.set_sinks(sinks.queues().collect());
    }

    /// Ends watches and workers.
    pub fn stop(&self) {
        self.watches().stop();
        self.workers().stop();
    }

    /// The last to end: they are told of the end.
    pub fn stop_sinks(&self) {
        self.sinks().stop();
    }
}

impl Reload for Reloader {
    /// A refusal is in the log, too: who asked may read no answer.
    fn reload(&self) -> Result<Vec<String>, Refusal> {
        let done = self.reload_wholly();
        if let Err(why) = &done {
            tracing::error!("reload refused, the old configuration stays: {why}");
        }
        done
    }

    fn change_jail(&self, jail: &str, change: &mut JailChange<'_>) -> Result<(), Refusal> {
        // Held until it is done: nobody reloads meanwhile.
        let mut workers = self.workers();
        let old = self.service.config.get();
        is_a_jail(&old, jail)?;
        let mut new = Config::clone(&old);
        let named = |one: &&mut JailConfig| one.name == jail;
        let changed = new.jails.iter_mut().find(named);
        let changed = changed.expect("a copy has the same jails");
        change(changed)?;
        let limits = changed.limits.check();
        limits.map_err(|(key, allowed)| Refusal::Malformed(format!("{key} {allowed}")))?;
        let new = Arc::new(new);
        let prepared = workers
            .prepare(&new)
            .map_err(|error| Refusal::Reload(error.to_string()))?;
        workers.replace(&old, &new, prepared);
        self.service.set_config(new);
        Ok(())
    }

    fn change_pools(&self, change: PoolChange) -> Result<PoolsChanged, Refusal> {
        // Held until it is done: nobody reloads meanwhile.
        let _workers = self.workers();
        let old = self.service.config.get();
        let mut added = old.added.all.clone();
        added.change(&change, old.balance.as_ref())?;
        let new = Config::clone(&old).with_added(added, &Host);
        // What is added is in force, and what was so stays so.
        let is_new = |one: &&NotInForce| !old.added.not_in_force.contains(one);
        if let Some(refused) = new.added.not_in_force.iter().find(is_new) {
            return Err(out_of_force(&change, refused));
        }
        let needs = pools_need(&old, &new);
        if !needs.is_empty() {
            return Err(Refusal::Reload(format!(
                "a change of {} needs a restart: write the pool into {} and restart weir (what is banned stays banned meanwhile)",
                needs.join(", "),
                new.file.display()
            )));
        }
        let new = Arc::new(new);
        {
            let _alone = Alone::of(&self.service);
            if let Err(error) = put_pools(&self.service, &new) {
                let geography = old.geography();
                self.service.geography.configure(geography.as_deref());
                if let Err(again) = put_pools(&self.service, &old) {
                    let message = format!(
                        "after a refused change the pools before it are not wholly in force: {again}"
                    );
                    self.service.alerts.raise("reload", message);
                }
                return Err(Refusal::Reload(error.to_string()));
            }
            self.service.set_config(new.clone());
        }
        let saved = self.save_added(&new);
        forget_settings(&self.service, &new);
        tell_of_added(&self.service, &old.added, &new.added);
        tell_of_change(&self.service, &change, &new);
        let is_new = |one: &&String| !old.added.warnings.contains(one);
        let warnings = new.added.warnings.iter().filter(is_new).cloned().collect();
        Ok(PoolsChanged { saved, warnings })
    }
}

/// Why a change is refused by which this cannot be in force: what is to be added itself, or
/// what was added before.
fn out_of_force(change: &PoolChange, one: &NotInForce) -> Refusal {
    let (subject, why) = (one.subject(), &one.why);
    if change.takes_back() {
        Refusal::Conflict(format!("{subject} needs it: {why}"))
    } else if one.pool == change.pool() {
        Refusal::Malformed(why.clone())
    } else {
        Refusal::Conflict(format!("{subject} would be out of force: {why}"))
    }
}

/// Tells of a change of pools that is in force.
fn tell_of_change(service: &Service, change: &PoolChange, config: &Config) {
    let name = change.pool();
    let (what, real) = match change {
        PoolChange::Add(_) => {
            let mut pools = config.balance.iter().flat_map(|balance| &balance.pools);
            let pool = pools.find(|pool| pool.name == name);
            let vips = pool.iter().flat_map(|pool| &pool.vips);
            let vips: Vec<_> = vips.map(ToString::to_string).collect();
            let reals = pool.map_or(0, |pool| pool.own_reals().count());
            (
                format!("added, {} with {reals} reals", vips.join(", ")),
                None,
            )
        }
        PoolChange::Delete(_) => ("deleted".to_owned(), None),
        PoolChange::AddReal(added) => {
            let address = added.address();
            let shown = address.map(|address| address.to_string());
            (
                format!("real {} is added", shown.unwrap_or_default()),
                address,
            )
        }
        PoolChange::DeleteReal(_, address) => {
            (format!("real {address} is deleted"), Some(*address))
        }
    };
    let text = format!("pool {name}: {what}");
    tracing::info!("{text}");
    let event = balance::event(name, text);
    service.events.tell(&match real {
        Some(real) => event.about(Prefix::host(real)),
        None => event,
    });
}

impl From<PoolChangeError> for Refusal {
    fn from(error: PoolChangeError) -> Self {
        match error {
            PoolChangeError::NotFound(why) => Self::NotFound(why),
            PoolChangeError::Conflict(why) => Self::Conflict(why),
            PoolChangeError::Refused(why) => Self::Reload(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::added::AddedPool;

    #[test]
    fn what_is_wrong_with_a_change_itself_is_told_from_what_others_need() {
        let delete = PoolChange::Delete("shop".to_owned());
        let delete_real = PoolChange::DeleteReal("shop".to_owned(), [10, 0, 0, 11].into());
        let add = |name: &str| {
            let pool = Default::default();
            PoolChange::Add(AddedPool {
                name: name.to_owned(),
                pool,
            })
        };
        for (change, is_conflict, text) in [
            (delete, true, "pool shop needs it: why"),
            (delete_real, true, "pool shop needs it: why"),
            (add("shop"), false, "why"),
            (add("other"), true, "pool shop would be out of force: why"),
        ] {
            let one = NotInForce {
                pool: "shop".to_owned(),
                real: None,
                why: "why".to_owned(),
            };
            let refusal = out_of_force(&change, &one);
            let conflicts = matches!(refusal, Refusal::Conflict(_));
            assert_eq!(
                (conflicts, refusal.to_string()),
                (is_conflict, text.to_owned())
            );
        }
    }
}
