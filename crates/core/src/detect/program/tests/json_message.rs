//! Filters whose messages are objects of JSON.

use super::*;
use crate::{
    detect::{JsonDefinition, Miss, notices::HEAD_NEVER_FITS},
    json::JsonError,
};

fn of(json: JsonDefinition, patterns: &[&str], identifiers: &[&str]) -> Program {
    let definition = Definition {
        json: Some(json),
        identifiers: identifiers.iter().map(|&tag| tag.to_owned()).collect(),
        patterns: patterns.iter().map(|&text| text.into()).collect(),
        ..Definition::default()
    };
    definition.compile().unwrap_or_else(|e| panic!("{e}"))
}

fn json(time: Option<&str>, time_format: Option<&str>, message: &str) -> JsonDefinition {
    JsonDefinition {
        time: time.map(str::to_owned),
        time_format: time_format.map(str::to_owned),
        message: message.to_owned(),
    }
}

/// What Caddy writes of each request, shortened.
fn caddy() -> Program {
    let message = "<status> <request.remote_ip> <request.uri>";
    of(
        json(Some("ts"), None, message),
        &["(401|403) <addr> <text>"],
        &[],
    )
}

fn record(line: &str) -> Record<'_> {
    Record {
        line: line.as_bytes(),
        ..Record::default()
    }
}

fn read(program: &Program, state: &mut ProgramState, record: &Record<'_>) -> Option<Finding> {
    let zone = TimeZone::UTC;
    let now = NOW.parse().unwrap();
    program.read(state, record, &Context { now, zone: &zone })
}

fn why(program: &Program, line: &str) -> Miss {
    let zone = TimeZone::UTC;
    let now = NOW.parse().unwrap();
    let context = Context { now, zone: &zone };
    program.explain(&ProgramState::default(), &record(line), &context)
}

