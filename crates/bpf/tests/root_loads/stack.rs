//! The stack of the packet path's programs as Linux before 6.8 counts it: of each chain
//! of calls the frames of all functions, each rounded up to 32 bytes, are at most 512
//! together. Later kernels count in steps of 16 or not across global functions, so
//! none of them tells when an older one would refuse the object.

use std::{collections::BTreeMap, ffi::OsStr, mem::MaybeUninit};

use libbpf_rs::{
    Object,
    libbpf_sys::bpf_insn,
    skel::{OpenSkel, Skel, SkelBuilder},
};
use weir_bpf::{
    AnswerProgram,
    programs::netfilter_supported,
    skeleton::{answer::AnswerSkelBuilder, firewall::FirewallSkelBuilder},
};

/// MAX_BPF_STACK.
const MOST: u32 = 512;
/// In which frames were counted: those of the kernel's interpreter.
const GRAIN: u32 = 32;

const FRAME_POINTER: u8 = 10;
const CALL: u8 = 0x85;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNC: u8 = 4;
const LOAD_IMM64: u8 = 0x18;
const MOVE: u8 = 0xbf;
const ADD_IMM: u8 = 0x07;

/// One function, from its first instruction up to the next function's.
struct Function {
    frame: u32,
    calls: Vec<usize>,
}

