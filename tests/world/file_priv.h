/* SPDX-License-Identifier: Apache-2.0 */
/* file, inside: a tree of files in memory for each machine. */
#pragma once
#include "world_priv.h"

enum vnode_kind { VNODE_FOLDER, VNODE_FILE, VNODE_SOCKET };
struct vnode {
	enum vnode_kind kind;
	char *name;
	struct vnode *parent; /* NULL: unlinked, or the root */
	struct cgn_link sibling, children;
	char *p;
	size_t n, cap;
	ino_t inode;
	mode_t mode;
	uint64_t changed; /* Unix time in ns */
	unsigned links, opens;
	struct object *lock; /* The open file that has the exclusive lock */
};

/* Look the path up. NULL with errno ENOENT, ENOTDIR. */
struct vnode *file_find(struct world_host *h, const char *path);
/* Find the folder that the path's last part is in, and that part. NULL with errno. */
struct vnode *file_folder(struct world_host *h, const char *path, const char **last);
struct vnode *file_child(struct vnode *folder, const char *name);
struct vnode *file_make(struct world_host *h, struct vnode *folder, const char *name, enum vnode_kind kind, mode_t mode);
void file_unlink(struct vnode *n);
int file_rename(struct vnode *n, struct vnode *folder, const char *name); /* 0 or an errno */
int file_resize(struct world_host *h, struct vnode *n, size_t size);
ssize_t file_read(struct vnode *n, void *p, size_t bytes, uint64_t at);
ssize_t file_write(struct world_host *h, struct vnode *n, const void *p, size_t bytes, uint64_t at);
uint64_t world_wall(const struct world_host *h); /* Unix time in ns there */
