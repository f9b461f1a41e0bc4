//! Our matchers against Python's own `re`, on random expressions and texts: what one
//! refuses the other does, and each group holds the same.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use weir_fail2ban::regex::{NO_BACKREF_BEHIND, NONE, Regex, Scratch, Search};

/// One case a line: expression, text, several lines? Answer: null where the expression
/// is refused, false where nothing fits, or the places of all groups, in bytes.
const PYTHON: &str = r#"
import json, re, sys, warnings
warnings.simplefilter("ignore")
for line in sys.stdin:
    pattern, text, multi = json.loads(line)
    try:
        found = re.compile(pattern, re.MULTILINE if multi else 0).search(text)
    except (re.error, OverflowError):
        print("null")
        continue
    if not found:
        print("false")
        continue
    at = lambda n: -1 if n < 0 else len(text[:n].encode())
    groups = range(found.re.groups + 1)
    print(json.dumps([[at(found.start(n)), at(found.end(n))] for n in groups]))
"#;

const CASES: usize = 20_000;

/// Small, quick and the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn pattern(&mut self, depth: usize) -> String {
        let count = 1 + self.below(4);
        let mut out = String::new();
        for _ in 0..count {
            out.push_str(&self.part(depth));
        }
        out
    }

    fn part(&mut self, depth: usize) -> String {
        let atom = match self.below(if depth == 0 { 10 } else { 20 }) {
            0..=2 => self.of(&["a", "b", "c", " ", "ab", "from "]).to_owned(),
            3 => self
                .of(&[".", r"\w", r"\s", r"\d", r"\S", r"\W", "1"])
                .to_owned(),
            4 => self
                .of(&[
                    "[ab]", "[^a]", "[^]]", "[a-c]", r"[\w-]", "[^[]", r"[\s:]", "[]a]", "[b-]",
                    "[a&&b]",
                ])
                .to_owned(),
            5 => return self.of(&["^", "$", r"\b", r"\B", r"\A", r"\Z"]).to_owned(),
            6 => self
                .of(&["ä", r"\n", r"\<", r"\x61", ":", "{", "}", "-"])
                .to_owned(),
            7..=9 => self.of(&["a", "b", "1", "c", " "]).to_owned(),
            10..=12 => format!("(?:{})", self.pattern(depth - 1)),
            13 => format!("({})", self.pattern(depth - 1)),
            14 => format!("({}|{})", self.pattern(depth - 1), self.pattern(depth - 1)),
            15 => {
                let (a, b) = (self.pattern(depth - 1), self.pattern(depth - 1));
                return format!("{a}|{b}");
            }
            16 => {
                let kind = self.of(&["?=", "?!", "?<=", "?<!", "?!", "?>"]);
                return format!("({kind}{})", self.pattern(depth - 1));
            }
            17 => self
                .of(&[r"\1", r"(?(1)a|b)", r"(?(1)b)", r"\2"])
                .to_owned(),
            18 => format!("(?i:{})", self.pattern(depth - 1)),
            _ => format!("(?:(?! ){})*", self.part(depth - 1)),
        };
        let times = match self.below(3) {
            0 => self.of(&[
                "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{1,}?", "{a", "{}", "*+",
            ]),
            _ => "",
        };
        atom + times
    }

    fn text(&mut self) -> String {
        let count = self.below(10);
        let parts = [
            "a", "b", "c", "A", " ", "1", "ab", "from ", "ä", "\n", "-", ":", "{", "<", "aa",
            "\u{301}", "\x1d", "_",
        ];
        let mut text: String = (0..count).map(|_| self.of(&parts)).collect();
        if self.below(2) == 0 {
            text.push('\n');
        }
        text
    }
}

fn python(cases: &[Value]) -> Vec<Value> {
    let mut python = Command::new("python3")
        .args(["-c", PYTHON])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let mut input = python.stdin.take().expect("it is piped");
    let lines: String = cases.iter().map(|case| format!("{case}\n")).collect();
    let writing = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = python.wait_with_output().expect("it runs");
    writing
        .join()
        .expect("it does not panic")
        .expect("python reads all");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("it is JSON"))
        .collect()
}

fn ours(regex: &Regex, text: &str, scratch: &mut Scratch) -> Option<Value> {
    match regex.search(text, 0, scratch) {
        Search::Exhausted => None,
        Search::No => Some(json!(false)),
        Search::Found => Some(
            scratch
                .slots
                .chunks(2)
                .map(|slot| match slot[1] {
                    NONE => json!([-1, -1]),
                    end => json!([slot[0], end]),
                })
                .collect(),
        ),
    }
}

#[test]
fn random_expressions_match_as_in_python() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut cases = Vec::new();
    while cases.len() < CASES {
        let pattern = random.pattern(3);
        let multi = random.below(3) == 0;
        for _ in 0..4 {
            cases.push(json!([pattern, random.text(), multi]));
        }
    }
    let (mut scratch, mut eager) = (Scratch::default(), Scratch::eager());
    let (mut matched, mut refused, mut exhausted) = (0, 0, 0);
    for (case, expected) in cases.iter().zip(python(&cases)) {
        let (pattern, text) = (case[0].as_str().unwrap(), case[1].as_str().unwrap());
        let regex = match Regex::new(pattern, case[2] == json!(true)) {
            Ok(regex) => regex,
            Err(why) if why.message == NO_BACKREF_BEHIND => continue,
            Err(why) => {
                assert_eq!(expected, Value::Null, "{case}: {why}");
                refused += 1;
                continue;
            }
        };
        if expected.is_array() {
            // The automaton rules nothing out that fits.
            let candidates = Regex::candidates([&regex].into_iter());
            let mut cache = candidates.cache();
            assert_eq!(candidates.of(text, &mut cache).count(), 1, "{case}");
        }
        let Some(found) = ours(&regex, text, &mut scratch) else {
            exhausted += 1;
            continue;
        };
        let again = ours(&regex, text, &mut eager).unwrap_or(found.clone());
        assert_eq!(again, found, "remembering what failed: {case}");
        matched += usize::from(found.is_array());
        assert_eq!(found, expected, "{case}");
    }
    println!("{matched} matched, {refused} refused, {exhausted} exhausted");
    assert!(matched > CASES / 10 && refused < CASES / 2 && exhausted < CASES / 100);
}
