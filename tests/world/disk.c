/* SPDX-License-Identifier: Apache-2.0 */
/* disk: the bytes that a power cut leaves, and the faults of a disk. Each file remembers the writes since it was last synced, with the bytes
 * before and after; a machine remembers the names that changed since their folder was synced. */
#include "disk.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "file_priv.h"

#define SECTOR     512U
#define NAMES_MOST 20000U

/* A write, or a change of the size, that is not safe. */
struct unsafe_write {
	struct cgn_link link;
	size_t at, n; /* Bytes of the write */
	size_t n_old; /* Length of the bytes from before; of a smaller size: those that were cut off */
	size_t size, old_size; /* Sizes of the file, now and before */
	char *fresh, *old;
};

enum name_change { NAME_MADE, NAME_REMOVED, NAME_MOVED };
struct unsafe_name {
	struct cgn_link link;
	enum name_change change;
	struct vnode *node, *folder, *from, *replaced;
	char *name, *from_name;
};

/* ---- writes ---- */

static char *bytes_copy(const char *p, size_t n)
{
	char *copy = n > 0 ? CGN_NEW_ARRAY(char, n) : NULL;
	if (n > 0)
		memcpy(copy, p, n);
	return copy;
}

void unsafe_write(struct vnode *f, const void *p, size_t n, size_t at)
{
	struct unsafe_write *w = CGN_NEW(struct unsafe_write);
	size_t n_old = at < f->n ? (n < f->n - at ? n : f->n - at) : 0;
	*w = (struct unsafe_write){.at = at, .n = n, .n_old = n_old, .old_size = f->n};
	w->size = at + n > f->n ? at + n : f->n;
	w->fresh = bytes_copy(p, n);
	w->old = n_old > 0 ? bytes_copy(f->p + at, n_old) : NULL;
	cgn_list_push(&f->unsafe, &w->link);
}

void unsafe_resize(struct vnode *f, size_t size)
{
	struct unsafe_write *w = CGN_NEW(struct unsafe_write);
	*w = (struct unsafe_write){.at = size, .old_size = f->n, .size = size};
	w->n_old = size < f->n ? f->n - size : 0;
	w->old = w->n_old > 0 ? bytes_copy(f->p + size, w->n_old) : NULL;
	cgn_list_push(&f->unsafe, &w->link);
}

void unsafe_drop(struct vnode *f)
{
	for (struct cgn_link *l; (l = cgn_list_first(&f->unsafe)) != NULL;) {
		struct unsafe_write *w = CGN_CONTAINER(l, struct unsafe_write, link);
		cgn_list_drop(l);
		free(w->fresh);
		free(w->old);
		free(w);
	}
}

static void write_undo(struct vnode *f, const struct unsafe_write *w)
{
	file_set_size(f, w->old_size);
	if (w->n_old > 0)
		memcpy(f->p + w->at, w->old, w->n_old);
}

/* Sectors of the write reach the disk, each by chance. */
static void write_tear(struct vnode *f, const struct unsafe_write *w)
{
	size_t end = w->at + w->n, keep = 1 + world_draw(4);
	for (size_t at = w->at; at < end;) {
		size_t next = (at / SECTOR + 1) * SECTOR < end ? (at / SECTOR + 1) * SECTOR : end;
		if (world_draw(5) < keep) {
			if (next > f->n)
				file_set_size(f, next);
			memcpy(f->p + at, w->fresh + (at - w->at), next - at);
		}
		at = next;
	}
}

static void write_redo(struct vnode *f, const struct unsafe_write *w)
{
	if (w->n == 0 || w->size > f->n)
		file_set_size(f, w->size);
	if (w->n > 0)
		memcpy(f->p + w->at, w->fresh, w->n);
}

/* Keep, lose or tear each write. One power cut in three loses all of them, one in three none. */
static void node_crash(struct vnode *f)
{
	uint64_t mood = world_draw(3);
	for (struct cgn_link *l = f->unsafe.prev; l != &f->unsafe; l = l->prev)
		write_undo(f, CGN_CONTAINER(l, struct unsafe_write, link));
	cgn_list_each (l, &f->unsafe) {
		const struct unsafe_write *w = CGN_CONTAINER(l, struct unsafe_write, link);
		uint64_t fate = mood == 0 ? 0 : mood == 1 ? 1 : world_draw(3);
		if (fate == 1)
			write_redo(f, w);
		else if (fate == 2 && w->n > 0)
			write_tear(f, w);
		else if (world_chance(4) && w->size > f->n)
			file_set_size(f, w->size); /* The size was written, the bytes were not */
	}
	unsafe_drop(f);
	world_note("crashed", f->inode, f->n);
}