#[test]
fn fields_make_the_message() {
    let state = &mut ProgramState::default();
    let program = caddy();
    for (uri, addr) in [
        ("/login", "192.0.2.7"),
        ("/login", "2001:db8::7"),
        // A client's text ends no value, and makes no field.
        (r#"/\",\"status\":200,\"x\":\""#, "192.0.2.7"),
        (r"/ 401 203.0.113.9 \n401 203.0.113.9 /", "192.0.2.7"),
    ] {
        let line = format!(
            r#"{{"level":"info","ts":1763699587.25,"request":{{"remote_ip":"{addr}","uri":"{uri}","headers":{{"A":["status",401]}}}},"status":401}}"#
        );
        let found = read(&program, state, &record(&line)).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(found.offender, addr.parse::<IpAddr>().unwrap().into());
        assert_eq!(found.time.to_string(), "2025-11-21T04:33:07.25Z");
        assert_eq!(found.clock, Clock::Stamp);
        let fine = line.replace("\"status\":401}", "\"status\":200}");
        assert_eq!(read(&program, state, &record(&fine)), None);
        assert!(matches!(why(&program, &fine), Miss::NoPattern { .. }));
    }
}

#[test]
fn times_have_the_form_that_is_declared_or_a_usual_one() {
    let state = &mut ProgramState::default();
    for (format, time, expected) in [
        (None, r#""2026-11-21T05:33:07+01:00""#, Some("04:33:07")),
        (None, r#""2026-11-21T04:33:07.5Z""#, Some("04:33:07.5")),
        (None, r#""2026-11-21 04:33:07""#, Some("04:33:07")),
        (None, r#""Nov 21 04:33:07""#, Some("04:33:07")),
        (None, "1795235587", Some("04:33:07")),
        (None, "1795235587500", Some("04:33:07.5")),
        (None, r#""1795235587""#, Some("04:33:07")),
        (
            Some("%d/%b/%Y:%T %z"),
            r#""21/Nov/2026:05:33:07 +0100""#,
            Some("04:33:07"),
        ),
        // Not of this form, or with more behind it: it counts as of now.
        (Some("%d/%b/%Y:%T %z"), r#""2026-11-21T04:33:07Z""#, None),
        (Some("%s"), r#""1795235587 x""#, None),
        (None, r#""2026-11-21T04:33:07Z x""#, None),
        (None, "null", None),
    ] {
        let program = of(json(Some("t"), format, "<ip>"), &["<addr>"], &[]);
        let line = format!(r#"{{"t":{time},"ip":"192.0.2.7"}}"#);
        let found = read(&program, state, &record(&line)).unwrap();
        let (time, clock) = match expected {
            Some(time) => (format!("2026-11-21T{time}Z"), Clock::Stamp),
            None => (NOW.to_owned(), Clock::Now),
        };
        assert_eq!(
            (found.time.to_string(), found.clock),
            (time, clock),
            "{line}"
        );
        // Of an entry of the journal the source knows.
        let known: Timestamp = "2026-11-21T04:59:00Z".parse().unwrap();
        let entry = Record {
            message_only: true,
            time: Some(known),
            ..record(&line)
        };
        let found = read(&program, state, &entry).unwrap();
        assert_eq!((found.time, found.clock), (known, Clock::Source));
    }
}

#[test]
fn what_stands_before_an_object_is_read_as_before_any_message() {
    let state = &mut ProgramState::default();
    let program = of(json(None, None, "<msg>"), &["no <addr>"], &["shopd"]);
    let object = r#"{"msg":"no 192.0.2.7\n"}"#;
    let line = format!("Nov 21 04:33:07 host shopd[7]: {object}");
    let found = read(&program, state, &record(&line)).unwrap();
    assert_eq!(found.time.to_string(), "2026-11-21T04:33:07Z");
    for other in [
        format!("Nov 21 04:33:07 host other[7]: {object}"),
        object.to_owned(),
    ] {
        assert_eq!(read(&program, state, &record(&other)), None, "{other}");
    }
    // Behind a line without a head a client may have written the line.
    assert_eq!(read(&program, state, &record(&line)), None);
    assert_eq!(state.take_notices().headless, 2);
}

#[test]
fn what_is_no_object_is_noticed_and_what_tells_of_something_else_is_not() {
    let state = &mut ProgramState::default();
    let program = caddy();
    let other = r#"{"level":"info","msg":"server running"}"#;
    assert_eq!(why(&program, other), Miss::NoJsonField("status".to_owned()));
    let plain = "192.0.2.7 - - [21/Nov/2026:04:33:07 +0000] \"GET / HTTP/1.1\" 401 0";
    assert!(matches!(
        why(&program, plain),
        Miss::NoJson(JsonError::Syntax(0))
    ));
    let twice = r#"{"status":200,"status":401,"request":{"remote_ip":"192.0.2.7","uri":"/"}}"#;
    assert_eq!(why(&program, twice), Miss::NoJson(JsonError::Twice));
    for _ in 0..HEAD_NEVER_FITS {
        assert_eq!(state.take_notices().unfit, 0);
        assert_eq!(read(&program, state, &record(plain)), None);
    }
    assert_eq!(state.take_notices().unfit, 1);
    assert_eq!(read(&program, state, &record(other)), None);
    assert!(state.take_notices().fits);
    assert_eq!(read(&program, state, &record(plain)), None);
    assert_eq!(state.take_notices().unfit, 0);
    assert_eq!(program.fits_declared_head(plain.as_bytes()), Some(false));
    assert_eq!(program.fits_declared_head(other.as_bytes()), Some(true));
    // An end that is cut off is no object.
    let long = format!(
        r#"{{"status":401,"request":{{"remote_ip":"192.0.2.7","uri":"{}"}}}}"#,
        "x".repeat(MAX_LINE)
    );
    assert_eq!(read(&program, state, &record(&long)), None);
}

#[test]
fn a_wrong_definition_is_refused() {
    for (definition, message) in [
        (json(None, None, "fixed"), "no field of the object is in it"),
        (json(None, None, "<a"), "'<' without its partner"),
        (json(None, None, "a> <b>"), "'>' without its partner"),
        (json(None, None, "<a> \\"), "'\\\\' without its partner"),
        (json(None, None, "<>"), "\"\" cannot be the path of a field"),
        (
            json(Some("a\nb"), None, "<a>"),
            "\"a\\nb\" cannot be the path",
        ),
        (json(None, Some("%s"), "<a>"), "json.time_format: it is for"),
        (
            json(Some("t"), Some("%Q"), "<a>"),
            "\"%Q\" is no field of a time",
        ),
        (
            json(None, None, &"<a>".repeat(700)),
            "longer than 2000 bytes",
        ),
    ] {
        let filter = Definition {
            json: Some(definition.clone()),
            patterns: vec!["<addr>".into()],
            ..Definition::default()
        };
        let told = filter.compile().unwrap_err().to_string();
        assert!(told.contains(message), "{definition:?}: {told}");
    }
    let many: String = (0..33).map(|n| format!("<f{n}>")).collect();
    let filter = Definition {
        json: Some(json(None, None, &many)),
        patterns: vec!["<addr>".into()],
        ..Definition::default()
    };
    let told = filter.compile().unwrap_err().to_string();
    assert_eq!(told, "json: more than 32 fields");
    // What the filter itself writes between fields may be anything.
    let odd = of(json(None, None, "\\<a\\>: <ip>"), &["\\<a\\>: <addr>"], &[]);
    let line = r#"{"ip":"192.0.2.7"}"#;
    assert!(read(&odd, &mut ProgramState::default(), &record(line)).is_some());
}
