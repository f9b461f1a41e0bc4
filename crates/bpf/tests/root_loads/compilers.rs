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
const COUNTED: [&str; 4] = [
    "firewall/firewall",
    "answer/answer",
    "token/gateway",
    "token/forward_xdp",
];

/// Objects of which older kernels may load nothing: Linux 6.1 of the first, 5.16 of the others.
const OF_LATER_KERNELS: [&str; 3] = ["tools/hooks", "token/gateway", "token/forward_xdp"];

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

/// The names of an object's programs; `has_levels`: each as it is, and as at level push.
fn programs(object: &Path, has_levels: bool) -> Vec<(String, bool)> {
    let open = ObjectBuilder::default().open_file(object).unwrap();
    let names = open
        .progs()
        .map(|p| p.name().to_string_lossy().into_owned());
    let ways: &[bool] = match has_levels {
        true => &[false, true],
        false => &[false],
    };
    names
        .flat_map(|name| ways.iter().map(move |way| (name.clone(), *way)))
        .collect()
}

/// The object whose programs are others at level push of `[app]`.
const OF_LEVELS: &str = "identity/identity";

/// Loads one program of an object; `count`: and counts its stack; `is_push`: at that level.
fn load(object: &Path, program: &str, count: bool, is_push: bool) -> libbpf_rs::Result<()> {
    let mut open = ObjectBuilder::default().open_file(object)?;
    if is_push {
        let mut maps = open.maps_mut();
        let mut rodata = maps
            .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
            .expect("it has one");
        // `ident_cfg` alone: push, diag.
        let cfg = rodata.initial_value_mut().expect("it has a value");
        assert_eq!(cfg.len(), 8, "something is beside it");
        cfg[..2].fill(1);
    }
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
            for (program, is_push) in programs(&made, object == OF_LEVELS) {
                let Err(error) = load(&made, &program, count, is_push) else {
                    loaded += 1;
                    continue;
                };
                let owns = compile(&own, object, dir.path());
                if let Err(its) = load(&owns, &program, false, is_push) {
                    eprintln!(
                        "left out, for this kernel lacks it: {program} (push: {is_push}): {its}"
                    );
                    continue;
                }
                panic!("{program} of {clang} is refused, of {own} it is not: {error}");
            }
            assert!(
                loaded > 0 || OF_LATER_KERNELS.contains(&object),
                "{clang}: {object}"
            );
        }
    }
}
