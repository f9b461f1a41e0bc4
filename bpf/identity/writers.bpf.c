// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* Which file a process has mapped, and who can write to it. A mapping of a file of an
 * overlay is one of the file in the layer below (ovl_mmap), whose writers the kernel
 * counts; the overlay's own file has them no more once it is closed, however long a
 * mapping lives. Who writes to the overlay's file gets a file of the upper layer, while
 * who had it mapped goes on with that of the lower one. An object of its own: it needs
 * nothing of the others, and what asks runs at every level. */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "abi/identity.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct xarray {
	void *xa_head;
};

struct xa_node {
	unsigned char shift;
	void *slots[64];
};

struct address_space {
	struct xarray i_pages;
	atomic_t i_mmap_writable;
};

struct page {
	atomic_t _mapcount;
	atomic_t _refcount;
};

/* Since Linux 5.18. */
struct folio {
	struct page page;
	atomic_t _pincount;
};

enum pageflags {
	PG_head = 6,
};

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	struct super_block *i_sb;
	struct address_space *i_mapping;
	unsigned int i_flags;
	atomic_t i_writecount;
};

struct file {
	struct inode *f_inode;
};

struct vm_area_struct {
	struct file *vm_file;
};

struct task_struct {
	int pid;
};

#pragma clang attribute pop

/* This gives the skeleton what is in no map. */
struct ident_writers ident_writers_layout;

struct task_struct *bpf_task_from_pid(__s32 pid) __ksym __weak;
void bpf_task_release(struct task_struct *task) __ksym __weak;
/* Since Linux 6.2. */
void bpf_rcu_read_lock(void) __ksym __weak;
void bpf_rcu_read_unlock(void) __ksym __weak;

static long read_area(struct task_struct *task, struct vm_area_struct *area,
		      struct ident_writers *seen)
{
	struct inode *inode = BPF_CORE_READ(area, vm_file, f_inode);

	if (!inode)
		return 0;
	seen->inode = (__u64)inode;
	seen->writers = BPF_CORE_READ(inode, i_writecount.counter);
	seen->shared = BPF_CORE_READ(inode, i_mapping, i_mmap_writable.counter);
	seen->magic = (__u32)BPF_CORE_READ(inode, i_sb, s_magic);
	seen->device = BPF_CORE_READ(inode, i_sb, s_dev);
	seen->found = 1;
	return 0;
}

/* The number that a pin of a page adds to its references (GUP_PIN_COUNTING_BIAS). */
#define PIN 1024
/* Slots of a node, and by how many bits an index is shifted for each level. */
#define SLOTS	   64
#define SLOT_SHIFT 6
/* Of a file whose pages are a device's (linux/fs.h), of which nobody counts the pins. */
#define S_DAX (1 << 13)
/* Levels of a tree of pages, and steps of a walk through one: some GiB of pages. */
#define LEVELS 11
#define STEPS  (1 << 22)

/* A walk through the pages of a file that are in memory. */
struct pages {
	void **head;
	__u64 index;
	__u32 is_pinned;
	__u32 is_done;
};

/* Does something beside mappings hold this page, by which it may be written to? Pages
 * that thousands have mapped have as many references. */
static __always_inline int is_pinned(struct folio *folio)
{
	unsigned long flags = 0;
	int references, mapped;

	/* Its first member, which has had several types. */
	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1 &&
	    bpf_core_field_exists(folio->_pincount))
		return BPF_CORE_READ(folio, _pincount.counter) > 0;
	references = BPF_CORE_READ(folio, page._refcount.counter);
	mapped = BPF_CORE_READ(folio, page._mapcount.counter) + 1;
	return references - mapped >= PIN;
}

/* What is not understood may hide one. */
static __always_inline long refuse(struct pages *pages)
{
	pages->is_pinned = 1;
	pages->is_done = 1;
	return 1;
}

