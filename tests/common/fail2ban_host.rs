//! A host with a Fail2ban configuration of one jail, `shop`, whose actions a test names.
#![allow(dead_code)] // each test file uses its part

use std::{fs, io::Write};

use crate::plain::Plain;

const JAIL_CONF: &str = "[DEFAULT]\nbackend = polling\nmaxretry = 1\nbantime = 1h\n\
    action_ = nftables[port=80, protocol=tcp]\n\
    [shop]\nenabled = true\nfilter = shop\nlogpath = {dir}/shop.log\n";

/// A directory whose jail runs `actions` beside its ban, and a daemon that bans in the dry.
pub fn host(actions: &[(&str, &str)]) -> Plain {
    let host = Plain::new();
    for dir in ["f", "f/filter.d", "f/action.d"] {
        fs::create_dir(host.path(dir)).unwrap();
    }
    let mut jail = format!("{JAIL_CONF}action = %(action_)s\n");
    for (name, text) in actions {
        jail.push_str(&format!("    {name}\n"));
        host.write(&format!("f/action.d/{name}.conf"), text);
    }
    host.write("f/jail.conf", &jail);
    let filter = "[Definition]\nfailregex = login of .* from <HOST> failed$\n";
    host.write("f/filter.d/shop.conf", filter);
    host.write(
        "f/action.d/nftables.conf",
        "[Definition]\n[Init]\nblocktype = reject\n",
    );
    host.write("shop.log", "");
    host.configure("[fail2ban]\npath = \"{dir}/f\"\n");
    host
}

/// An attacker fails once.
pub fn fails(host: &Plain, user: &str, who: &str) {
    let log = fs::File::options().append(true).open(host.path("shop.log"));
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S");
    let line = format!("{now} web shop: login of {user} from {who} failed\n");
    log.unwrap().write_all(line.as_bytes()).unwrap();
}

/// Waits until a file has a line.
#[track_caller]
pub fn wait_for(host: &Plain, file: &str, line: &str) {
    let has = |host: &Plain| host.read(file).lines().any(|there| there == line);
    host.until(line, |host| has(host));
}

/// A client's text that would be a command wherever a shell read it.
pub const HOSTILE: &str = "x'\"; touch {dir}/pwned; $(touch {dir}/pwned) `touch {dir}/pwned` ~!x";

/// Says why a test whose daemon drops cannot run.
pub fn skipped() -> bool {
    let why = weir_netlab::missing(&["unshare", "nsenter", "nft"]);
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_some()
}

/// A host as [`host`] makes it whose daemon drops: its own network namespace ends with it.
pub fn dropping(actions: &[(&str, &str)]) -> Plain {
    let mut host = host(actions);
    host.under = ["unshare", "--net", "--"].map(str::to_owned).to_vec();
    configure(&host, "nft", "");
    host
}

/// Writes a configuration with this backend, and what else it says.
pub fn configure(host: &Plain, backend: &str, more: &str) {
    host.configure(&format!("{more}[fail2ban]\npath = \"{{dir}}/f\"\n"));
    let text = host.read("weir.toml");
    host.write("weir.toml", &text.replace("dry-run", backend));
}

/// The lines of a file.
pub fn lines(host: &Plain, file: &str) -> Vec<String> {
    host.read(file).lines().map(str::to_owned).collect()
}
