//! Runs the tests of the Python binding against the library just built.

use std::path::Path;
use std::process::Command;

#[test]
fn the_python_binding_passes_its_own_tests() {
    let built = std::env::current_exe()
        .expect("ourselves")
        .with_file_name("libweir_ring.so");
    let output = Command::new("python3")
        .args(["-W", "error", "-B", "-m", "unittest", "-v"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python"))
        .env("WEIR_RING_LIBRARY", built)
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK"), "{said}");
}
