//! May a command be run with the daemon's rights? Whoever can write to its
//! program, to a script that it is to interpret, or to any directory on the way
//! there, could run anything as root. Judged when the configuration is read and
//! again before each run: what is safe stays so until root changes it, because
//! everything on the way to it is root's.

pub mod child;
pub mod supervisor;
pub(crate) mod user;

use std::{
    collections::VecDeque,
    ffi::OsString,
    fmt, fs,
    io::Read,
    os::unix::{
        ffi::OsStringExt,
        fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Component, Path, PathBuf},
};

use user::{WatchUser, watch_user};

/// Why a command is not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The command cannot be run now, for this reason.
    Missing(String),
    /// Somebody else than root and the daemon's user can change what is run.
    Unsafe(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(why) => f.write_str(why),
            Self::Unsafe(why) => write!(f, "{why}, and root would run it"),
        }
    }
}

/// Programs that run the file which is their first argument beside options, and
/// the options behind which code itself comes.
const INTERPRETERS: [(&str, &str); 25] = [
    ("ash", "c"),
    ("awk", ""),
    ("bash", "c"),
    ("dash", "c"),
    ("expect", "c"),
    ("fish", "c"),
    ("gawk", "e"),
    ("ksh", "c"),
    ("lua", "e"),
    ("luajit", "e"),
    ("mawk", ""),
    ("mksh", "c"),
    ("node", "ep"),
    ("nodejs", "ep"),
    ("perl", "eE"),
    ("php", "r"),
    ("pypy", "c"),
    ("python", "c"),
    ("rbash", "c"),
    ("ruby", "e"),
    ("sh", "c"),
    ("tclsh", ""),
    ("wish", ""),
    ("yash", "c"),
    ("zsh", "c"),
];
/// What may stand before such an option, in one word with it: options without a
/// value (`-ec`, `-lane`). What is not known here is no code.
const FLAGS: &str = "alnpsuxvefqBEIO0";
/// Symbolic links that are followed on one way.
const MAX_LINKS: usize = 40;
/// The kernel reads no more of a script's first line.
const FIRST_LINE: u64 = 256;
/// Scripts whose interpreter is a script, as the kernel allows.
const MAX_DEPTH: usize = 4;

/// The kind of program that reads the next argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Runs a script; its options of these letters take code.
    Interpreter { code: &'static str },
    /// Reads data, or runs the command that follows, as env, sudo and flock do:
    /// whatever they are, an interpreter is known by its name.
    Program,
    /// The program had its code before: further arguments are for that code.
    Code,
}

impl Reader {
    fn of(program: &Path) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        // python3.11
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        let known = INTERPRETERS.iter().find(|(known, _)| *known == name);
        known.map_or(Self::Program, |(_, code)| Self::Interpreter { code })
    }

    /// Is the argument behind this option code itself, as with `-c`?
    fn takes_code(self, option: &str) -> bool {
        let (Self::Interpreter { code }, Some(letters)) = (self, option.strip_prefix('-')) else {
            return false;
        };
        let mut letters = letters.chars();
        let last = letters.next_back();
        last.is_some_and(|last| code.contains(last)) && letters.all(|flag| FLAGS.contains(flag))
    }
}

/// Judges the program of a command, and those of its arguments that are
/// programs or scripts.
pub(crate) fn judge(command: &[String]) -> Result<(), Fault> {
    let user = watch_user().map_err(|error| Fault::Missing(error.to_string()))?;
    judge_for(command, user.as_ref())
}

/// Judges a command that is to run as this user.
fn judge_for(command: &[String], user: Option<&WatchUser>) -> Result<(), Fault> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Fault::Missing("no command".to_owned()));
    };
    let file = runnable(Path::new(program), user, 0)?;
    let mut reader = match Reader::of(Path::new(program)) {
        Reader::Program => Reader::of(&file),
        reader => reader,
    };
    let mut before = "";
    for argument in arguments {
        let option = argument.starts_with('-');
        // As in --script=/path. The daemon runs commands in the root directory.
        let path = match argument.split_once('=') {
            Some((_, value)) if option => value,
            _ => argument,
        };
        let path = Path::new("/").join(path);
        if reader.takes_code(argument) && option {
            reader = Reader::Code;
        } else if fs::metadata(&path).is_ok_and(|about| about.is_file()) {
            let interpreted = matches!(reader, Reader::Interpreter { .. });
            let found = match interpreted || is_program(&path) {
                true if reader == Reader::Program && !option && is_executable(&path) => {
                    runnable(&path, user, 0)?
                }
                true => safe(&path)?,
                false => path.clone(),
            };
            if !option && reader != Reader::Code {
                reader = match Reader::of(&path) {
                    Reader::Program => Reader::of(&found),
                    named => named,
                };
            }
        } else if !option && reader != Reader::Code {
            // The value of an option before it, the code of an awk program, or
            // an interpreter that is looked for in the PATH.
            reader = match (Reader::of(Path::new(argument)), reader) {
                (Reader::Program, Reader::Interpreter { .. }) if !before.starts_with('-') => {
                    Reader::Program
                }
                (Reader::Program, reader) => reader,
                (named, _) => named,
            };
        }
        before = argument;
    }
    Ok(())
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.mode() & 0o111 != 0)
}

