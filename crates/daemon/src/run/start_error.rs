//! Why the daemon does not start, or a reload is refused.

use weir_config::ConfigErrors;

use crate::{
    access::classes::ClassError, identity::AppError, instance::InstanceError,
    log_worker::WorkerError,
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
    /// Nothing can be enforced.
    #[error(transparent)]
    Backend(#[from] weir_enforce::Error),
    /// Nor can geofence and lists.
    #[error(transparent)]
    Classes(#[from] ClassError),
    /// Nor can rules about programs.
    #[error(transparent)]
    App(#[from] AppError),
    /// Nothing can be read.
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
