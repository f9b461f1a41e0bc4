//! From what was typed to a checked [`Config`]: each section by its feature, and
//! the questions that involve several of them.

use weir_config::{
    ConfigErrors, Document, Part,
    values::{optional_path, path},
};
use weir_core::Action;
use weir_enforce::Feature;

use super::{
    Config, DEFAULT_STATE_DIR, backend_limits, host_warnings, host_warnings::HostView,
    tarpit_overlap,
};
use crate::{
    access::{exemptions, geofence, lists},
    balance, decoy, fail2ban,
    host::HostFacts,
    identity, interfaces, jails, store, vips, watch,
};

pub(super) fn check(files: &[Part], host: &dyn HostFacts) -> Result<Config, ConfigErrors> {
    let document = Document::new(files);
    let mut root = document.root();
    let mut warnings = Vec::new();

    let [
        decoy_line,
        geofence_line,
        balance_line,
        tarpit_line,
        pool_line,
    ] = ["decoy", "geofence", "balance", "tarpit", "pool"].map(|section| root.line_of(section));
    let addresses_line = root.line_within("tarpit", "addresses");
    let mut enforcement = interfaces::config::read(&mut root, host, &mut warnings);
    let state_dir = path(&mut root, "state_dir", DEFAULT_STATE_DIR);
    enforcement.advice =
        interfaces::hook_preference::read(&mut root, host, &enforcement, &state_dir, &mut warnings);
    let socket = path(&mut root, "socket", super::DEFAULT_SOCKET);
    let fail2ban_socket = optional_path(&mut root, "fail2ban_socket", "/run/weir/fail2ban.sock");
    let allow = exemptions::config::allow(&mut root);
    let keep_history = store::KeepHistory::read(&mut root);
    let lockout = exemptions::config::lockout(&mut root);
    let filters = jails::read_filters(&mut root);
    let mut jails = jails::read(&mut root, &filters, host, &mut warnings);
    let fail2ban = fail2ban::read(
        &mut root,
        (host, enforcement.drops_nothing(), &state_dir),
        &mut jails,
        &mut warnings,
    );
    let decoy = decoy::config::read(&mut root, host, &jails, &mut warnings);
    let tarpit = decoy::tarpit::read(&mut root, host, &jails, decoy.as_ref());
    let geofence = geofence::read(&mut root, host, &mut warnings);
    let lists = lists::config::read(&mut root, host, &mut warnings);
    let answering = [
        ("decoy", decoy.as_ref().map(|decoy| &decoy.ports)),
        ("tarpit", tarpit.as_ref().map(|tarpit| &tarpit.ports)),
    ];
    let list_names: Vec<_> = lists.iter().map(|list| list.name.as_str()).collect();
    let proxy_threads = balance::config::proxy_threads(&mut root);
    let balance = balance::config::read(
        &mut root,
        host,
        proxy_threads,
        &answering,
        &list_names,
        &mut warnings,
    );
    let routers = vips::config::read(&mut root, host, balance.as_ref(), &mut warnings);
    let pools = balance.iter().flat_map(|balance| &balance.pools);
    if let Some(why) = tarpit_overlap::overlap(tarpit.as_ref(), pools, &routers) {
        root.error(addresses_line.unwrap_or_default(), why);
    }
    let watches = watch::config::read(&mut root, &mut warnings);
    let app =
        weir_identity::config::read(&mut root, &identity::HostFiles, &list_names, &mut warnings);
    let token = weir_token::config::read(&mut root, app.as_ref(), &mut warnings);
    let sinks = weir_sinks::config::read(&mut root, &mut warnings);
    let asked = [
        decoy
            .as_ref()
            .map(|_| (decoy_line, "decoy", Feature::Decoys)),
        geofence
            .as_ref()
            .map(|_| (geofence_line, "geofence", Feature::Geofence)),
        balance
            .as_ref()
            .filter(|balance| balance.forwards())
            .map(|_| (balance_line, "balance", Feature::Balance)),
        tarpit
            .as_ref()
            .map(|_| (tarpit_line, "tarpit", Feature::Decoys)),
        balance
            .as_ref()
            .filter(|balance| balance.has_tunnels())
            .map(|_| (pool_line, "pool", Feature::Tunnels)),
    ];
    let asked: Vec<_> = asked.into_iter().flatten().collect();
    let rejects = |action: &Action| *action == Action::Reject;
    let jails_that = jails.iter().filter(|jail| rejects(&jail.action));
    let watches_that = watches.iter().filter(|watch| rejects(&watch.action));
    let rejecting: Vec<String> = jails_that
        .map(|jail| format!("jail.{}", jail.name))
        .chain(watches_that.map(|watch| format!("watch.{}", watch.name)))
        .collect();
    backend_limits::check(
        &root,
        enforcement.backend,
        &asked,
        &lists,
        &rejecting,
        &mut warnings,
    );
    root.finish();

    let mut config = Config {
        file: files[0].file.clone(),
        enforcement,
        state_dir,
        socket,
        fail2ban_socket,
        allow,
        lockout,
        keep_history,
        jails,
        fail2ban,
        decoy,
        balance,
        proxy_threads,
        routers,
        tarpit,
        geofence,
        lists,
        filters: filters
            .into_iter()
            .filter_map(|(name, filter)| Some((name, filter?)))
            .collect(),
        watches,
        app,
        token,
        sinks,
        added: super::WithAdded::default(),
        warnings,
    };
    let of_host = host_warnings::of_files(&config, &HostView::new(host));
    config.warnings.extend(of_host);
    if config.denies_nothing() {
        config.warnings.push(
            "nothing is enabled that bans or denies: only manual bans are enforced".to_owned(),
        );
    }
    document.finish(config)
}
