//! Weir at level `nfqueue` for one turn: its daemon in the client's namespace, with a rule that
//! allows the client and a default that denies everybody else.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use weir_netlab::{Child, Namespace, net::temp_dir, wait_for};

/// How long it may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon that packets wait for.
pub struct Queued {
    client: Namespace,
    weir: PathBuf,
    config: PathBuf,
    daemon: Child,
    /// The directory of all this, which goes last.
    _dir: tempfile::TempDir,
}

impl Queued {
    /// Starts it, and waits until packets wait for it.
    pub fn start(client: &Namespace) -> anyhow::Result<Self> {
        let weir = std::env::current_exe()?.with_file_name("weir");
        let dir = temp_dir()?;
        let at = |name: &str| dir.path().join(name);
        let config = at("weir.toml");
        let text = format!(
            "backend = \"dry-run\"\ninterfaces = [\"lo\"]\nstate_dir = {:?}\nsocket = {:?}\ninstance = \"weir-bench-{}\"\n\
             [app]\nlevel = \"nfqueue\"\ndefault = \"drop\"\nunknown = \"drop\"\n\
             [app.rules.client]\nverdict = \"allow\"\npath = {:?}\n",
            at("state"),
            at("weir.sock"),
            std::process::id(),
            std::env::current_exe()?,
        );
        fs::write(&config, text)?;
        let said = at("said");
        let mut command = Command::new(&weir);
        command
            .arg("--config")
            .arg(&config)
            .arg("daemon")
            .stdin(Stdio::null())
            .stderr(File::create(&said)?);
        let mut queued = Self {
            client: client.clone(),
            daemon: client.spawn(command)?,
            weir,
            config,
            _dir: dir,
        };
        let mut ended = None;
        let text = || fs::read_to_string(&said).unwrap_or_default();
        wait_for("weir at its queues", PATIENCE, || {
            ended = queued.daemon.wait(Duration::ZERO)?;
            let is_ready = text().contains("level nfqueue by");
            Ok((is_ready || ended.is_some()).then_some(()))
        })
        .with_context(text)?;
        match ended {
            Some(_) => bail!("weir says: {}", text()),
            None => Ok(queued),
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let ended = self.daemon.signal(15);
        let ended = ended.and_then(|()| self.daemon.wait(PATIENCE).map(drop));
        let config = self.config.display().to_string();
        let gone = self.client.run(
            &self.weir.display().to_string(),
            &["--config", &config, "detach"],
        );
        if let Err(error) = ended.and(gone.map(drop)) {
            eprintln!("{error}");
        }
    }
}
