//! Gives the shared library its soname: 0 is the version of the C interface.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweir_ring.so.0");
}
