//! The actions of a jail: those that ban in a firewall become a ban of weir's own, which
//! needs no command; the others are named.

use weir_core::{Action, PortSet};

use crate::{
    action_command::Commands,
    definition::{self, Definition, Values},
    error::{Error, ErrorKind, Origin},
    files::Files,
    ini::clip,
    layers::Layers,
    parameters::Named,
    ports::Services,
    text::Text,
    unknown_names::{self, Asked},
};

/// One action of a jail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JailAction {
    /// The name of its file, such as `nftables`.
    pub name: String,
    /// Where the jail names it.
    pub origin: Origin,
    /// What becomes of it.
    pub kind: ActionKind,
    /// The parts of it that are not honoured although it bans or runs, each with its place.
    pub left_out: Vec<Error>,
}

/// What becomes of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionKind {
    /// A ban of these ports, without a command.
    Ban {
        /// The ports that the ban covers.
        ports: PortSet,
        /// The fate of packets that the ban is about.
        action: Action,
    },
    /// It runs commands when somebody is banned and let in again.
    Run(Box<Commands>),
    /// The action is not run; why, in words.
    NotRun(String),
    /// Commands of which one cannot be run safely, and why.
    Refused(String),
}

/// Which ports a firewall's action covers.
enum Cover {
    /// The ports of the jail.
    Ports,
    All,
    /// As its parameter `type` says.
    ByType,
    /// As the rule that its parameter `actiontype` holds says.
    ByRule,
}

/// The actions that ban in a firewall of Linux.
const FIREWALLS: [(&str, Cover); 23] = [
    ("nftables", Cover::ByType),
    ("nftables-multiport", Cover::ByType),
    ("nftables-allports", Cover::ByType),
    ("iptables", Cover::ByType),
    ("iptables-multiport", Cover::Ports),
    ("iptables-allports", Cover::All),
    ("iptables-new", Cover::Ports),
    ("iptables-multiport-log", Cover::Ports),
    ("iptables-ipset", Cover::ByType),
    ("iptables-ipset-proto4", Cover::Ports),
    ("iptables-ipset-proto6", Cover::Ports),
    ("iptables-ipset-proto6-allports", Cover::All),
    ("iptables-xt_recent-echo", Cover::Ports),
    ("firewallcmd-multiport", Cover::Ports),
    ("firewallcmd-allports", Cover::All),
    ("firewallcmd-ipset", Cover::ByRule),
    ("firewallcmd-new", Cover::Ports),
    ("firewallcmd-rich-rules", Cover::Ports),
    ("firewallcmd-rich-logging", Cover::Ports),
    ("ufw", Cover::All),
    ("route", Cover::All),
    ("shorewall", Cover::All),
    ("shorewall-ipset-proto6", Cover::All),
];

/// Firewalls of other systems.
const FOREIGN: [&str; 7] = [
    "bsd-ipfw",
    "ipfilter",
    "ipfw",
    "npf",
    "osx-afctl",
    "osx-ipfw",
    "pf",
];

/// Is the action of this name, of those that Fail2ban brings, one that bans in a firewall?
pub(crate) fn is_firewall(name: &str) -> bool {
    FOREIGN.contains(&name) || FIREWALLS.iter().any(|(firewall, _)| *firewall == name)
}

/// Parameters that the jails of the package give to any action, whatever it knows.
const PARAMETERS: [&str; 13] = [
    "actionrepair_on_unban",
    "actionstart_on_demand",
    "actname",
    "bantime",
    "chain",
    "dest",
    "logpath",
    "name",
    "port",
    "protocol",
    "sender",
    "sendername",
    "timeout",
];

/// Where an administrator has said what a jail goes by.
pub(crate) trait Places {
    /// Where the jail says a key, or all jails do, if it has this value there.
    fn of_key(&self, key: &str, value: &str) -> Option<Origin>;
    /// Where the jail, or all jails, choose this action with parameters of their own, as in
    /// `banaction = nftables[type=allports]`: the place, and the parameters' text.
    fn of_ban_action(&self, action: &str) -> Option<(Origin, String)>;
}

