//! `weir app prompt`: shows connections that no rule is about, and takes answers. None of
//! them waits for another: they are answered by number, in any order.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead},
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use weir_daemon::identity::digest_of;

use super::{array, edit};
use crate::cli::{Common, ExitAnswer, show};

/// How often it is asked what is open.
const EVERY: Duration = Duration::from_millis(250);
/// So long after a question has ended by itself, an answer without a number may have been
/// meant for that one.
const UNSURE: Duration = Duration::from_secs(3);
/// Characters of a command line that are shown.
const MAX_COMMAND: usize = 200;
const WORDS: &str = "[NUMBER] allow|deny [once|run|always]";

/// Ask, on this terminal, whether programs may connect where no rule says so
///
/// It takes prompt_timeout in [app]. Each question has a number. Answer with a line: the
/// number (absent: the question, if only one is open), allow or deny (a, d), and for what:
/// once (o), this peer and port, the usual; run (r), this port of any peer; always (w), the
/// same by a rule in conf.d/50-app-rules.toml. The first two hold while the process runs
/// that has asked. End with Ctrl-D.
#[derive(clap::Args)]
pub struct Args {
    /// Print questions, and what becomes of them, as JSON lines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Once,
    Run,
    Always,
}

/// An answer as it was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Typed {
    id: Option<u64>,
    says: edit::Says,
    scope: Scope,
}

