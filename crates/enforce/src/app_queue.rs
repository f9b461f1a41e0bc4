//! The rules of iptables by which packets wait for the daemon, where the kernel can load none
//! of the programs that know who sends (`[app]` at level `nfqueue`).
//!
//! They are in chains of their own in the table `mangle`, before addresses are translated, with
//! one jump each from OUTPUT and INPUT. A connection that was judged has a mark in the kernel's
//! table of connections and waits no more. Both directions of a connection have a bit: one says
//! that the program here which has begun it may, the other that the program here which is
//! spoken to may; a connection over loopback has both. There is no bypass: without a daemon
//! what has no mark is dropped, unless the policy denies nothing.

use std::{fmt::Write, fs};

use crate::{Error, command, ipset::base, nft::iptables};

/// In the mark of a connection: who has begun it here may.
pub const MARK_OUT: u32 = 0x1000_0000;
/// In the mark of a connection: who is spoken to here may.
pub const MARK_IN: u32 = 0x2000_0000;

/// The programs that make rules, as iptables(8) is built: the host's choice first.
const VARIANTS: [&str; 3] = ["", "-nft", "-legacy"];
const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];
const TABLE: &str = "mangle";
const CHAINS: [&str; 2] = ["OUTPUT", "INPUT"];
/// Our chains, behind the instance's name, in the same order.
const OURS: [&str; 2] = [".app-out", ".app-in"];
/// No packet sees it: what was not there before us.
const MADE: &str = ".app-made";
const COMMENT: &str = "-m comment --comment \"weir: programs\"";

/// Where packets wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues {
    /// The queue of what this host sends.
    pub outward: u16,
    /// The queue of what comes in; `None`: it does not wait.
    pub inward: Option<u16>,
    /// Without a daemon packets pass.
    pub bypass: bool,
}

fn failed(what: String) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}

fn save(family: usize, variant: &str) -> std::io::Result<String> {
    let program = format!("{}{variant}-save", FAMILIES[family]);
    command::run(&program, &["-t", TABLE], "")
}

fn restore(family: usize, variant: &str, text: &str) -> std::io::Result<()> {
    let program = format!("{}{variant}-restore", FAMILIES[family]);
    command::run(&program, &["--noflush", "-w", "5"], text).map(drop)
}

fn jump(number: usize, base: &str) -> String {
    format!("{} {COMMENT} -j {base}{}", CHAINS[number], OURS[number])
}

/// The rules of one of our chains.
fn chain(family: usize, number: usize, queues: &Queues) -> Vec<String> {
    let marked = |mark: u32, direction: &str| {
        format!("-m connmark --mark {mark:#x}/{mark:#x} -m conntrack --ctdir {direction} -j RETURN")
    };
    let (begun, answered) = match number {
        0 => (MARK_OUT, MARK_IN),
        _ => (MARK_IN, MARK_OUT),
    };
    let bypass = if queues.bypass { " --queue-bypass" } else { "" };
    let wait = |queue: u16| format!("-j NFQUEUE --queue-num {queue}{bypass}");
    let inward = queues.inward.filter(|_| number == 1);
    let icmp = ["icmp", "ipv6-icmp"][family];
    // A connection that another one has announced (FTP and its like) begins with that one's
    // mark.
    let mut rules = match inward {
        Some(queue) => ["tcp", "udp"]
            .map(|of| format!("-p {of} -m conntrack --ctstate RELATED {}", wait(queue)))
            .to_vec(),
        None => vec![format!(
            "! -p {icmp} -m conntrack --ctstate RELATED {}",
            wait(queues.outward)
        )],
    };
    rules.push(marked(begun, "ORIGINAL"));
    match queues.inward {
        Some(_) => rules.push(marked(answered, "REPLY")),
        None => rules.push("-m conntrack --ctdir REPLY -j RETURN".to_owned()),
    }
    let Some(inward) = inward else {
        // What the kernel says by itself: answers to echo requests and errors, neighbours,
        // groups.
        rules.push(format!("-p {icmp} -m conntrack --ctdir REPLY -j RETURN"));
        rules.push(format!(
            "-p {icmp} -m conntrack --ctstate RELATED -j RETURN"
        ));
        rules.push(match family {
            0 => "-p 2 -j RETURN".to_owned(),
            _ => format!("-p {icmp} -m conntrack --ctstate UNTRACKED -j RETURN"),
        });
        rules.push(wait(queues.outward));
        return rules;
    };
    for protocol in ["tcp", "udp"] {
        rules.push(format!("-p {protocol} {}", wait(inward)));
    }
    rules
}

