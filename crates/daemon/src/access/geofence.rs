//! `[geofence]` and `[geofence.rules.NAME]`: from which places flows may begin.
//! A rule that says two things at once, or that can never decide, is a
//! mistake: whoever wrote it believes in a protection that is not there.

use std::path::{Path, PathBuf};

use weir_config::manual::{
    DIRECTION, NONE, PORTS, Table,
    Usual::{Is, Means},
    key,
};
use weir_config::{
    At, Section,
    values::{check_name, scope},
};
use weir_core::{
    PortSet, Prefix, PrefixSet,
    address_class::MAX_FENCES,
    geo::{Continent, Country, Selector},
    geofence::{Direction, Fence, RuleAction},
};

use crate::host::HostFacts;

/// `[geofence]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[
    Table {
        name: "geofence",
        about: "From which countries, continents and autonomous systems flows may begin. The keys of [geofence] itself are the last rule.",
        needs: &[],
        keys: &[
            key(
                "database",
                Means("the built-in one"),
                "The database of countries.",
            ),
            key(
                "asn_database",
                NONE,
                "The database of autonomous systems, for places such as \"asn:64496\".",
            ),
            key(
                "rules",
                NONE,
                "Rules that are asked before the keys of [geofence] itself; tables, see below.",
            ),
            key(
                "default",
                Is("\"pass\""),
                "What happens to flows from places that are neither in allow nor in deny.",
            ),
            key(
                "unknown",
                Is("\"pass\""),
                "What happens to flows of addresses that no database has.",
            ),
            key("allow", Is("[]"), "Places that pass."),
            key(
                "deny",
                Is("[]"),
                "Places that are dropped; of two entries that fit, the narrower one counts.",
            ),
            key("direction", Is("\"in\""), DIRECTION),
            PORTS,
            key("except", Is("[]"), "Prefixes that the rule does not judge."),
        ],
    },
    Table {
        name: "geofence.rules.NAME",
        about: "A rule for some ports or one direction. Rules are asked in the order of the file.",
        needs: &[],
        keys: &[
            key("default", Is("\"pass\""), "As in [geofence]."),
            key("unknown", Is("\"pass\""), "As in [geofence]."),
            key("allow", Is("[]"), "As in [geofence]."),
            key("deny", Is("[]"), "As in [geofence]."),
            key("direction", Is("\"in\""), DIRECTION),
            PORTS,
            key("except", Is("[]"), "Prefixes that the rule does not judge."),
        ],
    },
];

/// The geofence as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeofenceConfig {
    /// The database of countries; `None` is the one that is built in.
    pub database: Option<PathBuf>,
    /// The database of autonomous systems; `None`: `database` has them, or no
    /// rule asks.
    pub asn_database: Option<PathBuf>,
    /// The rules in the order in which they are asked.
    pub fences: Vec<Fence>,
}

impl GeofenceConfig {
    /// All places that its rules name.
    pub fn selectors(&self) -> impl Iterator<Item = Selector> + '_ {
        self.fences
            .iter()
            .flat_map(|fence| fence.allow.iter().chain(&fence.deny))
            .copied()
    }
}

const FATES: [(&str, RuleAction); 2] = [("pass", RuleAction::Pass), ("drop", RuleAction::Drop)];
const DIRECTIONS: [(&str, Direction); 3] = [
    ("in", Direction::In),
    ("out", Direction::Out),
    ("both", Direction::Both),
];
const PLACES: &str = "a list of places such as [\"country:NL\", \"continent:EU\", \"asn:64496\"]";
const EXCEPT: &str = "a list of prefixes such as \"192.0.2.0/24\"";
const MMDB: &str = "the absolute path of a database in MaxMind's format";

/// A rule and where it stands.
struct Rule {
    fence: Fence,
    section: String,
    line: usize,
}

pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Option<GeofenceConfig> {
    let mut section = root.section("geofence")?;
    let database = mmdb(&mut section, "database", host, warnings);
    let asn_database = mmdb(&mut section, "asn_database", host, warnings);
    let mut rules = Vec::new();
    for (name, mut rule) in section.named_sections("rules") {
        check_name(&rule, "rule", &name);
        rules.push(read_rule(
            &mut rule,
            format!("geofence.rules.{name}"),
            name,
            warnings,
        ));
        rule.finish();
    }
    let last = read_rule(
        &mut section,
        "geofence".to_owned(),
        "geofence".to_owned(),
        warnings,
    );
    let line = section.line();
    // Where every flow passes that no rule has decided, nothing is to be asked.
    if denies(&last.fence) {
        rules.push(last);
    }
    check_order(&section, &rules);
    if rules.len() > MAX_FENCES {
        section.error(
            line,
            format!(
                "[geofence] has {} rules; allowed: at most {MAX_FENCES}",
                rules.len()
            ),
        );
    }
    let systems = rules.iter().any(|rule| {
        let named = rule.fence.allow.iter().chain(&rule.fence.deny);
        named.into_iter().any(|s| matches!(s, Selector::Asn(_)))
    });
    let asn_line = asn_database.as_ref().map(|at| at.line);
    match (systems, asn_line) {
        // The built-in one has none; another may.
        (true, None) if database.is_none() => section.error(
            line,
            "[geofence] names autonomous systems, of which the built-in database knows nothing; \
             allowed: asn: together with asn_database = \"/…/GeoLite2-ASN.mmdb\"",
        ),
        (false, Some(line)) => warnings.push(format!(
            "line {line}: asn_database in [geofence] is not needed: no rule names an asn:"
        )),
        _ => {}
    }
    section.finish();
    let fences: Vec<Fence> = rules.into_iter().map(|rule| rule.fence).collect();
    if !fences.iter().any(denies) {
        warnings.push(format!(
            "line {line}: [geofence] denies nothing: everybody passes"
        ));
    }
    if let [only] = &fences[..]
        && only.default == RuleAction::Drop
        && only.scope.is_all()
        && only.allow.is_empty()
        && only.except.is_empty()
    {
        warnings.push(format!(
            "line {line}: [geofence] denies every country: default = \"drop\" without allow"
        ));
    }
    Some(GeofenceConfig {
        database: database.map(|at| at.value),
        asn_database: asn_database.map(|at| at.value),
        fences,
    })
}

fn mmdb(
    section: &mut Section<'_, '_>,
    key: &'static str,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Option<At<PathBuf>> {
    let At { value, line } = section.string(key, MMDB)?;
    if !Path::new(&value).is_absolute() {
        section.error(
            line,
            format!("{key} in [geofence] is {value:?}; allowed: {MMDB}"),
        );
    } else if !host.has_file(&value) {
        let meanwhile = match key {
            "database" => "the built-in one is used until it does",
            _ => "until it does, no asn: selector matches",
        };
        warnings.push(format!(
            "[geofence]: {value} does not exist yet; {meanwhile}"
        ));
    }
    Some(At {
        value: value.into(),
        line,
    })
}

/// Is there a place that it drops?
fn denies(fence: &Fence) -> bool {
    fence.default == RuleAction::Drop || fence.unknown == RuleAction::Drop || !fence.deny.is_empty()
}

fn read_rule(
    section: &mut Section<'_, '_>,
    of: String,
    name: String,
    warnings: &mut Vec<String>,
) -> Rule {
    let line = section.line();
    let fate = |section: &mut Section<'_, '_>, key| section.choice(key, &FATES).map(|at| at.value);
    let default = fate(section, "default").unwrap_or(RuleAction::Pass);
    let unknown = fate(section, "unknown").unwrap_or(RuleAction::Pass);
    let allow = places(section, &of, "allow");
    let deny = places(section, &of, "deny");
    let direction = section
        .choice("direction", &DIRECTIONS)
        .map_or(Direction::In, |at| at.value);
    let scope = scope(section);
    let except: PrefixSet = section
        .parsed_list::<Prefix>("except", EXCEPT)
        .unwrap_or_default()
        .into_iter()
        .collect();
    for place in &allow {
        if let Some(other) = deny.iter().find(|other| other.value == place.value) {
            section.error(
                place.line.max(other.line),
                format!(
                    "[{of}]: {} is in both allow and deny; allowed: one of them",
                    place.value
                ),
            );
        }
    }
    let fence = Fence {
        name,
        scope,
        direction,
        default,
        allow: values(&allow),
        deny: values(&deny),
        unknown,
        except,
    };
    check_use(section, &of, &fence, (&allow, &deny), warnings);
    Rule {
        fence,
        section: of,
        line,
    }
}

fn values(places: &[At<Selector>]) -> Vec<Selector> {
    places.iter().map(|at| at.value).collect()
}

/// An entry without effect: it grants what is granted, or denies what is
/// denied.
fn check_use(
    section: &Section<'_, '_>,
    of: &str,
    fence: &Fence,
    (allow, deny): (&[At<Selector>], &[At<Selector>]),
    warnings: &mut Vec<String>,
) {
    for place in allow {
        let matters = fence.default == RuleAction::Drop
            || deny
                .iter()
                .any(|denied| may_hold(denied.value, place.value))
            || (fence.unknown == RuleAction::Drop && matches!(place.value, Selector::Asn(_)));
        if !matters {
            section.error(
                place.line,
                format!(
                    "allow in [{of}]: {} passes anyway, and so does everybody else; allowed: with \
                     default = \"drop\", or as an exception of a wider place in deny",
                    place.value
                ),
            );
        }
    }
    for place in deny {
        let matters = fence.default == RuleAction::Pass
            || allow
                .iter()
                .any(|allowed| may_hold(allowed.value, place.value))
            || (fence.unknown == RuleAction::Pass && matches!(place.value, Selector::Asn(_)));
        if !matters {
            warnings.push(format!(
                "{}: deny in [{of}]: {} is dropped anyway, by default = \"drop\"",
                section.place(place.line),
                place.value
            ));
        }
    }
}

