/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Level push: the mappings of an address space, where the kernel does not go through them
 * for a program (bpf_iter_task_vma_new, Linux 6.7).
 *
 * They are in a tree (a maple tree, Linux 6.1), which is gone through here without its
 * lock. Whoever does that looks afterwards whether a change has been made meanwhile, and
 * forgets what he has read. So nothing that is read is relied on, but that the steps
 * end. */
#ifndef WEIR_IDENTITY_TREE_H
#define WEIR_IDENTITY_TREE_H

#include "identity/objects.h"

/* Of what leads to a node: the bits that are none of its address, what says in the lowest
 * ones that it is one, at the root, and types. */
#define NODE_MASK   255ull
#define NODE_ROOT   2
#define NODE_LEAF   1
#define NODE_RANGE  2
#define NODE_ARANGE 3
/* Slots that are looked at on the way to the end of one leaf, at most: nodes have 16, and
 * 65,536 mappings are 7 nodes deep if each is half full. */
#define NODE_STEPS 256

struct ident_tree {
	struct ident_sum sum;
	struct mm_struct *mm;
	__u64 begin; /* in nanoseconds */
	__u64 node;  /* its address and type; 0: at the root */
	__u64 max;   /* the highest address of the node */
	__u64 index; /* from here on nothing has been seen yet */
	__u32 slot;
	__u32 end;   /* the last slot of the node that is used */
	__u32 since; /* the step that was at the root last */
	__u32 sequence;
	__u32 done;  /* the last leaf has been seen */
	__u32 whole; /* and nothing has been changed meanwhile */
};

static __always_inline __u64 word_at(__u64 address)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

/* As ma_data_end of lib/maple_tree.c. */
static __always_inline __u32 last_slot(__u64 base, __u32 type, __u64 max)
{
	__u64 meta = type == NODE_ARANGE
			     ? bpf_core_field_offset(struct maple_arange_64, meta.end)
			     : bpf_core_field_offset(struct maple_range_64, meta.end);
	__u64 pivot;
	__u8 end = 0;

	if (type != NODE_ARANGE) {
		pivot = word_at(base +
				bpf_core_field_offset(struct maple_range_64, pivot) +
				14 * sizeof(pivot));
		if (pivot)
			return pivot == max ? 14 : 15;
	}
	bpf_probe_read_kernel(&end, sizeof(end), (void *)(base + meta));
	return end & 15;
}

/* Goes to a node; 1: there is none. */
static __always_inline int enter_node(struct ident_tree *tree, __u64 entry, __u64 max)
{
	__u32 type = entry >> 3 & 15;

	if (entry <= 4096 || type < NODE_LEAF || type > NODE_ARANGE)
		return 1;
	tree->node = entry;
	tree->max = max;
	tree->slot = 0;
	tree->end = last_slot(entry & ~NODE_MASK, type, max);
	return 0;
}

static __always_inline void see_area(struct ident_tree *tree, struct vm_area_struct *area)
{
	const struct ident_control *control = control_get();
	struct ident_area seen = {};
	struct file *file;

	if (!control || !(BPF_CORE_READ(area, vm_flags) & VM_EXEC))
		return;
	file = BPF_CORE_READ(area, vm_file);
	seen.start = BPF_CORE_READ(area, vm_start);
	seen.inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	seen.is_special = BPF_CORE_READ(area, vm_ops) != NULL;
	seen.is_altered = BPF_CORE_READ(area, anon_vma) != NULL;
	add_area(&tree->sum, control, &seen);
}

/* From the root to the next leaf, or from the first one on if a change has been made
 * meanwhile: else it might go round in what is none any more. */
