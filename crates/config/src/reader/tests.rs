use super::*;

const MAIN: &str = "/etc/weir/weir.toml";

/// The mistakes in these files, as they are printed, when `read` has asked for its keys.
fn mistakes_in(files: &[Part], read: impl FnOnce(&mut Section<'_, '_>)) -> String {
    let document = Document::new(files);
    let mut root = document.root();
    read(&mut root);
    root.finish();
    match document.finish(()) {
        Ok(()) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

fn main_file(text: &str) -> Vec<Part> {
    Part::all(vec![(MAIN.into(), text.to_owned(), None)])
}

fn mistakes(text: &str, read: impl FnOnce(&mut Section<'_, '_>)) -> String {
    mistakes_in(&main_file(text), read)
}

fn seconds(range: RangeInclusive<u64>) -> RangeInclusive<Duration> {
    Duration::from_secs(*range.start())..=Duration::from_secs(*range.end())
}

#[test]
fn each_kind_of_value_is_read_with_its_line() {
    let text = "name = 'x'
pick = 'b'
flag = true
off = false
whole = 0x10
factor = 1.5
two = 2

time = '10m'
plain = 90
ever = 'forever'
never = 'never'
limited = '1h'
list = [
  'a',
  'b',
]
ports = ['22', '80']
word = 'w'
words = ['v']
[jail.late]
x = 'y'
[jail.aaa]
";
    let said = mistakes(text, |root| {
        assert!(root.has("name") && !root.has("nothing"));
        assert_eq!((root.line(), root.line_of("pick")), (1, Some(2)));
        assert_eq!(root.line_of("nothing"), None);
        let name = root.string("name", "").unwrap();
        assert_eq!((&*name.value, name.line), ("x", 1));
        assert!(!root.has("name"));
        let pick = root.choice("pick", &[("a", 1), ("b", 2)]).unwrap();
        assert_eq!((pick.value, pick.line), (2, 2));
        assert_eq!(root.boolean("flag"), Some(true));
        assert_eq!(root.boolean("off"), Some(false));
        let whole = root.integer("whole", 16..=16).unwrap();
        assert_eq!((whole.value, whole.line), (16, 5));
        assert_eq!(root.number("factor", 1.5..=1.5), Some(1.5));
        assert_eq!(root.number("two", 1.0..=2.0), Some(2.0));
        let time = root.duration("time", seconds(600..=600)).unwrap();
        assert_eq!((time.value.as_secs(), time.line), (600, 9));
        let plain = root.duration("plain", seconds(1..=90)).unwrap();
        assert_eq!(plain.value.as_secs(), 90);
        for (key, line) in [("ever", 11), ("never", 12)] {
            let at = root.duration_or_forever(key, seconds(1..=2), true).unwrap();
            assert_eq!((at.value, at.line), (None, line));
        }
        let limited = root.duration_or_forever("limited", seconds(1..=3600), true);
        assert_eq!(limited.unwrap().value, Some(Duration::from_secs(3600)));
        let list = root.list("list", "").unwrap();
        let items: Vec<_> = list.value.iter().map(|at| (&*at.value, at.line)).collect();
        assert_eq!((items, list.line), (vec![("a", 15), ("b", 16)], 14));
        assert_eq!(root.parsed_list::<u16>("ports", ""), Some(vec![22, 80]));
        let word = root.word_or_list("word", "").unwrap().unwrap();
        assert_eq!((&*word.value, word.line), ("w", 19));
        let words = root.word_or_list("words", "").unwrap().unwrap_err();
        assert_eq!((words.value.len(), words.line), (1, 20));
        // In the order of the file, not of the alphabet.
        let jails = root.named_sections("jail").into_iter();
        let jails: Vec<_> = jails
            .map(|(name, mut jail)| {
                let line = jail.line();
                let x = jail.string("x", "").map(|at| at.value);
                jail.finish();
                (name, line, x)
            })
            .collect();
        assert_eq!(
            jails,
            [
                ("late".to_owned(), 21, Some("y".to_owned())),
                ("aaa".to_owned(), 23, None)
            ]
        );
        assert_eq!(root.mistakes(), 0);
    });
    assert_eq!(said, "");
}

#[test]
fn what_is_not_there_is_no_mistake() {
    let said = mistakes("", |root| {
        assert!(root.string("a", "").is_none());
        assert!(root.choice("b", &[("x", 1)]).is_none());
        assert!(root.boolean("c").is_none());
        assert!(root.integer("d", 0..=1).is_none());
        assert!(root.number("e", 0.0..=1.0).is_none());
        assert!(root.duration("f", seconds(1..=2)).is_none());
        assert!(root.list("g", "").is_none());
        assert!(root.parsed_list::<u8>("h", "").is_none());
        assert!(root.word_or_list("i", "").is_none());
        assert!(root.section("j").is_none());
        assert!(root.named_sections("k").is_empty());
        assert!(root.texts_or_sections("l", "").is_none());
    });
    assert_eq!(said, "");
}

type Read = fn(&mut Section<'_, '_>);

/// The value of `k` at line 2, and what is said of it.
#[test]
fn a_mistake_has_its_line_its_key_and_what_is_allowed() {
    fn text(s: &mut Section<'_, '_>) {
        assert!(s.string("k", "a text").is_none());
    }
    fn time(s: &mut Section<'_, '_>) {
        assert!(s.duration("k", seconds(1..=60)).is_none());
    }
    fn whole(s: &mut Section<'_, '_>) {
        assert!(s.integer("k", 1..=9).is_none());
    }
    fn number(s: &mut Section<'_, '_>) {
        assert!(s.number("k", 1.0..=9.5).is_none());
    }
    fn texts(s: &mut Section<'_, '_>) {
        assert!(s.texts_or_sections("k", "texts").is_none());
    }
    let cases: [(&str, Read, &str); 27] = [
        ("1", text, "k is 1; allowed: a text"),
        ("1.5", text, "k is 1.5; allowed: a text"),
        ("true", text, "k is true; allowed: a text"),
        ("2026-01-02", text, "k is 2026-01-02; allowed: a text"),
        ("[]", text, "k is a list; allowed: a text"),
        ("{}", text, "k is a table; allowed: a text"),
        (
            "'c'",
            |s| assert!(s.choice("k", &[("a", 1), ("b", 2)]).is_none()),
            "k is \"c\"; allowed: \"a\", \"b\"",
        ),
        (
            "'true'",
            |s| assert!(s.boolean("k").is_none()),
            "k is \"true\"; allowed: true, false",
        ),
        ("0", whole, "k is 0; allowed: a whole number 1-9"),
        ("10", whole, "k is 10; allowed: a whole number 1-9"),
        ("-1", whole, "k is -1; allowed: a whole number 1-9"),
        ("'5'", whole, "k is \"5\"; allowed: a whole number 1-9"),
        ("0.5", number, "k is 0.5; allowed: a number 1-9.5"),
        ("10", number, "k is 10; allowed: a number 1-9.5"),
        ("nan", number, "k is nan; allowed: a number 1-9.5"),
        ("'5'", number, "k is \"5\"; allowed: a number 1-9.5"),
        (
            "61",
            time,
            "k is \"61\"; allowed: 1s-1m such as \"5s\", or seconds as a number",
        ),
        (
            "'forever'",
            time,
            "k is \"forever\"; allowed: 1s-1m such as \"5s\", or seconds as a number",
        ),
        (
            "0x10",
            time,
            "k is 0x10; allowed: 1s-1m such as \"5s\", or seconds as a number",
        ),
        (
            "'0s'",
            |s| assert!(s.duration_or_forever("k", seconds(1..=60), true).is_none()),
            "k is \"0s\"; allowed: 1s-1m such as \"5s\", or seconds as a number, or \"forever\"",
        ),
        (
            "'a'",
            |s| assert!(s.list("k", "a list").is_none()),
            "k is \"a\"; allowed: a list",
        ),
        (
            "['a', 1]",
            |s| assert_eq!(s.list("k", "texts").unwrap().value.len(), 1),
            "k is 1; allowed: texts",
        ),
        (
            "['1', 'x']",
            |s| assert_eq!(s.parsed_list::<u8>("k", "numbers"), Some(vec![1])),
            "k: invalid digit found in string",
        ),
        (
            "1",
            |s| assert!(s.section("k").is_none()),
            "k is 1; allowed: a table [k]",
        ),
        (
            "{ a = 1 }",
            |s| assert!(s.named_sections("k").is_empty()),
            "k.a is 1; allowed: a table [k.a]",
        ),
        ("1", texts, "k is 1; allowed: texts"),
        (
            "['a', 1, {}]",
            |s| {
                let items = s.texts_or_sections("k", "texts").unwrap();
                let kinds: Vec<_> = items.iter().map(Result::is_ok).collect();
                assert_eq!(kinds, [true, false]);
            },
            "k is 1; allowed: texts",
        ),
    ];
    for (value, read, message) in cases {
        let text = format!("\nk = {value}\n");
        let said = mistakes(&text, |root| {
            read(root);
            assert_eq!(root.mistakes(), 1, "{value}");
        });
        assert_eq!(said, format!("{MAIN}:2: {message}"));
        // In a table the message names it.
        let said = mistakes(&format!("[t]\nk = {value}\n"), |root| {
            let mut table = root.section("t").unwrap();
            assert_eq!(table.line(), 1);
            read(&mut table);
            table.finish();
        });
        let named = message
            .replacen("k is", "k in [t] is", 1)
            .replacen("k: ", "k in [t]: ", 1)
            .replace("[k", "[t.k")
            .replacen("k.a is", "t.k.a is", 1);
        let named = match message.contains("k.a is") {
            true => "t.k.a is 1; allowed: a table [t.k.a]".to_owned(),
            false => named,
        };
        assert_eq!(said, format!("{MAIN}:2: {named}"));
    }
    // A key of somebody's makes no line of its own, and steers no terminal.
    let said = mistakes("\nt.\"a\\n\\u001b[2J\" = 1\n", |root| {
        assert!(root.named_sections("t").is_empty());
    });
    let shown = r"t.a\n\u{1b}[2J is 1; allowed: a table [t.a\n\u{1b}[2J]";
    assert_eq!(said, format!("{MAIN}:2: {shown}"));
    // A long text is not repeated whole.
    let said = mistakes(&format!("k = '{}'", "x".repeat(100)), whole);
    let shown = format!(
        "{MAIN}:1: k is \"{}\"; allowed: a whole number 1-9",
        "x".repeat(64)
    );
    assert_eq!(said, shown);
}

#[test]
fn a_key_that_nobody_asks_for_is_named() {
    let said = mistakes("known = 1\nkonwn = 2\n[t]\nx = 1\n", |root| {
        assert!(root.integer("known", 0..=1).is_some());
        root.section("t").unwrap().finish();
    });
    assert_eq!(
        said,
        format!(
            "{MAIN}:2: unknown key \"konwn\" (did you mean known?); allowed: known, t\n\
             {MAIN}:4: unknown key \"x\" in [t]; allowed: "
        )
    );
}

/// Sorted, each once, though they were found in another order.
#[test]
fn all_mistakes_are_told_in_the_order_of_the_file() {
    let said = mistakes("a = 1\nb = 2\n", |root| {
        root.error(2, "second");
        root.error(1, "first");
        root.error(2, "second");
        root.error(0, "whole");
        assert_eq!(root.mistakes(), 4);
        root.integer("a", 0..=9);
        root.integer("b", 0..=9);
    });
    assert_eq!(
        said,
        format!("{MAIN}: whole\n{MAIN}:1: first\n{MAIN}:2: second")
    );
    let bad = mistakes("a = \nb = 2\n", |root| {
        assert_eq!(root.integer("b", 0..=9).unwrap().line, 2);
        root.integer("a", 0..=9);
    });
    assert!(bad.starts_with(&format!("{MAIN}:1: ")), "{bad}");
}

/// A file of `jail.d` stands for its table.
#[test]
fn tables_are_spread_over_files_and_lines_are_those_of_each() {
    const SHOP: &str = "/etc/weir/jail.d/shop.toml";
    const MORE: &str = "/etc/weir/conf.d/more.toml";
    let files = Part::all(vec![
        (MAIN.into(), "a = 1\n[jail.sshd]\nx = 1\n".to_owned(), None),
        (
            SHOP.into(),
            "\nx = 2".to_owned(),
            Some(("jail", "shop".to_owned())),
        ),
        (
            MORE.into(),
            "[jail.mail]\nx = [\n'3', 4]\n[table]\n".to_owned(),
            None,
        ),
    ]);
    let said = mistakes_in(&files, |root| {
        root.integer("a", 0..=9);
        root.section("table").unwrap().finish();
        let places: Vec<_> = root
            .named_sections("jail")
            .into_iter()
            .map(|(name, mut jail)| {
                let line = jail.line_of("x").unwrap();
                let place = jail.place(line);
                jail.string("x", "a text");
                jail.finish();
                (name, place)
            })
            .collect();
        let place = |name: &str, place: &str| (name.to_owned(), place.to_owned());
        assert_eq!(
            places,
            [
                place("sshd", "line 3"),
                place("shop", &format!("{SHOP}:2")),
                place("mail", &format!("{MORE}:2")),
            ]
        );
    });
    assert_eq!(
        said,
        format!(
            "{MAIN}:3: x in [jail.sshd] is 1; allowed: a text\n\
             {SHOP}:2: x in [jail.shop] is 2; allowed: a text\n\
             {MORE}:2: x in [jail.mail] is a list; allowed: a text"
        )
    );
}

#[test]
fn what_two_files_say_is_refused_with_both_places() {
    const MORE: &str = "/etc/weir/conf.d/more.toml";
    for (first, second, message) in [
        (
            "\na = 1\n",
            "a = 2\n",
            "1: a is in /etc/weir/weir.toml:2 already",
        ),
        (
            "[jail.x]\n",
            "\n[jail.x]\n",
            "2: jail.x is in /etc/weir/weir.toml:1 already",
        ),
        (
            "[other.x]\n",
            "[other.y]\n",
            "1: other is in /etc/weir/weir.toml:1 already",
        ),
        (
            "jail = 1\n",
            "[jail.x]\n",
            "1: jail is in /etc/weir/weir.toml:1 already",
        ),
    ] {
        let files = Part::all(vec![
            (MAIN.into(), first.to_owned(), None),
            (MORE.into(), second.to_owned(), None),
        ]);
        let said = mistakes_in(&files, |root| {
            root.integer("a", 0..=9);
            for key in ["jail", "other"] {
                if root.line_of(key).is_some() && first != "jail = 1\n" {
                    drop(root.named_sections(key));
                } else {
                    root.integer(key, 0..=9);
                }
            }
        });
        assert_eq!(
            said,
            format!("{MORE}:{message}; allowed: in one of the files")
        );
    }
    // A mistake of syntax in the second one has its own line there.
    let files = Part::all(vec![
        (MAIN.into(), "a = 1\n\n".to_owned(), None),
        (MORE.into(), "b = 2\nc = \n".to_owned(), None),
    ]);
    let said = mistakes_in(&files, |root| {
        for key in ["a", "b", "c"] {
            root.integer(key, 0..=9);
        }
    });
    assert!(said.starts_with(&format!("{MORE}:2: ")), "{said}");
}

#[test]
fn a_mistake_of_syntax_is_one_error_where_it_was_made() {
    const LIST: &str = "the list that begins here with [ is not closed; write ] at its end";
    const TABLE: &str = "the table that begins here with { is not closed; write } at its end";
    const SETTING: &str = "is no setting; write KEY = VALUE, a table as [NAME], a comment behind #";
    const MORE: &str =
        "is more than a setting; write one KEY = VALUE in a line, without a sign behind it";
    const COMMA: &str =
        "no comma between two parts of a list or table; write [A, B], { A = 1, B = 2 }";
    const HEAD: &str = "is no head of a table; write [NAME], with \" around a name that has other signs than letters, digits, - and _";
    let text = |value: &str| {
        let bare = value.trim_matches('"');
        format!("{value} is no value; allowed: \"{bare}\" if it is a text, a number")
    };
    let all = [
        (
            "flag = yes",
            1,
            "yes is no value; allowed: \"yes\", a number, true, false".to_owned(),
        ),
        (
            "flag = True",
            1,
            "True is no value; allowed: true, false".to_owned(),
        ),
        (
            "flag =\n\n",
            1,
            "a value is missing; write KEY = VALUE".to_owned(),
        ),
        (
            "a = 1s",
            1,
            "1s is no value; allowed: \"1s\", a number, true, false".to_owned(),
        ),
        ("# c\nv = [192.0.2.1]", 2, text("192.0.2.1")),
        ("v = [192.0.2.0/24]", 1, text("192.0.2.0/24")),
        ("v = [fe80::2]", 1, text("fe80::2")),
        ("v = [192.0.2.1\"]", 1, text("192.0.2.1\"")),
        (
            "v = [“192.0.2.1”]",
            1,
            "“192.0.2.1” has quotation marks of typography; write \" in their place".to_owned(),
        ),
        (
            "v = [\"192.0.2.1]\nw = 2",
            1,
            "a text ends in its line; write \" before it and behind it".to_owned(),
        ),
        // What an earlier line lacks is found later.
        ("a = 1\nv = [\"x\"\nw = 2\nx = 3", 2, LIST.to_owned()),
        ("v = [\"x\", '[', # [\n\nw = 2", 1, LIST.to_owned()),
        ("v = [\n  \"x\",\n\n[t]\nw = 2", 1, LIST.to_owned()),
        ("a = \"\"\"[\n\"\"\"\nv = [\"x\"", 3, LIST.to_owned()),
        ("v = [{ a = 1 ]\nw = [{ a = 2 }]", 1, TABLE.to_owned()),
        ("v = { a = 1\nw = 2", 1, TABLE.to_owned()),
        ("v = [\"a\" \"b\"]", 1, COMMA.to_owned()),
        ("v = [\n{ a = 1 }\n{ a = 2 }\n]", 3, COMMA.to_owned()),
        (
            "ports [\"80/tcp\"]\nw = 2",
            1,
            format!("ports [\"80/tcp\"] {SETTING}"),
        ),
        ("// why\nw = 2", 1, format!("// why {SETTING}")),
        ("t:\n  a: b\n  c: d", 1, format!("t: {SETTING}")),
        ("v = [];", 1, format!("v = []; {MORE}")),
        ("v = [] b = 2", 1, format!("v = [] b = 2 {MORE}")),
        ("a == 1", 1, format!("a == 1 {MORE}")),
        // The keys of the broken table are not called unknown ones of the file's.
        ("\n[t # why\nmax = 3", 2, format!("[t {HEAD}")),
        ("[t.my web]\nmax = 3", 1, format!("[t.my web] {HEAD}")),
        // Of what is there twice each is named, and a table once.
        (
            "a = 1\na = 2",
            2,
            "a is there already; allowed: once".to_owned(),
        ),
        (
            "[t]\na = 1\nb = 1\n[t] # why\na = 1\nb = 1",
            4,
            "[t] is there already; allowed: once".to_owned(),
        ),
    ];
    for (text, line, wanted) in &all {
        for text in [format!("{text}\n"), text.replace('\n', "\r\n")] {
            let said = mistakes(&text, |root| {
                let _ = root.string("flag", "");
                let _ = root.integer("a", 1..=2);
                if let Some(mut table) = root.section("t") {
                    let _ = (table.integer("a", 1..=2), table.integer("b", 1..=2));
                    table.finish();
                }
            });
            assert_eq!(said, format!("{MAIN}:{line}: {wanted}"), "{text}");
        }
    }
    // Two that are there twice are two; with a mistake of syntax it stands alone, and what
    // it quotes is bounded.
    let twice = "a = 1\na = 2\nflag = \"x\"\nflag = \"y\"\n";
    let read = |root: &mut Section<'_, '_>| {
        let _ = (root.integer("a", 1..=2), root.string("flag", ""));
    };
    assert_eq!(mistakes(twice, read).lines().count(), 2);
    let long = format!("{twice}unknown = 1\n{}\n", "x".repeat(500));
    let said = mistakes(&long, read);
    assert_eq!(said, format!("{MAIN}:6: {} {SETTING}", "x".repeat(64)));
}

/// The parser's spans lie anywhere, also within a sign and behind the end.
#[test]
fn no_text_is_too_strange_to_say_what_is_wrong() {
    let parts = [
        "“", "\"", "'", "[", "]", "{", "}", "=", "\n", "#", "a", "ä", "1.", "\\", "\r", ",",
    ];
    let mut state: u64 = 7;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            text.push_str(parts[(state >> 33) as usize % parts.len()]);
        }
        let said = mistakes(&text, |root| drop(root.named_sections("a")));
        assert!(
            said.lines().all(|line| line.starts_with(MAIN)),
            "{text:?}: {said}"
        );
    }
}

