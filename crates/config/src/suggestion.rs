//! What somebody meant who wrote a key that is not there.

use std::path::Path;

use strsim::osa_distance;

/// The keys above the first table: TOML gives those below it to the table.
pub const TOP_LEVEL: [&str; 14] = [
    "allow",
    "backend",
    "fail2ban_socket",
    "history_mb",
    "instance",
    "interfaces",
    "ipv4_length",
    "keep_history",
    "max_bans",
    "observe",
    "pin_root",
    "prefer",
    "socket",
    "state_dir",
];

/// What to add to the name in a message about an unknown key. `table`: none for the
/// top of the file.
pub(crate) fn suggestion(key: &str, table: &str, known: &[&str], main: &Path) -> String {
    if !table.is_empty() && TOP_LEVEL.contains(&key) {
        let main = main.display();
        return format!(" (it is a top-level key: write it above the first [table] of {main})");
    }
    did_you_mean(key, known.iter().copied())
}

/// The known word that a mistyped one is nearest to, as ` (did you mean X?)`; empty if
/// none is near.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known
        .into_iter()
        .map(|known| (osa_distance(word, known), known))
        .filter(|(distance, known)| {
            *distance <= 2.min(word.len().min(known.len()) / 3)
                || (word.len() >= 4 && known.contains(word))
        })
        .min();
    match near {
        Some((_, known)) => format!(" (did you mean {known}?)"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_suggested_that_is_near() {
        let known = ["max_retry", "ban_time", "find_time", "grace", "url"];
        let main = Path::new("/etc/weir/weir.toml");
        for (key, meant) in [
            ("max_retyr", " (did you mean max_retry?)"),
            ("maxretry", " (did you mean max_retry?)"),
            ("retry", " (did you mean max_retry?)"),
            ("bantime", " (did you mean ban_time?)"),
            ("grcae", " (did you mean grace?)"),
            ("ulr", " (did you mean url?)"),
            ("u", ""),
            ("nonsense", ""),
            ("", ""),
            ("é", ""),
        ] {
            assert_eq!(suggestion(key, "jail.a", &known, main), meant, "{key}");
        }
        let above =
            " (it is a top-level key: write it above the first [table] of /etc/weir/weir.toml)";
        assert_eq!(suggestion("observe", "jail.a", &known, main), above);
        assert_eq!(suggestion("observe", "", &known, main), "");
    }
}