/* ---- names ---- */

static void name_free(struct unsafe_name *u)
{
	cgn_list_drop(&u->link);
	vnode_unref_open(u->node);
	if (u->replaced != NULL)
		vnode_unref_open(u->replaced);
	free(u->name);
	free(u->from_name);
	free(u);
}

static struct unsafe_name *name_note(struct world_host *h, enum name_change change, struct vnode *n,
	struct vnode *folder, const char *name)
{
	struct unsafe_name *u = CGN_NEW(struct unsafe_name);
	*u = (struct unsafe_name){.change = change,
		.node = n,
		.folder = folder,
		.name = cgn_str_dupz(cgn_str_of(name))};
	n->opens++;
	cgn_list_push(&h->names, &u->link);
	if (++h->n_names > NAMES_MOST) { /* A kernel would have written the oldest by now */
		name_free(CGN_CONTAINER(cgn_list_first(&h->names), struct unsafe_name, link));
		h->n_names--;
	}
	return u;
}

void unsafe_made(struct world_host *h, struct vnode *n)
{
	(void)name_note(h, NAME_MADE, n, n->parent, n->name);
}

void unsafe_removed(struct world_host *h, struct vnode *n)
{
	(void)name_note(h, NAME_REMOVED, n, n->parent, n->name);
}

void unsafe_moved(struct world_host *h, struct vnode *n, struct vnode *folder, const char *name,
	struct vnode *replaced)
{
	struct unsafe_name *u = name_note(h, NAME_MOVED, n, folder, name);
	u->from = n->parent;
	u->from_name = cgn_str_dupz(cgn_str_of(n->name));
	u->replaced = replaced;
	if (replaced != NULL)
		replaced->opens++;
}

/* The folder is synced: the names up to its last change are safe. */
static void names_sync(struct world_host *h, const struct vnode *folder)
{
	struct cgn_link *last = NULL;
	cgn_list_each (l, &h->names) {
		const struct unsafe_name *u = CGN_CONTAINER(l, struct unsafe_name, link);
		if (u->folder == folder || u->from == folder)
			last = l;
	}
	while (last != NULL) {
		struct cgn_link *first = cgn_list_first(&h->names);
		bool done = first == last;
		name_free(CGN_CONTAINER(first, struct unsafe_name, link));
		h->n_names--;
		if (done)
			break;
	}
}

void names_safe(struct world_host *h)
{
	for (struct cgn_link *l; (l = cgn_list_first(&h->names)) != NULL;)
		name_free(CGN_CONTAINER(l, struct unsafe_name, link));
	h->n_names = 0;
}

static void name_put(struct vnode *n, struct vnode *folder, const char *name)
{
	char *copy = cgn_str_dupz(cgn_str_of(name));
	free(n->name);
	n->name = copy;
	n->parent = folder;
	n->links = 1;
	cgn_list_drop(&n->sibling);
	cgn_list_push(&folder->children, &n->sibling);
}

static void name_undo(struct unsafe_name *u)
{
	switch (u->change) {
	case NAME_MADE:
		cgn_list_drop(&u->node->sibling);
		u->node->parent = NULL;
		u->node->links = 0;
		break;
	case NAME_REMOVED:
		name_put(u->node, u->folder, u->name);
		break;
	case NAME_MOVED:
		name_put(u->node, u->from, u->from_name);
		if (u->replaced != NULL)
			name_put(u->replaced, u->folder, u->name);
		break;
	}
}

/* The last changes of names are lost, as a journal that was cut loses them: none, all, or from some change on. */
static void names_crash(struct world_host *h)
{
	uint64_t mood = world_draw(3),
		 keep = mood == 0 ? 0
		: mood == 1       ? h->n_names
				  : world_draw(h->n_names + 1);
	for (; h->n_names > keep; h->n_names--) {
		struct unsafe_name *u = CGN_CONTAINER(h->names.prev, struct unsafe_name, link);
		name_undo(u);
		name_free(u);
	}
	names_safe(h);
}

