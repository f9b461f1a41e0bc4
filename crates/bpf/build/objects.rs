//! The objects that bpf/*/*.bpf.c become, and how clang is called for them: by the
//! build, and by the test that loads what other versions of clang make of them.

use std::path::Path;

/// One object, and one skeleton, each.
pub const OBJECTS: [&str; 14] = [
    "firewall/firewall",
    "answer/answer",
    "balance/decap",
    "identity/identity",
    "identity/writers",
    "options/connections",
    "options/inject",
    "token/token",
    "token/forward_xdp",
    "token/gate",
    "token/gateway",
    "tools/clock",
    "tools/generator",
    "tools/hooks",
];

/// The arguments by which clang finds the headers.
pub fn includes(bpf: &Path, arch: &str) -> [String; 2] {
    [
        // Debian keeps asm/ under the multiarch directory, which clang does not
        // search for the bpf target.
        format!("-I/usr/include/{arch}-linux-gnu"),
        format!("-I{}", bpf.display()),
    ]
}

/// The arguments beside those, `-O2`, `-g` and the target, which libbpf-cargo has.
pub fn flags(arch: &str) -> [&'static str; 4] {
    let machine = match arch {
        "aarch64" => "-D__TARGET_ARCH_arm64",
        "riscv64" => "-D__TARGET_ARCH_riscv",
        _ => "-D__TARGET_ARCH_x86",
    };
    [
        // 32-bit jumps and registers (Linux 5.1): clang 14 has fewer by default, and
        // an innocent packet pays 1 ns for it.
        "-mcpu=v3", "-Wall", "-Werror",
        // Registers of tracepoints' arguments have the machine's names.
        machine,
    ]
}
