/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What is written for verifiers, and for which. All of it costs an instruction or
 * two at run time and none of it changes a result.
 *
 * The verifier follows each path until it meets a state that it has seen. Paths
 * that differ in a number which no longer matters are therefore made to look alike
 * (VERIFIER_FORGET, one function for several callers), and what would be a branch
 * is made a number (not_zero, is_zero, flag). Any kernel; before Linux 6.4, which
 * began to prune by what is read later, the budget of a million instructions is
 * exceeded without (docs/kernel.md: 5.10, 6.1).
 *
 * barrier_var (libbpf): clang knows a bound, and leaves the test out or makes it of
 * another register; behind the barrier the test is of the register that is used.
 * Verifiers before Linux 6.8 conclude nothing of "other than 0": lengths are tested
 * as "one less is below"; they round each frame of the stack up to 32 bytes, 512 in
 * all; and they check global functions that nobody calls, so each begins with a test
 * of what it is there for. */
#ifndef WEIR_VERIFIER_H
#define WEIR_VERIFIER_H

#include "lib/control.h"

/* Has the verifier forget what it knows of a scalar: paths that differ in it only are
 * one path from here on. */
#define VERIFIER_FORGET(x) ((x) ^= control.zero)

/* Sign bit: x is not 0. The barrier keeps clang from making it a branch. */
static __always_inline __u64 not_zero(__u64 x)
{
	x |= -x;
	asm volatile("" : "+r"(x));
	return x;
}

/* All ones when x is 0, else 0. */
static __always_inline __u64 is_zero(__u64 x)
{
	return (not_zero(x) >> 63) - 1;
}

/* 1 or 0, opaque to clang and so one path for the verifier. */
static __always_inline __u64 flag(__u64 x)
{
	x &= 1;
	asm volatile("" : "+r"(x));
	return x;
}

#endif
