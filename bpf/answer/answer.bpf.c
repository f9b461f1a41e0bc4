// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Programs that answer: the firewall tail-calls them, each is loaded when it is first
 * wanted, and they belong to the instance. Whatever tables come and go, they read none
 * of them: what is to be known of a packet is in its request. */
#include "answer/decoy.h"
#include "answer/reject.h"
#include "balance/balance.h"
#include "balance/encap.h"
#include "answer/tarpit.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
