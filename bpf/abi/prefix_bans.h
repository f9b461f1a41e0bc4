/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Bans of prefixes of any length. */
#ifndef WEIR_ABI_PREFIX_BANS_H
#define WEIR_ABI_PREFIX_BANS_H

#include <linux/types.h>

/* Bans of any prefix, in a trie (prefix_bans.h). The words of the prefix itself
 * come first, then those of the prefixes that cover it. */
#define MAX_PREFIX_BANS	 8192
#define PREFIX_BAN_WORDS 8
struct prefix_ban_words {
	__u32 own;   /* words of the prefix itself */
	__u32 words; /* all words, those of the covering prefixes included */
	__u64 word[PREFIX_BAN_WORDS];
};

_Static_assert(sizeof(struct prefix_ban_words) == 72, "abi");

#endif
