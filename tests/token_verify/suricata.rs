//! The scripts for Suricata (`dist/suricata/`) say of each packet of a capture what `weir token
//! verify` says: under a small stand-in of Suricata, and in Suricata 8 where it is.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use serde_json::Value;
use weir_token::daf::DafKey;

use super::{IDENTITY, Lab, SECONDS, header, json, pcap, syns, with_daf};

const VERDICTS: [&str; 10] = [
    "valid",
    "missing",
    "malformed",
    "shortened",
    "other-version",
    "unknown-key",
    "other-epoch",
    "not-named",
    "wrong-mac",
    "replayed",
];
const DAF_VERDICTS: [&str; 6] = [
    "valid",
    "valid-without-data",
    "missing",
    "malformed",
    "wrong-mac",
    "shortened",
];

/// A script of `dist/suricata/` with settings in place of its empty ones.
fn script(name: &str, settings: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(Path::new("dist/suricata").join(name)).unwrap();
    for (from, to) in settings {
        assert!(text.contains(from), "{from} of {name}");
        text = text.replacen(from, to, 1);
    }
    text
}

fn token_script(lab: &Lab) -> String {
    let secret = lab.key.secret().unwrap().to_hex();
    script(
        "weir-token.lua",
        &[
            (
                "local SECRETS = {\n",
                &format!("local SECRETS = {{\n[1] = \"{secret}\",\n"),
            ),
            (
                "local AGGREGATES = {\n",
                &format!("local AGGREGATES = {{\n\"{IDENTITY}\",\n"),
            ),
        ],
    )
}

/// What the stand-in says of each packet, by its number; `-`: nothing.
fn standin(
    script: &Path,
    capture: &Path,
    prefix: &str,
    verdicts: &[&str],
) -> Result<BTreeMap<u64, String>, String> {
    let done = Command::new("lua5.4")
        .arg("tests/token_verify/suricata_standin.lua")
        .args([script, capture])
        .arg(prefix)
        .args(verdicts)
        .output()
        .unwrap();
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    Ok(of_lines(&done.stdout))
}

/// Verdicts by the number of the packet, as a line each has them.
pub fn of_lines(text: &[u8]) -> BTreeMap<u64, String> {
    let text = std::str::from_utf8(text).unwrap();
    let lines = text.lines().map(|line| line.split_once('\t').unwrap());
    lines
        .map(|(number, verdict)| (number.parse().unwrap(), verdict.to_owned()))
        .collect()
}

/// Whether Suricata 8 is there.
fn has_suricata() -> bool {
    let told = Command::new("suricata").arg("-V").output();
    let text = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned());
    let text = text.unwrap_or_default();
    let is_there = text.contains("version 8.") || text.contains("version 9.");
    if !is_there {
        eprintln!("skipped: Suricata 8 or newer is not on PATH (probe: suricata -V)");
    }
    is_there
}