/// All that is to be there of a family, as its `-restore --noflush` takes it. `saved`: what the
/// table is now; `made`: the chains, and at last the table, that were not there before us.
fn write(family: usize, base: &str, saved: &str, queues: &Queues, made: &[bool; 3]) -> String {
    let mut text = format!("*{TABLE}\n");
    for own in OURS.iter().chain([&MADE]) {
        let _ = writeln!(text, ":{base}{own} - [0:0]");
    }
    for (number, own) in OURS.iter().enumerate() {
        if number == 1 && queues.inward.is_none() {
            continue;
        }
        for rule in chain(family, number, queues) {
            let _ = writeln!(text, "-A {base}{own} {rule}");
        }
    }
    for (number, is_made) in made.iter().enumerate() {
        if *is_made {
            let _ = writeln!(text, "-A {base}{MADE} {} -j RETURN", made_comment(number));
        }
    }
    for number in 0..CHAINS.len() {
        let jump = jump(number, base);
        let is_there = saved.lines().any(|line| line == format!("-A {jump}"));
        let is_wanted = number == 0 || queues.inward.is_some();
        if is_wanted && is_first(saved, number, &jump) {
            continue;
        }
        if is_there {
            let _ = writeln!(text, "-D {jump}");
        }
        if is_wanted {
            let _ = writeln!(text, "-I {jump}");
        }
    }
    text + "COMMIT\n"
}

/// Does nothing come before our jump, that could let packets pass?
fn is_first(saved: &str, number: usize, jump: &str) -> bool {
    let begin = format!("-A {} ", CHAINS[number]);
    let first = saved.lines().find(|line| line.starts_with(&begin));
    first.is_some_and(|line| line.strip_prefix("-A ") == Some(jump))
}

fn made_comment(number: usize) -> String {
    let what = ["made-OUTPUT", "made-INPUT", "made-table"][number];
    format!("-m comment --comment {what}")
}

fn was_made(saved: &str, base: &str) -> [bool; 3] {
    [0, 1, 2].map(|number| {
        let rule = format!("-A {base}{MADE} {} -j RETURN", made_comment(number));
        saved.lines().any(|line| line == rule)
    })
}

/// The lines that take ours away; `None`: there are none.
fn remove(saved: &str, base: &str) -> Option<String> {
    let has = |own: &str| {
        let begin = format!(":{base}{own} ");
        saved.lines().any(|line| line.starts_with(&begin))
    };
    let own: Vec<_> = OURS
        .into_iter()
        .chain([MADE])
        .filter(|own| has(own))
        .collect();
    if own.is_empty() {
        return None;
    }
    let mut text = format!("*{TABLE}\n");
    for number in 0..CHAINS.len() {
        let jump = jump(number, base);
        for _ in saved.lines().filter(|line| *line == format!("-A {jump}")) {
            let _ = writeln!(text, "-D {jump}");
        }
    }
    for verb in ["-F", "-X"] {
        for own in &own {
            let _ = writeln!(text, "{verb} {base}{own}");
        }
    }
    Some(text + "COMMIT\n")
}

/// Another instance whose packets wait in this network namespace: they would share the bits of
/// marks.
fn other_instance(saved: &str, base: &str) -> Option<String> {
    saved.lines().find_map(|line| {
        let target = line.strip_prefix(&format!("-A {} {COMMENT} -j ", CHAINS[0]))?;
        let other = target.strip_suffix(OURS[0])?;
        (other != base).then(|| other.to_owned())
    })
}

/// Has packets wait there from now on, of IPv4 and IPv6; returns the program that has made the
/// rules, with its version. Another call changes them in one step.
///
/// # Errors
/// iptables is not there, or cannot say so to this kernel; then packets wait as before.
pub fn put(instance: &str, queues: &Queues) -> Result<String, Error> {
    let base = base(instance);
    let mut tried = Vec::new();
    for variant in VARIANTS {
        match put_by(variant, &base, queues) {
            Ok(()) => {
                let program = format!("{}{variant}", FAMILIES[0]);
                let version = command::run(&program, &["--version"], "");
                return Ok(version.map_or(program, |version| version.trim().to_owned()));
            }
            Err(error @ Error::Busy(_)) => return Err(error),
            Err(error) => tried.push(error.to_string()),
        }
    }
    Err(Error::Unsupported(format!(
        "packets cannot be had wait for weir (it takes iptables and ip6tables, with NFQUEUE, connmark, conntrack and comment): {}",
        tried.join("; ")
    )))
}

