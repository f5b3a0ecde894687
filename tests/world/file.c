/* SPDX-License-Identifier: Apache-2.0 */
/* file: the files of a machine. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "file_priv.h"
#include "sock_priv.h"

#define FILE_MOST ((size_t)256 << 20)

uint64_t world_wall(const struct world_host *h)
{
	return world.wall_base + world.now + (uint64_t)h->skew;
}

static struct vnode *vnode_new(struct world_host *h, enum vnode_kind kind, const char *name, mode_t mode)
{
	static ino_t inodes;
	struct vnode *n = CGN_NEW(struct vnode);
	*n = (struct vnode){.kind = kind,
		.name = cgn_str_dupz(cgn_str_of(name)),
		.mode = mode,
		.inode = ++inodes,
		.links = 1,
		.host = h};
	cgn_list_init(&n->children);
	cgn_list_init(&n->sibling);
	cgn_list_init(&n->unsafe);
	return n;
}

struct vnode *vnode_root(struct world_host *h)
{
	return vnode_new(h, VNODE_FOLDER, "", 0755);
}

static void vnode_free_unused(struct vnode *n)
{
	if (n->links > 0 || n->opens > 0)
		return;
	n->host->disk_used -= n->n;
	unsafe_drop(n);
	free(n->p);
	free(n->name);
	free(n);
}

void vnode_unref_open(struct vnode *n)
{
	n->opens--;
	vnode_free_unused(n);
}

void file_unlock(struct object *o)
{
	if (o->file.node->lock == o)
		o->file.node->lock = NULL;
}

struct vnode *file_child(struct vnode *folder, const char *name)
{
	cgn_list_each (l, &folder->children) {
		struct vnode *n = CGN_CONTAINER(l, struct vnode, sibling);
		if (strcmp(n->name, name) == 0)
			return n;
	}
	return NULL;
}

/* Walk the path's parts but the last |keep| ones. */
static struct vnode *path_walk(struct world_host *h, const char *path, bool keep, const char **last)
{
	static char part[256];
	struct vnode *at = h->root;
	while (*path == '/')
		path++;
	while (*path != '\0') {
		size_t n = strcspn(path, "/"), skip = n + strspn(path + n, "/");
		if (n >= sizeof part) {
			errno = ENAMETOOLONG;
			return NULL;
		}
		memcpy(part, path, n);
		part[n] = '\0';
		path += skip;
		if (at->kind != VNODE_FOLDER) {
			errno = ENOTDIR;
			return NULL;
		}
		if (keep && *path == '\0') {
			*last = part;
			return at;
		}
		if (strcmp(part, ".") == 0)
			continue;
		at = strcmp(part, "..") == 0 ? (at->parent != NULL ? at->parent : at) : file_child(at, part);
		if (at == NULL) {
			errno = ENOENT;
			return NULL;
		}
	}
	if (keep) {
		errno = EEXIST;
		return NULL;
	}
	return at;
}

struct vnode *vnode_find(struct world_host *h, const char *path)
{
	return path_walk(h, path, false, NULL);
}

struct vnode *file_folder(struct world_host *h, const char *path, const char **last)
{
	return path_walk(h, path, true, last);
}

struct vnode *file_make(struct world_host *h, struct vnode *folder, const char *name, enum vnode_kind kind,
	mode_t mode)
{
	struct vnode *n = vnode_new(h, kind, name, mode);
	n->parent = folder;
	n->changed = world_wall(h);
	cgn_list_push(&folder->children, &n->sibling);
	unsafe_made(h, n);
	world_note("make", n->inode, (uint64_t)kind);
	return n;
}

void vnode_unlink(struct vnode *n)
{
	unsafe_removed(n->host, n);
	cgn_list_drop(&n->sibling);
	n->parent = NULL;
	n->links = 0;
	world_note("unlink", n->inode, 0);
	vnode_free_unused(n);
}

/* The file's name goes to another file. */
static void vnode_replace(struct vnode *n)
{
	cgn_list_drop(&n->sibling);
	n->parent = NULL;
	n->links = 0;
	vnode_free_unused(n);
}

