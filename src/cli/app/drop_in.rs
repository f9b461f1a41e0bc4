//! A file of conf.d that weir writes itself: shown as a difference, put into force by a
//! reload, and taken back if that is refused.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use weir_config::files;
use weir_daemon::config::Config;

use crate::cli::{Common, client::Silent, show};

/// Lines of two texts between which the longest common subsequence is looked for; longer
/// ones are shown whole.
const MAX_COMPARED: usize = 4000;

/// One such file, as it is now.
pub struct DropIn {
    /// The configuration that it belongs to.
    main: PathBuf,
    /// Where it is, or is to be.
    pub path: PathBuf,
    /// `None`: it is not there.
    before: Option<String>,
}

impl DropIn {
    /// The file of this name beside the configuration of the daemon that answers.
    pub fn of(common: &Common, name: &str) -> anyhow::Result<Self> {
        let status = common.client().get("/v1/status")?.ok()?;
        let main = status["config"]
            .as_str()
            .context("a daemon without a file")?;
        Self::beside(&files::main_file(Path::new(main)), name)
    }

    fn beside(main: &Path, name: &str) -> anyhow::Result<Self> {
        if main.file_name().is_none_or(|file| file != "weir.toml") {
            bail!(
                "beside {} no conf.d is read, because it is not called weir.toml; use --print, and put the text into it yourself",
                main.display()
            );
        }
        let path = main.with_file_name("conf.d").join(name);
        let before = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        Ok(Self {
            main: main.to_owned(),
            path,
            before,
        })
    }

    /// The text of the file as it is now.
    pub fn text(&self) -> &str {
        self.before.as_deref().unwrap_or_default()
    }

    /// The other files of the configuration, each with its text.
    pub fn others(&self) -> anyhow::Result<Vec<(PathBuf, String)>> {
        let all = files::read(&self.main)?.into_iter();
        let others = all.filter(|(path, ..)| *path != self.path);
        Ok(others.map(|(path, text, _)| (path, text)).collect())
    }

    /// Fails if the configuration would have mistakes with this text, before anything is shown or
    /// written; `None`: if the file were not there.
    pub fn refuse_mistakes(&self, after: Option<&str>) -> anyhow::Result<()> {
        let checked = Config::load_with_file(&self.main, &self.path, after);
        checked.map(drop).with_context(|| self.not_in_force())
    }

    fn not_in_force(&self) -> String {
        format!("not in force, and {} is as it was", self.path.display())
    }

    /// The daemon may have read the file, and goes on with it later.
    fn perhaps_in_force(&self) -> String {
        format!(
            "perhaps in force once the daemon answers again, until the next weir reload; {} is as it was",
            self.path.display()
        )
    }

    /// Prints what changes.
    pub fn show_difference(&self, after: &str) -> io::Result<()> {
        let path = self.path.display();
        if self.text() == after {
            return show::line(format!("{path} stays as it is"));
        }
        show::line(format!("{path}:"))?;
        for line in difference(self.text(), after) {
            show::line(weir_daemon::escape(&line))?;
        }
        Ok(())
    }

    /// Writes it, and has the daemon read its configuration again; if that is refused, the
    /// file is as it was. What it is warned of comes back, as lines. `None`: it is not to be
    /// there.
    pub fn put(&self, common: &Common, after: Option<&str>) -> anyhow::Result<Vec<String>> {
        self.write(after)?;
        let answer = match common.client().reload() {
            Ok(answer) => answer,
            Err(why) => {
                self.write(self.before.as_deref())?;
                let told = match why.is::<Silent>() {
                    true => self.perhaps_in_force(),
                    false => self.not_in_force(),
                };
                return Err(why.context(told));
            }
        };
        let warnings = answer["warnings"].as_array().into_iter().flatten();
        let line = |warning| format!("warning: {}", show::text(warning));
        Ok(warnings.map(line).collect())
    }

    /// Whole or not at all; `None`: it is not to be there.
    fn write(&self, text: Option<&str>) -> anyhow::Result<()> {
        let what = || format!("cannot write {}", self.path.display());
        let Some(text) = text else {
            return fs::remove_file(&self.path).with_context(what);
        };
        let directory = self.path.parent().context("a file in a directory")?;
        fs::create_dir_all(directory).with_context(what)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        // Hidden: nobody reads it as a part of the configuration.
        let next = directory.join(format!(".{name}.next"));
        let _ = fs::remove_file(&next);
        let mut file = File::create_new(&next).with_context(what)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&next, &self.path))
            .with_context(what)
    }
}

/// What goes, with `-` before it, and what comes, with `+`, in order.
fn difference(before: &str, after: &str) -> Vec<String> {
    let (a, b): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    let tail = a.iter().rev().zip(b.iter().rev());
    let tail = tail.take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - tail], &b[..b.len() - tail]);
    if a.len().max(b.len()) > MAX_COMPARED {
        let gone = a.iter().map(|line| format!("-{line}"));
        return gone
            .chain(b.iter().map(|line| format!("+{line}")))
            .collect();
    }
    // How long the longest common subsequence of the rests is.
    let mut common = vec![vec![0_u16; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = match a[i] == b[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || i < a.len() && common[i + 1][j] >= common[i][j + 1] {
            lines.push(format!("-{}", a[i]));
            i += 1;
        } else {
            lines.push(format!("+{}", b[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_shown_in_order() {
        for (before, after, shown) in [
            ("", "a\nb\n", vec!["+a", "+b"]),
            ("a\nb\n", "", vec!["-a", "-b"]),
            ("a\nb\nc\n", "a\nb\nc\n", vec![]),
            ("a\nb\nc\nd\n", "a\nx\nc\ny\nd\n", vec!["-b", "+x", "+y"]),
            ("a\nb\n", "b\na\n", vec!["-a", "+a"]),
        ] {
            assert_eq!(difference(before, after), shown, "{before:?} {after:?}");
        }
        let long = "a\n".repeat(MAX_COMPARED + 1);
        assert_eq!(difference("x\ny\n", &long).len(), MAX_COMPARED + 3);
    }

    #[test]
    fn a_file_is_written_whole_and_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("weir.toml");
        fs::write(&main, "").unwrap();
        let file = DropIn::beside(&main, "60-x.toml").unwrap();
        assert_eq!(file.text(), "");
        file.write(Some("[app]\n")).unwrap();
        let again = DropIn::beside(&main, "60-x.toml").unwrap();
        assert_eq!(again.text(), "[app]\n");
        assert_eq!(again.others().unwrap().len(), 1);
        file.write(None).unwrap();
        assert!(!file.path.exists());
        let left = fs::read_dir(dir.path().join("conf.d")).unwrap().count();
        assert_eq!(left, 0);
        let other = dir.path().join("other.toml");
        let refused = DropIn::beside(&other, "60-x.toml").err().unwrap();
        assert!(refused.to_string().contains("--print"), "{refused}");
    }
}
