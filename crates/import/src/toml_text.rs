//! Writing TOML with comments.

/// The text of a weir.toml.
#[derive(Default)]
pub struct Toml(String);

impl Toml {
    /// A line as it is.
    pub fn line(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    /// A comment, broken into lines; other people's text in it is escaped, so
    /// that no line break of theirs ends the comment.
    pub fn note(&mut self, text: &str) {
        const COLUMNS: usize = 100;
        let mut line = String::from("#");
        for word in weir_core::text::escape(text).split(' ') {
            if line.len() > 1 && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                self.line(&line);
                line = String::from("#  ");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line);
    }

    /// The head of a table.
    pub fn section(&mut self, name: &str) {
        self.line(&format!("\n[{name}]"));
    }

    /// A setting, its value quoted as TOML wants it.
    pub fn set(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.line(&format!("{key} = {}", value.into()));
    }

    /// A setting as a comment: for somebody to complete.
    pub fn suggest(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.line(&format!("#{key} = {}", value.into()));
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.0.trim_end().to_owned() + "\n"
    }
}
