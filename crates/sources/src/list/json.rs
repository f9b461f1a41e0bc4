//! The texts of a JSON document, or of several behind each other as JSON lines
//! are. Quotes and brackets are all that is looked at: they show a document that
//! was cut off, which must not pass for a shorter list.

use super::ListError;

/// Arrays and objects within each other; lists have three or four.
const MAX_DEPTH: usize = 64;

/// Hands each text, as it is written, to `each`, with where it begins.
pub(super) fn texts<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(usize, &'a [u8]) -> Result<(), ListError>,
) -> Result<(), ListError> {
    let mut open: Vec<u8> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let end = end_of(bytes, at + 1)
                    .ok_or_else(|| damaged(bytes, at, "a text without an end"))?;
                each(at + 1, &bytes[at + 1..end])?;
                at = end;
            }
            b'[' | b'{' if open.len() == MAX_DEPTH => {
                return Err(damaged(bytes, at, "too many brackets within each other"));
            }
            b'[' => open.push(b']'),
            b'{' => open.push(b'}'),
            b']' | b'}' if open.pop() != Some(byte) => {
                return Err(damaged(bytes, at, "a bracket that closes nothing"));
            }
            _ => {}
        }
        at += 1;
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(damaged(
            bytes,
            bytes.len(),
            "the end before the last bracket",
        )),
    }
}

/// Where the quote is that ends a text.
fn end_of(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        match bytes[at] {
            b'"' => return Some(at),
            _ => at += 2,
        }
    }
}

fn damaged(bytes: &[u8], at: usize, what: &'static str) -> ListError {
    let line = 1 + memchr::memchr_iter(b'\n', &bytes[..at]).count();
    ListError::Damaged { line, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        texts(text.as_bytes(), |at, word| {
            assert_eq!(&text.as_bytes()[at..at + word.len()], word);
            found.push(String::from_utf8_lossy(word).into_owned());
            Ok(())
        })
        .map(|()| found)
        .map_err(|error| error.to_string())
    }

    #[test]
    fn whole_documents_are_told_from_damaged_ones() {
        for (text, found) in [
            ("[]", &[][..]),
            ("{\"a\":[\"b\",{}]}\n{\"c\":1}\n", &["a", "b", "c"]),
            (r#"["]}\"", "\\", "{"]"#, &["]}\\\"", "\\\\", "{"]),
            ("null", &[]),
        ] {
            assert_eq!(read(text).unwrap(), found, "{text}");
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        for (text, words) in [
            (
                "[{\"ip\":\"1.2.3.4\"},{\"ip\":\"5.6.7",
                "a text without an end",
            ),
            ("[\"a\\\"", "a text without an end"),
            ("[\"a\\", "a text without an end"),
            (
                "[\n{\"ip\":\"1.2.3.4\"},\n",
                "line 3: the end before the last",
            ),
            ("[[[[", "the end before the last bracket"),
            (&deep, "too many brackets within each other"),
            ("[}", "closes nothing"),
            ("[]]", "closes nothing"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
        let deepest = format!("{}{}", &deep[1..], "]".repeat(MAX_DEPTH));
        assert_eq!(read(&deepest).unwrap(), [""; 0]);
    }
}