#[test]
fn a_table_without_a_name_is_one_error() {
    let read = |root: &mut Section<'_, '_>| {
        for (_, mut pool) in root.named_sections("pool") {
            let _ = pool.integer("a", 1..=9);
            assert!(!pool.is_written("b") && pool.is_written("a"));
            pool.finish();
        }
        assert!(root.is_unread("pool") && !root.is_unread("vrrp"));
    };
    let said = |line| {
        format!(
            "{MAIN}:{line}: [pool] has no name, and the keys below it belong to a table with one; write [pool.NAME], with a name of your choice"
        )
    };
    let keys = "a = 1\ncheck = { b = 2 }\nlist = [1]\n";
    assert_eq!(mistakes(&format!("[pool]\n{keys}"), read), said(1));
    let with_another = format!("\n[pool]\n{keys}[pool.web]\na = 10\n");
    let other = format!("{MAIN}:7: a in [pool.web] is 10; allowed: a whole number 1-9");
    assert_eq!(
        mistakes(&with_another, read),
        format!("{}\n{other}", said(2))
    );
    // A list of tables has a name.
    let list = mistakes("[[pool.web]]\na = 1\n", read);
    assert_eq!(
        list,
        format!("{MAIN}:1: pool.web is a list; allowed: a table [pool.web]")
    );
    // An empty one, and tables in one line, are as they were.
    for text in ["[pool]\n", "[pool]\nweb = { a = 1 }\n", "pool.web.a = 1\n"] {
        let said = mistakes(text, |root| {
            for (_, mut pool) in root.named_sections("pool") {
                assert!(pool.integer("a", 1..=9).is_some());
                pool.finish();
            }
            assert!(!root.is_unread("pool"));
        });
        assert_eq!(said, "", "{text}");
    }
}
