/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Who a process is: the set of files that it has mapped executable, as a keyed hash.
 *
 * The sequence of an address space moves whenever its mappings may change, by whatever
 * system call. While it stands still the set that was found last is right, and nothing
 * is walked, but for once in each period (IDENT_PERIOD_SHIFT): a debugger, or who writes
 * to /proc/PID/mem, changes code without a change of the mappings. What they write to
 * becomes a copy of the process's own, which is what anon_vma tells of a mapping of a
 * file. */
#ifndef WEIR_IDENTITY_WHO_H
#define WEIR_IDENTITY_WHO_H

#include "identity/tree.h"

/* 0: `space` is what this process has mapped now in the address space at `address`. Else
 * somebody changes it, or the process has become another program, which has another.
 *
 * Pointers in the loop are read by helpers: for each load of one through a trusted
 * pointer the verifier goes through all types of the kernel (btf_nested_type_is_trusted),
 * which was eight parts in ten of the time to load these programs. */
static __noinline int walk_once(struct task_struct *task, __u64 address,
				const struct ident_control *control,
				struct ident_space *space)
{
	struct mm_struct *mm = task->mm;
	struct ident_sum sum = {};
	struct vm_area_struct *area;
	struct bpf_iter_task_vma it;
	int failed;

	if (!mm || (__u64)mm != address)
		return -1;
	sum.vdso = (__u64)BPF_CORE_READ(mm, context.vdso);
	failed = bpf_iter_task_vma_new(&it, task, 0);
	while ((area = bpf_iter_task_vma_next(&it))) {
		struct ident_area seen = {.start = area->vm_start};

		if (!(area->vm_flags & VM_EXEC))
			continue;
		seen.inode = BPF_CORE_READ(area, vm_file, f_inode);
		seen.is_special = BPF_CORE_READ(area, vm_ops) != NULL;
		seen.is_altered = BPF_CORE_READ(area, anon_vma) != NULL;
		add_area(&sum, control, &seen);
	}
	bpf_iter_task_vma_destroy(&it);
	if (failed)
		return failed;
	/* What was seen is that of whoever it was by then. */
	if ((__u64)BPF_CORE_READ(task, mm) != address)
		return -1;
	add_executable(mm, &sum, control, space);
	return 0;
}

struct ident_walk {
	struct task_struct *task;
	__u64 address;
	const struct ident_control *control;
	struct ident_space *space;
	__u32 done;
};

static long try_walk(__u32 try, struct ident_walk *walk)
{
	if (walk_once(walk->task, walk->address, walk->control, walk->space))
		return 0;
	walk->done = 1;
	return 1;
}

/* The same, for as long as others change the mappings. */
static __noinline int walk_again(struct task_struct *task, __u64 address,
				 const struct ident_control *control,
				 struct ident_space *space)
{
	struct ident_walk walk = {
		.task = task, .address = address, .control = control, .space = space};

	bpf_loop(IDENT_TRIES, try_walk, &walk, 0);
	if (!walk.done) {
		count(IDENT_C_BUSY);
		return -1;
	}
	return 0;
}

static __always_inline int walk(struct task_struct *task, __u64 address,
				const struct ident_control *control,
				struct ident_space *space)
{
	count(IDENT_C_WALKS);
	return ident_cfg.push ? walk_tree(task, address, control, space)
			      : walk_again(task, address, control, space);
}

static __always_inline __u64 cgroup_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
}

static __always_inline __u32 uid_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, cred, euid.val);
}

static __always_inline const struct ident_policy *
policy_of(const struct ident_control *control)
{
	return control->epoch & 1 ? &control->policies[1] : &control->policies[0];
}

static __always_inline __u16 period_now(void)
{
	return bpf_jiffies64() >> IDENT_PERIOD_SHIFT;
}

/* Does another process hold this thread, or the first one, as a debugger does? */
static __always_inline __u32 is_traced(struct task_struct *task)
{
	return (task->ptrace | task->group_leader->ptrace) != 0;
}

