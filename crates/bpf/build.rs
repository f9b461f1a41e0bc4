//! Compiles bpf/*/*.bpf.c with clang (`CLANG` chooses which) into skeletons, and
//! the numbers of bpf/abi/*.h into constants.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

#[path = "build/constants.rs"]
mod constants;
#[path = "build/objects.rs"]
mod objects;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let bpf = PathBuf::from("../../bpf");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let includes = objects::includes(&bpf, &arch);
    let mut command = Command::new(&clang);
    command.args(&includes);
    let abi = constants::generate(&bpf.join("abi"), command, &out);
    fs::write(out.join("abi.rs"), abi).expect("the build's directory is writable");
    for object in objects::OBJECTS {
        let source = bpf.join(format!("{object}.bpf.c"));
        let name = object.rsplit('/').next().unwrap_or(object);
        libbpf_cargo::SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args(
                includes
                    .iter()
                    .map(String::as_str)
                    .chain(objects::flags(&arch)),
            )
            .reference_obj(true)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|e| panic!("cannot build {}: {e:#}", source.display()));
    }
    println!("cargo:rustc-env=WEIR_BPF_BUILD={}", fingerprint(&bpf));
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-env-changed=CLANG");
}

/// FNV-1a over the sources: a daemon that finds pins of another fingerprint
/// makes a new generation. Identifies a build, guards against nobody.
fn fingerprint(bpf: &Path) -> u64 {
    let mut files = sources(bpf);
    files.sort();
    files
        .iter()
        .flat_map(|path| fs::read(path).expect("sources are readable"))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// The C files in a directory and in those below it.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("bpf/ is readable").flatten();
    entries
        .flat_map(|entry| {
            let path = entry.path();
            match path.extension() {
                _ if path.is_dir() => sources(&path),
                Some(e) if e == "c" || e == "h" => vec![path],
                _ => Vec::new(),
            }
        })
        .collect()
}
