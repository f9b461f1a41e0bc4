//! What each supported clang makes of bpf/*/*.bpf.c loads: the compiler chooses what
//! lies on the stack, and what the verifier sees. A build carries the objects of one,
//! and most machines that build weir have another than the next.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use libbpf_rs::ObjectBuilder;

use crate::{objects, stack};

/// The compilers of Debian 12 and 13.
const COMPILERS: [&str; 2] = ["clang-14", "clang-19"];

/// Objects of the packet path, whose stack is counted as old kernels do, too.
const COUNTED: [&str; 2] = ["firewall/firewall", "answer/answer"];

fn is_installed(clang: &str) -> bool {
    let told = Command::new(clang).arg("--version").output();
    told.is_ok_and(|out| out.status.success())
}

/// libbpf's headers as the build has them, in a directory that is searched.
fn write_headers(dir: &Path) {
    let bpf = dir.join("bpf");
    fs::create_dir_all(&bpf).unwrap();
    for (name, text) in libbpf_rs::libbpf_sys::API_HEADERS {
        fs::write(bpf.join(name), text).unwrap();
    }
}

/// Compiles an object as the build does; returns where it is, in `dir`.
fn compile(clang: &str, object: &str, dir: &Path) -> PathBuf {
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let arch = env::consts::ARCH;
    let to = dir.join(format!("{clang}-{object}.o").replace('/', "-"));
    let made = Command::new(clang)
        .args(objects::includes(&bpf, arch))
        .args(objects::flags(arch))
        .arg("-I")
        .arg(dir)
        .args(["-fno-stack-protector", "-g", "-O2", "-target", "bpf", "-c"])
        .arg(bpf.join(format!("{object}.bpf.c")))
        .arg("-o")
        .arg(&to)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{clang}: {object}: {said}");
    to
}

/// The names of an object's programs.
fn programs(object: &Path) -> Vec<String> {
    let open = ObjectBuilder::default().open_file(object).unwrap();
    let names = open.progs().map(|p| p.name().to_string_lossy().into());
    names.collect()
}

/// Loads one program of an object; `count`: and counts its stack.
fn load(object: &Path, program: &str, count: bool) -> libbpf_rs::Result<()> {
    let mut open = ObjectBuilder::default().open_file(object)?;
    for mut other in open.progs_mut() {
        let is_it = other.name() == program;
        other.set_autoload(is_it);
    }
    let loaded = open.load()?;
    let mut programs = loaded.progs();
    let it = programs
        .find(|p| p.name() == program)
        .expect("it was there");
    if count {
        stack::check_program(it.name(), it.insns());
    }
    Ok(())
}

/// What the kernel refuses of the build's own clang as well, it lacks: other tests load
/// that. `weir_tarpit_tc` took 544 bytes of stack with clang 19, and 512 with clang 14.
#[test]
fn root_objects_of_each_clang_load() {
    let own = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let dir = tempfile::tempdir().unwrap();
    write_headers(dir.path());
    for clang in COMPILERS {
        if !is_installed(clang) {
            println!("skipped: no {clang} (probe: {clang} --version)");
            continue;
        }
        for object in objects::OBJECTS {
            let made = compile(clang, object, dir.path());
            let count = COUNTED.contains(&object);
            let mut loaded = 0;
            for program in programs(&made) {
                let Err(error) = load(&made, &program, count) else {
                    loaded += 1;
                    continue;
                };
                let owns = compile(&own, object, dir.path());
                if let Err(its) = load(&owns, &program, false) {
                    eprintln!("left out, for this kernel lacks it: {program}: {its}");
                    continue;
                }
                panic!("{program} of {clang} is refused, of {own} it is not: {error}");
            }
            assert!(loaded > 0, "{clang}: {object}");
        }
    }
}
