//! Scripts that a real shell runs with hostile values, and commands that are refused.

use std::process::Command;

use super::{script::MAX_SCRIPT, *};

fn made(text: &str) -> Result<Script, String> {
    let script = script("actionban", &Text::parameter(text), true);
    script
        .map(|script| script.expect("there is one"))
        .map_err(|e| e.message)
}

/// Text that would be a command anywhere but in a variable.
const HOSTILE: &str =
    "'\"; touch pwned; $(touch pwned) `touch pwned` \\\" ${X} <ip> * \n~!touch pwned\nEOF\n";

fn run(text: &str) -> String {
    let script = made(text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("/bin/sh")
        .args(["-c", &script.text])
        .env("WEIR_IP", "2001:db8::7")
        .env("WEIR_FAILURES", "5")
        .env("WEIR_MATCHES", HOSTILE)
        .env("WEIR_F_USER", HOSTILE)
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(!dir.path().join("pwned").exists(), "{}", script.text);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn values_reach_the_shell_as_variables_wherever_they_stand() {
    for (text, expected) in [
        ("printf %s <ip>", "2001:db8::7"),
        ("printf %s a<ip>b", "a2001:db8::7b"),
        ("printf %s \"[<ip>]\"", "[2001:db8::7]"),
        ("printf %s '{\"ip\":\"<ip>\"}'", "{\"ip\":\"2001:db8::7\"}"),
        ("printf %s \"`printf %s <ip>`\"", "2001:db8::7"),
        ("printf %s \"$(printf '%s' \"<ip>\")\"", "2001:db8::7"),
        ("X=<ip>; printf %s ${X}", "2001:db8::7"),
        ("printf %s $((<failures> + 1))", "6"),
        ("cat <<EOF\n[<ip>]\nEOF\nprintf x", "[2001:db8::7]\nx"),
        ("printf '%s' <ip> # it's <ip>\nprintf x", "2001:db8::7x"),
        ("printf %s 'a<br>b<sp>c'", "a\nb c"),
    ] {
        assert_eq!(run(text), expected, "{text}");
    }
    for text in [
        "printf %s <matches>",
        "printf %s \"<matches>\"",
        "printf %s '<matches>'",
        "printf %s \"$(printf '%s.' \"<matches>\")\" | sed 's/\\.$//'",
        "( printf %s \"<matches>\" ) | cat",
        "if [ -n '<matches>' ]; then printf %s '<matches>'; fi",
    ] {
        assert_eq!(run(text).trim_end(), HOSTILE.trim_end(), "{text}");
        // So are all texts of clients.
        let text = text.replace("<matches>", "<F-USER>");
        assert_eq!(run(&text).trim_end(), HOSTILE.trim_end(), "{text}");
    }
    assert_eq!(
        run("cat <<-EOF\n<matches>\n\tEOF\n"),
        format!("{HOSTILE}\n")
    );
}

/// What only looks like a program that runs what it reads.
#[test]
fn words_are_not_taken_for_programs() {
    for text in [
        "printf %b \"Hi,\nsomebody at <ip> failed (sh, perl): <matches>\n\" | sendmail -t",
        "curl --data-urlencode 'comment=<matches>' https://example.org/api/ssh",
        "logger -t mysql <matches>; find . -name at; grep x /var/log/mysql",
        "report --service mysql \"$(date)\" \"`date`\" <matches> >/tmp/sh 2>&1",
        "awk '{ print }' F; sed -n 1p F; echo <matches>",
        "awk '{ print $1 }' F; sed \"/<ip>/d; s/ *$//\" F; echo <matches>",
        "logger -t ssh <matches>",
        "if true; then /usr/bin/logger -t perl -- \"<matches>\"; fi",
        "X=1 sudo -u log logger -t su '<matches>' >/dev/null",
        "printf '%s\\n' \"<matches>\" | mail -s php root",
        "curl -d user=node -d php --data-urlencode \"c=<matches>\" https://example.org/",
        "echo sh ${X} ssh <matches>",
        "$(command -v curl) -d \"<matches>\" https://example.org/",
        "${HELPERS}/report <matches>; \"$DIR\"/tell <matches>",
    ] {
        assert_eq!(made(text).map(|_| ()), Ok(()), "{text}");
    }
}

#[test]
fn what_cannot_be_made_safe_is_refused() {
    for (text, why) in [
        ("eval \"x <matches>\"", "may run it"),
        ("sh -c \"x '<matches>'\"", "may run it"),
        ("x | /usr/bin/perl -e 'print \"<matches>\"'", "may run it"),
        ("python3.11 -c \"<matches>\"", "may run it"),
        ("ssh host \"log <matches>\"", "may run it"),
        ("x `printf <matches>`", "backticks"),
        ("x ${Y:-<matches>}", "${ }"),
        ("x $((<matches>))", "$(( ))"),
        ("x $<ip>", "behind $"),
        ("cat <<'EOF'\n<ip>\nEOF", "whose end is quoted"),
        ("x \"<matches>", "do not close"),
        ("printf '%s\\n' \"<matches>\" | sh", "with sh, which"),
        ("cat <<EOF | sh\necho <matches>\nEOF", "may run it"),
        (
            "M=\"<matches>\"; eval \"logger -t x $M\"",
            "with eval, which",
        ),
        ("trap \"<matches>\" EXIT", "with trap, which"),
        ("flock F -c \"echo <matches> >> G\"", "with flock, which"),
        ("cat <<EOF\n$(sh -c '<matches>')\nEOF", "in a here-document"),
        ("echo \"<matches>\" | sqlite3 db", "with sqlite3, which"),
        ("$SHELL -c \"<matches>\"", "with $SHELL, which"),
        ("at now <<EOF\n<matches>\nEOF", "with at, which"),
        (
            "if true; then X=1 sudo -n runuser u <matches>; fi",
            "with runuser, which",
        ),
        ("printf <matches> > f; timeout 5 bash f", "with bash, which"),
        (
            "x \"$(echo \"<matches>\" | python3.11)\"",
            "with python3.11, which",
        ),
        ("printf %s <matches> | env -u FOO sh", "with sh, which"),
        ("printf %s <matches> | sudo -u backup sh", "with sh, which"),
        (
            "printf %s <matches> | timeout -s KILL 5 sh",
            "with sh, which",
        ),
        (
            "printf %s <matches> | docker exec -i web sh",
            "with sh, which",
        ),
        (
            "printf %s <matches> | sudo -u backup ssh x",
            "with ssh, which",
        ),
        ("printf %s <matches> | s\\h", "with sh, which"),
        ("printf %s <matches> | \"s\"h", "with sh, which"),
        ("printf %s <matches> | tcsh", "with tcsh, which"),
        ("printf %s <matches> | crontab -", "with crontab, which"),
        ("printf %s <matches> | awk -f -", "with awk, which"),
        ("printf %s <matches> | sed -f/dev/stdin", "with sed, which"),
        ("f() { ssh x; }; printf %s <matches> | f", "with ssh, which"),
        (
            "printf %s <matches> > f; >/dev/null sh <f",
            "with sh, which",
        ),
        ("export <matches>", "with export, which"),
        (
            "case <family> in inet4) sh -c \"log '<matches>'\" ;; esac",
            "may run it",
        ),
        (
            "logger \"$(case x in x) ssh h <matches> ;; esac)\"",
            "may run it",
        ),
        (
            "printf %s <matches> >F; case x in x) sh <F;; esac",
            "with sh, which",
        ),
        ("U=<matches>; /etc/hooks/$U", "with /etc/hooks/$U, which"),
        ("U=<matches>; $DIR/$U", "with $DIR/$U, which"),
        ("/etc/hooks/<matches>", "with /etc/hooks/${WEIR_"),
        (
            "docker compose exec mail sh -c \"log '<matches>'\"",
            "may run it",
        ),
        (
            "nice -n $(sed 's/)//' F) ssh h \"log <matches>\"",
            "may run it",
        ),
        ("printf %s <matches> >F; $(cat F)", "with $( ), which"),
        (
            "printf %s <matches> >F; sed \"$(cat F)\" G",
            "with sed, which",
        ),
        ("logger -t x <matches> | sh", "with sh, which"),
        ("logger <matches> > >(sh)", "with sh, which"),
        ("logger; ssh h <matches>", "may run it"),
        ("logger \"$(ssh h <matches>)\"", "may run it"),
        ("{ ssh h <matches>; }", "may run it"),
        ("sudo -u logger ssh h <matches>", "may run it"),
        ("nice logger ssh; env -i ssh h <matches>", "may run it"),
        ("find . -exec ssh h <matches> \\;", "may run it"),
        (
            "printf <matches> >F; find F -exec ssh -F {} h \\;",
            "with ssh, which",
        ),
        ("awk \"$(printf %s '<matches>')\"", "may run it"),
        ("env $(printf %s <matches>)", "may run it"),
        ("sed -e 1d -e \"s/x/<matches>/\" F", "may run it"),
        ("$(echo <matches>)", "with $( ), which"),
        ("M=<matches>; `echo $M`", "with $( ), which"),
        ("M=<matches>; sudo -u x $M", "with $M, which"),
        ("M=<matches>; docker exec -i web ${M}", "with ${M}, which"),
        ("M=<matches>; chroot /srv $M", "with $M, which"),
        ("<matches>", "with ${WEIR_"),
        (
            "M=<matches>; awk \"BEGIN { x = \\\"$M\\\" }\"",
            "with awk, which",
        ),
        ("M=<matches>; sed -e \"s/x/$M/\" F", "with sed, which"),
        ("M=<matches>; sudo sed \"s/x/${M}/\" F", "with sed, which"),
        ("U=<matches>; echo $((U + 1))", "has $((, where"),
        ("[[ <matches> -eq 5 ]]", "with [[, which"),
        ("x <ip-host>", "does not keep"),
        (
            "x <F-A> <F-B> <F-C> <F-D> <F-E> <F-F> <F-G> <F-H> <F-A> <F-I>",
            "<F-I> is one",
        ),
    ] {
        let error = made(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
        // What a filter captures is a client's text as well.
        if text.contains("<matches>") {
            let text = text.replace("<matches>", "<F-USER>");
            let error = made(&text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
    for (key, why) in [
        ("actionstart", "when somebody is banned"),
        ("ignorecommand", "not keep"),
    ] {
        let about_ban = key == "ignorecommand";
        let error = script(key, &Text::parameter("x <F-USER>"), about_ban).unwrap_err();
        assert!(error.message.contains(why), "{error}");
    }
    // (Fail2ban's are in capitals.)
    assert_eq!(made("x '<F-user>'").unwrap().text, "x '<F-user>'");
    let made_of = made("x <F-USER> <F-PORT> <F-ALT-USER>").unwrap();
    assert_eq!(made_of.captured, ["user", "fport", "alt_user"]);
    let start = script("actionstart", &Text::parameter("x <ip>"), false).unwrap_err();
    assert!(start.message.contains("when somebody is banned"), "{start}");
    // What no configuration knows stays, as in Fail2ban.
    assert_eq!(made("x '<nobody>'").unwrap().text, "x '<nobody>'");
    assert!(made(&"x".repeat(MAX_SCRIPT + 1)).is_err());
}