fn is_program(path: &Path) -> bool {
    is_executable(path) || first_line(path).is_some()
}

/// A program and, if it is a script, whoever interprets it.
fn runnable(program: &Path, user: Option<&WatchUser>, depth: usize) -> Result<PathBuf, Fault> {
    let file = safe(program)?;
    let about = fs::metadata(&file).map_err(|e| missing(program, &e))?;
    if !about.is_file() || about.mode() & 0o111 == 0 {
        let why = "not a program that can be run";
        return Err(Fault::Missing(format!("{}: {why}", program.display())));
    }
    if let Some(user) = user
        && !user.may_execute(about.uid(), about.gid(), about.mode())
    {
        let mode = about.mode() & 0o7777;
        return Err(Fault::Missing(format!(
            "{}: watches run as {user}, whom its mode {mode:04o} does not let run it: chmod o+x {0}",
            program.display()
        )));
    }
    if let Some(interpreter) = first_line(&file) {
        if depth == MAX_DEPTH {
            let why = "scripts that interpret one another";
            return Err(Fault::Missing(format!("{}: {why}", program.display())));
        }
        runnable(&interpreter, user, depth + 1)?;
    }
    Ok(file)
}

fn missing(path: &Path, error: &dyn fmt::Display) -> Fault {
    Fault::Missing(format!("{}: {error}", path.display()))
}

/// The interpreter that a script names.
fn first_line(script: &Path) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    // A FIFO must not hold up whoever judges it.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).ok()?;
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(script)
        .ok()?;
    file.take(FIRST_LINE).read_to_end(&mut bytes).ok()?;
    let line = bytes.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let word = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// Follows a path as the kernel does, and looks at every directory and link on
/// the way; returns the file itself. The ring walks to its directory so, by other
/// rules, and shares no crate with weir: servers link it.
fn safe(path: &Path) -> Result<PathBuf, Fault> {
    let own = rustix::process::geteuid().as_raw();
    let mut at = PathBuf::from("/");
    look(&at, own)?;
    let mut rest: VecDeque<OsString> = components(path);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let about = fs::symlink_metadata(&next).map_err(|e| missing(path, &e))?;
        if about.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(missing(path, &"too many symbolic links"));
            }
            owned(&next, about.uid(), own)?;
            let target = fs::read_link(&next).map_err(|e| missing(path, &e))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for part in components(&target).into_iter().rev() {
                rest.push_front(part);
            }
            continue;
        }
        look(&next, own)?;
        at = next;
    }
    Ok(at)
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

fn owned(part: &Path, owner: u32, own: u32) -> Result<(), Fault> {
    match owner == 0 || owner == own {
        true => Ok(()),
        false => Err(Fault::Unsafe(format!(
            "{} belongs to user {owner}",
            part.display()
        ))),
    }
}

