//! Rules about programs: one program of the host may talk to the network, another one may
//! not. Both run in a control group of their own, so that no other process of the machine
//! is judged.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use weir_bpf::identity::{CgroupAt, missing};
use weir_netlab::Namespace;

/// The program that a rule allows.
const ALLOWED: &str = "/usr/bin/curl";
/// A program that no rule allows.
const DENIED: &str = "/usr/bin/python3";
/// What connect says to a program that may not, by strerror.
pub const REFUSED: &str = "Operation not permitted";

/// The control group of the two programs, which is removed with this value.
pub struct Programs {
    cgroup: PathBuf,
}

fn cgroup_of(instance: &str) -> Option<PathBuf> {
    Some(CgroupAt::mount_point()?.join(format!("weir-{instance}")))
}

/// A control group goes once its last process is gone, which may take a moment.
fn remove_cgroup(cgroup: &Path) {
    let until = Instant::now() + Duration::from_secs(5);
    while cgroup.exists() && fs::remove_dir(cgroup).is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Removes the control group that a player of this instance has left.
pub fn tidy(instance: &str) {
    if let Some(cgroup) = cgroup_of(instance) {
        remove_cgroup(&cgroup);
    }
}

impl Programs {
    /// Makes the control group.
    ///
    /// # Errors
    /// What this machine lacks for rules about programs.
    pub fn new(instance: &str) -> Result<Self, String> {
        let lacks = missing();
        if !lacks.is_empty() {
            return Err(format!(
                "this kernel lacks {}: it takes Linux 6.1 with fentry (Debian 12), or 6.16",
                lacks.join(", ")
            ));
        }
        for program in [ALLOWED, DENIED] {
            if !Path::new(program).exists() {
                return Err(format!("there is no {program}"));
            }
        }
        let cgroup = cgroup_of(instance).ok_or("control groups of version 2 are not mounted")?;
        fs::create_dir(&cgroup)
            .map_err(|error| format!("cannot make {}: {error}", cgroup.display()))?;
        Ok(Self { cgroup })
    }

    /// Tables of weir.toml by which one program may talk to port 80, and nobody else to
    /// anybody.
    pub fn configuration(&self) -> String {
        format!(
            "\n[app]\ndefault = \"reject\"\nunknown = \"drop\"\ncgroup = {:?}\n\n\
             [app.rules.web]\nverdict = \"allow\"\npath = {ALLOWED:?}\nports = [\"80/tcp\"]\n",
            self.cgroup
        )
    }

    /// What a program prints that runs on the host, in the control group.
    fn run(&self, host: &Namespace, words: &[&str]) -> anyhow::Result<String> {
        let procs = self.cgroup.join("cgroup.procs");
        let procs = procs.to_str().context("a path of text")?;
        let script = "echo 0 > \"$0\" && exec \"$@\"";
        let out = host.output("sh", &[&["-c", script, procs], words].concat())?;
        let said = [out.stdout, out.stderr].concat();
        Ok(String::from_utf8_lossy(&said).trim().to_owned())
    }

    /// The status with which a server answers the program that may.
    pub fn fetch(&self, host: &Namespace, url: &str) -> anyhow::Result<String> {
        let options = ["-sS", "-o", "/dev/null", "-w", "%{http_code}"];
        let limit = ["--max-time", "5"];
        self.run(host, &[&[ALLOWED], &options[..], &limit, &[url]].concat())
    }

    /// What connecting is like for the program that may not: [`REFUSED`], "connected", or
    /// another error.
    pub fn connect(&self, host: &Namespace, address: &str) -> anyhow::Result<String> {
        let script = format!(
            "import socket\n\
             try: socket.create_connection(({address:?}, 80), 2); print('connected')\n\
             except OSError as e: print(e.strerror or e)"
        );
        self.run(host, &[DENIED, "-c", &script])
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        remove_cgroup(&self.cgroup);
    }
}
