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
	struct object *lock;  /* The open file that has the exclusive lock */
	unsigned record_lock; /* The process that has locked a part with fcntl; 0: none */
	struct world_host *host;
	struct cgn_link unsafe; /* unsafe_write.link: since the last sync */
};

/* Look the path up. NULL with errno ENOENT, ENOTDIR. */
struct vnode *vnode_find(struct world_host *h, const char *path);
/* Find the folder that the path's last part is in, and that part. NULL with errno. */
struct vnode *file_folder(struct world_host *h, const char *path, const char **last);
struct vnode *file_child(struct vnode *folder, const char *name);
struct vnode *file_make(struct world_host *h, struct vnode *folder, const char *name, enum vnode_kind kind,
	mode_t mode);
void vnode_unlink(struct vnode *n);
int file_rename(struct vnode *n, struct vnode *folder, const char *name); /* 0 or an errno */
int file_resize(struct world_host *h, struct vnode *n, size_t size);
ssize_t file_read(struct vnode *n, void *p, size_t bytes, uint64_t at);
ssize_t file_write(struct world_host *h, struct vnode *n, const void *p, size_t bytes, uint64_t at);
/* Set the size without time, limits or a note. */
void file_set_size(struct vnode *n, size_t size);
uint64_t world_wall(const struct world_host *h); /* Unix time in ns there */

/* ---- disk.c: bytes that a power cut takes, and faults ---- */
void unsafe_write(struct vnode *f, const void *p, size_t n, size_t at); /* Before the bytes are in place */
void unsafe_resize(struct vnode *f, size_t size);
void unsafe_drop(struct vnode *f);
void names_safe(struct world_host *h); /* All names are safe from now on */
void unsafe_made(struct world_host *h, struct vnode *n);
void unsafe_removed(struct world_host *h, struct vnode *n);
void unsafe_moved(struct world_host *h, struct vnode *n, struct vnode *folder, const char *name,
	struct vnode *replaced);
/* 0, or the errno of a call of this kind now */
int disk_read(struct world_host *h);
int disk_write(struct world_host *h, uint64_t more); /* |more|: bytes that the file grows by */
int disk_change(struct world_host *h);               /* A name changes */
int disk_sync(struct world_host *h, struct vnode *n);
uint64_t disk_free(const struct world_host *h);
