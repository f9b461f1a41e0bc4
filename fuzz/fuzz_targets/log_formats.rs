//! Lines of other programs than sshd: through each filter that weir has, and through one that
//! an administrator writes, of lines with a declared head or of JSON objects.
#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use jiff::{Timestamp, tz::TimeZone};
use libfuzzer_sys::fuzz_target;
use weir_core::detect::{Age, Context, Definition, MAX_USER, Program, ProgramState, Record};

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    /// A filter as it is written.
    definition: &'a str,
    lines: Vec<(bool, &'a [u8])>,
    seconds: u32,
}

static FILTERS: LazyLock<Vec<Program>> = LazyLock::new(|| {
    let names = Definition::builtin_names();
    let built_in = names
        .iter()
        .map(|name| Program::builtin(name).expect("it is there"));
    let own = [
        // Of a file of JSON objects, and of lines of an access log.
        "json = { time = \"ts\", message = \"<status> from <request.remote_ip>: <request.uri>\" }\n\
         patterns = [\"401 from <addr>: <text>\"]\n",
        "head = '<time> \\[<word>\\] <number>#<number>: '\ntime_format = \"%Y/%m/%d %H:%M:%S\"\n\
         patterns = [\"refused <user> from <addr>\"]\n",
    ];
    let own = own.iter().map(|text| {
        let definition: Definition = toml::from_str(text).expect("it is a filter");
        definition.compile().expect("it is a right one")
    });
    built_in.chain(own).collect()
});

fn compiled(text: &str) -> Option<Program> {
    toml::from_str::<Definition>(text).ok()?.compile().ok()
}

fuzz_target!(|input: Input<'_>| {
    let written = compiled(input.definition);
    let zone = TimeZone::UTC;
    let now = Timestamp::from_second(1_800_000_000 + i64::from(input.seconds)).expect("in range");
    for filter in FILTERS.iter().chain(&written) {
        let mut state = ProgramState::default();
        for (message_only, line) in &input.lines {
            let record = Record {
                line,
                time: message_only.then_some(now),
                message_only: *message_only,
                age: Age::Unknown,
                ..Record::default()
            };
            let context = Context { now, zone: &zone };
            let found = filter.read(&mut state, &record, &context);
            let user = found.and_then(|finding| finding.user);
            // Each byte that is no text takes three.
            assert!(user.is_none_or(|user| user.len() <= 3 * MAX_USER));
            let _ = filter.fits_declared_head(line);
        }
        let _ = state.take_notices();
    }
});
