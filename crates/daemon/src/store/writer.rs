//! The thread that writes: batches of what waits, a second apart, and once a minute
//! what is over is forgotten. What cannot be written waits and is tried again; a
//! file that is corrupt, or lost, is taken out of the way.

use std::{
    collections::VecDeque,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rusqlite::Connection;
use weir_events::alerts::Alerts;

use super::{
    Change, FILE, KeepHistory, Shared, clock::Now, database, history, identity::Identity,
    keep_bound, row::DatabaseError,
};

/// A failed write is tried again after this time.
const RETRY: Duration = Duration::from_secs(2);
/// Without changes, the clocks are still written this often, for `remaining`.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// The time for which the alert holds that the history was cut short.
pub(super) const TRIMMED: Duration = Duration::from_secs(86_400);

/// Takes a file that is beyond use out of the way. `was`: what is the matter.
pub(super) fn move_aside(path: &Path, alerts: &Alerts, was: &str) {
    let stamp = Timestamp::now().as_second();
    let aside = path.with_file_name(format!("{FILE}.corrupt-{stamp}"));
    let moved = std::fs::rename(path, &aside);
    for suffix in ["-wal", "-shm"] {
        let mut side = path.as_os_str().to_owned();
        side.push(suffix);
        let mut to = aside.as_os_str().to_owned();
        to.push(suffix);
        // Absent when the last writer closed it properly, empty when nothing was
        // written since it was opened.
        let _ = match std::fs::metadata(&side) {
            Ok(meta) if meta.len() == 0 => std::fs::remove_file(side),
            _ => std::fs::rename(side, to),
        };
    }
    let what = match moved {
        Ok(()) => format!("moved to {}, a new one was made", aside.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "a new one was made; offences of the past are lost".to_owned()
        }
        Err(error) => format!("and cannot be moved aside: {error}"),
    };
    alerts.raise(
        "database-corrupt",
        format!("{} was {was}; {what}", path.display()),
    );
}

pub(super) fn write_until_stopped(shared: &Shared, mut connection: Option<Connection>) {
    let mut retry_at = None;
    let mut identity = connection.as_ref().and_then(|c| identify(shared, c));
    let mut last_write = Instant::now();
    let mut last_purge = Instant::now();
    let mut trimmed = None;
    loop {
        let (batch, stop, keep_history) = {
            let mut queue = shared.queue();
            let tick = Instant::now() + Duration::from_secs(1);
            while !queue.stop && !queue.urgent {
                let Some(left) = tick.checked_duration_since(Instant::now()) else {
                    break;
                };
                queue = shared
                    .work
                    .wait_timeout(queue, left)
                    .expect("no holder of this lock panics")
                    .0;
            }
            let urgent = std::mem::take(&mut queue.urgent);
            let stop = queue.stop;
            let waiting = retry_at.is_some_and(|at| Instant::now() < at);
            if waiting && !urgent && !stop {
                continue;
            }
            queue.in_flight = Arc::new(std::mem::take(&mut queue.pending).into());
            (queue.in_flight.clone(), stop, queue.keep_history)
        };
        if let Some(was) = identity.as_ref().and_then(|id| id.lost(&shared.path)) {
            (connection, identity) = (None, None);
            let was = format!("{was} while weir was running");
            move_aside(&shared.path, &shared.alerts, &was);
            shared.queue().made_anew();
            retry_at = Some(Instant::now());
        }
        // A batch that is empty is written for its clocks.
        let due = last_write.elapsed() >= HEARTBEAT;
        if !batch.is_empty() || due || retry_at.is_some() || stop {
            match write(shared, &mut connection, &batch) {
                Ok(()) => {
                    if identity.is_none() {
                        identity = connection.as_ref().and_then(|c| identify(shared, c));
                    }
                    retry_at = None;
                    last_write = Instant::now();
                    shared.alerts.clear("database");
                    let mut queue = shared.queue();
                    queue.in_flight = Arc::default();
                    queue.settled += batch.len() as u64;
                    for change in batch.iter() {
                        if let Change::Progress(progress) = change {
                            queue.sources.remove(&progress.source);
                        }
                    }
                    shared.done.notify_all();
                }
                Err(error) => {
                    retry_at = Some(Instant::now() + RETRY);
                    let corrupt = error.is_corrupt();
                    let message = format!("{}: {error}", shared.path.display());
                    connection = None;
                    if corrupt {
                        identity = None;
                        let was = format!("corrupt ({error})");
                        move_aside(&shared.path, &shared.alerts, &was);
                        retry_at = Some(Instant::now());
                    } else {
                        shared.alerts.raise(
                            "database",
                            format!("{message}: bans go on, but are not saved"),
                        );
                    }
                    let mut queue = shared.queue();
                    if corrupt {
                        queue.made_anew();
                    }
                    queue.failures += 1;
                    queue.error = message;
                    // They wait again, before what came meanwhile.
                    queue.in_flight = Arc::default();
                    let mut waiting = VecDeque::from(Arc::unwrap_or_clone(batch));
                    waiting.append(&mut queue.pending);
                    queue.pending = waiting;
                    keep_bound(&mut queue);
                    shared.done.notify_all();
                }
            }
        }
        if last_purge.elapsed() >= Duration::from_secs(60)
            && let Some(connection) = connection.as_mut()
        {
            match purge(shared, connection, keep_history, &mut trimmed) {
                Ok(true) => {}
                Ok(false) => last_purge = Instant::now(),
                Err(error) => {
                    last_purge = Instant::now();
                    tracing::debug!("purging the database: {error}");
                }
            }
        }
        if stop {
            if let Some(connection) = connection.as_ref()
                && let Err(error) = database::checkpoint(connection)
            {
                tracing::debug!("closing the database: {error}");
            }
            return;
        }
    }
}

/// The identity of the database's file; a file that cannot be looked at is not watched.
fn identify(shared: &Shared, connection: &Connection) -> Option<Identity> {
    Identity::of(connection, &shared.path)
        .inspect_err(|error| tracing::debug!("identity of the database: {error}"))
        .ok()
}

fn write(
    shared: &Shared,
    connection: &mut Option<Connection>,
    batch: &[Change],
) -> Result<(), DatabaseError> {
    let connection = match connection {
        Some(open) => open,
        none => none.insert(database::open(&shared.path)?),
    };
    database::write(connection, batch, &Now::read())
}

/// Forgets what is over; true when there is more of it.
pub(super) fn purge(
    shared: &Shared,
    connection: &mut Connection,
    keep: KeepHistory,
    trimmed: &mut Option<Instant>,
) -> Result<bool, DatabaseError> {
    let now = Now::read();
    let more = database::purge(connection, &now)?;
    let purged = history::purge(connection, &now, keep)?;
    if purged.for_size > 0 {
        *trimmed = Some(Instant::now());
        shared.alerts.raise(
            "history",
            format!(
                "the history of bans takes all of its {} MB: the oldest offences are forgotten before keep_history is over, and repeat offenders with them; raise history_mb",
                keep.bytes / 1_000_000
            ),
        );
    } else if trimmed.is_some_and(|at| at.elapsed() >= TRIMMED) {
        *trimmed = None;
        shared.alerts.clear("history");
    }
    Ok(more || purged.more)
}