/* One page, or a part of the tree that has none (lib/xarray.c). */
static __always_inline long go_on(struct pages *pages)
{
	__u64 entry = 0, child = 0, size = 1;
	struct xa_node *node;
	__u8 shift, above = 0;
	void **slots;
	int level;

	bpf_probe_read_kernel(&entry, sizeof(entry), pages->head);
	/* A node, not a page, nor what says that there was one. */
	if ((entry & 3) != 2) {
		if (entry && !(entry & 3) && !pages->index)
			pages->is_pinned = is_pinned((struct folio *)entry);
		pages->is_done = 1;
		return 1;
	}
	for (level = 0; level < LEVELS; level++) {
		node = (struct xa_node *)(entry - 2);
		shift = BPF_CORE_READ(node, shift);
		/* One that is in the tree no more may be anything. */
		if (shift >= 64 || (level && shift + SLOT_SHIFT != above))
			return refuse(pages);
		above = shift;
		/* What is behind the last one. */
		if (!level && pages->index >> shift >> SLOT_SHIFT) {
			pages->is_done = 1;
			return 1;
		}
		size = 1ull << (shift & 63);
		slots = (void *)node + bpf_core_field_offset(node->slots);
		bpf_probe_read_kernel(
			&child, sizeof(child),
			slots + (pages->index >> (shift & 63) & (SLOTS - 1)));
		/* Pages, none, or the rest of one that is large. */
		if ((child & 3) != 2 || child < 4096)
			break;
		entry = child;
	}
	if (child && !(child & 3) && is_pinned((struct folio *)child))
		return refuse(pages);
	pages->index = (pages->index & ~(size - 1)) + size;
	/* The index is at its end. */
	pages->is_done = !pages->index;
	return pages->is_done;
}

/* The way down from the root while no node of it is given to others. */
static long step(__u32 number, struct pages *pages)
{
	long is_last;

	if (bpf_rcu_read_lock)
		bpf_rcu_read_lock();
	is_last = go_on(pages);
	if (bpf_rcu_read_lock)
		bpf_rcu_read_unlock();
	return is_last;
}

static __always_inline void answer(struct task_struct *task,
				   struct ident_writers *question)
{
	struct ident_writers seen = {.address = question->address};
	long failed;

	failed = bpf_find_vma(task, seen.address, read_area, &seen, 0);
	*question = seen;
	/* Somebody changes the mappings, or a tracepoint asks on this processor. */
	question->found = seen.found ?: failed == -EBUSY ? 0 : 2;
}

/* Of the asking process (Linux 5.17: bpf_find_vma). */
SEC("syscall")
int weir_app_writers(struct ident_writers *question)
{
	answer(bpf_get_current_task_btf(), question);
	return 0;
}

/* Of another one (Linux 6.10: programs of this type may call bpf_task_from_pid). */
SEC("syscall")
int weir_app_mapped(struct ident_writers *question)
{
	struct task_struct *task = bpf_task_from_pid((__s32)question->thread);

	question->found = 2;
	if (!task)
		return 0;
	answer(task, question);
	bpf_task_release(task);
	return 0;
}

/* Of the asking process: is a page of the file pinned (Linux 6.4: by all who write past
 * mappings)? Whoever has pinned one to write writes to it for as long as he likes, though
 * he has the file neither open nor mapped any more (Documentation/core-api/
 * pin_user_pages.rst). */
SEC("syscall")
int weir_app_pinned(struct ident_writers *question)
{
	struct address_space *mapping;
	struct pages pages = {};
	struct inode *inode;

	answer(bpf_get_current_task_btf(), question);
	question->pinned = 1;
	if (question->found != 1)
		return 0;
	inode = (struct inode *)question->inode;
	mapping = BPF_CORE_READ(inode, i_mapping);
	if (!mapping || BPF_CORE_READ(inode, i_flags) & S_DAX)
		return 0;
	pages.head = (void *)mapping + bpf_core_field_offset(mapping->i_pages.xa_head);
	bpf_loop(STEPS, step, &pages, 0);
	question->pinned = pages.is_pinned || !pages.is_done;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
