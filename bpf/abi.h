/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the kernel side and user space share: table entries, counters, events,
 * and every number in them. Rust takes the types from the skeletons and the
 * numbers from crates/bpf/src/abi.rs, which the build makes of these headers;
 * nobody writes them a second time. A change here is a new WEIR_ABI. */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#include "abi/allow.h"
#include "abi/answer.h"
#include "abi/balance.h"
#include "abi/ban.h"
#include "abi/class.h"
#include "abi/control.h"
#include "abi/event.h"
#include "abi/flow.h"
#include "abi/identity.h"
#include "abi/inject.h"
#include "abi/netfilter.h"
#include "abi/policy.h"
#include "abi/prefix_bans.h"
#include "abi/reason.h"
#include "abi/token.h"
#include "abi/tunnel.h"

#endif