/// What Suricata alerts of, by the number of the packet, with rules of `dist/suricata/` and one
/// for each verdict that they leave out.
fn suricata(
    lab: &Lab,
    name: &str,
    script: &str,
    capture: &Path,
    prefix: &str,
    more: &[&str],
) -> BTreeMap<u64, String> {
    let dir = lab.dir.path().join(format!("suricata-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(format!("{name}.lua")), script).unwrap();
    let mut rules = fs::read_to_string(format!("dist/suricata/{name}.rules")).unwrap();
    for (number, verdict) in more.iter().enumerate() {
        rules += &format!(
            "alert tcp any any -> any any (msg:\"{prefix}{verdict}\"; lua:{name}.lua; sid:{};)\n",
            1000 + number
        );
    }
    fs::write(dir.join("test.rules"), rules).unwrap();
    fs::write(
        dir.join("classification.config"),
        "config classification: policy-violation,x,1\nconfig classification: attempted-user,x,1\nconfig classification: protocol-command-decode,x,3\n",
    )
    .unwrap();
    let text = format!(
        "%YAML 1.1\n---\n\
         vars:\n  address-groups:\n    HOME_NET: \"[192.0.2.0/24,2001:db8::/32]\"\n    EXTERNAL_NET: any\n\
         default-rule-path: {dir}\n\
         classification-file: {dir}/classification.config\n\
         outputs:\n  - eve-log:\n      enabled: yes\n      filetype: regular\n      filename: eve.json\n      types:\n        - alert\n        - stats:\n            totals: yes\n",
        dir = dir.display()
    );
    fs::write(dir.join("suricata.yaml"), text).unwrap();
    let done = Command::new("suricata")
        .args(["-k", "none", "--runmode", "single", "-c"])
        .arg(dir.join("suricata.yaml"))
        .arg("-S")
        .arg(dir.join("test.rules"))
        .arg("-l")
        .arg(&dir)
        .arg("-r")
        .arg(capture)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(!said.contains("Lua script failed"), "{said}");
    assert!(!said.contains("error parsing"), "{said}");
    let events = fs::read_to_string(dir.join("eve.json")).unwrap();
    let mut alerts = BTreeMap::new();
    for line in events.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        if event["event_type"] != "alert" {
            continue;
        }
        let message = event["alert"]["signature"].as_str().unwrap();
        let verdict = message.strip_prefix(prefix).unwrap().to_owned();
        let number = event["pcap_cnt"].as_u64().unwrap();
        let before = alerts.insert(number, verdict);
        assert_eq!(before, None, "two alerts: {event}");
    }
    assert!(!alerts.is_empty(), "no alert: {said}");
    alerts
}

/// What `weir token verify` says of the packets that decide.
pub fn by_packet(answer: &Value) -> BTreeMap<u64, String> {
    let flows = answer["flows"].as_array().unwrap().iter();
    let unread = answer["unread"].as_array().unwrap().iter();
    flows
        .chain(unread)
        .map(|flow| {
            (
                flow["packet"].as_u64().unwrap(),
                flow["verdict"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

fn has_lua() -> bool {
    let is_there = Command::new("lua5.4").arg("-v").output().is_ok();
    if !is_there {
        eprintln!("skipped: no program lua5.4");
    }
    is_there
}

#[test]
fn suricata_says_of_each_syn_what_weir_says() {
    if !has_lua() {
        return;
    }
    let lab = Lab::new();
    let syns = syns::of_each_verdict(&lab);
    let packets: Vec<_> = syns.iter().map(|syn| (0, syn.packet.clone())).collect();
    let whole = lab.write("syns.pcap", &pcap(1, false, &packets));
    let answer = json(&lab.verify(&whole, &["--json"]));
    let weir = by_packet(&answer);
    let wanted: BTreeMap<_, _> = (1..)
        .zip(&syns)
        .map(|(number, syn)| (number, syn.verdict.to_owned()))
        .collect();
    assert_eq!(weir, wanted);
    let text = token_script(&lab);
    let script = lab.write("weir-token.lua", text.as_bytes());
    let said = standin(&script, &whole, "weir token: ", &VERDICTS).unwrap();
    assert_eq!(said, weir);

    // Packets of which less was captured, at every length, of either family.
    let (cut, file) = cut_everywhere(&syns);
    let file = lab.write("cut.pcap", &file);
    let said = standin(&script, &file, "weir token: ", &VERDICTS).unwrap();
    assert_eq!(said.len(), cut.len());
    for ((packet, length), (number, said)) in cut.iter().zip(&said) {
        // Each is asked alone, because they are of one connection.
        if number % 29 == 0 {
            let weir = alone(&lab, packet, *length);
            assert_eq!(*said, weir, "{length} bytes of {packet:?}");
        }
        let is_wrong = ["-", "shortened"].contains(&said.as_str());
        assert!(is_wrong || *said == "valid", "{said}: {length}");
    }

    if !has_suricata() {
        return;
    }
    let said = suricata(
        &lab,
        "weir-token",
        &text,
        &whole,
        "weir token: ",
        &["valid"],
    );
    for (number, syn) in (1..).zip(&syns) {
        match said.get(&number) {
            Some(verdict) => assert_eq!(verdict, syn.verdict, "packet {number}"),
            // Suricata's decoder has told of it, and asks no rule.
            None => assert!(syn.is_broken, "nothing of {number}, {}", syn.verdict),
        }
    }
}

/// The SYNs with a valid token, cut at every byte, and a capture of them.
pub fn cut_everywhere(syns: &[syns::Syn]) -> (Vec<(Vec<u8>, usize)>, Vec<u8>) {
    let mut cut = Vec::new();
    for syn in syns.iter().filter(|syn| syn.verdict == "valid") {
        cut.extend((1..syn.packet.len()).map(|length| (syn.packet.clone(), length)));
    }
    let mut file = pcap(1, false, &[]);
    for (packet, length) in &cut {
        add_cut(&mut file, packet, *length);
    }
    (cut, file)
}

/// What `weir token verify` says of one packet of which so much was captured.
pub fn alone(lab: &Lab, packet: &[u8], length: usize) -> String {
    let mut file = pcap(1, false, &[]);
    add_cut(&mut file, packet, length);
    let file = lab.write("one.pcap", &file);
    let answer = json(&lab.verify(&file, &["--json"]));
    by_packet(&answer).remove(&1).unwrap_or("-".to_owned())
}

fn add_cut(file: &mut Vec<u8>, packet: &[u8], length: usize) {
    let frame = [&header(1, packet), &packet[..length]].concat();
    for value in [SECONDS, 0, frame.len() as u32, 14 + packet.len() as u32] {
        file.extend(value.to_le_bytes());
    }
    file.extend(frame);
}

/// A capture of [`syns::of_replays`], what `weir token verify` says of it, and what is to be said.
pub fn replays(
    lab: &Lab,
) -> (
    std::path::PathBuf,
    BTreeMap<u64, String>,
    BTreeMap<u64, String>,
) {
    let replays = syns::of_replays(lab);
    let packets: Vec<_> = replays
        .iter()
        .map(|(packet, _)| (0, packet.clone()))
        .collect();
    let capture = lab.write("replays.pcap", &pcap(1, false, &packets));
    let weir = by_packet(&json(&lab.verify(&capture, &["--json"])));
    let said = replays.iter().map(|(_, verdict)| (*verdict).to_owned());
    (capture, weir, (1..).zip(said).collect())
}

/// A token that was seen is good for nothing from a second host, nor on another flow, nor on its
/// own once that has begun: weir, the stand-in and Suricata agree.
#[test]
fn suricata_says_of_replays_what_weir_says() {
    if !has_lua() {
        return;
    }
    let lab = Lab::new();
    let (capture, weir, wanted) = replays(&lab);
    let judged: BTreeMap<_, _> = wanted
        .clone()
        .into_iter()
        .filter(|(_, v)| v != "-")
        .collect();
    assert_eq!(weir, judged);
    let text = token_script(&lab);
    let script = lab.write("weir-token.lua", text.as_bytes());
    let said = standin(&script, &capture, "weir token: ", &VERDICTS).unwrap();
    assert_eq!(said, wanted);
    // Of more connections than are remembered the first ones are forgotten.
    let few = text.replacen("CONNECTIONS = 600", "CONNECTIONS = 1", 1);
    let few = lab.write("few.lua", few.as_bytes());
    let said = standin(&few, &capture, "weir token: ", &VERDICTS).unwrap();
    assert_eq!(
        said, wanted,
        "two are remembered, and one is on its way at a time"
    );
    if !has_suricata() {
        return;
    }
    let said = suricata(
        &lab,
        "weir-token",
        &text,
        &capture,
        "weir token: ",
        &["valid"],
    );
    // The rule of the test for valid ones sees every segment, as that for replays does.
    assert_eq!(said, judged);
}

#[test]
fn suricata_says_what_is_wrong_with_a_setting() {
    if !has_lua() {
        return;
    }
    let lab = Lab::new();
    let capture = lab.write("syns.pcap", &pcap(1, false, &lab.packets(false)));
    let good = token_script(&lab);
    for (from, to, told) in [
        (
            "[1] =",
            "[0] =",
            "the id of a secret is wrong; allowed: 1 to 255",
        ),
        ("[1] = \"", "[1] = \"x", "a secret is wrong; allowed: 64"),
        (
            "AGGREGATES = {\n\"",
            "AGGREGATES = {\n\"a",
            "an aggregate is wrong",
        ),
        (
            "EPOCH_SLACK = 1",
            "EPOCH_SLACK = -1",
            "EPOCH_SLACK is wrong; allowed: 0 to 1000",
        ),
        (
            "CONNECTIONS = 600",
            "CONNECTIONS = 0",
            "CONNECTIONS is wrong; allowed: 1 to 1000000",
        ),
        ("[1] = \"", "-- \"", "SECRETS or AGGREGATES is empty"),
    ] {
        assert!(good.contains(from), "{from}");
        let wrong = lab.write("wrong.lua", good.replacen(from, to, 1).as_bytes());
        let error = standin(&wrong, &capture, "weir token: ", &VERDICTS).unwrap_err();
        assert!(error.contains(told), "{from}: {error}");
        let secret = lab.key.secret().unwrap().to_hex();
        assert!(!error.contains(&secret), "{error}");
    }
    // A sender whose clock is further from this one's.
    let wider = good.replacen("EPOCH_SLACK = 1", "EPOCH_SLACK = 5", 1);
    let wider = lab.write("wider.lua", wider.as_bytes());
    let said = standin(&wider, &capture, "weir token: ", &VERDICTS).unwrap();
    // The sixth packet is five minutes late.
    assert_eq!(said[&6], "valid");
}

#[test]
fn suricata_says_of_signatures_of_daf_what_weir_says() {
    if !has_lua() {
        return;
    }
    let lab = Lab::new();
    let is_real = has_suricata();
    // More bytes than a block of the hash, and bytes that are no text.
    for (number, secret) in [&b"any bytes\n"[..], &[0xff; 70]].iter().enumerate() {
        let key = DafKey::new(secret).unwrap();
        let long = vec![b'x'; 120];
        let mut packets = vec![
            with_daf(&key, false, b"", Some(b"")),
            with_daf(&key, false, b"question", Some(b"question")),
            with_daf(&key, true, &long, Some(&long)),
            with_daf(&key, true, b"other", Some(b"answer")),
            with_daf(&key, true, b"", Some(b"answer")),
            with_daf(&key, false, b"bare", None),
        ];
        for (at, to) in [(20, 0x5f), (21, 33), (21, 0)] {
            let mut changed = packets[1].clone();
            changed[at] = to;
            packets.push(changed);
        }
        let timed: Vec<_> = packets.iter().map(|packet| (0, packet.clone())).collect();
        let capture = lab.write(&format!("{number}.pcap"), &pcap(1, false, &timed));
        let wanted: Vec<_> = packets
            .iter()
            .map(|packet| key.verify(packet).unwrap().1.name().to_owned())
            .collect();
        assert_eq!(
            wanted,
            [
                "valid-without-data",
                "valid",
                "valid",
                "wrong-mac",
                "wrong-mac",
                "missing",
                "missing",
                "malformed",
                "malformed"
            ]
        );
        let digits: String = secret.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let setting = format!("local SECRET = \"{digits}\"");
        let text = script("weir-daf.lua", &[("local SECRET = \"\"", &setting)]);
        let file = lab.write("weir-daf.lua", text.as_bytes());
        let said = standin(&file, &capture, "weir daf: ", &DAF_VERDICTS).unwrap();
        assert_eq!(Vec::from_iter(said.into_values()), wanted);
        if !is_real {
            continue;
        }
        let more = ["valid", "valid-without-data"];
        let said = suricata(&lab, "weir-daf", &text, &capture, "weir daf: ", &more);
        for (packet, verdict) in (1..).zip(&wanted) {
            match said.get(&packet) {
                Some(said) => assert_eq!(said, verdict, "packet {packet}"),
                // Its decoder has told of it; and answers are not for this port.
                None => assert!(
                    verdict == "malformed" || packet == 4 || packet == 5,
                    "{packet}"
                ),
            }
        }
    }
}