/// The action whose name is nearest to this one, as ` (did you mean X?)`.
fn near_action(files: &dyn Files, root: &std::path::Path, name: &str) -> String {
    let all = files.list(&root.join("action.d")).unwrap_or_default();
    let stems = all.iter().filter_map(|path| path.file_stem()?.to_str());
    unknown_names::did_you_mean(name, stems)
}

/// Reads what a jail says of an action, with the action's own files for what the jail
/// leaves out.
///
/// # Errors
/// Its files are missing or have a mistake; ports or a block type that cannot be honoured.
pub(crate) fn read(
    files: &dyn Files,
    root: &std::path::Path,
    services: &Services,
    jail: &str,
    keys: &Values,
    (named, origin): (&Named, &Origin),
    places: &dyn Places,
) -> Result<JailAction, Error> {
    // jail.conf puts an action together of several keys; a parameter is the one's that has it.
    let place_of_parameter = |key: &str| {
        let (place, options) = places.of_ban_action(&named.name)?;
        let mut words = options.split(|c: char| !(c.is_alphanumeric() || "-_?".contains(c)));
        words.any(|word| word == key).then_some(place)
    };

    let action = |kind| JailAction {
        name: named.name.clone(),
        origin: origin.clone(),
        kind,
        left_out: Vec::new(),
    };
    if named.name.ends_with(".py") {
        return Ok(action(ActionKind::NotRun(
            "it is a program in Python".to_owned(),
        )));
    }
    if FOREIGN.contains(&named.name.as_str()) {
        return Ok(action(ActionKind::NotRun(
            "it is a firewall of another system".to_owned(),
        )));
    }
    // A missing action is a mistake there as well.
    let layers = definition::read(files, root, "action.d", &named.name).map_err(|e| {
        let said = ["banaction", "banaction_allports"]
            .into_iter()
            .find_map(|key| Some((key, places.of_key(key, &named.name)?)));
        let (said, origin) = match said {
            Some((key, place)) => (format!("{key} = {}: ", clip(&named.name)), place),
            None => (String::new(), origin.clone()),
        };
        let meant = match e.kind {
            ErrorKind::Read => near_action(files, root, &named.name),
            _ => String::new(),
        };
        let message = format!("{said}action {}: {e}{meant}", named.name);
        Error::new(origin, e.kind, message)
    })?;
    let asked = Asked::of(&layers);
    let unknown = named.options.iter().filter_map(|(key, _)| {
        let message = unknown_names::parameter(&layers, &asked, &PARAMETERS, key)?;
        let message = format!("action {}: {message}", named.name);
        let origin = place_of_parameter(key).unwrap_or_else(|| origin.clone());
        Some(Error::new(origin, ErrorKind::Value, message))
    });
    let unknown: Vec<_> = unknown.collect();
    let Some((_, cover)) = FIREWALLS.iter().find(|(name, _)| *name == named.name) else {
        return Ok(JailAction {
            left_out: unknown,
            ..action(commands(layers, jail, named))
        });
    };
    let mut options: Vec<_> = named
        .options
        .iter()
        .map(|(key, value)| (key.clone(), Text::parameter(value)))
        .collect();
    if !named.options.iter().any(|(key, _)| key == "name") {
        options.push(("name".to_owned(), Text::parameter(jail)));
    }
    let definition = Definition::new(layers, &options, keys)?;
    let word = |key: &str| -> Result<Option<String>, Error> {
        let text = definition.get(key)?;
        Ok(text
            .map(|text| text.joined().trim().to_owned())
            .filter(|text| !text.is_empty()))
    };
    let wrong = |message: String| {
        let message = format!("action {}: {message}", named.name);
        Error::new(origin.clone(), ErrorKind::Value, message)
    };
    if word("application")?.is_some() {
        return Ok(action(ActionKind::NotRun(
            "it bans an application of ufw's".to_owned(),
        )));
    }
    let covers_all = match cover {
        Cover::All => true,
        Cover::Ports => false,
        Cover::ByType => match word("type")?.as_deref() {
            None | Some("multiport" | "oneport") => false,
            Some("allports") => true,
            Some(other) => {
                let why = format!("its type is {}, a rule of its own", clip(other));
                return Ok(JailAction {
                    origin: place_of_parameter("type").unwrap_or_else(|| origin.clone()),
                    ..action(ActionKind::NotRun(why))
                });
            }
        },
        Cover::ByRule => !word("actiontype")?.is_some_and(|rule| rule.contains("port")),
    };
    let ports = match covers_all {
        true => PortSet::all(),
        false => {
            let protocol = word("protocol")?.unwrap_or_else(|| "tcp".to_owned());
            let ports = word("port")?.unwrap_or_else(|| "0:65535".to_owned());
            services.set(&ports, &protocol).map_err(|message| {
                let place = places.of_key("port", &ports);
                let mut error = wrong(format!("port = {}: {message}", clip(&ports)));
                error.origin = place.unwrap_or(error.origin);
                error
            })?
        }
    };
    let block = match named.name.starts_with("firewallcmd-rich") {
        true => word("rich-blocktype")?,
        false => word("blocktype")?,
    };
    let kind = block.unwrap_or_else(|| "reject".to_owned()).to_lowercase();
    let does = if ["reject", "unreachable", "prohibit"]
        .iter()
        .any(|w| kind.contains(w))
    {
        Action::Reject
    } else if ["drop", "blackhole", "deny"]
        .iter()
        .any(|w| kind.contains(w))
    {
        Action::Drop
    } else {
        // RETURN and ACCEPT let banned addresses in and nobody else.
        let message = format!(
            "blocktype {} lets packets pass; allowed: reject, drop",
            clip(&kind)
        );
        let mut error = wrong(message);
        error.origin = place_of_parameter("blocktype").unwrap_or(error.origin);
        return Err(error);
    };
    let mut left_out = unknown;
    left_out.extend(own_command(&definition).or_else(|| {
        let logs = ["iptables-multiport-log", "firewallcmd-rich-logging"];
        let message = format!("action {}: weir logs no packets for it", named.name);
        (logs.contains(&named.name.as_str()))
            .then(|| Error::new(origin.clone(), ErrorKind::Value, message))
    }));
    let kind = ActionKind::Ban {
        ports,
        action: does,
    };
    Ok(JailAction {
        left_out,
        ..action(kind)
    })
}

