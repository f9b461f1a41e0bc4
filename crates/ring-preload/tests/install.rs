//! `make install-ring`: what a user who installed it compiles, imports and
//! preloads is what was built, and `make uninstall-ring` leaves nothing.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{ServerFiles, shim};

/// The output of a command, which must succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        if entry.file_type().expect("its type").is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn the_installed_library_is_found_by_compilers_python_and_the_loader() {
    let place = ServerFiles::new();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let prefix = place.file("usr");
    let make = |target: &str| {
        let built = shim();
        let built = built.parent().expect("its directory");
        let mut make = Command::new("make");
        make.args(["-s", "-C", root, target])
            .arg(format!("LIBRARIES={}", built.display()))
            .arg(format!("PREFIX={}", prefix.display()))
            .env_remove("MAKEFLAGS");
        run(&mut make);
    };
    make("install-ring");
    // Again, over what is there.
    make("install-ring");

    let library = prefix.join("lib");
    let packages = library.join("pkgconfig");
    let flags = |arguments: &[&str]| -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", &packages).args(arguments);
        let flags = run(command.arg("weir_ring"));
        flags.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let writer = place.file("writer");
    let mut gcc = Command::new("gcc");
    gcc.arg(format!("{root}/crates/ring/examples/c/writer.c"));
    gcc.args(flags(&["--cflags", "--libs"]))
        .arg("-o")
        .arg(&writer);
    run(&mut gcc);
    // As ldconfig lets it be found.
    let installed = |program: &Path| {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &library);
        command
    };
    let text = place.file("text");
    std::fs::write(&text, "one\ntwo\n").expect("written");
    let mut command = installed(&writer);
    command.stdin(std::fs::File::open(&text).expect("the text"));
    run(command.arg(place.ring().join("c")));

    let mut command = installed(Path::new("/usr/bin/python3"));
    command.env("PYTHONPATH", library.join("python3/dist-packages"));
    command.arg("-Bc").arg(
        "import sys, weir_ring\n\
         for record in weir_ring.Reader(sys.argv[1]): print(record.payload.decode())",
    );
    assert_eq!(run(command.arg(place.ring().join("c"))), "one\ntwo\n");

    let mut command = place.under_shim("/usr/bin/python3", &["a.log"], false);
    command.env("LD_LIBRARY_PATH", &library);
    command.env("LD_PRELOAD", "libweir_ring_preload.so");
    command.args(["-c", "import sys; open(sys.argv[1], 'w').write('three')"]);
    run(command.arg(place.file("a.log")));
    let mut lines = place.reader();
    assert_eq!(lines.with("three", 1), ["three"]);

    make("uninstall-ring");
    assert_eq!(files(&prefix), Vec::<PathBuf>::new());
}