static __always_inline long tree_root(struct ident_tree *tree, __u32 step)
{
	struct mm_struct *mm = tree->mm;
	__u64 order = 0, root;
	__u32 sequence;

	/* What was read before this is read earlier than the sequence. */
	root = __sync_fetch_and_add(&order, step);
	sequence = sequence_of(mm);
	tree->since = step;
	if (tree->done && sequence == tree->sequence) {
		tree->whole = 1;
		return 1;
	}
	if (sequence != tree->sequence || !tree->index) {
		tree->sequence = sequence;
		tree->index = tree->done = 0;
		tree->sum.last = tree->sum.a = tree->sum.b = tree->sum.flags = 0;
		if (step && bpf_ktime_get_ns() - tree->begin > IDENT_WALK_NS)
			return 1;
		/* Somebody changes them now. */
		if (sequence & 1)
			return 0;
	}
	/* What is read after this is read later than the sequence. */
	order = 0;
	root = __sync_fetch_and_add(&order, root + sequence);
	root += (__u64)BPF_CORE_READ(mm, mm_mt.ma_root);
	/* Of at most one mapping: no process has so few. */
	if ((root & 3) != NODE_ROOT)
		return 1;
	return enter_node(tree, root, ~0ull);
}

/* What was read is no tree: from the first leaf on again, while there is time. */
static __always_inline long tree_again(struct ident_tree *tree)
{
	tree->node = tree->index = 0;
	return 0;
}

/* One slot of a node. In a leaf these are the mappings, and nothing where nothing is
 * mapped; from its end on it is looked for the next leaf from the root. */
static long tree_step(__u32 step, struct ident_tree *tree)
{
	__u64 base, pivots, slots, pivot, entry;
	__u32 slot, type;

	if (!tree->node)
		return tree_root(tree, step);
	if (step - tree->since > NODE_STEPS)
		return tree_again(tree);
	base = tree->node & ~NODE_MASK;
	type = tree->node >> 3 & 15;
	slot = tree->slot++ & 15;
	if (type == NODE_ARANGE) {
		pivots = base + bpf_core_field_offset(struct maple_arange_64, pivot);
		slots = base + bpf_core_field_offset(struct maple_arange_64, slot);
	} else {
		pivots = base + bpf_core_field_offset(struct maple_range_64, pivot);
		slots = base + bpf_core_field_offset(struct maple_range_64, slot);
	}
	slots += slot * sizeof(entry);
	if (type != NODE_LEAF) {
		pivot = slot < tree->end ? word_at(pivots + slot * sizeof(pivot))
					 : tree->max;
		if (pivot >= tree->index)
			return enter_node(tree, word_at(slots), pivot) ? tree_again(tree)
								       : 0;
		return slot < tree->end ? 0 : tree_again(tree);
	}
	entry = word_at(slots);
	if (entry && !(entry & 3))
		see_area(tree, (struct vm_area_struct *)entry);
	if (slot < tree->end)
		return 0;
	/* The last leaf ends where addresses do. */
	tree->node = 0;
	tree->index = tree->max + 1;
	tree->done = !tree->index;
	return 0;
}

/* 0: `space` is what this process has mapped now. Else others change it for longer than
 * IDENT_WALK_NS, or it has more mappings than IDENT_STEPS can be of. */
static __noinline int walk_tree(struct task_struct *task, __u64 address,
				const struct ident_control *control,
				struct ident_space *space)
{
	struct mm_struct *mm = task->mm;
	struct ident_tree tree;
	long steps;

	if (!mm || (__u64)mm != address)
		return -1;
	/* Nothing can be read there, and so it is zeros, which the verifier does not
	 * know: before Linux 6.7 it follows one step only, the first, and would leave out
	 * what others come to. */
	bpf_probe_read_kernel(&tree, sizeof(tree), NULL);
	tree.mm = mm;
	tree.begin = bpf_ktime_get_ns();
	tree.sum.vdso = (__u64)BPF_CORE_READ(mm, context.vdso);
	steps = bpf_loop(IDENT_STEPS, tree_step, &tree, 0);
	if (!tree.whole) {
		/* Whoever begins again stops earlier, by the clock. */
		count(steps == IDENT_STEPS ? IDENT_C_LARGE : IDENT_C_BUSY);
		return -1;
	}
	add_executable(mm, &tree.sum, control, space);
	return 0;
}

#endif
