//! The recording of the demo shows the demo that there is.

use serde_json::Value;

use crate::read;

const STALE: &str = "the recording is another demo's: make recording";

/// What the terminal was sent, of an asciicast v2.
fn recorded() -> String {
    let cast = read("docs/images/demo.cast");
    let mut lines = cast.lines().map(|line| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("demo.cast: {e}: {line}"))
    });
    let header = lines.next().expect("a header");
    assert_eq!(header["version"], 2);
    for key in ["env", "command"] {
        assert!(header.get(key).is_none(), "{key} is nobody's business");
    }
    let mut last = 0.0;
    lines
        .map(|event| {
            let at = event[0].as_f64().expect("a time");
            assert!(at >= last, "time goes on: {event}");
            last = at;
            assert_eq!(event[1], "o", "nothing but output: {event}");
            event[2].as_str().expect("text").to_owned()
        })
        .collect()
}

/// The texts that the demo says, as far as they are constant.
fn said() -> Vec<String> {
    let script = read("demo/src/script.rs");
    let (mut texts, mut rest) = (Vec::new(), script.as_str());
    while let Some(at) = rest.find("screen.") {
        rest = &rest[at + "screen.".len()..];
        let call = rest.split_once(';').map_or(rest, |(call, _)| call);
        if !["say(", "good(", "chapter("]
            .iter()
            .any(|c| call.starts_with(c))
        {
            continue;
        }
        let text = call.split('"').nth(1).expect("a text");
        texts.extend(
            text.split(['{', '}'])
                .step_by(2)
                .map(|part| part.trim().to_owned())
                .filter(|part| part.len() > 3),
        );
    }
    assert!(texts.len() > 15, "{texts:?}");
    texts
}

#[test]
fn the_recording_is_of_this_demo() {
    let cast = recorded();
    let svg = read("docs/images/demo.svg");
    // Where a line was broken a word may be, too.
    let drawn = svg.replace("&#x27;", "'").replace("&quot;", "\"");
    for text in said() {
        assert!(cast.contains(&text), "{text:?}: {STALE}");
        let found = text.split_whitespace().all(|word| drawn.contains(word));
        assert!(found, "{text:?}: {STALE}");
    }
    for end in [
        "claims checked, all true",
        "SIGKILL",
        "BAN 198.51.100.66",
        "weir pool show web",
    ] {
        assert!(
            cast.contains(end) && drawn.contains(end),
            "{end:?}: {STALE}"
        );
    }
    // A picture that loads nothing.
    for outside in ["<script", "href", "url(", "@import"] {
        assert!(!svg.contains(outside), "{outside}");
    }
    assert_eq!(
        svg.matches("<text ").count(),
        svg.matches("</text>").count()
    );
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for text in [&cast, &svg] {
        assert!(
            !text.contains("/root") && !text.contains("/home"),
            "a path of a machine"
        );
    }
}
