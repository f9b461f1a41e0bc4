//! The sockets that answer requests: weir's own, and the one of Fail2ban's protocol.

use std::{os::unix::net::UnixListener, sync::Arc, time::Duration};

use tokio::{runtime::Runtime, sync::watch};

use super::{Reloader, StartError, TICK, handles};
use crate::{
    api::{self, fail2ban},
    config::Config,
    instance,
    service::Service,
};

/// Longer than any daemon runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The sockets, bound while this process may make them anywhere.
pub(super) struct Sockets {
    own: UnixListener,
    fail2ban: Option<UnixListener>,
}

impl Sockets {
    pub fn bind(config: &Config) -> Result<Self, StartError> {
        instance::make_parent(&config.socket)?;
        let what = format!("cannot listen on {}", config.socket.display());
        let own = api::bind(&config.socket).map_err(StartError::system(what))?;
        let fail2ban = match &config.fail2ban_socket {
            None => None,
            Some(path) => {
                instance::make_parent(path)?;
                let what = format!("fail2ban_socket: cannot listen on {}", path.display());
                Some(api::bind(path).map_err(StartError::system(what))?)
            }
        };
        Ok(Self { own, fail2ban })
    }
}

/// What the thread of the sockets does until `stopped` says so.
pub(super) fn server(
    service: &Service,
    reloader: Arc<Reloader>,
    sockets: Sockets,
    stopped: watch::Receiver<bool>,
) -> Result<impl FnOnce() + Send + use<>, StartError> {
    let handles = handles::of_api(service, reloader);
    let config = service.config.get();
    let (socket, alerts) = (config.socket.clone(), service.alerts.clone());
    let fail2ban = sockets.fail2ban.zip(config.fail2ban_socket.clone());
    let pulse = service.pulses.of("weir-control");
    let runtime = runtime()?;
    Ok(move || {
        runtime.spawn_blocking(|| ());
        runtime.spawn(async move {
            loop {
                pulse.beat();
                tokio::time::sleep(TICK).await;
            }
        });
        if let Some((listener, path)) = fail2ban {
            let (handles, stopped) = (handles.clone(), stopped.clone());
            runtime.spawn(async move {
                let serving = fail2ban::socket::serve(listener, path, handles, stopped);
                if let Err(error) = serving.await {
                    tracing::error!("Fail2ban's socket: {error}");
                }
            });
        }
        let serving = api::serve(sockets.own, socket, handles, alerts, stopped);
        if let Err(error) = runtime.block_on(serving) {
            tracing::error!("control socket: {error}");
        }
        // Event streams have no end of their own.
        runtime.shutdown_timeout(Duration::from_secs(1));
    })
}

fn runtime() -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(api::THREADS)
        // Where there is no thread to be had, tokio waits for one that it has,
        // and panics if it has none: the first one stays.
        .thread_keep_alive(FOREVER)
        .build()
        .map_err(StartError::system("cannot start the control socket"))
}

/// Takes the sockets away at the end, so that nobody waits for an answer there.
pub(super) fn remove_sockets(config: &Config) {
    for socket in std::iter::once(&config.socket).chain(&config.fail2ban_socket) {
        if let Err(error) = std::fs::remove_file(socket) {
            tracing::debug!("cannot remove {}: {error}", socket.display());
        }
    }
}
