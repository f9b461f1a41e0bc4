//! Reals that a command checks.

use super::*;

/// Processes of this host with these words, which no others have.
fn running(words: &[&str]) -> usize {
    let wanted: String = words.iter().map(|word| format!("{word}\0")).collect();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| *line == wanted).count()
}

/// Runs this with a shell of the administrator's own choice.
fn checked_by_shell(segment: &PoolNetwork, reals: &[&str], script: &str) -> String {
    let reals = reals
        .iter()
        .map(|real| format!("{{ address = \"{real}\" }}"));
    let reals = reals.collect::<Vec<_>>().join(", ");
    let script = script.replace("DIR", &segment.dir.path().display().to_string());
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n[balance]\ninterface = \"eth0\"\n\
         [pool.web]\nvip = [\"{}\", \"{}\"]\nports = [\"80/tcp\"]\nreals = [{reals}]\n\
         check = {{ command = [\"/bin/sh\", \"-c\", '''{script}'''], interval = \"1s\", timeout = \"8s\", rise = 1, fall = 1 }}\n",
        VIP[0], VIP[1]
    )
}

#[test]
fn root_a_command_says_whether_a_real_lives() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    // More output than a pipe holds, on both ends of it.
    let script = "seq 20000; seq 20000 >&2; test -e DIR/hang && sleep 6123; \
                  test ! -e \"DIR/$WEIR_POOL $WEIR_REAL $WEIR_VIP $WEIR_PORT\" || exit 7";
    let config = checked_by_shell(&segment, &OF_EACH_FAMILY, script);
    let weir = Weir::start(&segment.host, &config);
    live_soon(&weir, 2);
    assert_eq!(segment.all_served_by(40), BTreeSet::from([0, 1]));
    for (number, (real, vip)) in OF_EACH_FAMILY.into_iter().zip(VIP).enumerate() {
        let ill = segment.dir.path().join(format!("web {real} {vip} 80"));
        fs::write(&ill, "").unwrap();
        live_soon(&weir, 1);
        assert_eq!(segment.all_served_by(20), [1 - number].into());
        let shown = weir.ask(&["pool", "show", "web"]).out;
        assert!(shown.contains("command: exit status: 7"), "{shown}");
        fs::remove_file(&ill).unwrap();
        live_soon(&weir, 2);
    }
    // What hangs is ended, with what it has started, and no other check waits for it.
    let hang = segment.dir.path().join("hang");
    fs::write(&hang, "").unwrap();
    live_soon(&weir, 0);
    let shown = weir.ask(&["pool", "show", "web"]).out;
    assert!(shown.contains("command: no answer in time"), "{shown}");
    fs::remove_file(&hang).unwrap();
    live_soon(&weir, 2);
    soon("nothing to be left", || {
        (running(&["sleep", "6123"]) == 0).then_some(())
    });
}

#[test]
fn root_so_many_commands_run_at_once() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let reals: Vec<_> = (101..=120).map(|n| format!("192.0.2.{n}")).collect();
    let reals: Vec<_> = reals.iter().map(String::as_str).collect();
    let config = checked_by_shell(&segment, &reals, "sleep 6124");
    let config = config.replace("timeout = \"8s\"", "timeout = \"4s\"");
    let mut weir = Weir::start(&segment.host, &config);
    // Every one has its turn, and no moment has more than sixteen.
    let mut most = 0;
    soon("each real to be checked", || {
        most = most.max(running(&["sleep", "6124"]));
        let reals = pool(&weir)["reals"].as_array().unwrap().clone();
        reals
            .iter()
            .all(|real| real["state"] == "down")
            .then_some(())
    });
    assert_eq!(most, 16);
    weir.kill();
    soon("nothing to be left", || {
        (running(&["sleep", "6124"]) == 0).then_some(())
    });
}
