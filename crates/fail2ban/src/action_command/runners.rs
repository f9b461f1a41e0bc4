//! Programs that run what is handed to them, and where a shell's command names one: no text
//! of a client's may come to them. It is a list of names: a program that does the same by
//! another name is not known. What the words of a command are says `words`.

use super::{
    Tag,
    words::{EXPANDED, expands, expands_to_a_name},
};

/// Programs that run what stands in their arguments, where a variable's value would be
/// read as a program.
const INTERPRETERS: [&str; 26] = [
    ".", "ash", "awk", "bash", "busybox", "csh", "dash", "env", "eval", "gawk", "ksh", "lua",
    "mawk", "node", "perl", "php", "python", "python3", "ruby", "sed", "sh", "source", "ssh", "su",
    "xargs", "zsh",
];

/// Programs that run what they read, too, or what their arguments name: none may stand
/// anywhere in a command that has a client's text, which could come to them by a pipe, a
/// variable, a here-document or a file.
const RUNNERS: [&str; 25] = [
    "ash", "bash", "busybox", "csh", "dash", "eval", "fish", "guile", "ksh", "lua", "m4", "mksh",
    "perl", "php", "pwsh", "python", "python3", "rbash", "ruby", "sh", "tclsh", "tcsh", "xargs",
    "yash", "zsh",
];

/// Those that are mostly something else where they are no command's name, nor behind one that
/// starts others.
const RUNNERS_BY_PLACE: [&str; 31] = [
    ".",
    "at",
    "batch",
    "crontab",
    "dc",
    "ed",
    "emacs",
    "ex",
    "expect",
    "flock",
    "gdb",
    "gnuplot",
    "make",
    "mariadb",
    "mysql",
    "node",
    "parallel",
    "psql",
    "runuser",
    "screen",
    "script",
    "source",
    "sqlite3",
    "ssh",
    "su",
    "systemd-run",
    "tmux",
    "trap",
    "vi",
    "vim",
    "watch",
];

/// Names for variables, or for numbers, of what stands behind them: a client's text would be
/// one.
const NAMES: [&str; 8] = [
    "[[", "alias", "declare", "export", "let", "local", "readonly", "typeset",
];

/// What stands before a command's name.
const BEFORE_COMMANDS: [&str; 28] = [
    "!",
    "builtin",
    "chroot",
    "command",
    "do",
    "doas",
    "docker",
    "elif",
    "else",
    "env",
    "exec",
    "if",
    "ionice",
    "nice",
    "nohup",
    "nsenter",
    "podman",
    "setpriv",
    "setsid",
    "stdbuf",
    "sudo",
    "systemd-inhibit",
    "then",
    "time",
    "timeout",
    "unshare",
    "until",
    "while",
];

/// Programs before whose command there is a word that is neither an option nor the program
/// that is started: a directory, a container.
const WITH_OPERAND: [&str; 3] = ["chroot", "docker", "podman"];

/// What `find` has before a command.
const EXEC_OPTIONS: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];

/// Programs that start no others: their arguments are text, whatever program has the same
/// name.
const TAKE_TEXT: [&str; 9] = [
    "[", "cat", "curl", "echo", "logger", "mail", "mailx", "printf", "tee",
];

/// One command in words, as far as it matters what it starts.
struct CommandWords<'a> {
    /// Without files that are read and written.
    words: Vec<&'a str>,
    /// Where a program's name may stand: behind what starts others, and behind what may be
    /// an argument of its options.
    places: Vec<usize>,
    /// Whether a word starts others, so that a program may stand behind it.
    starts_others: bool,
    /// How many words may be names of programs: those behind one that takes text are not.
    end: usize,
}

