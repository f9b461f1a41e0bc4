// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* What a gateway does on tc: it judges what it forwards (forward.h), and overwrites
 * tokens of others (strip.h). An object of its own, over the tables of token.bpf.c: hosts
 * that are no gateway have nothing of it. */
#include "token/strip.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
