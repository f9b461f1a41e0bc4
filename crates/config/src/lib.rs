//! How a configuration is read: from which files (`files`), key by key, with the line
//! of each (`reader`), what was meant by a key that is not there (`suggestion`), and
//! what sections of several kinds say in the same words (`values`), and how the
//! manual is told of their keys (`manual`). Knows no section: each feature reads its
//! own, and the daemon puts them together.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod files;
pub mod manual;
mod reader;
mod suggestion;
pub mod values;

pub use reader::{At, ConfigError, ConfigErrors, Document, Part, Section, Source, WordOrList};
pub use suggestion::{TOP_LEVEL, did_you_mean};