/* One run of a program: of a process, and of what it has become by exec. */
static __always_inline __u64 life_of(struct task_struct *task)
{
	return task->group_leader->start_boottime +
	       task->self_exec_id * 0x9e3779b97f4a7c15ULL;
}

/* The address space of this process, as a number that no later one has: the kernel gives
 * the address of one that has ended to the next process, which may well have mapped the
 * same files. */
static __always_inline __u64 space_id(struct task_struct *task,
				      const struct ident_control *control)
{
	/* A number to the verifier, not a pointer. */
	__u64 address = (__u64)BPF_CORE_READ(task, mm);

	return mix(mix(address ^ control->secret[0]) ^ life_of(task));
}

/* A thread may take a user of its own, by the system call that glibc makes in all of
 * them. It is one more holder beside the others then, not what they have become: data
 * that is queued may be of either. */
static __always_inline __u64 holder_id(struct task_struct *task,
				       const struct ident_control *control)
{
	__u64 space = space_id(task, control);
	__u32 uid = uid_of(task);

	if (policy_of(control)->flags & IDENT_BY_UID &&
	    uid != BPF_CORE_READ(task, group_leader, cred, euid.val))
		space = mix(space ^ uid);
	return space;
}

/* Who this process is in terms of the rules in force; its mappings are walked if they
 * have changed. 0: `key` and `executable` are right. */
static __always_inline int key_of(struct task_struct *task, struct mm_struct *mm,
				  const struct ident_control *control,
				  struct ident_key *key, __u64 *executable,
				  __u32 sequence)
{
	__u32 flags = policy_of(control)->flags;
	struct ident_space space = {}, *known;
	__u64 address = (__u64)mm;

	key->cgroup = flags & IDENT_BY_CGROUP ? cgroup_of(task) : 0;
	key->uid = flags & IDENT_BY_UID ? uid_of(task) : 0;
	key->space = flags & IDENT_BY_SPACE ? space_id(task, control) : 0;
	key->flags = is_traced(task) ? IDENT_ALTERED : 0;
	known = bpf_map_lookup_elem(&ident_spaces, &address);
	/* Whoever was traced may have been told anything, and goes on with it. */
	if (known)
		key->flags |= known->flags & IDENT_ALTERED;
	if (known && known->sequence == sequence && !(sequence & 1) &&
	    known->period == period_now()) {
		known->flags |= key->flags;
		space = *known;
	} else if (!walk(task, address, control, &space)) {
		/* The sequence is of before the walk: who changes something meanwhile
		 * makes the next one walk again. */
		known = bpf_map_lookup_elem(&ident_spaces, &address);
		/* Another of its threads may have been traced meanwhile. */
		if (known)
			key->flags |= known->flags & IDENT_ALTERED;
		space.flags |= key->flags;
		space.sequence = sequence;
		space.period = period_now();
		bpf_map_update_elem(&ident_spaces, &address, &space, BPF_ANY);
	} else {
		key->set[0] = key->set[1] = 0;
		key->flags = 0;
		*executable = 0;
		return -1;
	}
	key->set[0] = space.set[0];
	key->set[1] = space.set[1];
	key->flags |= space.flags;
	*executable = space.executable;
	return 0;
}

/* The handle of an identity; 0: nobody has said who it is, or not for these rules. */
static __noinline __u32 handle_of(const struct ident_control *control,
				  const struct ident_key *key)
{
	struct ident_known *known = bpf_map_lookup_elem(&ident_sets, key);
	struct ident_program *program;
	__u32 number, generation;

	if (!known || !known->handle)
		return 0;
	number = known->handle & 0xffff;
	program = bpf_map_lookup_elem(&ident_programs, &number);
	if (!program || program->handle != known->handle)
		return 0;
	generation = control->epoch & 1 ? program->generation[1] : program->generation[0];
	return generation == policy_of(control)->generation ? known->handle : 0;
}

#endif
