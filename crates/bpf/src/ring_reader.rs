//! Reads a ring buffer of the kernel's: events one behind the other, decoded as they come.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use libbpf_rs::{ErrorKind, MapHandle, RingBuffer, RingBufferBuilder};

use crate::error::{Context, Result};

/// Reads one ring; what cannot be decoded is left out.
pub struct RingReader<T> {
    ring: RingBuffer<'static>,
    read: Arc<Mutex<Vec<T>>>,
    /// What it holds, in the plural, for messages.
    what: &'static str,
}

impl<T: 'static> RingReader<T> {
    /// Over a map; others may read it as well, but each event comes to one of them.
    pub fn new(
        map: &MapHandle,
        what: &'static str,
        decode: fn(&[u8]) -> Option<T>,
    ) -> Result<Self> {
        let read = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&read);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |bytes| {
                if let Some(event) = decode(bytes) {
                    sink.lock()
                        .expect("no holder of this lock panics")
                        .push(event);
                }
                0
            })
            .context(|| format!("open the ring of {what}"))?;
        let ring = builder
            .build()
            .context(|| format!("open the ring of {what}"))?;
        Ok(Self { ring, read, what })
    }

    /// What has come: at once when the kernel wakes its reader, else what is there after
    /// `timeout`.
    pub fn read(&self, timeout: Duration) -> Result<Vec<T>> {
        let what = self.what;
        match self.ring.poll(timeout) {
            // As of each process that is stopped and goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            waited => waited.context(|| format!("wait for {what}"))?,
        }
        // Whoever wakes nobody has left some.
        self.ring.consume().context(|| format!("read {what}"))?;
        Ok(std::mem::take(
            &mut self.read.lock().expect("no holder of this lock panics"),
        ))
    }
}