fn put_by(variant: &str, base: &str, queues: &Queues) -> Result<(), Error> {
    let mut tables = Vec::new();
    // Nothing is written before both families have said what there is.
    for (family, name) in FAMILIES.into_iter().enumerate() {
        let what = format!("{name}{variant}: cannot list the table {TABLE}");
        let saved = save(family, variant).map_err(failed(what))?;
        if let Some(other) = other_instance(&saved, base) {
            return Err(Error::Busy(format!(
                "another instance of weir ({other}) judges programs by a queue in this network namespace: weir detach --instance takes it away"
            )));
        }
        let has_ours = saved.contains(&format!(":{base}{MADE} "));
        tables.push((saved, has_ours));
    }
    for (family, (saved, has_ours)) in tables.iter().enumerate() {
        let made = match has_ours {
            true => was_made(saved, base),
            false => {
                let [output, input] =
                    CHAINS.map(|chain| iptables::are_there(family, [TABLE, chain]));
                [!output[1], !input[1], !output[0]]
            }
        };
        let text = write(family, base, saved, queues, &made);
        if let Err(error) = restore(family, variant, &text) {
            // What the other family has by now goes again, if it is new.
            for (before, (_, had_ours)) in tables.iter().enumerate().take(family) {
                if !had_ours {
                    let _ = detach_by(variant, before, base);
                }
            }
            let what = format!(
                "{}{variant}: cannot write the table {TABLE}",
                FAMILIES[family]
            );
            return Err(failed(what)(error));
        }
    }
    Ok(())
}

/// May there be such a table, as this program has it? To ask some programs makes it.
fn may_have_table(variant: &str, family: usize) -> bool {
    let names = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let is_legacy = || {
        let names = fs::read_to_string(names[family]).unwrap_or_default();
        names.lines().any(|name| name == TABLE)
    };
    let is_nft = || iptables::are_there(family, [TABLE, CHAINS[0]])[0];
    match variant {
        "-legacy" => is_legacy(),
        "-nft" => is_nft(),
        _ if !is_legacy() && !is_nft() => false,
        _ => {
            let program = FAMILIES[family];
            let version = command::run(program, &["--version"], "").unwrap_or_default();
            match version.contains("nf_tables") {
                true => is_nft(),
                false => is_legacy(),
            }
        }
    }
}

fn detach_by(variant: &str, family: usize, base: &str) -> Result<Option<String>, Error> {
    if !may_have_table(variant, family) {
        return Ok(None);
    }
    let Ok(saved) = save(family, variant) else {
        return Ok(None);
    };
    let Some(text) = remove(&saved, base) else {
        return Ok(None);
    };
    let what = "take the rules away by which packets wait for weir".to_owned();
    restore(family, variant, &text).map_err(failed(what))?;
    let [output, input, table] = was_made(&saved, base);
    for (chain, made) in CHAINS.into_iter().zip([output, input]) {
        iptables::remove_empty(family, [TABLE, chain], [false, made]);
    }
    iptables::remove_empty(family, [TABLE, CHAINS[0]], [table, false]);
    Ok(Some(format!(
        "chain {base}{} ({}{variant})",
        OURS[0], FAMILIES[family]
    )))
}

/// Takes the rules of an instance away; returns what there was.
///
/// # Errors
/// They are there, and iptables refuses to take them away.
pub fn detach(instance: &str) -> Result<Vec<String>, Error> {
    let base = base(instance);
    let mut gone = Vec::new();
    for variant in VARIANTS {
        for family in [0, 1] {
            gone.extend(detach_by(variant, family, &base)?);
        }
    }
    Ok(gone)
}

/// What this host lacks for the rules; `None`: nothing that is seen without making some.
pub fn missing() -> Option<String> {
    FAMILIES.into_iter().find_map(|program| {
        let error = command::run(program, &["--version"], "").err()?;
        Some(format!("{program} ({error})"))
    })
}

/// Are the rules of an instance as they were put, in both families?
pub fn is_whole(instance: &str, queues: &Queues) -> bool {
    let base = base(instance);
    VARIANTS.into_iter().any(|variant| {
        [0, 1].into_iter().all(|family| {
            may_have_table(variant, family)
                && save(family, variant).is_ok_and(|saved| has_all(&saved, &base, family, queues))
        })
    })
}

