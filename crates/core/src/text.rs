//! Text of others, made fit to be shown: a log line or a name of a user may hold
//! what steers a terminal.

/// Somebody else's text, fit for a terminal or a log: control characters and
/// those that reorder what is shown are written as escapes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || reorders(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Does it change the order, or the look, of what is shown?
fn reorders(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// A JSON text, fit for a terminal as well: JSON itself escapes no more than the
/// control characters of ASCII. (Outside of strings it has only those that lay it
/// out.)
pub fn escape_json(json: String) -> String {
    let steers = |c: char| c >= '\u{7f}' && (c.is_control() || reorders(c));
    if !json.contains(steers) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match steers(c) {
            // All of them are of the first plane.
            true => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    #[test]
    fn json_cannot_steer_a_terminal_either() {
        let text = "a\u{1b}[2J\u{7f}\u{9b}é\u{61c}\u{202e}\u{2066}\n";
        let json = serde_json::to_string_pretty(&[text]).unwrap();
        let safe = super::escape_json(json);
        assert_eq!(
            safe,
            "[\n  \"a\\u001b[2J\\u007f\\u009bé\\u061c\\u202e\\u2066\\n\"\n]"
        );
        assert_eq!(serde_json::from_str::<[String; 1]>(&safe).unwrap(), [text]);
    }

    #[test]
    fn what_an_attacker_wrote_cannot_steer_a_terminal() {
        assert_eq!(
            super::escape("a\u{1b}[2Jb\r\n\u{202e}c\u{9b}é"),
            "a\\u{1b}[2Jb\\r\\n\\u{202e}c\\u{9b}é"
        );
    }
}
