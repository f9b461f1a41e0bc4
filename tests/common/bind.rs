//! A real BIND, which listens at all addresses of its host.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use weir_netlab::{Child, Namespace};

use crate::common::soon;

/// Starts one in a namespace, with its files in `dir`; it has an address of `www.test`, and
/// `who.test` is 192.0.2.NUMBER there.
pub fn serve_dns(dir: &Path, namespace: &Namespace, number: u8) -> Child {
    let config = format!(
        "options {{ directory \"{}\"; pid-file none; session-keyfile none;\n\
             listen-on {{ any; }}; listen-on-v6 {{ any; }};\n\
             recursion no; dnssec-validation no; notify no; }};\n\
         controls {{ }};\nzone \"test\" {{ type primary; file \"zone\"; }};\n",
        dir.display()
    );
    let zone = format!(
        "$TTL 60\n@ SOA ns hostmaster 1 60 60 60 60\n@ NS ns\nns A 10.1.1.11\n\
         www A 192.0.2.99\nwho A 192.0.2.{number}\n"
    );
    fs::write(dir.join("zone"), zone).unwrap();
    fs::write(dir.join("named.conf"), config).unwrap();
    let said = dir.join("named.log");
    let mut command = Command::new("/usr/sbin/named");
    command
        .args(["-g", "-n", "1", "-c"])
        .arg(dir.join("named.conf"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&said).unwrap());
    let named = namespace.spawn(command).unwrap();
    soon("named to run", || {
        let said = fs::read_to_string(&said).unwrap();
        said.contains(" running").then_some(())
    });
    named
}
