//! A daemon that has keys dumps no core, also outside its unit; one without dumps it.

use std::os::unix::process::ExitStatusExt;

use super::{dumps, lab::Lab};

#[test]
fn root_a_daemon_with_keys_dumps_no_core() {
    let Some(mut lab) = Lab::new("dump") else {
        return;
    };
    lab.server.copy_keys(&lab.client);
    let server = &mut lab.server;
    let dir = server.weir.dir.path().to_owned();
    if dumps::are_none_here(&dir) {
        return;
    }
    server.weir.under = dumps::words(&dir);
    server.configure("");
    server.weir.start();
    let ended = server.weir.end_by("ABRT");
    assert!(ended.core_dumped(), "without keys: {ended:?}");
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("core")
        {
            std::fs::remove_file(path).unwrap();
        }
    }

    let aggregate = "ab".repeat(32);
    server.require(&aggregate, "");
    server.weir.start();
    assert_eq!(server.token()["requirements"][0]["name"], "web");
    let ended = server.weir.end_by("ABRT");
    assert_eq!(ended.signal(), Some(6));
    assert!(!ended.core_dumped(), "{ended:?}");
    assert!(!dumps::is_in(&dir));
    // Keys that come with a reload.
    server.configure("");
    server.weir.start();
    server.require(&aggregate, "");
    server.weir.done(&["reload"]);
    let ended = server.weir.end_by("ABRT");
    assert!(!ended.core_dumped(), "after a reload: {ended:?}");
    assert!(!dumps::is_in(&dir));
}
