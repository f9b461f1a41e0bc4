//! A real Dovecot and a real Postfix in a namespace, with their configuration, queues and
//! log in a directory of a test's, and clients that log in at them. No mail is delivered.
#![allow(dead_code)] // each test file uses its part

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
};

use weir_netlab::{Child, Namespace};

use crate::{common::SOON, nginx::base64};

/// The port at which Postfix takes mail.
pub const SMTP: u16 = 25;
/// The port of Dovecot's IMAP server.
pub const IMAP: u16 = 143;
/// The one who has a mailbox, and the password of it.
pub const USER: (&str, &str) = ("anna", "right");

/// Dovecot's configuration. Its `anvil` is not to slow down whoever guesses.
const DOVECOT: &str = "
protocols = imap
base_dir = {dir}/run
state_dir = {dir}/state
log_path = {dir}/mail.log
listen = *, ::
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain login
auth_failure_delay = 0
mail_location = maildir:{dir}/box/%u
passdb {
  driver = passwd-file
  args = scheme=PLAIN {dir}/users
}
userdb {
  driver = static
  args = uid=nobody gid=nogroup home={dir}/box/%u
}
service auth {
  unix_listener auth-smtp {
    mode = 0666
  }
}
service anvil {
  unix_listener anvil-auth-penalty {
    mode = 0
  }
}
";

/// Postfix's main.cf: it asks Dovecot about passwords, and takes no mail for anybody.
const MAIN_CF: &str = "
compatibility_level = 3.6
queue_directory = {dir}/spool
data_directory = {dir}/data
maillog_file = {dir}/mail.log
maillog_file_prefixes = {dir}
myhostname = mail.example
mydestination =
inet_interfaces = all
inet_protocols = all
local_recipient_maps =
alias_maps =
alias_database =
default_transport = error:this host sends no mail
smtpd_peername_lookup = no
smtpd_error_sleep_time = 0
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = dovecot
smtpd_sasl_path = {dir}/run/auth-smtp
smtpd_relay_restrictions = permit_sasl_authenticated, reject_unauth_destination
";

const MASTER_CF: &str = "
smtp    inet       n - n - - smtpd
cleanup unix       n - n - 0 cleanup
rewrite unix       - - n - - trivial-rewrite
anvil   unix       - - n - 1 anvil
error   unix       - - n - - error
postlog unix-dgram n - n - 1 postlogd
";

/// Both servers. Their log is `mail.log`.
pub struct MailServers {
    postfix: Child,
    dovecot: Child,
}

impl MailServers {
    /// Starts both, with all that they write in `dir`.
    pub fn start(host: &Namespace, dir: &Path) -> Self {
        // Their workers are not root.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        let write = |name: &str, text: &str| {
            let text = text.replace("{dir}", &dir.display().to_string());
            fs::write(dir.join(name), text).unwrap();
        };
        for sub in ["postfix", "spool", "data", "box"] {
            fs::create_dir(dir.join(sub)).unwrap();
        }
        write("mail.log", "");
        write("users", &format!("{}:{{PLAIN}}{}\n", USER.0, USER.1));
        write("dovecot.conf", DOVECOT);
        write("postfix/main.cf", MAIN_CF);
        write("postfix/master.cf", MASTER_CF);
        let owned_by = |user: &str, sub: &str| {
            let passwd = fs::read_to_string("/etc/passwd").unwrap();
            let line = passwd
                .lines()
                .find(|line| line.split(':').next() == Some(user));
            let uid = line.unwrap().split(':').nth(2).unwrap().parse().unwrap();
            chown(dir.join(sub), Some(uid), None).unwrap();
        };
        owned_by("postfix", "data");
        owned_by("nobody", "box");
        let quiet = |mut command: Command| {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        };
        let mut dovecot = Command::new("/usr/sbin/dovecot");
        dovecot.arg("-F").arg("-c").arg(dir.join("dovecot.conf"));
        let dovecot = host.spawn(quiet(dovecot)).unwrap();
        // Makes the queue's directories.
        let conf = dir.join("postfix").display().to_string();
        let made = host.output("/usr/sbin/postfix", &["-c", &conf, "check"]);
        let made = made.unwrap();
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success(), "{said}");
        let mut postfix = Command::new("/usr/lib/postfix/sbin/master");
        postfix.args(["-d", "-c", &conf]);
        let postfix = host.spawn(quiet(postfix)).unwrap();
        Self { postfix, dovecot }
    }
}

impl Drop for MailServers {
    fn drop(&mut self) {
        for server in [&mut self.postfix, &mut self.dovecot] {
            let _ = server.signal(15);
            let _ = server.wait(SOON);
        }
    }
}

/// Sends lines and reads answers, until one does not come or has no such beginning.
/// The last line that was read.
fn dialogue(stream: TcpStream, script: &[(&str, &str)]) -> Option<String> {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    let mut line = String::new();
    for (command, last) in script {
        stream.write_all(command.as_bytes()).ok()?;
        loop {
            line.clear();
            if answers.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // More lines of the same answer: `250-`, `*`.
            let is_more = line.as_bytes().get(3) == Some(&b'-')
                || (line.starts_with('*') && !last.starts_with('*'));
            if !is_more {
                break;
            }
        }
        if !line.starts_with(last) {
            break;
        }
    }
    Some(line)
}

/// Logs in at `to` by IMAP, and leaves. Whether the password was taken; `None`: no answer
/// came, because the ban came before it.
pub fn logs_in_by_imap(stream: TcpStream, password: &str) -> Option<bool> {
    let login = format!("a LOGIN {} {password}\r\n", USER.0);
    let answer = dialogue(stream.try_clone().unwrap(), &[("", "* OK"), (&login, "a ")])?;
    // Dovecot logs what has failed when its client leaves.
    let _ = dialogue(stream, &[("b LOGOUT\r\n", "b ")]);
    assert!(
        answer.starts_with("a OK") || answer.starts_with("a NO"),
        "{answer:?}"
    );
    Some(answer.starts_with("a OK"))
}

/// Logs in by SMTP, as [`logs_in_by_imap`].
pub fn logs_in_by_smtp(stream: TcpStream, password: &str) -> Option<bool> {
    let secret = base64(&format!("\0{}\0{password}", USER.0));
    let auth = format!("AUTH PLAIN {secret}\r\n");
    let script = [("", "220"), ("EHLO client.example\r\n", "250"), (&auth, "")];
    let answer = dialogue(stream, &script)?;
    assert!(
        answer.starts_with("235") || answer.starts_with("535"),
        "{answer:?}"
    );
    Some(answer.starts_with("235"))
}

/// Asks Postfix to take mail for somebody elsewhere; its answer. `None`: none came.
pub fn asks_to_relay(stream: TcpStream) -> Option<String> {
    let script = [
        ("", "220"),
        ("EHLO client.example\r\n", "250"),
        ("MAIL FROM:<anna@mail.example>\r\n", "250"),
        ("RCPT TO:<someone@example.net>\r\n", "250"),
    ];
    dialogue(stream, &script)
}
