//! `acl` and `acl_default` of a pool: which clients it serves.

use weir_config::Section;
use weir_core::balance::acl::{Access, Acl, MAX_RULES, Rule};

const RULES: &str = "a list of rules such as [\"deny 203.0.113.0/24\", \"allow country:DE\", \"deny continent:AF\", \"allow list:NAME\"]";

/// `lists`: the names of those that are configured.
pub(super) fn read(section: &mut Section<'_, '_>, of: &str, lists: &[&str]) -> Option<Acl> {
    let default_line = section.line_of("acl_default");
    let default = section.choice("acl_default", &Access::ALL);
    let line = section.line_of("acl");
    let typed = section.list("acl", RULES);
    let Some(line) = line else {
        if let Some(line) = default_line {
            let text = format!("acl_default in {of} without acl; allowed: with acl = {RULES}");
            section.error(line, text);
        }
        return None;
    };
    if default_line.is_none() {
        section.error(
            line,
            format!(
                "acl in {of} without acl_default, which holds for clients that no rule is about; allowed: acl_default = \"allow\" or \"deny\""
            ),
        );
    }
    let typed = typed?;
    let mut rules: Vec<Rule> = Vec::new();
    for entry in &typed.value {
        let Ok(rule) = entry.value.parse::<Rule>() else {
            section.error(
                entry.line,
                format!("acl in {of} has {:?}; allowed: {RULES}", entry.value),
            );
            continue;
        };
        rules.push(rule);
    }
    if typed.value.len() > MAX_RULES {
        section.error(
            line,
            format!(
                "acl in {of} has {} rules; allowed: at most {MAX_RULES}",
                typed.value.len()
            ),
        );
        rules.truncate(MAX_RULES);
    }
    if typed.value.is_empty() {
        section.error(line, format!("acl in {of} names none; allowed: {RULES}"));
    }
    let acl = Acl {
        rules,
        default: default.map_or(Access::Deny, |at| at.value),
    };
    for name in acl.lists().filter(|name| !lists.contains(name)) {
        let there = match lists.is_empty() {
            true => "there is no [list.NAME]".to_owned(),
            false => format!("allowed: {}", lists.join(", ")),
        };
        section.error(
            line,
            format!("acl in {of} has list:{name}, which is not configured; {there}"),
        );
    }
    Some(acl)
}
