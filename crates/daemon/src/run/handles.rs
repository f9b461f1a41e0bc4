//! What each part of the daemon may touch, taken from all of it.

use std::sync::Arc;

use crate::{
    api::{self, Reload},
    log_worker,
    service::Service,
    watch,
};

/// Handles for requests over the control socket.
pub(super) fn of_api(service: &Service, reloader: Arc<dyn Reload>) -> api::Handles {
    api::Handles {
        questions: service.questions.clone(),
        manual_bans: service.manual_bans.clone(),
        fail2ban_state: service.fail2ban_state.clone(),
        allow_list: service.allow_list.clone(),
        list_refreshes: service.list_refreshes.clone(),
        balancer: service.balancer.clone(),
        apps: service.apps.clone(),
        events: service.events.clone(),
        reloader,
    }
}

/// Handles for the threads that read logs.
pub(crate) fn of_logs(service: &Service) -> log_worker::Handles {
    log_worker::Handles {
        exempt: service.exempt.clone(),
        bans: service.bans.clone(),
        ignore_checks: service.ignore_checks.clone(),
        store: service.store.clone(),
        events: service.events.clone(),
        alerts: service.alerts.clone(),
        metrics: service.metrics.clone(),
        log_status: service.log_status.clone(),
        ledger: service.ledger.clone(),
        own: service.own.clone(),
        pulses: service.pulses.clone(),
    }
}

/// Handles for the commands of watches.
pub(crate) fn of_watches(service: &Service) -> watch::Handles {
    watch::Handles {
        alerts: service.alerts.clone(),
        events: service.events.clone(),
        exempt: service.exempt.clone(),
        ledger: service.ledger.clone(),
        classes: service.classes.clone(),
        backend: service.backend.clone(),
        bans: service.bans.clone(),
    }
}
