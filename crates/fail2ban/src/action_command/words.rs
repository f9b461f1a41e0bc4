//! The words of a shell's command, as far as it must be known which programs a command names
//! and what of it the shell replaces. It reads more of a script than it needs rather than less:
//! who asks refuses what is doubtful.

/// In a word, what `$( )` and backticks print; behind `$` unless that is a program's path.
pub(super) const EXPANDED: char = '\u{fffd}';
/// In a word, a `$` that is quoted and stays what it is.
const DOLLAR: char = '\u{fffe}';

/// The words of one command.
pub(super) struct Words {
    /// As [`words_of`] says.
    pub(super) words: Vec<String>,
    /// Whether the script is no longer than this command, as far as it could be read.
    pub(super) is_whole: bool,
}

/// The words of the command at the beginning of a script, as a shell reads them: without
/// quotes and backslashes, up to the next command; `{` where a group begins or ends, `>` before
/// the name of a file. What `$( )` and backticks have in them is left out, for it is commands
/// of its own; `${ }` stays as it is.
pub(super) fn words_of(script: &str) -> Words {
    let mut is_whole = true;
    let mut words = vec![String::new()];
    let mut chars = script.chars().peekable();
    let mut quote = None;
    while let Some(c) = chars.next() {
        let word = words.last_mut().expect("there is one");
        match (c, quote) {
            ('\\', None) => match chars.next() {
                None | Some('\n') => (),
                Some('$') => word.push(DOLLAR),
                Some(escaped) => word.push(escaped),
            },
            ('\\', Some('"')) => match chars.next() {
                Some('$') => word.push(DOLLAR),
                escaped => word.extend(escaped),
            },
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            ('$', Some('\'')) => word.push(DOLLAR),
            ('$', None | Some('"')) if chars.peek() == Some(&'(') => {
                let inner = bracketed(&mut chars, '(', ')');
                is_whole &= inner.ends_with(')');
                push_expanded(word, &inner);
            }
            ('$', None | Some('"')) if chars.peek() == Some(&'{') => {
                word.push('$');
                word.push_str(&bracketed(&mut chars, '{', '}'));
            }
            ('`', None | Some('"')) => {
                let inner: Vec<char> = chars.clone().take_while(|inner| *inner != '`').collect();
                // Of a command in backticks it is the end.
                if chars.clone().nth(inner.len()).is_none() {
                    is_whole = false;
                    break;
                }
                chars.nth(inner.len());
                push_expanded(word, &inner.iter().collect::<String>());
            }
            (')' | ';' | '|' | '&' | '\n', None) => {
                is_whole = false;
                break;
            }
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
    Words { words, is_whole }
}

/// What stands from an opening bracket to the one that closes it, or to the end, both included.
/// Brackets in quotes or behind a backslash are text.
fn bracketed(chars: &mut impl Iterator<Item = char>, open: char, close: char) -> String {
    let (mut text, mut depth) = (String::new(), 0);
    let mut quote = None;
    while let Some(c) = chars.next() {
        text.push(c);
        match (c, quote) {
            ('\\', None | Some('"')) => text.extend(chars.next()),
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            (_, Some(_)) => (),
            (c, None) if c == open => depth += 1,
            (c, None) if c == close => depth -= 1,
            _ => (),
        }
        if depth == 0 {
            break;
        }
    }
    text
}

/// `$( )` that looks a program up prints its path, and any other one what it likes.
fn push_expanded(word: &mut String, inner: &str) {
    let inner = inner.trim_start_matches('(').trim_start();
    let looks_up = ["command -v ", "which "];
    let is_path = looks_up.iter().any(|by| inner.starts_with(by));
    if !is_path || inner.contains(['$', '`', ';', '|', '&', '\n']) {
        word.push('$');
    }
    word.push(EXPANDED);
}

/// Does the shell put the value of a variable into the word?
pub(super) fn expands(word: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphanumeric() || "_{(@*".contains(c) || c == EXPANDED;
    let behind = word.split('$').skip(1);
    behind.into_iter().any(|rest| rest.starts_with(begins))
}

/// Is the word, as a program's name, one that variables say? `$DIR/program` is none: its last
/// part is known.
pub(super) fn expands_to_a_name(word: &str) -> bool {
    let Some(rest) = word.strip_prefix('$') else {
        return false;
    };
    let behind = match rest.chars().next() {
        Some('{') => rest.split_once('}').map_or("", |(_, behind)| behind),
        Some(EXPANDED) => &rest[EXPANDED.len_utf8()..],
        _ => rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_'),
    };
    expands(word) && !behind.starts_with('/')
}