/// A directory on the way, or what it leads to.
fn look(part: &Path, own: u32) -> Result<(), Fault> {
    let found = fs::symlink_metadata(part).map_err(|e| missing(part, &e))?;
    owned(part, found.uid(), own)?;
    let mode = found.mode();
    // In a sticky directory others can add, but not replace.
    let sticky = found.is_dir() && mode & 0o1000 != 0;
    let group = mode & 0o020 != 0 && found.gid() != 0;
    if (mode & 0o002 != 0 || group) && !sticky {
        return Err(Fault::Unsafe(format!(
            "{} can be written to by others",
            part.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn file(dir: &Path, name: &str, text: &str, mode: u32) -> String {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    }

    fn said(command: &[&str]) -> String {
        let command: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
        let user = WatchUser::nobody();
        judge_for(&command, Some(&user)).map_or_else(|fault| fault.to_string(), |()| String::new())
    }

    /// Issue 13: watches are not root, and reading all does not run all.
    #[test]
    fn what_only_root_may_run_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let private = file(dir.path(), "private", "#!/bin/sh\n", 0o700);
        let by_private = file(dir.path(), "by", &format!("#!{private}\n"), 0o755);
        let words = format!(
            "private: watches run as user nobody (65534), whom its mode 0700 does not let run it: chmod o+x {private}"
        );
        for command in [
            &[&private[..]][..],
            &[&by_private],
            &["/usr/bin/env", "A=1", &private],
        ] {
            assert!(
                said(command).ends_with(&words),
                "{command:?}: {}",
                said(command)
            );
        }
        // It reads every script, and runs what is not root's alone.
        assert_eq!(said(&["/bin/sh", &private]), "");
        file(dir.path(), "private", "#!/bin/sh\n", 0o711);
        assert_eq!(said(&[&private]), "");
        let nobody = WatchUser::nobody();
        assert!(nobody.may_execute(65_534, 0, 0o700) && nobody.may_execute(0, 65_534, 0o710));
        assert!(!nobody.may_execute(0, 65_534, 0o701) && !nobody.may_execute(65_534, 0, 0o677));
    }

    #[test]
    fn scripts_and_their_interpreters_are_judged_like_programs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let good = file(dir, "good", "x", 0o644);
        let loose = file(dir, "loose", "x", 0o666);
        let data = file(dir, "mail.log", "a line\n", 0o666);
        let loose_program = file(dir, "run", "#!/bin/sh\n", 0o777);
        let by_loose = file(dir, "by-loose", &format!("#! {loose_program} -e\n"), 0o755);
        let unsafe_words = "can be written to by others, and root would run it";
        for (command, words) in [
            (&["/bin/sh", &good, &data][..], ""),
            (&["/bin/sh", "-e", &good], ""),
            (&["/bin/cat", &data], ""),
            (&["/bin/sh", &loose], unsafe_words),
            (&["/bin/sh", "-e", &loose], unsafe_words),
            (&["/usr/bin/env", "/bin/sh", &loose], unsafe_words),
            (&["/usr/bin/env", "A=1", "sh", "-e", &loose], unsafe_words),
            (&["/usr/bin/flock", &data, "/bin/sh", &loose], unsafe_words),
            (&["/usr/bin/flock", &data, "/bin/cat", &data], ""),
            (&["/bin/sh", "-c", "cat \"$1\"", "sh", &data], ""),
            (&["/usr/bin/setpriv", "--nnp", "perl", &loose], unsafe_words),
            (
                &[
                    "/usr/bin/setpriv",
                    "nice",
                    "-n",
                    "5",
                    "expect",
                    "-f",
                    &loose,
                ],
                unsafe_words,
            ),
            (&["/usr/bin/logger", "-t", "web", "-f", &data], ""),
            (&["/bin/sh", "-c", "cat \"$0\"", &data], ""),
            (&["/usr/bin/awk", "{ print $1 }", &data], ""),
            (&["/usr/bin/awk", "-F", ":", "{ print $1 }", &data], ""),
            (&["/usr/bin/perl", "-ne", "print", &data], ""),
            (&["/usr/bin/perl", "-Mfeature", &loose], unsafe_words),
            (&["/usr/bin/perl", "-MData::Dumper", &loose], unsafe_words),
            (&["/bin/bash", "-euc", "cat \"$0\"", &data], ""),
            (&["/usr/bin/setpriv", "python3", "-E", &loose], unsafe_words),
            (
                &["/usr/bin/setpriv", "python3", "-Wignore", &loose],
                unsafe_words,
            ),
            (
                &["/usr/bin/setpriv", "php", "-c", "ini", &loose],
                unsafe_words,
            ),
            (
                &["/usr/bin/setpriv", "node", "-r", "mod", &loose],
                unsafe_words,
            ),
            (&["/usr/bin/awk", "-f", &loose, &data], unsafe_words),
            (&["/bin/cat", &loose_program], unsafe_words),
            (&[&format!("{}/run", dir.display())], unsafe_words),
            (&[&by_loose], unsafe_words),
            (&["/nonexistent/x"], "/nonexistent/x: No such file"),
            (&[&good], "not a program that can be run"),
        ] {
            let said = said(command);
            match words {
                "" => assert_eq!(said, "", "{command:?}"),
                words => assert!(said.contains(words), "{command:?}: {said:?}"),
            }
        }
    }

    #[test]
    fn every_link_and_directory_on_the_way_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("open")).unwrap();
        let program = file(dir, "run", "", 0o755);
        symlink(&program, dir.join("open/link")).unwrap();
        symlink("open/../run", dir.join("beside")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let at = |name: &str| format!("{}/{name}", dir.display());
        assert_eq!(said(&[&at("open/link")]), "");
        assert_eq!(said(&[&at("beside")]), "");
        assert!(said(&[&at("loop")]).contains("too many symbolic links"));
        // Who can write there could name another program.
        fs::set_permissions(dir.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        for way in ["open/link", "beside"] {
            let said = said(&[&at(way)]);
            assert!(said.contains("open can be written to by others"), "{said}");
        }
        assert_eq!(said(&[&program]), "");
    }
}