/// The functions of a program, by their first instructions, the program's own at 0.
fn functions(program: &[bpf_insn]) -> BTreeMap<usize, Function> {
    let target = |at: usize| {
        let (insn, next) = (&program[at], at as i64 + 1);
        let calls = insn.code == CALL && insn.src_reg() == PSEUDO_CALL;
        // Old kernels count a callback as called where its address is taken.
        let takes = insn.code == LOAD_IMM64 && insn.src_reg() == PSEUDO_FUNC;
        (calls || takes)
            .then(|| usize::try_from(next + i64::from(insn.imm)).expect("calls are resolved"))
    };
    let called = (0..program.len()).filter_map(target);
    let mut starts: Vec<usize> = std::iter::once(0).chain(called).collect();
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([program.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| {
            let frame = frame(&program[start..end]);
            let calls = (start..end).filter_map(target).collect();
            (start, Function { frame, calls })
        })
        .collect()
}

/// How far below the frame pointer a function reaches: by an access through it, or
/// by an address that is made of it.
fn frame(function: &[bpf_insn]) -> u32 {
    let mut lowest = 0;
    // Registers that hold an address on the stack.
    let mut offsets = [None; 16];
    offsets[usize::from(FRAME_POINTER)] = Some(0);
    let mut skip = false;
    for insn in function {
        if std::mem::take(&mut skip) {
            continue; // the second half of a 64-bit constant
        }
        let (to, from) = (usize::from(insn.dst_reg()), usize::from(insn.src_reg()));
        let mut reached = |base: Option<i32>, by: i32| {
            let at = base.map(|base| base + by);
            lowest = lowest.min(at.unwrap_or(0));
            at
        };
        match (insn.code, insn.code & 7) {
            (LOAD_IMM64, _) => {
                offsets[to] = None;
                skip = true;
            }
            (CALL, _) => offsets[..6].fill(None),
            (MOVE, _) => offsets[to] = offsets[from],
            (ADD_IMM, _) => offsets[to] = reached(offsets[to], insn.imm),
            // A load from memory, or a store to it.
            (_, 1) => {
                reached(offsets[from], insn.off.into());
                offsets[to] = None;
            }
            (_, 2 | 3) => {
                reached(offsets[to], insn.off.into());
            }
            // Arithmetic of a wider kind leaves the base's offset as it is.
            (_, 7) => {}
            (_, 4) => offsets[to] = None,
            _ => {}
        }
    }
    u32::try_from(-lowest).expect("at or below the frame pointer")
}

/// The frames of the deepest chain of calls, the program's own first.
fn deepest(program: &[bpf_insn]) -> Vec<u32> {
    fn from(functions: &BTreeMap<usize, Function>, at: usize) -> Vec<u32> {
        let function = &functions[&at];
        let chains = function.calls.iter().map(|callee| from(functions, *callee));
        let mut chain = chains.max_by_key(|chain| taken(chain)).unwrap_or_default();
        chain.insert(0, function.frame);
        chain
    }
    from(&functions(program), 0)
}

fn taken(chain: &[u32]) -> u32 {
    let round = |frame: &u32| (*frame).max(1).next_multiple_of(GRAIN);
    chain.iter().map(round).sum()
}

fn insn(code: u8, registers: [u8; 2], off: i16, imm: i32) -> bpf_insn {
    let mut insn = bpf_insn {
        code,
        off,
        imm,
        ..Default::default()
    };
    insn.set_dst_reg(registers[0]);
    insn.set_src_reg(registers[1]);
    insn
}

#[test]
fn chains_of_calls_are_added_up_by_rounded_frames() {
    const STORE: u8 = 0x7b;
    const EXIT: u8 = 0x95;
    let call = |distance| insn(CALL, [0, PSEUDO_CALL], 0, distance);
    let program = |first: i16, second: i32, third: i16| {
        [
            insn(STORE, [FRAME_POINTER, 1], first, 0),
            call(3), // of the second
            call(7), // of the third alone
            insn(LOAD_IMM64, [1, 0], 0, 0),
            insn(0, [0, 0], 0, 0),
            // The second: makes an address, and calls the third.
            insn(MOVE, [2, FRAME_POINTER], 0, 0),
            insn(ADD_IMM, [2, 0], 0, second),
            insn(0x05, [0, 0], 0, 0),
            call(1),
            insn(EXIT, [0, 0], 0, 0),
            // The third: stores behind a copy of the frame pointer.
            insn(MOVE, [3, FRAME_POINTER], 0, 0),
            insn(STORE, [3, 1], third, 0),
            insn(EXIT, [0, 0], 0, 0),
        ]
    };
    let chain = |first, second, third| deepest(&program(first, second, third));
    assert_eq!(chain(-304, -136, -8), [304, 136, 8]);
    assert_eq!(taken(&chain(-304, -136, -8)), 320 + 160 + 32);
    // Eight bytes more in any of them are 32 more, which is refused.
    for over in [(-328, -136, -8), (-304, -168, -8), (-304, -136, -40)] {
        assert_eq!(taken(&chain(over.0, over.1, over.2)), MOST + 32);
    }
    // A function that keeps nothing on the stack takes a step, too.
    assert_eq!(taken(&chain(0, 0, 0)), 3 * GRAIN);
}

/// Checks a program that is loaded: before that no calls are resolved.
pub fn check_program(name: &OsStr, program: &[bpf_insn]) {
    let chain = deepest(program);
    let bytes = taken(&chain);
    println!("{name:?}: {bytes} bytes of stack: {chain:?}");
    assert!(chain.len() > 1, "{name:?} calls functions");
    assert!(bytes <= MOST, "{name:?}: {chain:?}");
}

/// Checks those programs of an object that are loaded; returns their number.
fn check(object: &Object) -> usize {
    let mut programs = 0;
    for program in object.progs() {
        if !program.autoload() {
            eprintln!("left out, for this kernel lacks it: {:?}", program.name());
            continue;
        }
        check_program(program.name(), program.insns());
        programs += 1;
    }
    programs
}

#[test]
fn root_every_chain_of_calls_fits_the_stack_of_old_verifiers() {
    let mut storage = MaybeUninit::uninit();
    let mut open = FirewallSkelBuilder::default().open(&mut storage).unwrap();
    // What cannot be loaded has no calls resolved.
    open.progs
        .weir_netfilter
        .set_autoload(netfilter_supported());
    let loaded = open.load().unwrap();
    let programs = check(loaded.object());
    assert!(programs >= 4, "xdp, xdp_generic, tcx and out: {programs}");

    let mut storage = MaybeUninit::uninit();
    let mut open = AnswerSkelBuilder::default().open(&mut storage).unwrap();
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy();
        let answer = match () {
            () if name.contains("decoy") => AnswerProgram::Decoy,
            () if name.contains("reject") => AnswerProgram::Reject,
            () if name.contains("tarpit") => AnswerProgram::Tarpit,
            () => AnswerProgram::Balance,
        };
        program.set_autoload(answer.is_supported());
    }
    check(open.load().unwrap().object());
}
