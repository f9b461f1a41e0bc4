//! Connections that the rules allow no longer are ended, in every network namespace that the
//! daemon may enter: its own, and with CAP_SYS_ADMIN those of all processes.

use std::time::{Duration, Instant};

use weir_bpf::identity::{Identity, Level};

use super::namespaces;
use crate::instance::may_enter_namespaces;

/// After a change of the rules connections are gone through for so long, once a second: of
/// some it is found meanwhile who holds them.
const GO_THROUGH: Duration = Duration::from_secs(5);
/// Connections are spared for so long while names in rules have no answer yet.
const PUT_OFF: Duration = Duration::from_secs(60);

const OTHERS: &str = "connections in other network namespaces when the rules no longer allow them: they carry nothing, and are not closed (the daemon lacks CAP_SYS_ADMIN)";
const KERNEL: &str = "connections when the rules no longer allow them: they carry nothing, and are not closed (this kernel lacks bpf_sock_destroy, and CONFIG_INET_DIAG_DESTROY or one of the modules tcp_diag and udp_diag)";
/// Level push ends them by sock_diag on every kernel.
const KERNEL_AT_PUSH: &str = "connections when the rules no longer allow them: they carry nothing, and are not closed (this kernel lacks CONFIG_INET_DIAG_DESTROY, or one of the modules tcp_diag and udp_diag)";

/// Until when connections are gone through.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    since: Option<Instant>,
    until: Option<Instant>,
}

impl Cuts {
    /// The rules are others.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.until = Some(now + GO_THROUGH);
    }

    /// Goes through connections later; false: that has been put off for long enough.
    pub(super) fn put_off(&mut self) -> bool {
        let is_soon = self.since.is_some_and(|since| since.elapsed() < PUT_OFF);
        if is_soon {
            self.until = Some(Instant::now() + GO_THROUGH);
        }
        is_soon
    }

    /// What is not ended here, in the words of `weir status`.
    pub(super) fn misses(identity: &Identity) -> Option<&'static str> {
        if !identity.can_cut() {
            return Some(match identity.level() {
                Level::Push => KERNEL_AT_PUSH,
                Level::Tracepoint | Level::Fentry => KERNEL,
            });
        }
        (!may_enter_namespaces()).then_some(OTHERS)
    }

    /// Ends what the rules do not allow; `None`: they have not changed a short while ago. An
    /// error: the kernel refuses to go through the sockets, which carry nothing all the same.
    pub(super) fn cut_revoked(
        &mut self,
        identity: &Identity,
    ) -> Option<Result<(), weir_bpf::Error>> {
        let until = self.until?;
        if Instant::now() > until {
            (self.since, self.until) = (None, None);
        }
        Some(namespaces::in_each(|| identity.cut_revoked()))
    }
}
