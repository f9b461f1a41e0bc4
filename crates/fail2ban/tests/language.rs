//! The language of Fail2ban's files, rule by rule, on files that are written down here.

mod common;

use std::path::Path;

use common::Memory;
use weir_fail2ban::{ErrorKind, FilterSource, LogType, UseDns, load_filter};

fn load(files: &[(&str, &str)], options: &[(&str, &str)]) -> Result<FilterSource, String> {
    let options: Vec<_> = options
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    load_filter(&Memory::new(files), Path::new("/f"), "x", &options).map_err(|e| e.to_string())
}

/// The expressions of a filter that is one file.
fn regexes(text: &str) -> Result<Vec<String>, String> {
    let source = load(&[("/f/filter.d/x.conf", text)], &[])?;
    Ok(source.failregex.into_iter().map(|p| p.text).collect())
}

#[test]
fn deeper_lines_go_on_and_comments_are_none() {
    let text = "# a comment\n; another\n[Definition]\n\
        failregex = ^one$\n            ^two;no comment$ ; a comment\n\n  # between\n            ^three$\n\
        \x20 other : with a colon\n\
        ignoreregex =\n";
    assert_eq!(
        regexes(text).unwrap(),
        [
            "^one$",
            "^two;no comment$",
            "^three$",
            "other : with a colon"
        ]
    );
    // A key that stands in itself, and what stands deeper than that.
    let text = "[Definition]\n  FailRegex: ^a$\n   ^b$\n  maxlines = 3\n";
    assert_eq!(regexes(text).unwrap(), ["^a$", "^b$"]);
    assert_eq!(
        regexes("\u{feff}[Definition]\r\nfailregex = ^a$\r\n ^b$\r\n").unwrap(),
        ["^a$", "^b$"]
    );
}

#[test]
fn mistakes_have_their_line() {
    for (text, expected) in [
        (
            "failregex = a\n",
            "/f/filter.d/x.conf:1: a key stands before the first [section]",
        ),
        (
            "[Definition]\nfailregex\n",
            "/f/filter.d/x.conf:2: expected key = value, [section] or a comment: failregex",
        ),
        (
            "[Definition]\n= a\n",
            "/f/filter.d/x.conf:2: there is no key before the =",
        ),
        (
            "[Definition]\na = 1\nb = 2\nA = 3\n",
            "/f/filter.d/x.conf:4: key a is there twice in its section",
        ),
        (
            "[Definition]\n[Init]\n[Definition]\n",
            "/f/filter.d/x.conf:3: section [Definition] is there twice",
        ),
        (
            "[Other]\nfailregex = a\n",
            "/f/filter.d/x.conf: there is no section [Definition]",
        ),
        (
            "[Definition]\nx = 1\nfailregex = a\n  b%(nobody)s\n",
            "/f/filter.d/x.conf:4: failregex of [Definition]: %(nobody)s is not known",
        ),
        (
            "[Definition]\nfailregex = 100%\n",
            "/f/filter.d/x.conf:2: failregex of [Definition]: % must be followed by % or (name)s: %",
        ),
        (
            "[Definition]\nfailregex = a\nmaxlines = many\n",
            "/f/filter.d/x.conf:3: maxlines = many: expected a number from 1 to 1000",
        ),
        (
            "[Definition]\nfailregex = a\nusedns = maybe\n",
            "/f/filter.d/x.conf:3: usedns = maybe: expected yes, warn, no or raw",
        ),
        (
            "[Definition]\nfailregex = a\njournalmatch = \"A=b\n",
            "/f/filter.d/x.conf:3: journalmatch = \"A=b: expected FIELD=value, quotes closed",
        ),
    ] {
        assert_eq!(regexes(text).unwrap_err(), expected);
    }
    let missing = load_filter(&Memory::default(), Path::new("/f"), "x", &[]).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "/f/filter.d/x.conf: there is no such file"
    );
    assert_eq!(missing.kind, ErrorKind::Read);
    let latin =
        Memory::default().bytes("/f/filter.d/x.conf", b"[Definition]\n\nfailregex = \xe9\n");
    let error = load_filter(&latin, Path::new("/f"), "x", &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/f/filter.d/x.conf:3: the line is not UTF-8"
    );
}

#[test]
fn later_files_go_over_earlier_ones() {
    let files = [
        (
            "/f/filter.d/x.conf",
            "[Definition]\nfailregex = conf\nmaxlines = 1\nusedns = no\n",
        ),
        (
            "/f/filter.d/x.d/b.conf",
            "[Definition]\nfailregex = b\nmaxlines = 3\n",
        ),
        ("/f/filter.d/x.d/a.conf", "[Definition]\nfailregex = a\n"),
        (
            "/f/filter.d/x.d/.hidden.conf",
            "[Definition]\nusedns = yes\n",
        ),
        ("/f/filter.d/x.d/a.txt", "[Definition]\nusedns = yes\n"),
        (
            "/f/filter.d/x.d/z.local",
            "[Definition]\nfailregex = last %(known/failregex)s\n",
        ),
        ("/f/filter.d/x.local", "[Definition]\nfailregex = local\n"),
    ];
    let source = load(&files, &[]).unwrap();
    assert_eq!(source.failregex[0].text, "last local");
    assert_eq!(source.maxlines, 3);
    assert_eq!(source.usedns, Some(UseDns::No));
}

