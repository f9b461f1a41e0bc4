//! A verb that has read keys dumps no core.

use std::{fs, os::unix::process::ExitStatusExt, process::Command};

use super::{IDENTITY, Lab, WEIR, dumps};

#[test]
fn a_verb_that_has_read_keys_dumps_no_core() {
    let lab = Lab::new();
    let dir = lab.dir.path();
    if dumps::are_none_here(dir) {
        return;
    }
    let fifo = dir.join("capture");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let words = dumps::words(dir);
    let secret = lab.write("daf.key", b"any bytes\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&secret, mode).unwrap();
    let keys = dir.join("keys");
    let identity = IDENTITY.to_string();
    let of_tokens = ["--aggregate", &identity, "--keys", keys.to_str().unwrap()];
    let of_daf = ["--daf", secret.to_str().unwrap()];
    for more in [&of_tokens[..], &of_daf] {
        let mut verb = Command::new(&words[0])
            .args(&words[1..])
            .args([WEIR, "token", "verify"])
            .args(more)
            .arg(&fifo)
            .spawn()
            .unwrap();
        // Keys are read before the capture is opened, which this waits for.
        let _writer = fs::File::options().write(true).open(&fifo).unwrap();
        let done = Command::new("kill")
            .args(["-ABRT", &verb.id().to_string()])
            .status()
            .unwrap();
        assert!(done.success());
        let ended = verb.wait().unwrap();
        assert_eq!(ended.signal(), Some(6));
        assert!(!ended.core_dumped(), "{more:?}");
        assert!(!dumps::is_in(dir), "{more:?}");
    }
}
