//! Fail2ban's own socket, for programs that speak its protocol: exporters, panels, and
//! Fail2ban's `fail2ban-client`. Only root and members of the socket's group may
//! connect, as to the control socket; a client has one command at a time, of bounded
//! length, and a bounded time for it.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
    task::spawn_blocking,
    time::timeout,
};

use super::{
    super::{Handles, connection::may_connect},
    Reply, Unanswered, answer,
    pickle::{END, read_command, write_answer},
};
use crate::service::Refusal;

/// Clients at once; another one waits until one of them has gone.
const MAX_CLIENTS: usize = 16;
/// Commands that are carried out at once: a list of a million bans is large.
const MAX_RUNNING: usize = 2;
/// The longest command.
const MAX_COMMAND: usize = 64 * 1024;
/// A client that is silent for so long, or reads nothing of its answer, is let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until `stop` says so.
pub(crate) async fn serve(
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    handles: Handles,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(MAX_CLIENTS));
    let running = Arc::new(Semaphore::new(MAX_RUNNING));
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // That client has gone, or no descriptor is free: the next one waits.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            _ = stop.changed() => return Ok(()),
        };
        if let Err(who) = may_connect(&stream, &path) {
            tracing::warn!("Fail2ban's socket: refused {who}");
            continue;
        }
        let place = tokio::select! {
            place = room.clone().acquire_owned() => place.expect("nobody closes it"),
            _ = stop.changed() => return Ok(()),
        };
        let (handles, running) = (handles.clone(), running.clone());
        tokio::spawn(async move {
            // Whatever ends a client is that client's trouble.
            let _ = client(stream, handles, running).await;
            drop(place);
        });
    }
}

async fn client(
    mut stream: UnixStream,
    handles: Handles,
    running: Arc<Semaphore>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let command = match timeout(PATIENCE, one_command(&mut stream, &mut bytes)).await?? {
            None => return Ok(()),
            Some(command) => command,
        };
        // A client says so before it goes.
        if command.is_empty() || command == b"<F2B_CLOSE_COMMAND>" {
            return Ok(());
        }
        let handles = handles.clone();
        let runs = running.acquire().await.expect("nobody closes it");
        let reply = spawn_blocking(move || write_answer(&reply(&handles, &command))).await?;
        drop(runs);
        timeout(PATIENCE, async {
            stream.write_all(&reply).await?;
            stream.write_all(END).await
        })
        .await??;
    }
}

fn reply(handles: &Handles, command: &[u8]) -> Result<Reply, Unanswered> {
    let words = read_command(command);
    let words = words.map_err(|error| Refusal::Malformed(error.to_string()))?;
    answer(handles, &words)
}

/// The bytes before the next end of a command; what follows stays in `bytes`. `None`:
/// the client has gone.
async fn one_command(stream: &mut UnixStream, bytes: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let mut from = 0;
    loop {
        let end = bytes[from..]
            .windows(END.len())
            .position(|part| part == END);
        if let Some(end) = end {
            let rest = bytes.split_off(from + end + END.len());
            let mut command = std::mem::replace(bytes, rest);
            command.truncate(command.len() - END.len());
            return Ok(Some(command));
        }
        from = bytes.len().saturating_sub(END.len() - 1);
        if bytes.len() > MAX_COMMAND {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if stream.read_buf(bytes).await? == 0 {
            return Ok(None);
        }
    }
}
