//! A reload, all of it or nothing: what a configuration asks of the kernel is
//! put there by the code of a start, before anything else of it is in force,
//! and taken back by the same code when the kernel refuses some of it.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use weir_enforce::{BackendChoice, Feature, Settings};
use weir_sinks::Sinks;

use super::{
    added_pools::{forget_settings, pools_need, tell_of_added},
    handles,
    start_error::StartError,
};
use crate::{
    access::geo::DatabasesInForce,
    api::{JailChange, PoolsChanged, Reload},
    balance::added::PoolChange,
    config::Config,
    host::Host,
    instance, interfaces,
    jails::JailConfig,
    log_worker::Workers,
    service::{Refusal, Service, is_a_jail},
    token::{self, InForce},
    watch::Watches,
};

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
    tokens: Option<InForce>,
}

impl Before {
    fn of(service: &Service) -> Self {
        Self {
            databases: service.geography.in_force(),
            tokens: service.tokens.in_force(),
        }
    }
}

/// Puts exemptions, rules about programs, tokens, decoy ports, geofence, lists and pools of a
/// configuration into force; nobody else may change them meanwhile. `tokens`: what was read before,
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
    tokens: Option<InForce>,
    failed: &mut OnFailure<'_>,
) -> Result<(), StartError> {
    let exempt = service.allow_list.refresh_exemptions_by(config);
    step(exempt, failed)?;
    let observe = config.enforcement.observe;
    let apps = || service.apps.apply(config.app.as_ref(), observe);
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
    let secrets = match (&config.token, &tokens) {
        (Some(config), None) => match token::read_secrets(config) {
            Ok(secrets) => Some(secrets),
            Err(error) => {
                failed(error.into())?;
                None
            }
        },
        _ => None,
    };
    if config.app.is_some() {
        step(apps(), failed)?;
    }
    if let Some(config) = &config.token {
        let put = match (tokens, secrets) {
            (Some(before), _) => service.tokens.put_back(config, observe, before),
            (None, Some(secrets)) => service.tokens.apply(config, observe, secrets),
            // They could not be read, which is told.
            (None, None) => Ok(()),
        };
        step(put, failed)?;
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
        step(service.tokens.take_away(), failed)?;
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
pub(super) struct Alone<'a> {
    interfaces: MutexGuard<'a, interfaces::State>,
    decoy: MutexGuard<'a, ()>,
    classes: MutexGuard<'a, ()>,
}

impl<'a> Alone<'a> {
    pub(super) fn of(service: &'a Service) -> Self {
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
    tokens: Option<InForce>,
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
    put_rules_alone(service, config, alone, tokens, failed)
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

/// Carries out a reload, all of it or nothing.
pub struct Reloader {
    pub(super) service: Arc<Service>,
    workers: Mutex<Workers>,
    watches: Mutex<Watches>,
    sinks: Mutex<Sinks>,
    /// Whether what commands have added is not on disk.
    pub(super) is_unsaved: AtomicBool,
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

    pub(super) fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().expect("no holder of this lock panics")
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
        let done = enforce(&self.service, old, alone, before.tokens, &mut |error| {
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
        self.change_pools_alone(&change)
    }
}
