//! The control's end of the proxy: which services there are, for all workers.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use crate::{
    service::{Protocol, ProxyService},
    socket,
    worker::{Mailbox, Order, Worker},
};

/// Why a service is not received at its address.
pub type NotListening = (Arc<ProxyService>, io::Error);

/// Hands services to workers.
pub struct Engine {
    mailboxes: Vec<Arc<Mailbox>>,
    services: Mutex<BTreeMap<(SocketAddr, Protocol), Arc<ProxyService>>>,
}

impl Engine {
    /// With so many workers, each to be run by a thread.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new(workers: usize) -> io::Result<(Self, Vec<Worker>)> {
        let mailboxes = (0..workers.max(1)).map(|_| Mailbox::new().map(Arc::new));
        let mailboxes: Vec<_> = mailboxes.collect::<Result<_, _>>()?;
        let workers = mailboxes.iter().map(|mailbox| Worker::new(mailbox.clone()));
        let workers = workers.collect::<Result<_, _>>()?;
        let engine = Self {
            mailboxes,
            services: Mutex::default(),
        };
        Ok((engine, workers))
    }

    /// Has exactly these received. One that was before is left as it is, and one that
    /// takes the address of another takes its sockets, with the clients that wait there;
    /// those that cannot be are returned, and tried again by the next call.
    pub fn serve(&self, wanted: &[Arc<ProxyService>]) -> Vec<NotListening> {
        let mut services = self.services.lock().expect("no holder of this lock panics");
        let gone: Vec<_> = services
            .values()
            .map(|known| (known.vip, known.protocol))
            .filter(|at| !wanted.iter().any(|one| (one.vip, one.protocol) == *at))
            .collect();
        for at in gone {
            services.remove(&at);
            self.tell(|| Order::Close(at.0, at.1));
        }
        let mut failed = Vec::new();
        for service in wanted {
            let at = (service.vip, service.protocol);
            if let Some(known) = services.get_mut(&at) {
                if !Arc::ptr_eq(known, service) {
                    *known = service.clone();
                    self.tell(|| Order::Replace(service.clone()));
                }
                continue;
            }
            match socket::receivers(at.0, at.1, self.mailboxes.len()) {
                Ok(sockets) => {
                    services.insert(at, service.clone());
                    for (mailbox, socket) in self.mailboxes.iter().zip(sockets) {
                        mailbox.put(Order::Listen(service.clone(), socket));
                    }
                }
                Err(error) => failed.push((service.clone(), error)),
            }
        }
        failed
    }

    /// Has workers look at once at what was changed: reals that are cut off, and the sign
    /// to stop.
    pub fn wake(&self) {
        self.tell(|| Order::Look);
    }

    fn tell(&self, order: impl Fn() -> Order) {
        self.mailboxes
            .iter()
            .for_each(|mailbox| mailbox.put(order()));
    }
}
