/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Of the kernel's own structures the members that identity reads: libbpf finds where
 * they are on the kernel at hand (CO-RE), by name. */
#ifndef WEIR_IDENTITY_KERNEL_H
#define WEIR_IDENTITY_KERNEL_H

#include <linux/bpf.h>
#include <linux/in6.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	__u32 s_dev;
	unsigned long s_flags;
};

struct inode {
	__u16 i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	__u32 i_generation;
	__s64 i_ctime_sec;
	__u32 i_ctime_nsec;
};

struct timespec64 {
	__s64 tv_sec;
	long tv_nsec;
};

/* Before Linux 6.11. */
struct inode___timespec {
	struct timespec64 __i_ctime;
};

/* Before Linux 6.6. */
struct inode___plain {
	struct timespec64 i_ctime;
};

struct file {
	struct inode *f_inode;
};

struct anon_vma;
struct vm_operations_struct;

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_flags;
	struct anon_vma *anon_vma;
	const struct vm_operations_struct *vm_ops;
	struct file *vm_file;
};

struct seqcount {
	unsigned int sequence;
};

typedef struct {
	void *vdso;
} mm_context_t;

/* The tree of mappings, since Linux 6.1. Entries are pointers; those to nodes have the
 * node's type in their lower bits. */
struct maple_tree {
	void *ma_root;
};

struct maple_metadata {
	unsigned char end;
};

struct maple_range_64 {
	unsigned long pivot[15];
	void *slot[16];
	struct maple_metadata meta;
};

struct maple_arange_64 {
	unsigned long pivot[9];
	void *slot[10];
	struct maple_metadata meta;
};

struct mm_struct {
	struct maple_tree mm_mt;
	struct seqcount mm_lock_seq;
	struct file *exe_file;
	mm_context_t context;
};

typedef struct {
	__s64 counter;
} atomic64_t;

struct rw_semaphore {
	atomic64_t count;
};

/* Before Linux 6.13. */
struct mm_struct___int {
	int mm_lock_seq;
	struct rw_semaphore mmap_lock;
};

typedef struct {
	__u32 val;
} kuid_t;

struct cred {
	kuid_t euid;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup *ancestors[1];
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	struct mm_struct *mm;
	struct files_struct *files;
	unsigned int ptrace;
	int pid;
	int tgid;
	const struct cred *cred;
	struct css_set *cgroups;
	struct nsproxy *nsproxy;
	char comm[16];
	struct task_struct *group_leader;
	__u64 start_boottime;
	__u64 self_exec_id;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct nsproxy {
	struct net *net_ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	int skc_bound_dev_if;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	possible_net_t skc_net;
};

struct socket;

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	__u16 sk_type;
	__u16 sk_protocol;
	struct sock_cgroup_data sk_cgrp_data;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

struct udp_sock;

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};

#pragma clang attribute pop

/* As large as the kernel's. */
struct bpf_iter_task_vma {
	__u64 opaque[1];
} __attribute__((aligned(8)));

/* These are called nowhere at level push, whose kernels may lack them. */
extern int bpf_iter_task_vma_new(struct bpf_iter_task_vma *it, struct task_struct *task,
				 __u64 addr) __ksym __weak;
extern struct vm_area_struct *
bpf_iter_task_vma_next(struct bpf_iter_task_vma *it) __ksym __weak;
extern void bpf_iter_task_vma_destroy(struct bpf_iter_task_vma *it) __ksym __weak;
extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym __weak;
/* Without it (before Linux 6.5) user space ends connections. */
extern int bpf_sock_destroy(struct sock_common *sk) __ksym __weak;

#define VM_EXEC 4
/* Of rw_semaphore.count. */
#define RWSEM_WRITER_LOCKED 1

#endif