fn parse(line: &str) -> Option<Typed> {
    let mut words = line.split_whitespace().peekable();
    let id = words.peek()?.parse().ok();
    if id.is_some() {
        words.next();
    }
    let says = match words.next()? {
        "allow" | "a" => edit::Says::Allow,
        "deny" | "d" => edit::Says::Deny,
        _ => return None,
    };
    let scope = match words.next() {
        None | Some("once" | "o") => Scope::Once,
        Some("run" | "r") => Scope::Run,
        Some("always" | "w") => Scope::Always,
        Some(_) => return None,
    };
    words.next().is_none().then_some(Typed { id, says, scope })
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let client = common.client();
    let app = client.get("/v1/app")?.ok()?;
    if app["app"]["prompt"].is_null() {
        bail!(
            "nobody is asked about programs: [app] has no prompt_timeout, such as prompt_timeout = \"1m\""
        );
    }
    let default = show::text(&app["app"]["default"]);
    let (send, typed) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = io::stdin().lock().split(b'\n').map_while(Result::ok);
        lines.all(|line| {
            send.send(String::from_utf8_lossy(&line).into_owned())
                .is_ok()
        })
    });
    if !args.json {
        show::line(format!("waiting for questions; answer: {WORDS}"))?;
    }
    let mut open: BTreeMap<u64, Value> = BTreeMap::new();
    let mut last_over: Option<Instant> = None;
    let mut is_away = false;
    loop {
        let answer = match client.get("/v1/app/questions") {
            Ok(answer) => answer.ok()?,
            Err(why) => {
                if !is_away {
                    say(
                        args.json,
                        "error",
                        &format!("{why:#}: waiting for weir to start"),
                    )?;
                }
                is_away = true;
                open.clear();
                match typed.recv_timeout(EVERY) {
                    Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(ExitAnswer::Done),
                    _ => continue,
                }
            }
        };
        if std::mem::take(&mut is_away) {
            say(args.json, "note", "weir answers again")?;
        }
        let rows = array(&answer["questions"]).iter();
        let now: BTreeMap<_, _> = rows
            .filter_map(|row| Some((row["id"].as_u64()?, row.clone())))
            .collect();
        for id in open.keys().filter(|id| !now.contains_key(id)) {
            last_over = Some(Instant::now());
            match args.json {
                true => json_line(&json!({ "id": id, "is_over": true }))?,
                false => show::line(format!("question {id} is over"))?,
            }
        }
        // Another daemon may have given the number to another question.
        for (id, question) in now.iter().filter(|(id, row)| open.get(id) != Some(row)) {
            match args.json {
                true => json_line(question)?,
                false => described(*id, question, &default, &Facts::of(question))
                    .into_iter()
                    .try_for_each(show::line)?,
            }
        }
        open = now;
        match typed.recv_timeout(EVERY) {
            Ok(line) if line.trim().is_empty() => (),
            Ok(line) => {
                let is_unsure = last_over.is_some_and(|over| over.elapsed() < UNSURE);
                if let Err(why) = answer_line(common, args.json, &line, &mut open, is_unsure) {
                    say(args.json, "error", &format!("{why:#}"))?;
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => (),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(ExitAnswer::Done),
        }
    }
}

/// A sentence, or a JSON object with it under this key.
fn say(is_json: bool, key: &str, sentence: &str) -> anyhow::Result<()> {
    match is_json {
        true => json_line(&json!({ key: sentence })),
        false => Ok(show::line(weir_daemon::escape(sentence))?),
    }
}

fn json_line(value: &Value) -> anyhow::Result<()> {
    Ok(show::line(serde_json::to_string(value)?)?)
}

/// `443/tcp`, as rules name it; `None`: it has no port.
fn port_of(question: &Value) -> Option<String> {
    let protocol = question["protocol"].as_str()?;
    match (question["port"].as_u64()?, protocol) {
        (port @ 1.., "tcp" | "udp") => Some(format!("{port}/{protocol}")),
        _ => None,
    }
}

/// What this host says of those who ask.
#[derive(Debug, Default)]
struct Facts {
    /// Whether the file at a program's path is another one here, for each program. The path is
    /// what its mount namespace says, which a user may have made.
    is_elsewhere: Vec<bool>,
    /// What the process was called with, as it says itself.
    command: String,
}

impl Facts {
    fn of(question: &Value) -> Self {
        let is_elsewhere = |exe: &Value| {
            let path = Path::new(exe["path"].as_str().unwrap_or_default());
            let here = digest_of(path).ok().map(|digest| digest.to_string());
            here.as_deref() != exe["digest"].as_str()
        };
        let bytes = fs::read(format!("/proc/{}/cmdline", question["pid"])).unwrap_or_default();
        let words = String::from_utf8_lossy(&bytes).replace('\0', " ");
        Self {
            is_elsewhere: array(&question["programs"])
                .iter()
                .map(is_elsewhere)
                .collect(),
            command: words.trim_end().chars().take(MAX_COMMAND).collect(),
        }
    }
}

/// A question as a person reads it. All text in it may be an attacker's: what is not stands
/// in the first line, and each such text in a line of its own.
fn described(id: u64, question: &Value, default: &str, facts: &Facts) -> Vec<String> {
    let port = match port_of(question) {
        Some(port) => format!("port {port}"),
        None => show::text(&question["protocol"]),
    };
    let peer = show::text(&question["peer"]);
    let wants = match question["direction"] == "out" {
        true => format!("to connect to {peer} {port}"),
        false => format!("to be reached by {peer} at {port}"),
    };
    let programs = array(&question["programs"]);
    let who = match programs {
        [_] => "a program wants".to_owned(),
        all => format!("{} programs that share a socket want", all.len()),
    };
    let mut lines = vec![format!("question {id}: {who} {wants}")];
    for (number, exe) in programs.iter().enumerate() {
        lines.push(format!("  program {}", show::text(&exe["path"])));
        if facts.is_elsewhere.get(number) == Some(&true) {
            lines.push(
                "  CAUTION: that path names another file here: it is of a container or namespace, or was replaced".to_owned(),
            );
        }
        lines.push(format!("  SHA-256 {}", show::text(&exe["digest"])));
    }
    lines.push(format!(
        "  called as {}",
        weir_daemon::escape(&facts.command)
    ));
    lines.push(format!(
        "  process {}, uid {}, control group {}",
        question["pid"],
        question["uid"],
        show::text(&question["cgroup"])
    ));
    if let Some(parent) = array(&question["parents"]).first() {
        lines.push(format!("  started by {}", show::text(parent)));
    }
    let ends = question["ends"].as_str().map(show::moment);
    lines.push(format!(
        "  {default} without an answer until {}",
        ends.unwrap_or_default()
    ));
    lines
}

fn answer_line(
    common: &Common,
    is_json: bool,
    line: &str,
    open: &mut BTreeMap<u64, Value>,
    is_unsure: bool,
) -> anyhow::Result<()> {
    let Some(typed) = parse(line) else {
        let line: String = line.chars().take(64).collect();
        bail!("{line:?} is no answer; allowed: {WORDS}");
    };
    let id = match (typed.id, open.len()) {
        (Some(id), _) => id,
        (None, 0) => bail!("no question is open"),
        (None, 1) if is_unsure => {
            bail!("another question has just ended: begin with the number of the one that is open")
        }
        (None, 1) => *open.keys().next().expect("one is open"),
        (None, many) => bail!("{many} questions are open: begin with the number of one"),
    };
    let question = open
        .get(&id)
        .with_context(|| format!("no question {id} is open"))?;
    let (verdict, scope) = (typed.says.word(), typed.scope);
    if scope == Scope::Always {
        always(common, is_json, typed.says, question)?;
    }
    let body = json!({
        "verdict": verdict,
        "for": if scope == Scope::Once { "once" } else { "run" },
        "asked": question["asked"],
    });
    let path = format!("/v1/app/questions/{id}");
    let answered = common
        .client()
        .post(&path, &body)
        .and_then(|reply| reply.ok());
    // The rule that is in force by now may have ended it.
    if scope != Scope::Always {
        answered?;
    }
    open.remove(&id);
    let word = format!("{scope:?}").to_lowercase();
    match is_json {
        true => json_line(&json!({ "id": id, "answered": verdict, "for": word })),
        false => Ok(show::line(format!("question {id}: {verdict} {word}"))?),
    }
}

/// A rule about each program, in the file of `weir app allow`; none of them, if one cannot
/// be written as it was asked.
fn always(
    common: &Common,
    is_json: bool,
    says: edit::Says,
    question: &Value,
) -> anyhow::Result<()> {
    let port = port_of(question).with_context(|| {
        format!(
            "a question about {} has no port that a rule could name: no rule was written; answer once or run",
            show::text(&question["protocol"])
        )
    })?;
    let is_out = question["direction"] == "out";
    let mut rules = Vec::new();
    for exe in array(&question["programs"]) {
        let path = Path::new(exe["path"].as_str().context("a program without a path")?);
        let is = digest_of(path)
            .map_err(|why| anyhow::anyhow!("cannot hash {}: {why}", path.display()))?;
        let is = is.to_string();
        if exe["digest"].as_str() != Some(&is) {
            bail!(
                "{} is another file than the program that has asked (of a container, or replaced): no rule was written; answer once or run",
                path.display()
            );
        }
        rules.push(edit::Args::of_port(path, is, &port, is_out));
    }
    let mut rules = rules.iter();
    rules.try_for_each(|rule| edit::add(common, says, rule, !is_json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_in_a_question_is_escaped() {
        let question = json!({
            "programs": [
                {"path": "/tmp/\u{1b}[2Jcurl\nquestion 7: /bin/ls", "digest": "ab"},
                {"path": "/usr/bin/python3", "digest": "cd"},
            ],
            "pid": 7, "uid": 1000, "cgroup": "/a\nb", "parents": ["1 /sbin/\u{9b}init"],
            "direction": "in", "protocol": "icmp", "peer": "2001:db8::1", "port": 0,
            "ends": "2026-11-26T12:00:00Z",
        });
        let facts = Facts {
            is_elsewhere: vec![true, false],
            command: "curl\u{1b}[1A x".to_owned(),
        };
        let lines = described(3, &question, "drop", &facts);
        assert_eq!(
            lines[0],
            "question 3: 2 programs that share a socket want to be reached by 2001:db8::1 at icmp"
        );
        assert!(lines[2].starts_with("  CAUTION: "), "{lines:?}");
        assert_eq!(lines[4], "  program /usr/bin/python3");
        assert_eq!(lines.len(), 10, "{lines:?}");
        assert!(lines.concat().chars().all(|c| !c.is_control()), "{lines:?}");
    }

    #[test]
    fn answers_are_read_in_long_and_short_words() {
        let of = |id, says, scope| Some(Typed { id, says, scope });
        for (line, typed) in [
            ("allow", of(None, edit::Says::Allow, Scope::Once)),
            ("d", of(None, edit::Says::Deny, Scope::Once)),
            (" 12 a r ", of(Some(12), edit::Says::Allow, Scope::Run)),
            (
                "3 deny always",
                of(Some(3), edit::Says::Deny, Scope::Always),
            ),
            ("3 d w", of(Some(3), edit::Says::Deny, Scope::Always)),
            ("yes", None),
            ("3", None),
            ("", None),
            ("allow for ever", None),
            ("allow once more", None),
            ("-1 allow", None),
        ] {
            assert_eq!(parse(line), typed, "{line:?}");
        }
    }
}