fn has_all(saved: &str, base: &str, family: usize, queues: &Queues) -> bool {
    let sides = 0..if queues.inward.is_some() { 2 } else { 1 };
    sides.into_iter().all(|number| {
        let begin = format!("-A {base}{} ", OURS[number]);
        let rules = saved.lines().filter(|line| line.starts_with(&begin));
        rules.count() == chain(family, number, queues).len()
            && is_first(saved, number, &jump(number, base))
    })
}

/// Are there rules of this instance?
pub fn is_there(instance: &str) -> bool {
    let base = base(instance);
    let has = |variant| {
        may_have_table(variant, 0)
            && save(0, variant).is_ok_and(|saved| remove(&saved, &base).is_some())
    };
    VARIANTS.into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: Queues = Queues {
        outward: 7,
        inward: Some(8),
        bypass: false,
    };

    #[test]
    fn what_was_judged_waits_no_more_in_either_direction() {
        let text = write(0, "weir_x", "", &QUEUES, &[false; 3]);
        for rule in [
            "-A weir_x.app-out ! -p icmp -m conntrack --ctstate RELATED -j NFQUEUE --queue-num 7",
            "-A weir_x.app-in -p tcp -m conntrack --ctstate RELATED -j NFQUEUE --queue-num 8",
            "-A weir_x.app-out -m connmark --mark 0x10000000/0x10000000 -m conntrack --ctdir ORIGINAL -j RETURN",
            "-A weir_x.app-out -m connmark --mark 0x20000000/0x20000000 -m conntrack --ctdir REPLY -j RETURN",
            "-A weir_x.app-out -j NFQUEUE --queue-num 7",
            "-A weir_x.app-in -m connmark --mark 0x10000000/0x10000000 -m conntrack --ctdir REPLY -j RETURN",
            "-A weir_x.app-in -p udp -j NFQUEUE --queue-num 8",
            "-I OUTPUT -m comment --comment \"weir: programs\" -j weir_x.app-out",
        ] {
            assert!(text.lines().any(|line| line == rule), "{rule}\n{text}");
        }
        assert!(!text.contains("bypass"), "{text}");
        let only_out = Queues {
            inward: None,
            bypass: true,
            ..QUEUES
        };
        let jumps = "-A INPUT -m comment --comment \"weir: programs\" -j weir_x.app-in";
        let text = write(1, "weir_x", jumps, &only_out, &[false, true, true]);
        assert!(text.contains("--queue-num 7 --queue-bypass\n"), "{text}");
        assert!(text.contains("-D INPUT "), "{text}");
        assert!(!text.contains("-A weir_x.app-in"), "{text}");
        assert_eq!(was_made(&text, "weir_x"), [false, true, true]);
        let jump = format!("{text}-A {}\n", jump(0, "weir_x"));
        assert!(has_all(&jump, "weir_x", 1, &only_out));
        assert!(!has_all(&text, "weir_x", 1, &only_out), "no jump");
        assert!(!has_all(&jump, "weir_x", 1, &QUEUES));
        // Behind a rule of somebody else's it goes before that one again.
        let behind = jump.replace("-A OUTPUT", "-A OUTPUT -j ACCEPT\n-A OUTPUT");
        assert!(!has_all(&behind, "weir_x", 1, &only_out));
        let text = write(1, "weir_x", &behind, &only_out, &[false; 3]);
        assert!(text.contains("-D OUTPUT -m comment") && text.contains("-I OUTPUT -m comment"));
        assert!(!write(1, "weir_x", &jump, &only_out, &[false; 3]).contains(" OUTPUT"));
    }

    #[test]
    fn ours_goes_and_what_others_have_stays() {
        let saved = "*mangle\n:OUTPUT ACCEPT [0:0]\n:weir_x.app-out - [0:0]\n:weir_xy.app-out - [0:0]\n\
            -A OUTPUT -j MARK --set-mark 1\n\
            -A OUTPUT -m comment --comment \"weir: programs\" -j weir_x.app-out\nCOMMIT\n";
        let text = remove(saved, "weir_x").unwrap();
        assert_eq!(
            text,
            "*mangle\n-D OUTPUT -m comment --comment \"weir: programs\" -j weir_x.app-out\n\
             -F weir_x.app-out\n-X weir_x.app-out\nCOMMIT\n"
        );
        assert_eq!(remove(saved, "weir_z"), None);
        assert_eq!(other_instance(saved, "weir_x"), None);
        assert_eq!(other_instance(saved, "weir_xy").as_deref(), Some("weir_x"));
    }
}