/// May there be addresses at both places, of which `inner` is the closer
/// description?
fn may_hold(outer: Selector, inner: Selector) -> bool {
    match (outer, inner) {
        // A table can be behind the database: one that it does not know may.
        (Selector::Continent(continent), Selector::Country(country)) => {
            country.continent().is_none_or(|of| of == continent)
        }
        (Selector::Continent(_) | Selector::Country(_), Selector::Asn(_)) => true,
        _ => false,
    }
}

/// A rule behind one that decides all its flows.
fn check_order(section: &Section<'_, '_>, rules: &[Rule]) {
    for (at, rule) in rules.iter().enumerate() {
        let earlier = rules[..at].iter().find(|earlier| {
            // What an earlier rule excepts, a later one may judge.
            earlier.fence.except.is_empty()
                && covers_direction(earlier.fence.direction, rule.fence.direction)
                && covers_ports(&earlier.fence.scope, &rule.fence.scope)
        });
        if let Some(earlier) = earlier {
            section.error(
                rule.line,
                format!(
                    "[{}] never decides: [{}] in {} covers its ports and direction and is \
                     asked first; allowed: narrower ports there, or the other order",
                    rule.section,
                    earlier.section,
                    section.place(earlier.line)
                ),
            );
        }
    }
}

fn covers_direction(outer: Direction, inner: Direction) -> bool {
    (outer.inbound() || !inner.inbound()) && (outer.outbound() || !inner.outbound())
}

fn covers_ports(outer: &PortSet, inner: &PortSet) -> bool {
    outer.is_all()
        || (!inner.is_all()
            && inner.ranges().iter().all(|inner| {
                outer.ranges().iter().any(|outer| {
                    (outer.protocol == weir_core::Protocol::Any || outer.protocol == inner.protocol)
                        && outer.low <= inner.low
                        && inner.high <= outer.high
                })
            }))
}

fn places(section: &mut Section<'_, '_>, of: &str, key: &'static str) -> Vec<At<Selector>> {
    let Some(list) = section.list(key, PLACES) else {
        return Vec::new();
    };
    let mut places: Vec<At<Selector>> = Vec::new();
    for At { value, line } in list.value {
        match place(&value) {
            Ok(place) if places.iter().any(|known| known.value == place) => section.error(
                line,
                format!("{key} in [{of}] has {place} twice; allowed: once"),
            ),
            Ok(place) => places.push(At { value: place, line }),
            Err(problem) => section.error(line, format!("{key} in [{of}]: {problem}")),
        }
    }
    places
}

/// A place whose code is known, or what was probably meant.
fn place(text: &str) -> Result<Selector, String> {
    let (space, code) = text.split_once(':').unwrap_or(("", text));
    let problem = match text.parse::<Selector>() {
        Ok(Selector::Country(country)) if country.name().is_none() => {
            format!("no country has the code {country}")
        }
        Ok(selector) => return Ok(selector),
        Err(error) => error.to_string(),
    };
    // A code without its word: nothing is nearer.
    if space.is_empty()
        && let Ok(letters) = <[u8; 2]>::try_from(code.to_ascii_uppercase().as_bytes())
        && let Some(country) = Country::from_letters(letters)
        && let Some(name) = country.name()
    {
        let continent = continent_of(code).map(|continent| format!(" or {continent}"));
        let continent = continent.unwrap_or_default();
        return Err(format!(
            "{problem}; did you mean country:{country} ({name}){continent}?"
        ));
    }
    let mut meant = Vec::new();
    if matches!(space, "country" | "") {
        meant.extend(continent_of(code));
    }
    if space == "continent"
        && let Ok(letters) = <[u8; 2]>::try_from(code.as_bytes())
        && let Some(country) = Country::from_letters(letters)
        && let Some(name) = country.name()
    {
        meant.push(format!("country:{country} ({name})"));
    }
    if space != "asn" {
        meant.extend(
            Country::near(code)
                .into_iter()
                .map(|(country, name)| format!("country:{country} ({name})")),
        );
    }
    meant.dedup();
    Err(match meant.is_empty() {
        true => problem,
        false => format!("{problem}; did you mean {}?", meant.join(", ")),
    })
}

/// The continent that somebody meant by a country that does not exist.
fn continent_of(code: &str) -> Option<String> {
    Continent::ALL
        .into_iter()
        .find(|(_, known, name)| {
            code.eq_ignore_ascii_case(known) || code.eq_ignore_ascii_case(name)
        })
        .map(|(_, known, name)| format!("continent:{known} ({name})"))
}

#[cfg(test)]
mod tests;
