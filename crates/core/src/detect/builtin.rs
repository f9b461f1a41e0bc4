//! The filters that weir brings. Written from OpenSSH's own messages
//! (`auth.c`, `auth2.c`, `monitor.c`, `packet.c`); how messages of one attempt
//! are counted once is `memory`'s.

use super::{
    definition::{Definition, PatternDefinition},
    program::Program,
};

impl Program {
    /// A filter that weir brings, compiled.
    pub fn builtin(name: &str) -> Option<Self> {
        let definition = Definition::builtin(name)?;
        Some(definition.compile().expect("they are tested"))
    }
}

/// The longest message that nobody has cut. sshd cuts one at 500 bytes, and
/// BusyBox's syslogd, by default, a line at 255, of which
/// `<190>Nov 21 04:33:07 sshd-session[4194304]: ` are 44: a client's text, of
/// which sshd writes one character as up to five bytes (`\\001`), could end
/// such a message with an address of its choice, or a part of the true one could
/// be all that is left. Names of people are shorter.
const UNCUT: usize = 210;

/// OpenSSH's server, also as `sshd-session` (9.8 and later).
///
/// One attempt counts once. For a user that does not exist sshd writes
/// "Invalid user" when the login begins and "Failed password for invalid user"
/// for each password: the first counts at once, so that a probe without a
/// password counts as well, and the first "Failed" of that connection tells of
/// the same attempt. A refused public key is normal for a client that holds
/// several and never counts where the user exists; a connection that ends
/// without an attempt may be a person who thought better of it and counts only
/// when `aggressive`. PAM's own "authentication failure" lines repeat what sshd
/// says and never count.
///
/// Nothing follows "ssh2" for passwords, so the last "from" of the line is
/// sshd's; protocol 1 (until OpenSSH 7.5) put the client's text behind "ssh1",
/// so its lines are not read. No message is read that begins as one which has
/// a client's text before the address and another behind it, and no reading of
/// those is safe:
///
/// - "Disconnecting invalid user NAME ADDR port N: REASON": the reason can be a
///   service ("bad service request …") or another name ("Change of username or
///   service not allowed …"), cut at 100 bytes where the client wants the
///   message to end. "Too many authentication failures" is such a reason; sshd
///   has said "maximum authentication attempts exceeded" before it.
/// - "Failed publickey for NAME from ADDR port N ssh2: KEY", where a
///   certificate's name follows. "Invalid user" has counted before it.
/// - "Failed hostbased for NAME from ADDR port N ssh2: client user …".
///
/// testdata/sshd/client_text.txt has the messages that hold a client's text.
///
/// Nor is a message read that is longer than [`UNCUT`] where a client's text
/// stands before the address. And sshd escapes line breaks for syslog only: what
/// it writes to standard error (`-e`) or a file (`-E`) can be a client's from
/// the first byte to the last, so entries of the journal that came by standard
/// output, and lines without a syslog daemon's head, do not count.
pub(crate) fn sshd(aggressive: bool) -> Definition {
    const FROM: &str = "from <addr> port <port> ssh2[ \\[preauth\\]]";
    const TYPED: &str = "(keyboard-interactive/pam|keyboard-interactive/bsdauth|keyboard-interactive/skey|keyboard-interactive|challenge-response)";
    // What PAM's strerror says on Linux and FreeBSD of a login that fails; the
    // last three are those of a directory service that does not answer, or not
    // this host, and of an account that has expired.
    const PAM: &str = "(Authentication failure|authentication failure|Authentication error|authentication error|Permission denied|permission denied|User not known to the underlying authentication module|Have exhausted maximum number of retries for service|maximum number of tries exceeded|Authentication service cannot retrieve authentication info|Insufficient credentials to access authentication data|User account has expired)";
    let announces = |text: &str, label: &str| PatternDefinition {
        announces: Some(label.into()),
        ..text.into()
    };
    let completes = |text: String, label: &str| PatternDefinition {
        completes: Some(label.into()),
        ..text.as_str().into()
    };
    let unless_counted = |text: &str| PatternDefinition {
        unless_counted: true,
        ..text.into()
    };
    let mut patterns = vec![
        completes(
            format!("Failed password for (invalid|illegal) user <user> {FROM}"),
            "invalid",
        ),
        completes(
            format!("Failed {TYPED} for (invalid|illegal) user <user> {FROM}"),
            "invalid",
        ),
        // A client's opening question, which follows "Invalid user".
        unless_counted(&format!(
            "Failed none for (invalid|illegal) user <user> {FROM}"
        )),
        completes(format!("Failed (password|none) for <user> {FROM}"), "root"),
        completes(format!("Failed {TYPED} for <user> {FROM}"), "pam"),
        announces(
            "(Invalid|Illegal) user <user> from <addr>[ port <port>][ \\[preauth\\]]",
            "invalid",
        ),
        // sshd writes "Failed keyboard-interactive" only from the third time.
        announces(
            &format!("[error: ]PAM: {PAM} for <user> from <addr>[ via <word>][ \\[preauth\\]]"),
            "pam",
        ),
        // The name of an account that exists; what follows is sshd's.
        announces(
            "User <user> from <addr> not allowed because (not listed in AllowUsers|listed in DenyUsers|not in any group|a group is listed in DenyGroups|none of user's groups are listed in AllowGroups)",
            "invalid",
        ),
        announces(
            "ROOT LOGIN REFUSED FROM <addr>[ port <port>][ \\[preauth\\]]",
            "root",
        ),
        unless_counted(&format!(
            "[error: ]maximum authentication attempts exceeded for [(invalid|illegal) user ]<user> {FROM}"
        )),
    ];
    if aggressive {
        patterns.extend(
            [
                "Bad protocol version identification '<text>' from <addr>[ port <port>]",
                "Connection (closed|reset) by (authenticating|invalid) user <user> <addr> port <port>[ \\[preauth\\]]",
                "Disconnected from (authenticating|invalid) user <user> <addr> port <port>[ \\[preauth\\]]",
            ]
            .map(unless_counted),
        );
        patterns.extend(
            [
                "Connection (closed|reset) by <addr>[ port <port>] \\[preauth\\]",
                "[fatal: ]Unable to negotiate with <addr>[ port <port>]: <text>",
                "Did not receive identification string from <addr>[ port <port>]",
                "[error: ]Received disconnect from <addr>[ port <port>]:<text>\\[preauth\\]",
                "[error: ]banner exchange: Connection from <addr> port <port>: <text>",
                "[fatal: ]Timeout before authentication for <addr>[ port <port>]",
                // Since 9.8 who overstays is punished, and dropped when he comes again.
                "drop connection #<number> from \\[<addr>\\]:<port> on <word> penalty: exceeded LoginGraceTime",
                "[fatal: ]ssh_dispatch_run_fatal: Connection from <addr> port <port>: <text>",
            ]
            .map(unless_counted),
        );
        // Names no port that would tell one connection from another.
        patterns.push("Timeout before authentication for connection from <addr> to <word> pid = <number>[ \\(early\\)]".into());
    }
    for pattern in &mut patterns {
        let text = &pattern.text;
        let client = ["<user>", "<text>"].iter().find_map(|name| text.find(name));
        if client < text.find("<addr>") && client.is_some() {
            pattern.max_length = Some(UNCUT);
        }
    }
    Definition {
        identifiers: vec!["sshd".into(), "sshd-session".into()],
        patterns,
        syslog_only: true,
        root_only: true,
        allow_untagged: false,
        // Follows "Invalid user", which has counted.
        ignore: vec![format!(
            "[error: ]PAM: {PAM} for illegal user <user> from <addr>[ via <word>][ \\[preauth\\]]"
        )],
    }
}
