//! Programs that run what is handed to them, and where a shell's command names one: no text
//! of a client's may come to them. It is a list of names: a program that does the same by
//! another name is not known.

/// Programs that run what stands in their arguments, where a variable's value would be
/// read as a program.
pub(super) const INTERPRETERS: [&str; 26] = [
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

/// The words of the command at the beginning of a script, as a shell reads them: without
/// quotes and backslashes, up to the next command; `{` where a group begins or ends, `>` before
/// the name of a file. What `$( )` and backticks have in them is left out, for it is commands
/// of its own.
pub(super) fn words_of(script: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = script.chars().peekable();
    let mut quote = None;
    while let Some(c) = chars.next() {
        let is_first = words.iter().all(String::is_empty);
        let word = words.last_mut().expect("there is one");
        match (c, quote) {
            ('\\', None) => match chars.next() {
                None | Some('\n') => (),
                Some(escaped) => word.push(escaped),
            },
            ('\\', Some('"')) => word.extend(chars.next()),
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            ('$', None | Some('"')) if chars.peek() == Some(&'(') => {
                let mut depth = 0;
                for inner in chars.by_ref() {
                    match inner {
                        '(' => depth += 1,
                        ')' => depth -= 1,
                        _ => (),
                    }
                    if depth == 0 {
                        break;
                    }
                }
                word.push('\u{fffd}');
            }
            ('`', None) if is_first => break,
            ('`', None | Some('"')) => {
                let _ = chars.by_ref().find(|inner| *inner == '`');
                word.push('\u{fffd}');
            }
            (')' | ';' | '|' | '&' | '\n', None) => break,
            ('(', None) if chars.peek() == Some(&')') => {
                // Of a function.
                chars.next();
                words.extend(["{".into(), String::new()]);
            }
            ('(' | '{' | '}', None) => words.extend(["{".into(), String::new()]),
            ('<' | '>', None) => words.extend([">".into(), String::new()]),
            (c, None) if c.is_whitespace() => words.push(String::new()),
            (c, _) => word.push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The program of one command, in words, that runs what it reads, or reads it as a name.
pub(super) fn runner_in(all: &[String]) -> Option<&str> {
    let is_set = |word: &str| {
        let name = word.split_once('=').map_or("", |(name, _)| name);
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && name.bytes().all(fits)
    };
    let is_option = |word: &str| word.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let is_in = |known: &[&str], word: &str| {
        let bare = word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        known.contains(&word) || (!bare.is_empty() && known.contains(&bare))
    };
    // Without files that are read and written.
    let is_file = |n: usize| all[n] == ">" || (n > 0 && all[n - 1] == ">");
    let words = (0..all.len()).filter(|n| !is_file(*n));
    let words: Vec<&str> = words.map(|n| all[n].as_str()).collect();
    let is_before = |word: &str| BEFORE_COMMANDS.contains(&command_name(word)) || is_set(word);
    let first = words
        .iter()
        .take_while(|word| is_before(word) || is_option(word));
    let first = first.count();
    let starts_others = words[..first]
        .iter()
        .any(|word| !is_set(word) && !is_option(word));
    let reads_program = |name: &str| {
        let is_program = |word: &&str| word.starts_with("-f") || word.starts_with("--file");
        is_in(&["awk", "gawk", "mawk", "sed"], name) && words.iter().any(is_program)
    };
    (0..words.len()).find_map(|n| {
        let is_by_place = n <= first || starts_others;
        let name = if is_by_place {
            command_name(words[n])
        } else {
            program_of(words[n])
        };
        let runs = is_in(&RUNNERS, name)
            || (is_by_place && (is_in(&RUNNERS_BY_PLACE, name) || NAMES.contains(&name)))
            || (n == first && (name.starts_with('$') || reads_program(name)));
        runs.then_some(name)
    })
}

/// The program that a word behind others names, if it does.
fn program_of(word: &str) -> &str {
    match word.rsplit_once('/') {
        None => word,
        Some((directory, name)) if directory.ends_with("bin") => name,
        Some(_) => "",
    }
}

pub(super) fn command_name(word: &str) -> &str {
    let word = word.trim_matches(['"', '\'', '(', '{', '\\']);
    word.rsplit('/').next().unwrap_or(word)
}
