/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What a set of mapped files adds up to, as a keyed hash, and the number by which it is
 * seen that the mappings may be others. */
#ifndef WEIR_IDENTITY_OBJECTS_H
#define WEIR_IDENTITY_OBJECTS_H

#include "identity/changes.h"

/* <linux/stat.h> and <linux/fs.h>, which no program of BPF includes. */
#define S_IFMT	     0170000
#define S_IFREG	     0100000
#define SB_KERNMOUNT (1 << 22)

static __always_inline __u64 mix(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

/* Odd while somebody changes the mappings; an even one is never again what it was.
 *
 * Since Linux 6.13 that is what mm_lock_seq is: mmap_write_lock counts it up, and so do
 * mmap_write_unlock and mmap_write_downgrade. Before, only the latter two do, so that it
 * stands still while mprotect has made pages executable and goes on with others, and a
 * second thread runs what is in them and sends. There the lock itself gives the lowest
 * bit: RWSEM_WRITER_LOCKED is set before the first change, and cleared after the count.
 * The lock is read first: if it is free although the change is there, whoever changed
 * has released it, and has counted before that. The atomic operation keeps the two
 * loads in this order on processors that exchange loads. */
static __always_inline __u32 sequence_of(struct mm_struct *mm)
{
	struct mm_struct___int *older = (struct mm_struct___int *)mm;
	__u64 order = 0, lock;

	if (ident_cfg.push)
		return change_of(mm);
	if (bpf_core_field_exists(mm->mm_lock_seq.sequence))
		return mm->mm_lock_seq.sequence;
	lock = older->mmap_lock.count.counter;
	lock += __sync_fetch_and_add(&order, lock);
	return (__u32)older->mm_lock_seq << 1 | (lock & RWSEM_WRITER_LOCKED);
}

static __always_inline __s64 ctime_seconds(struct inode *inode)
{
	struct inode___timespec *older = (struct inode___timespec *)inode;
	struct inode___plain *oldest = (struct inode___plain *)inode;

	if (bpf_core_field_exists(inode->i_ctime_sec))
		return BPF_CORE_READ(inode, i_ctime_sec);
	if (bpf_core_field_exists(older->__i_ctime))
		return BPF_CORE_READ(older, __i_ctime.tv_sec);
	return BPF_CORE_READ(oldest, i_ctime.tv_sec);
}

static __always_inline __u64 ctime_nanoseconds(struct inode *inode)
{
	struct inode___timespec *older = (struct inode___timespec *)inode;
	struct inode___plain *oldest = (struct inode___plain *)inode;

	if (bpf_core_field_exists(inode->i_ctime_nsec))
		return BPF_CORE_READ(inode, i_ctime_nsec);
	if (bpf_core_field_exists(older->__i_ctime))
		return BPF_CORE_READ(older, __i_ctime.tv_nsec);
	return BPF_CORE_READ(oldest, i_ctime.tv_nsec);
}

/* One file, so that nobody without the secret can make two sets alike. */
static __always_inline __u64 object_hash(const struct ident_control *control,
					 struct inode *inode)
{
	/* A bit of the nanoseconds is a flag of the kernel's. */
	__u64 nanoseconds = ctime_nanoseconds(inode) & 0x7fffffff;
	__u64 of = (__u64)BPF_CORE_READ(inode, i_sb, s_dev) << 32 |
		   BPF_CORE_READ(inode, i_generation);
	__u64 hash = mix(BPF_CORE_READ(inode, i_ino) ^ control->secret[0]);

	hash = mix(hash ^ of ^ control->secret[1]);
	return mix(hash ^ (__u64)ctime_seconds(inode) << 30 ^ nanoseconds);
}

/* The key of an executable file: by another one than the same file has where it is
 * mapped, as a library may be an executable too. */
static __always_inline __u64 executable_key(const struct ident_control *control,
					    struct inode *inode)
{
	return mix(object_hash(control, inode) ^ control->secret[3]);
}

/* What the mappings add up to that have been gone through. */
struct ident_sum {
	__u64 vdso;
	__u64 last; /* the hash of the file before */
	__u64 a;
	__u64 b;
	__u32 flags;
};

/* Not on any disk: what has no file to the kernel either, and that for which it makes one
 * on a mount of its own (MAP_SHARED | MAP_ANONYMOUS, MAP_HUGETLB, memfd_create, shmat),
 * or has a device (/dev/zero). Whoever has one of these writes what he likes into it. */
static __always_inline int is_of_no_file(struct inode *inode)
{
	return !inode || (BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG ||
	       BPF_CORE_READ(inode, i_sb, s_flags) & SB_KERNMOUNT;
}

/* One executable mapping as it is looked at. */
struct ident_area {
	__u64 start;
	struct inode *inode; /* NULL where the kernel has no file for it */
	__u8 is_special;     /* the kernel maps it by functions of its own */
	__u8 is_altered;     /* it has pages of the process's own */
};

static __always_inline void add_area(struct ident_sum *sum,
				     const struct ident_control *control,
				     const struct ident_area *area)
{
	/* The kernel's code for all programs. Another mapping may be put in its place. */
	int is_vdso = !area->inode && area->is_special && area->start == sum->vdso;
	__u64 hash;

	if (is_of_no_file(area->inode) && !is_vdso)
		sum->flags |= IDENT_ANONYMOUS;
	if (area->is_altered && (area->inode || is_vdso))
		sum->flags |= IDENT_ALTERED;
	if (!area->inode)
		return;
	hash = object_hash(control, area->inode);
	/* The parts of one file mostly lie side by side. */
	if (hash == sum->last)
		return;
	sum->last = hash;
	sum->a += hash;
	sum->b += mix(hash ^ control->secret[2]);
}

static __always_inline void add_executable(struct mm_struct *mm, struct ident_sum *sum,
					   const struct ident_control *control,
					   struct ident_space *space)
{
	struct inode *exe = BPF_CORE_READ(mm, exe_file, f_inode);

	space->executable = 0;
	if (exe) {
		sum->last = executable_key(control, exe);
		space->executable = sum->last;
		sum->a += sum->last;
		sum->b += mix(sum->last);
	}
	space->set[0] = sum->a;
	space->set[1] = sum->b;
	space->flags = sum->flags;
}

#endif