impl<'a> CommandWords<'a> {
    fn of(all: &'a [String]) -> Self {
        let is_file = |n: usize| all[n] == ">" || (n > 0 && all[n - 1] == ">");
        let words = (0..all.len()).filter(|n| !is_file(*n));
        let words: Vec<&str> = words.map(|n| all[n].as_str()).collect();
        let starts_others = |word: &str| BEFORE_COMMANDS.contains(&command_name(word));
        let mut places = Vec::new();
        let mut operands = 0;
        for (n, word) in words.iter().enumerate() {
            if starts_others(word) {
                operands += usize::from(WITH_OPERAND.contains(&command_name(word)));
                continue;
            }
            if is_set(word) || is_option(word) {
                continue;
            }
            places.push(n);
            let is_argument = n > 0 && words[n - 1].starts_with('-');
            if !is_argument {
                if operands == 0 {
                    break;
                }
                operands -= 1;
            }
        }
        let behind_exec = (1..words.len()).filter(|n| EXEC_OPTIONS.contains(&words[n - 1]));
        places.extend(behind_exec);
        let first = places.first().map_or(words.len(), |n| *n);
        let last = places.iter().copied().max();
        // Behind an operand there may be more of them, of one that has the name of such a program.
        let text_taker = last
            .filter(|n| TAKE_TEXT.contains(&command_name(words[*n])))
            .filter(|n| {
                let mut before = words[..*n].iter();
                !before.any(|word| WITH_OPERAND.contains(&command_name(word)))
            });
        Self {
            starts_others: words[..first].iter().any(|word| starts_others(word))
                || words.iter().any(|word| EXEC_OPTIONS.contains(word)),
            end: text_taker.map_or(words.len(), |n| n + 1),
            places,
            words,
        }
    }

    /// The name that a word may be of a program.
    fn name(&self, n: usize) -> &'a str {
        match self.is_place(n) {
            true => command_name(self.words[n]),
            false => program_of(self.words[n]),
        }
    }

    /// Is it where a program's name stands, or before that?
    fn is_place(&self, n: usize) -> bool {
        let first = self.places.first().map_or(self.words.len(), |first| *first);
        n <= first || self.starts_others || self.places.contains(&n)
    }
}

fn is_set(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.bytes().all(fits)
}

fn is_option(word: &str) -> bool {
    word.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}

/// Is a program of this name, or of this name with a version, among these?
fn is_in(known: &[&str], word: &str) -> bool {
    let bare = word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    known.contains(&word) || (!bare.is_empty() && known.contains(&bare))
}

/// Whether anything between blanks is the name of a program that runs its arguments.
pub(super) fn names_interpreter(script: &str) -> bool {
    let mut words = script.split_whitespace().map(command_name);
    words.any(|word| is_in(&INTERPRETERS, word))
}

/// Whether one command, in words up to where a value stands, has a program that runs its
/// arguments.
pub(super) fn runs_arguments(all: &[String]) -> bool {
    let command = CommandWords::of(all);
    (0..command.end).any(|n| is_in(&INTERPRETERS, command.name(n)))
}

/// The program of one command, in words, that runs what it reads, or reads it as a name.
pub(super) fn runner_in(all: &[String]) -> Option<&str> {
    let command = CommandWords::of(all);
    let words = &command.words;
    // A program that is an argument, or in a file.
    let reads_program = |name: &str| {
        let is_program = |word: &&str| {
            word.starts_with("-f") || word.starts_with("--file") || expands(&without_tags(word))
        };
        is_in(&["awk", "gawk", "mawk", "sed"], name) && words.iter().any(is_program)
    };
    (0..command.end).find_map(|n| {
        let name = command.name(n);
        let is_named = command.places.contains(&n);
        let is_expanded = expands_to_a_name(words[n]) || command_name(words[n]).starts_with('$');
        if is_named && is_expanded {
            return Some(match words[n].contains(EXPANDED) {
                true => "$( )",
                false => words[n],
            });
        }
        let by_place = |name: &str| is_in(&RUNNERS_BY_PLACE, name) || NAMES.contains(&name);
        let runs = is_in(&RUNNERS, name)
            || (command.is_place(n) && by_place(name))
            || (is_named && reads_program(name));
        runs.then_some(name)
    })
}

/// The word without values of bans that are no client's text.
fn without_tags(word: &str) -> String {
    let mut rest = word.to_owned();
    for tag in Tag::VALUES.into_iter().filter(|tag| !tag.is_text()) {
        rest = rest.replace(&format!("${{{}}}", tag.variable()), "");
    }
    rest
}

/// The program that a word behind others names, if it does.
fn program_of(word: &str) -> &str {
    match word.rsplit_once('/') {
        None => word,
        Some((directory, name)) if directory.ends_with("bin") => name,
        Some(_) => "",
    }
}

fn command_name(word: &str) -> &str {
    let word = word.trim_matches(['"', '\'', '(', '{', '\\']);
    word.rsplit('/').next().unwrap_or(word)
}
