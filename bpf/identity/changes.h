/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Level push: whether the mappings of an address space have changed, where the kernel
 * keeps no number of that (mm_lock_seq, Linux 6.4), or none that says so in time.
 *
 * Whoever changes mappings holds the address space's lock for writing. Of those that were
 * looked at once each release of that lock is noted, before the lock is free: by the
 * function's beginning (up_write, downgrade_write), or by the tracepoints of the lock. Of
 * all others nothing is noted: looking for them in the table is what they cost.
 *
 * What the number says is read with the lock's writer bit, as in sequence_of: from the
 * first change on the bit is set, and when it is clear again the number is another one.
 * An address space of which there is no number gets one that it never had, by the clock:
 * the number goes by 16 ns, and no two releases of one lock are so near. */
#ifndef WEIR_IDENTITY_CHANGES_H
#define WEIR_IDENTITY_CHANGES_H

#include "identity/maps.h"

static __always_inline __u64 lock_of(struct mm_struct *mm)
{
	return ((struct mm_struct___int *)mm)->mmap_lock.count.counter;
}

/* The count first, then the number: see sequence_of. */
static __noinline __u32 change_of(struct mm_struct *mm)
{
	__u64 address = (__u64)mm, order = 0, lock, fresh, *number;

	lock = lock_of(mm);
	lock += __sync_fetch_and_add(&order, lock);
	number = bpf_map_lookup_elem(&ident_changes, &address);
	if (!number) {
		fresh = bpf_ktime_get_ns() >> 4;
		bpf_map_update_elem(&ident_changes, &address, &fresh, BPF_NOEXIST);
		/* Who had the lock before the number was there may not find it: he has it
		 * still, or is done with what he has changed. */
		order = 0;
		lock = __sync_fetch_and_add(&order, fresh);
		lock += lock_of(mm);
		number = bpf_map_lookup_elem(&ident_changes, &address);
	}
	/* Without room it is one that is always being changed, by a number that nobody
	 * meets again: two that are alike would say that nothing is. */
	if (!number)
		return bpf_ktime_get_ns() << 1 | 1;
	return *(volatile __u64 *)number << 1 | (lock & RWSEM_WRITER_LOCKED);
}

/* Its lock is held for writing, and will not be. Nobody else counts then, but who was
 * given this place of the table for another address space before. */
static __always_inline void note_change(__u64 address)
{
	__u64 *number = bpf_map_lookup_elem(&ident_changes, &address);

	if (number)
		__sync_fetch_and_add(number, 1);
}

static __always_inline __u64 space_of_lock(struct rw_semaphore *lock)
{
	return (__u64)lock - bpf_core_field_offset(struct mm_struct___int, mmap_lock);
}

#endif