/// A command of a firewall's action that an administrator has changed: weir bans in its place,
/// and runs none of them.
fn own_command(definition: &Definition) -> Option<Error> {
    const COMMANDS: [&str; 5] = [
        "actionban",
        "actionunban",
        "actionstart",
        "actionstop",
        "actionflush",
    ];
    COMMANDS.into_iter().find_map(|key| {
        let text = definition.get(key).ok()??;
        let is_own = |origin: &Origin| origin.file.extension().is_some_and(|e| e == "local");
        let mut lines = text.lines.iter().map(|line| line.place.origin());
        let origin = lines.find(is_own)?;
        let message = format!(
            "{key}: weir bans in place of this firewall, so that this command is not run; what it does besides belongs into an action of its own"
        );
        Some(Error::new(origin, ErrorKind::Value, message))
    })
}

/// What an action runs that bans in no firewall that weir stands in for. The jail's own
/// keys are not seen in it, only what the jail gives it.
fn commands(layers: Layers, jail: &str, named: &Named) -> ActionKind {
    let mut options: Vec<_> = [("name", jail), ("actname", named.name.as_str())]
        .map(|(key, value)| (key.to_owned(), Text::parameter(value)))
        .into();
    let given = named.options.iter();
    options.extend(given.map(|(key, value)| (key.clone(), Text::parameter(value))));
    let read = Definition::new(layers, &options, &Values::new())
        .and_then(|mut definition| Commands::read(&mut definition));
    match read {
        Ok(commands) if commands.is_empty() => ActionKind::NotRun("it has no commands".to_owned()),
        Ok(commands) => ActionKind::Run(Box::new(commands)),
        Err(why) => ActionKind::Refused(format!("not run: {why}")),
    }
}
