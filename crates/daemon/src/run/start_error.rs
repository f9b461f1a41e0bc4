//! Why the daemon does not start, or a reload is refused.

use weir_config::ConfigErrors;

use crate::{
    access::classes::ClassError, identity::AppError, instance::InstanceError,
    log_worker::WorkerError, token::TokenError,
};

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Another daemon, or no place for state.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// Privileges cannot be given up.
    #[error("cannot drop capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// The backend cannot be opened or attached.
    #[error(transparent)]
    Backend(#[from] weir_enforce::Error),
    /// Geofence and lists cannot be put into force.
    #[error(transparent)]
    Classes(#[from] ClassError),
    /// Rules about programs cannot be put into force.
    #[error(transparent)]
    App(#[from] AppError),
    /// Tokens cannot be put into force.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The log workers cannot be started.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done to which object.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
}

impl StartError {
    /// Makes a start error of a system's one, with what was being done.
    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
