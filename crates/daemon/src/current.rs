//! What is in force now and is exchanged whole: the configuration by a reload, the
//! ledger with it, the addresses of this host when they are read again.

use std::sync::{Arc, RwLock};

/// The one of now. Whoever has taken it keeps it, also when it is exchanged.
pub struct Current<T>(RwLock<Arc<T>>);

impl<T> Current<T> {
    /// Begins with this one.
    pub fn new(first: T) -> Self {
        Self(RwLock::new(Arc::new(first)))
    }

    /// The one of now.
    pub fn get(&self) -> Arc<T> {
        self.0
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Exchanges the value; who has the old one keeps it.
    pub fn set(&self, next: Arc<T>) {
        *self.0.write().expect("no holder of this lock panics") = next;
    }
}
