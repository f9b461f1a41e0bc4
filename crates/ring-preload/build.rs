//! Keeps the ring library's C interface inside: exported, its symbols would
//! stand in for those of a server that links the library itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