/* ---- a machine dies ---- */

static void folder_crash(struct vnode *folder)
{
	cgn_list_each_safe (l, &folder->children) {
		struct vnode *n = CGN_CONTAINER(l, struct vnode, sibling);
		if (n->kind == VNODE_FOLDER)
			folder_crash(n);
		else if (n->kind == VNODE_FILE)
			node_crash(n);
		else
			vnode_unlink(n); /* Sockets lie in memory */
	}
}

void world_host_crash(struct world_host *h)
{
	world_note("crash", h->number, h->n_names);
	world_tell("%s: the power fails", h->name);
	cgn_list_each (l, &world.procs) {
		struct world_proc *p = CGN_CONTAINER(l, struct world_proc, link);
		if (p->host == h && p->alive)
			proc_end(p, -SIGKILL);
	}
	names_crash(h);
	folder_crash(h->root);
}

/* ---- faults ---- */

void world_disk(struct world_host *h, const struct world_faults *f)
{
	h->disk = f != NULL ? *f : (struct world_faults){0};
	world_note("disk", h->number, h->disk.room);
	if (f == NULL)
		world_tell("%s: the disk is good", h->name);
	else
		world_tell(
			"%s: the disk: room %llu of %llu, EIO of reads 1/%u, writes 1/%u, syncs 1/%u, syncs of %llu ms%s",
			h->name, (unsigned long long)f->room, (unsigned long long)h->disk_used, f->read_error,
			f->write_error, f->sync_error, (unsigned long long)(f->sync_ns / WORLD_MS),
			f->read_only ? ", read-only" : "");
}

uint64_t world_disk_used(const struct world_host *h)
{
	return h->disk_used;
}

static bool fault_comes(uint32_t one_in)
{
	return one_in > 0 && world_chance(one_in);
}

int disk_read(struct world_host *h)
{
	if (world_chance(8))
		world_sleep(20 * WORLD_US + world_draw(WORLD_MS));
	return fault_comes(h->disk.read_error) ? EIO : 0;
}

int disk_write(struct world_host *h, uint64_t more)
{
	if (h->disk.read_only)
		return EROFS;
	if (h->disk.room > 0 && more > 0 && h->disk_used + more > h->disk.room)
		return ENOSPC;
	return fault_comes(h->disk.write_error) ? EIO : 0;
}

int disk_change(struct world_host *h)
{
	return h->disk.read_only ? EROFS : 0;
}

int disk_sync(struct world_host *h, struct vnode *n)
{
	world_sleep(10 * WORLD_US + world_draw(h->disk.sync_ns > 0 ? h->disk.sync_ns : 5 * WORLD_MS));
	if (fault_comes(h->disk.sync_error))
		return EIO;
	if (n->kind == VNODE_FOLDER)
		names_sync(h, n);
	else
		unsafe_drop(n);
	world_note("sync", n->inode, n->n);
	return 0;
}

uint64_t disk_free(const struct world_host *h)
{
	if (h->disk.room == 0)
		return UINT64_C(32) << 30;
	return h->disk_used < h->disk.room ? h->disk.room - h->disk_used : 0;
}

/* ---- for scenarios ---- */

static uint64_t folder_bytes(const struct vnode *folder)
{
	uint64_t n = 0;
	cgn_list_each (l, &folder->children) {
		const struct vnode *c = CGN_CONTAINER(l, struct vnode, sibling);
		n += c->kind == VNODE_FOLDER ? folder_bytes(c) : c->n;
	}
	return n;
}

uint64_t world_folder_bytes(struct world_host *h, const char *path)
{
	const struct vnode *f = vnode_find(h, path);
	return f != NULL && f->kind == VNODE_FOLDER ? folder_bytes(f) : 0;
}

bool world_file_damage(struct world_host *h, const char *path, unsigned n)
{
	struct vnode *f = vnode_find(h, path);
	if (f == NULL || f->kind != VNODE_FILE || f->n == 0)
		return false;
	for (; n > 0; n--)
		f->p[world_draw(f->n)] ^= (char)(1U << world_draw(8));
	world_tell("%s: %s is damaged", h->name, path);
	return true;
}
