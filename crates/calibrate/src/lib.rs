//! `weir calibrate`: what each hook costs on this host (`measure`, in the
//! network namespaces of a `testbed`, with `stream` for TCP and `target` for the
//! path or rules that are measured; `host` tells what else went on, `confidence`
//! how sure a figure is), what can be seen of its real interfaces (`interface`)
//! and said of that (`advice`), and the file that `backend = "auto"` goes by
//! (`result_file`). Which hook follows from the figures is decided in
//! `weir_enforce::hook_selection`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod advice;
mod confidence;
mod host;
pub mod interface;
pub mod measure;
mod processor;
pub mod result_file;
mod stream;
mod target;
mod testbed;

pub use confidence::Spread;
pub use host::Company;
pub use measure::{Plan, measure};
pub use result_file::{FILE, Figures, Machine, load, save};

/// The reason why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// Asked to stop; nothing is left behind.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// Namespaces, veth pairs, clients.
    #[error(transparent)]
    Lab(#[from] weir_netlab::Error),
    /// The packet path or the generator.
    #[error(transparent)]
    Kernel(#[from] weir_bpf::Error),
    /// A backend that was to be measured failed.
    #[error(transparent)]
    Backend(#[from] weir_enforce::Error),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was being done to which object.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The measured figures cannot be true.
    #[error("{0}")]
    Implausible(String),
}

impl CalibrateError {
    /// Says of which hook or backend it is.
    fn about(self, name: &str) -> Self {
        match self {
            Self::Interrupted => self,
            error => Self::Implausible(format!("{name}: {error}")),
        }
    }

    fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