#[test]
fn a_value_is_extended_by_what_was_known_before() {
    let files = [
        (
            "/f/filter.d/x.conf",
            "[DEFAULT]\np = ^\n[Definition]\nfailregex = %(p)sa$\n            %(p)sb$\n",
        ),
        (
            "/f/filter.d/x.local",
            "[Definition]\nfailregex = %(known/failregex)s\n            ^c$\n",
        ),
    ];
    let source = load(&files, &[]).unwrap();
    let lines: Vec<_> = source
        .failregex
        .iter()
        .map(|p| (p.text.as_str(), p.origin.to_string()))
        .collect();
    let at = |file: &str, line: u32| format!("/f/filter.d/x.{file}:{line}");
    assert_eq!(
        lines,
        [
            ("^a$", at("conf", 4)),
            ("^b$", at("conf", 5)),
            ("^c$", at("local", 3))
        ]
    );
    // By a tag as well.
    let files = [
        files[0],
        (
            "/f/filter.d/x.local",
            "[Definition]\nfailregex = <known/failregex>\n            ^c$\n",
        ),
    ];
    let texts: Vec<_> = load(&files, &[])
        .unwrap()
        .failregex
        .into_iter()
        .map(|p| p.text)
        .collect();
    assert_eq!(texts, ["^a$", "^b$", "^c$"]);
}

#[test]
fn includes_come_before_and_after_with_their_local_files() {
    let files = [
        (
            "/f/filter.d/x.conf",
            "[INCLUDES]\nbefore = c.conf\n  sub/d.conf\nafter = e.conf\n  missing.conf\n\
             [Definition]\nfailregex = %(c)s %(d)s %(e)s %(twin)s\nd = x\ne = x\n",
        ),
        ("/f/filter.d/c.conf", "[DEFAULT]\nc = c\ntwin = conf\n"),
        ("/f/filter.d/c.local", "[DEFAULT]\ntwin = local\n"),
        (
            "/f/filter.d/sub/d.conf",
            "[INCLUDES]\nbefore = ../deep.conf\n[Definition]\nd = d\n",
        ),
        ("/f/filter.d/deep.conf", "[Definition]\nd = deep\n"),
        ("/f/filter.d/e.conf", "[Definition]\ne = e\n"),
    ];
    assert_eq!(load(&files, &[]).unwrap().failregex[0].text, "c x e local");
    assert_eq!(
        load(&files, &[]).unwrap().origin,
        Path::new("/f/filter.d/x.conf")
    );
}

#[test]
fn includes_that_lead_back_end() {
    let files = [
        (
            "/f/filter.d/x.conf",
            "[INCLUDES]\nbefore = y.conf\n  x.conf\n[Definition]\nfailregex = %(y)s\n",
        ),
        (
            "/f/filter.d/y.conf",
            "[INCLUDES]\nafter = ../filter.d/./x.conf\n[DEFAULT]\ny = why\n",
        ),
    ];
    assert_eq!(load(&files, &[]).unwrap().failregex[0].text, "why");
    // Nine files that include the next one twice would be read a thousand times.
    let names: Vec<String> = (0..12).map(|n| format!("/f/filter.d/n{n}.conf")).collect();
    let texts: Vec<String> = (0..12)
        .map(|n| {
            format!(
                "[INCLUDES]\nbefore = n{}.conf\nafter = n{}.conf\n[D{n}]\n",
                n + 1,
                n + 1
            )
        })
        .collect();
    let mut files: Vec<_> = names
        .iter()
        .map(String::as_str)
        .zip(texts.iter().map(String::as_str))
        .collect();
    files.push((
        "/f/filter.d/x.conf",
        "[INCLUDES]\nbefore = n0.conf\n[Definition]\nfailregex = a\n",
    ));
    let error = load(&files, &[]).unwrap_err();
    assert!(
        error.ends_with("the configuration consists of more than 512 files"),
        "{error}"
    );
    // And a chain that is too deep.
    let names: Vec<String> = (0..40).map(|n| format!("/f/filter.d/n{n}.conf")).collect();
    let texts: Vec<String> = (0..40)
        .map(|n| format!("[INCLUDES]\nbefore = n{}.conf\n", n + 1))
        .collect();
    let mut files: Vec<_> = names
        .iter()
        .map(String::as_str)
        .zip(texts.iter().map(String::as_str))
        .collect();
    files.push((
        "/f/filter.d/x.conf",
        "[INCLUDES]\nbefore = n0.conf\n[Definition]\nfailregex = a\n",
    ));
    let error = load(&files, &[]).unwrap_err();
    assert!(
        error.ends_with("files include each other more than 16 deep"),
        "{error}"
    );
}

