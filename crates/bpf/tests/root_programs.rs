//! Programs over tables that are there: each is loaded when its hook first asks for
//! it, and no other. Root: loads BPF.

use weir_bpf::{
    BanCounts, Generation, Geometry, Key, Options, Placed, Slot,
    attachment::Hook,
    pins::{self, InstanceDir},
    probe, prog_test_run,
    table::NEVER,
};

/// `XDP_DROP` and `XDP_PASS` of linux/bpf.h.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn options() -> Options {
    Options::bans(Geometry::for_bans(BanCounts::each(100)))
}

/// In the kernel, over the tables of this generation.
fn loaded(generation: &Generation) -> Vec<String> {
    probe::programs_over(&generation.policies).unwrap()
}

/// What XDP does with a TCP segment from 192.0.2.`last`, and from 2001:db8::`last`.
fn verdicts(generation: &Generation, last: u8) -> [u32; 2] {
    let mut v4 = vec![0u8; 74];
    v4[12..14].copy_from_slice(&[0x08, 0x00]);
    (v4[14], v4[17], v4[22], v4[23]) = (0x45, 40, 64, 6);
    v4[26..30].copy_from_slice(&[192, 0, 2, last]);
    let mut v6 = vec![0u8; 74];
    v6[12..14].copy_from_slice(&[0x86, 0xdd]);
    (v6[14], v6[19], v6[20], v6[21]) = (0x60, 20, 6, 64);
    v6[22..26].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    v6[37] = last;
    let program = generation.program(Hook::Xdp).unwrap();
    [v4, v6].map(|frame| prog_test_run::packet(program, &frame, 1).unwrap().verdict)
}

#[test]
fn root_a_program_is_loaded_when_its_hook_asks() {
    let generation = Generation::create(1, &options(), None).unwrap();
    assert_eq!(loaded(&generation), [""; 0], "tables need no program");
    generation.program(Hook::Tcx).unwrap();
    assert_eq!(loaded(&generation), ["weir_tcx"]);
    // The same program, on a kernel without tcx.
    generation.program(Hook::ClsBpf).unwrap();
    generation.program(Hook::Tcx).unwrap();
    assert_eq!(loaded(&generation), ["weir_tcx"]);
    generation.program(Hook::Xdp).unwrap();
    assert_eq!(loaded(&generation), ["weir_tcx", "weir_xdp"]);
    for hook in [Hook::Egress, Hook::EgressClsBpf] {
        let refused = generation.program(hook).unwrap_err().to_string();
        let named = format!("cannot load the program weir_out for {}: ", hook.name());
        assert!(refused.starts_with(&named), "{refused}");
    }
    assert_eq!(loaded(&generation), ["weir_tcx", "weir_xdp"]);
}

struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A daemon that takes tables over finds the program that is in use, and loads
/// others over the same tables, under the same seed.
#[test]
fn root_programs_are_loaded_over_tables_of_an_earlier_daemon() {
    let instance = format!("test-programs-{}", std::process::id());
    let root = std::path::Path::new(pins::DEFAULT_ROOT);
    let dir = InstanceDir::open(root, &instance).expect("bpffs");
    let (dir, _guard) = (dir.generation(1), Removed(root.join(&instance)));
    let made = Generation::create(1, &options(), None).unwrap();
    made.program(Hook::Tcx).unwrap();
    made.pin(&dir).unwrap();
    for banned in ["192.0.2.7", "2001:db8::7"] {
        let slot = Slot {
            key: Key::of(weir_core::Prefix::host(banned.parse().unwrap())).unwrap(),
            policy: 1,
            expiry: NEVER,
        };
        assert_eq!(made.table.insert(slot), Placed::New);
    }
    drop(made);
    let adopted = Generation::adopt(&dir).unwrap();
    assert_eq!(loaded(&adopted), ["weir_tcx"], "it is pinned");
    assert_eq!(verdicts(&adopted, 7), [XDP_DROP; 2]);
    assert_eq!(verdicts(&adopted, 8), [XDP_PASS; 2]);
    assert_eq!(loaded(&adopted), ["weir_tcx", "weir_xdp"]);
    drop(adopted);
    let again = Generation::adopt(&dir).unwrap();
    assert_eq!(loaded(&again), ["weir_tcx", "weir_xdp"], "pinned, too");
}
