//! Where `weir options probe` writes: a name that is none costs no measurement, and two of
//! them do not write one file at once.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    process::{Command, Stdio},
};

use super::{
    common::{WEIR, soon},
    lab::{EAST, Lab},
    probe::words,
};

fn sites(lab: &Lab) -> [String; 2] {
    [("west", &lab.west), ("east", &lab.east)]
        .map(|(label, space)| format!("{label}=netns:{}", space.name()))
}

#[test]
fn root_what_cannot_be_written_is_said_before_anything_is_measured() {
    let Some(lab) = Lab::new(&[]) else {
        return;
    };
    let sites = sites(&lab);
    let results = lab.path("results.jsonl");
    let results = results.to_str().unwrap();
    let (here, there) = (lab.path("taken"), lab.path("nowhere/matrix.svg"));
    fs::write(&here, "as it was").unwrap();
    for (option, path, said) in [
        ("--svg", &there, "cannot write"),
        ("--svg", &lab.dir.path().to_owned(), "cannot write"),
        ("--pcap", &here, "cannot make"),
        ("--pcap", &"/proc/self".into(), "cannot make files in"),
        ("--svg", &results.into(), "--svg and --resume name one file"),
    ] {
        let more = ["--option", "ip:rr", "--resume", results];
        let more = [&more[..], &[option, path.to_str().unwrap()]].concat();
        lab.weir(&lab.router, &words(&sites, &more))
            .refused(&[said]);
        let kept = fs::read_to_string(results).unwrap();
        assert_eq!(kept.lines().count(), 1, "{option}: {kept}");
    }
    assert_eq!(fs::read_to_string(&here).unwrap(), "as it was");
    // What a file had before is not behind a shorter drawing.
    fs::write(&here, "x".repeat(1 << 20)).unwrap();
    let more = ["--option", "ip:rr", "--ipv4", "--carrier", "icmp"];
    let more = [&more[..], &["--svg", here.to_str().unwrap()]].concat();
    lab.weir(&lab.router, &words(&sites, &more)).done();
    let drawn = fs::read_to_string(&here).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
}

/// Who may write to the directory could have root write elsewhere, or exchange what it has written.
#[test]
fn root_captures_go_through_no_link_and_into_no_directory_of_others() {
    let Some(lab) = Lab::new(&[]) else {
        return;
    };
    let sites = sites(&lab);
    let (dir, victim) = (lab.path("packets"), lab.path("victim"));
    fs::create_dir(&dir).unwrap();
    fs::write(&victim, "as it was").unwrap();
    let more = ["--option", "ip:rr", "--ipv4", "--carrier", "icmp"];
    let more = [&more[..], &["--pcap", dir.to_str().unwrap()]].concat();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    lab.weir(&lab.router, &words(&sites, &more))
        .refused(&["its mode is 0777; allowed: one that is writable for nobody else, or sticky"]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    let link = dir.join("west--east.ipv4.sent.pcap");
    symlink(&victim, &link).unwrap();
    lab.weir(&lab.router, &words(&sites, &more))
        .refused(&["west--east.ipv4.sent.pcap"]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
    fs::remove_file(&link).unwrap();
    lab.weir(&lab.router, &words(&sites, &more)).done();
    assert!(fs::metadata(&link).unwrap().len() > 24);
}

/// A site under the address of another one would decide about the network of that one.
#[test]
fn root_two_sites_do_not_have_one_address() {
    let Some(lab) = Lab::new(&[]) else {
        return;
    };
    let [west, east] = sites(&lab);
    let evil = format!("evil=netns:{}", lab.east.name());
    let more = ["--option", "ip:rr", "--ipv4", "--carrier", "icmp"];
    let refused = "which is the address of site";
    let named = format!("{east}/{}", EAST[0]);
    let said = lab.weir(&lab.router, &words(&[west, named, evil], &more));
    said.refused(&[
        "site evil: its agent tells ",
        refused,
        "site west: others send to",
    ]);
}

#[test]
fn root_two_measurements_do_not_write_one_file() {
    let Some(lab) = Lab::new(&[]) else {
        return;
    };
    let sites = sites(&lab);
    let results = lab.path("results.jsonl");
    let more = [
        "--option",
        "ip:rr",
        "--ipv4",
        "--resume",
        results.to_str().unwrap(),
        "--json",
    ];
    let mut first = Command::new(WEIR)
        .args(words(&sites, &[&more[..], &["--wait", "3"]].concat()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    soon("the first one to have the file", || {
        fs::read_to_string(&results)
            .is_ok_and(|text| text.ends_with('\n'))
            .then_some(())
    });
    lab.weir(&lab.router, &words(&sites, &more))
        .refused(&["another weir options probe writes to it"]);
    assert!(first.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&results).unwrap().lines().count(), 3);
    lab.weir(&lab.router, &words(&sites, &more)).done();
}