#[test]
fn names_are_interpolated_by_section_and_by_default() {
    let text = "[DEFAULT]\na = %(b)s\nb = default\nonly = of default\n\
        [t]\nb = table\nc = %(b)s and %(a)s\n\
        [Definition]\nb = own\n\
        failregex = %(a)s\n  %(t/b)s\n  %(t/c)s\n  %(default/b)s\n  %(t/only)s\n  100%%\n  %(__name__)s\n  %(B)s\n";
    assert_eq!(
        regexes(text).unwrap(),
        // A value of another section is looked up raw and interpolated in this one.
        [
            "own",
            "table",
            "own and own",
            "default",
            "of default",
            "100%",
            "Definition",
            "own"
        ]
    );
}

#[test]
fn what_never_ends_is_refused() {
    for (text, expected) in [
        (
            "[Definition]\nfailregex = %(failregex)s\n",
            "names lead to names more than 10 deep",
        ),
        (
            "[Definition]\na = %(b)s\nb = %(a)s\nfailregex = %(a)s\n",
            "names lead to names more than 10 deep",
        ),
        (
            "[Definition]\nfailregex = a<failregex>\n",
            "failregex: <failregex> contains itself",
        ),
        (
            "[Definition]\na = x<b>\nb = y<a>\nfailregex = <a>\n",
            "failregex: <a> contains itself",
        ),
    ] {
        let error = regexes(text).unwrap_err();
        assert!(error.ends_with(expected), "{error}");
    }
    // Each name twice the one before it, by both layers.
    for (open, close) in [("%(", ")s"), ("<", ">")] {
        let mut text = "[Definition]\nn0 = ".to_owned() + &"x".repeat(4000) + "\n";
        for n in 1..12 {
            let name = format!("{open}n{}{close}", n - 1);
            text += &format!("n{n} = {}\n", name.repeat(8));
        }
        for n in 9..12 {
            let error = regexes(&format!("{text}failregex = {open}n{n}{close}\n")).unwrap_err();
            assert!(
                error.contains("beyond all bounds") || error.contains("10 deep"),
                "{error}"
            );
        }
    }
}

#[test]
fn tags_are_replaced_from_inside_and_tags_of_matching_stay() {
    let text = "[Definition]\nmode = hard\nre-soft = soft\nre-hard = ^hard <HOST> <F-USER>\\S+</F-USER>\n  second <no tag>\n\
        failregex = <re-<mode>>\n            <lt_<kind>/p>$\nkind = file\n[lt_file]\np = of %(q)s\nq = file\n";
    assert_eq!(
        regexes(text).unwrap(),
        [
            "^hard <HOST> <F-USER>\\S+</F-USER>",
            "second <no tag>",
            "of file$"
        ]
    );
    let source = load(&[("/f/filter.d/x.conf", text)], &[("mode", "soft")]).unwrap();
    assert_eq!(source.failregex[0].text, "soft");
    // An expression that came by a tag is where it is written.
    assert_eq!(source.failregex[0].origin.line, 3);
    assert_eq!(source.failregex[1].origin.line, 7);
}

#[test]
fn parameters_go_before_init_and_init_before_definition() {
    let text = "[Definition]\nfailregex = <a> <b> %(a)s <known/a>\na = def\nb = def\nlogtype = journal\n\
        datepattern = %%Y\n  {^LN-BEG}\nprefregex = ^<F-CONTENT>.+</F-CONTENT>$\n\
        journalmatch = _A=1 _B=\"2 3\" + _C=4\n  _D=5\n[Init]\na = init\n";
    let source = load(&[("/f/filter.d/x.conf", text)], &[]).unwrap();
    assert_eq!(source.failregex[0].text, "init def def init");
    assert_eq!(source.logtype, Some(LogType::Journal));
    assert_eq!(source.datepattern.unwrap().text, "%Y\n{^LN-BEG}");
    assert_eq!(
        source.prefregex.unwrap().text,
        "^<F-CONTENT>.+</F-CONTENT>$"
    );
    let sets: Vec<_> = source
        .journalmatch
        .iter()
        .map(|set| set.join(","))
        .collect();
    assert_eq!(sets, ["_A=1,_B=2 3", "_C=4", "_D=5"]);
    let source = load(
        &[("/f/filter.d/x.conf", text)],
        &[("a", "given"), ("logtype", "rfc5424")],
    )
    .unwrap();
    assert_eq!(source.failregex[0].text, "given def given init");
    assert_eq!(source.logtype, Some(LogType::Other("rfc5424".into())));
}
