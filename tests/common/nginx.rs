//! A real nginx in a namespace, and what its clients send to say who they are.
#![allow(dead_code)] // each test file uses its part

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use weir_netlab::{Child, Namespace};

use crate::common::{SOON, soon};

/// nginx, which takes its workers along.
pub struct Nginx(Child);

impl Nginx {
    /// Starts it with its files in `dir`, and waits until it `serves`. `http` is what its
    /// section of that name holds beside places of files, `{dir}/` the directory.
    pub fn start(host: &Namespace, dir: &Path, http: &str, serves: impl Fn() -> bool) -> Self {
        // Its workers are not root.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        let at_dir = format!("{}/", dir.display());
        let http = http.replace("{dir}/", &at_dir);
        let config = format!(
            "daemon off; worker_processes 1; user www-data;
             pid {at_dir}pid; error_log {at_dir}error.log;
             events {{ worker_connections 64; }}
             http {{
                 client_body_temp_path {at_dir}tmp; proxy_temp_path {at_dir}tmp;
                 fastcgi_temp_path {at_dir}tmp; uwsgi_temp_path {at_dir}tmp; scgi_temp_path {at_dir}tmp;
                 {http}
             }}"
        );
        let conf = dir.join("conf");
        fs::write(&conf, config).unwrap();
        let mut command = Command::new("/usr/sbin/nginx");
        command
            .arg("-c")
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("stderr")).unwrap());
        let mut nginx = Self(host.spawn(command).unwrap());
        soon("nginx", || {
            let ended = nginx.0.wait(Duration::ZERO).unwrap();
            let said = || fs::read_to_string(dir.join("stderr")).unwrap();
            assert!(ended.is_none(), "{}", said());
            serves().then_some(())
        });
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.signal(15);
        let _ = self.0.wait(SOON);
    }
}

/// Base64 (RFC 4648) of what stands in `Authorization: Basic`.
pub fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in text.as_bytes().chunks(3) {
        let byte = |n: usize| u32::from(part.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            out.push(match n > part.len() {
                true => '=',
                false => char::from(DIGITS[(bits >> (18 - 6 * n)) as usize & 63]),
            });
        }
    }
    out
}