int file_rename(struct vnode *n, struct vnode *folder, const char *name)
{
	struct vnode *old = file_child(folder, name);
	if (old == n)
		return 0;
	if (old != NULL && old->kind == VNODE_FOLDER && !cgn_list_empty(&old->children))
		return ENOTEMPTY;
	char *copy = cgn_str_dupz(cgn_str_of(name));
	unsafe_moved(n->host, n, folder, name, old);
	if (old != NULL)
		vnode_replace(old);
	free(n->name);
	n->name = copy;
	n->parent = folder;
	cgn_list_drop(&n->sibling);
	cgn_list_push(&folder->children, &n->sibling);
	world_note("rename", n->inode, folder->inode);
	return 0;
}

void file_set_size(struct vnode *n, size_t size)
{
	if (size > n->cap) {
		n->cap = size > 2 * n->cap ? size : 2 * n->cap;
		n->p = CGN_GROWN(n->p, n->cap);
	}
	if (size > n->n)
		memset(n->p + n->n, 0, size - n->n);
	n->host->disk_used += size;
	n->host->disk_used -= n->n;
	n->n = size;
}

int file_resize(struct world_host *h, struct vnode *n, size_t size)
{
	if (size > FILE_MOST)
		return EFBIG;
	int e = size != n->n ? disk_write(h, size > n->n ? size - n->n : 0) : 0;
	if (e != 0)
		return e;
	if (size != n->n)
		unsafe_resize(n, size);
	file_set_size(n, size);
	n->changed = world_wall(h);
	return 0;
}

ssize_t file_read(struct vnode *n, void *p, size_t bytes, uint64_t at)
{
	work_add(bytes);
	if (at >= n->n)
		return 0;
	if (bytes > n->n - at)
		bytes = n->n - (size_t)at;
	memcpy(p, n->p + at, bytes);
	return (ssize_t)bytes;
}

ssize_t file_write(struct world_host *h, struct vnode *n, const void *p, size_t bytes, uint64_t at)
{
	work_add(bytes);
	uint64_t end = at + bytes, more = end > n->n ? end - n->n : 0;
	int e = end > FILE_MOST ? EFBIG : disk_write(h, more);
	if (e == ENOSPC && disk_free(h) + n->n > at) { /* Write the part that fits */
		bytes = (size_t)(disk_free(h) + n->n - at);
		end = at + bytes;
		e = 0;
	}
	if (e != 0) {
		errno = e;
		return -1;
	}
	unsafe_write(n, p, bytes, (size_t)at);
	if (end > n->n)
		file_set_size(n, (size_t)end);
	memcpy(n->p + at, p, bytes);
	n->changed = world_wall(h);
	world_note("write", n->inode, bytes);
	return (ssize_t)bytes;
}

/* ---- for sockets and scenarios ---- */

ino_t file_socket(struct world_host *h, const char *path)
{
	const char *last;
	struct vnode *folder = file_folder(h, path, &last);
	if (folder == NULL || file_child(folder, last) != NULL)
		return 0;
	return file_make(h, folder, last, VNODE_SOCKET, 0755)->inode;
}

bool file_exists(struct world_host *h, const char *path)
{
	return vnode_find(h, path) != NULL;
}

void world_file_put(struct world_host *h, const char *path, const char *bytes, size_t n)
{
	struct vnode *at = h->root;
	for (const char *p = path + strspn(path, "/"); *p != '\0';) {
		size_t len = strcspn(p, "/");
		char *part = cgn_str_dupz((struct cgn_str){p, len});
		p += len + strspn(p + len, "/");
		struct vnode *next = file_child(at, part);
		if (next == NULL)
			next = file_make(h, at, part, *p != '\0' ? VNODE_FOLDER : VNODE_FILE,
				*p != '\0' ? 0755 : 0640);
		free(part);
		at = next;
	}
	(void)file_resize(h, at, 0);
	(void)file_write(h, at, bytes, n, 0);
	unsafe_drop(at);
	names_safe(h);
}

const char *world_file_get(struct world_host *h, const char *path, size_t *n)
{
	struct vnode *f = vnode_find(h, path);
	if (f == NULL || f->kind != VNODE_FILE)
		return NULL;
	*n = f->n;
	return f->p != NULL ? f->p : "";
}
