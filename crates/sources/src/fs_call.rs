//! Calls into the file systems that logs lie in. Whoever asks a server of NFS
//! that is gone, or a FUSE program that hangs, may wait for ever; so a thread
//! that reads logs says which call it makes, for whoever looks after it.

use std::{cell::RefCell, path::Path};

/// Is told of one thread's calls.
pub trait Observer {
    /// The thread asks its file system to do this (`"open"`, `"read"`) to `path`.
    fn begins(&self, call: &'static str, path: &Path);
    /// The answer is there.
    fn ended(&self);
}

thread_local! {
    static OBSERVER: RefCell<Option<Box<dyn Observer>>> = const { RefCell::new(None) };
}

/// Has `observer` told of this thread's calls from now on.
pub fn observe(observer: impl Observer + 'static) {
    OBSERVER.replace(Some(Box::new(observer)));
}

/// Makes a call that may take for ever. One at a time: `ask` makes no other.
pub(crate) fn make<T>(call: &'static str, path: &Path, ask: impl FnOnce() -> T) -> T {
    OBSERVER.with_borrow(|observer| {
        if let Some(observer) = observer {
            observer.begins(call, path);
        }
    });
    let answer = ask();
    OBSERVER.with_borrow(|observer| {
        if let Some(observer) = observer {
            observer.ended();
        }
    });
    answer
}
