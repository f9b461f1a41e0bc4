//! weir.toml(5): every table and key of the configuration, what is allowed there
//! and what holds without it.

use weir_daemon::config::{
    DEFAULT_PATH,
    manual::{Key, Table, Usual, allowed, tables},
};

const ABOUT: &[&str] = &[
    "The configuration of weir(1) is one file in TOML. Beside a file of the name weir.toml, conf.d/*.toml may hold more tables and keys; filter.d/NAME.toml is the table [filter.NAME], and jail.d/NAME.toml is [jail.NAME].",
    "An unknown key is a mistake, and so is a value that is not allowed. weir-check(1) names each mistake with its file and line, and weir-reload(1) puts a change into force, all of it or nothing.",
    "NAME is a word of letters, digits, - and _ that tells tables of one kind apart.",
];

/// The page.
pub fn roff(date: &str) -> String {
    let mut page = format!(
        ".TH weir.toml 5 {date} \"weir {}\" \"weir manual\"\n",
        env!("CARGO_PKG_VERSION")
    );
    page_section(&mut page, "NAME");
    page.push_str("weir.toml \\- configuration of weir\n");
    page_section(&mut page, "DESCRIPTION");
    for (n, about) in ABOUT.iter().enumerate() {
        if n > 0 {
            page.push_str(".PP\n");
        }
        line(&mut page, about);
    }
    for table in tables() {
        let head = table.head();
        page_section(&mut page, if head.is_empty() { "TOP LEVEL" } else { &head });
        line(&mut page, table.about);
        for key in table.keys {
            entry(&mut page, table, key);
        }
    }
    page_section(&mut page, "FILES");
    line(&mut page, DEFAULT_PATH);
    page_section(&mut page, "SEE ALSO");
    line(
        &mut page,
        "weir(1), weir-check(1), weir-reload(1), weir-filter(1)",
    );
    page
}

fn page_section(page: &mut String, name: &str) {
    page.push_str(".SH ");
    line(page, name);
}

fn entry(page: &mut String, table: &Table, key: &Key) {
    page.push_str(".TP\n.B ");
    line(page, key.name);
    line(page, key.about);
    if let Some(allowed) = allowed(table, key.name) {
        page.push_str(".br\n");
        line(page, &format!("Allowed: {allowed}."));
    }
    page.push_str(".br\n");
    line(
        page,
        &match key.default {
            Usual::Is(value) => format!("Default: {value}."),
            Usual::Means(words) => format!("Default: {words}."),
            Usual::Required => "It must be there.".to_owned(),
        },
    );
}

/// Text that is no request of roff's.
fn line(page: &mut String, text: &str) {
    if text.starts_with(['.', '\'']) {
        page.push_str("\\&");
    }
    for c in text.chars() {
        match c {
            '\\' => page.push_str("\\e"),
            '-' => page.push_str("\\-"),
            '\n' => page.push(' '),
            c => page.push(c),
        }
    }
    page.push('\n');
}
