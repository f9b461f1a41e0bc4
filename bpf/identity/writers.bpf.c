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

struct address_space {
	atomic_t i_mmap_writable;
};

struct inode {
	struct address_space *i_mapping;
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

static long read_area(struct task_struct *task, struct vm_area_struct *area,
		      struct ident_writers *seen)
{
	struct inode *inode = BPF_CORE_READ(area, vm_file, f_inode);

	if (!inode)
		return 0;
	seen->inode = (__u64)inode;
	seen->writers = BPF_CORE_READ(inode, i_writecount.counter);
	seen->shared = BPF_CORE_READ(inode, i_mapping, i_mmap_writable.counter);
	seen->found = 1;
	return 0;
}

static __always_inline void answer(struct task_struct *task,
				   struct ident_writers *question)
{
	struct ident_writers seen = {};
	long failed;

	failed = bpf_find_vma(task, question->address, read_area, &seen, 0);
	question->inode = seen.inode;
	question->writers = seen.writers;
	question->shared = seen.shared;
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

char LICENSE[] SEC("license") = "Dual MIT/GPL";
