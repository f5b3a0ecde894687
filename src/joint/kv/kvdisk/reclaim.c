/* SPDX-License-Identifier: Apache-2.0 */
/* Reclaiming: a whole file is deleted, the oldest one or one with hardly any value in use. Before, values
 * that the owner wants to keep are carried to the end of the log. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/sum/sum.h"

struct carrying {
	struct kvdisk *d;
	struct file *from;
	uint64_t left;      /* bytes that may still be carried for being in use */
	const uint8_t *row; /* small values: header and value */
	size_t n_row;
	bool moved; /* a value was carried */
};

/* Return the bytes of the value, borrowed from the row or read into |*own|; NULL: they are damaged. */
static const void *reclaim_value(struct carrying *c, const struct record *r, void **own)
{
	const void *value;
	if (c->from->small) {
		value = c->row + record_head_bytes(&r->entry.meta);
	} else {
		struct iovec iov = {malloc(r->entry.size + 1), r->entry.size};
		*own = iov.iov_base;
		value = iov.iov_base;
		if (*own == NULL ||
			!cgn_ok(io_all(c->from->fd, false, &iov, 1,
				((uint64_t)place_of(r->entry.place).at + 1) * KVDISK_UNIT, NULL)))
			return NULL;
	}
	if (sum64(value, r->entry.size) == r->entry.checksum)
		return value;
	atomic_fetch_add(&c->d->counts.corrupt, 1);
	return NULL;
}

static CGN_RC write_again(struct kvdisk *d, struct record *r, const void *value)
{
	struct iovec iov = {(void *)(uintptr_t)value, r->entry.size};
	struct file *to = NULL;
	bool small = place_of(r->entry.place).small;
	CGN_TRY(log_room(d, small, record_bytes(&r->entry.meta, r->entry.size, small), true, &r->entry.place,
		&to, NULL));
	cgn_rc rc = log_write(d, to, r, &iov, 1, NULL);
	if (cgn_ok(rc))
		rc = entry_put(d, r, NULL);
	file_unref(d, &to);
	return rc;
}

/* Carry |is|, the record as the index has it. The stripe is held. */
static bool reclaim_carry(struct carrying *c, const struct record *is)
{
	struct record now = *is;
	void *own = NULL;
	const void *value = reclaim_value(c, is, &own);
	bool done = value != NULL && cgn_ok(write_again(c->d, &now, value));
	free(own);
	if (!done)
		return false;
	file_count(c->d, now.entry.place, 1);
	file_count(c->d, is->entry.place, -1);
	atomic_fetch_add(&c->d->counts.carried, is->entry.size);
	c->moved = true;
	if (c->d->owner->moved != NULL)
		c->d->owner->moved(c->d->user, &is->entry.key, is->entry.place, now.entry.place);
	return true;
}

static void reclaim_drop(struct kvdisk *d, const struct record *is, _Atomic uint64_t *counter)
{
	entry_drop(d, &is->entry.key, is->entry.place);
	atomic_fetch_add(counter, 1);
	if (d->owner->gone != NULL)
		d->owner->gone(d->user, &is->entry.key, is->entry.place);
}

static void reclaim_judge(struct carrying *c, const struct record *is)
{
	struct kvdisk *d = c->d;
	uint64_t bytes = place_bytes(is->entry.place);
	enum kvdisk_worth worth = KVDISK_DROP;
	if (entry_had_its_time(d, is)) {
		reclaim_drop(d, is, &d->counts.expired);
		return;
	}
	if (d->owner->worth != NULL)
		worth = d->owner->worth(d->user, &is->entry.key, is->entry.place);
	if (worth == KVDISK_CARRY && bytes <= c->left)
		c->left -= bytes;
	else if (worth == KVDISK_CARRY)
		worth = KVDISK_DROP;
	if (worth == KVDISK_DROP || !reclaim_carry(c, is))
		reclaim_drop(d, is, &d->counts.dropped);
}

static bool reclaim_on_record(void *user, const struct record *r)
{
	struct carrying *c = user;
	char names[KVDISK_NAMES];
	struct record is;
	pthread_mutex_t *stripe = kvdisk_stripe(c->d, &r->entry.key);
	(void)pthread_mutex_lock(stripe);
	if (cgn_ok(entry_get(c->d, &r->entry.key, &is, names)) && is.entry.place == r->entry.place)
		reclaim_judge(c, &is);
	(void)pthread_mutex_unlock(stripe);
	return true;
}

static bool reclaim_on_row(void *user, const uint8_t *k, size_t n_k, const uint8_t *v, size_t n_v)
{
	struct carrying *c = user;
	struct record r;
	(void)k;
	(void)n_k;
	c->row = v;
	c->n_row = n_v;
	return !record_read(v, n_v, &r) || n_v != record_head_bytes(&r.entry.meta) + r.entry.size ||
		reclaim_on_record(c, &r);
}

/* The range begins behind the small file before |f|, so rows without an entry, left by a crash, go too. */
static void reclaim_small_range(struct kvdisk *d, const struct file *f, uint8_t from[SMALL_KEY],
	uint8_t to[SMALL_KEY])
{
	uint32_t first = 0;
	(void)pthread_mutex_lock(&d->files_lock);
	for (size_t i = 0; i < d->n_files && d->files[i]->id < f->id; i++)
		if (d->files[i]->small)
			first = d->files[i]->id + 1;
	(void)pthread_mutex_unlock(&d->files_lock);
	small_key_write((struct place){.file = first}, from);
	small_key_write((struct place){.file = f->id + 1}, to);
}

static void reclaim_file(struct kvdisk *d, struct file *f)
{
	struct carrying c = {.d = d, .from = f, .left = f->used / 2};
	uint8_t from[SMALL_KEY], to[SMALL_KEY];
	if (!f->small) {
		(void)cgn_ok(slab_each(f, reclaim_on_record, &c, NULL));
	} else {
		reclaim_small_range(d, f, from, to);
		(void)cgn_ok(db_each(d->small, from, SMALL_KEY, to, SMALL_KEY, reclaim_on_row, &c, NULL));
	}
	if (c.moved) /* A power cut must not find the old file gone and the new one empty. */
		(void)cgn_ok(sync_all(d, NULL));
	if (f->small)
		(void)cgn_ok(db_drop_range(d->small, from, to, SMALL_KEY, NULL));
	/* Entries that point to the file (its header was damaged) are dropped at the next get. */
	file_give_up(d, f);
	atomic_fetch_add(&d->counts.reclaimed, 1);
}

/* Whether the file may be reclaimed. Not the file that is written, and none with a reference: a put without
 * an entry may be in it. No small values while the databases take no writes, as a restart would find them
 * again. */
static bool reclaim_may_take(const struct kvdisk *d, struct file *f)
{
	return !f->open && atomic_load(&f->refs) == 1 &&
		(!f->small || !(db_stuck(d->index) || db_stuck(d->small)));
}

static struct file *reclaim_choose(struct kvdisk *d)
{
	struct file *best = NULL;
	(void)pthread_mutex_lock(&d->files_lock);
	for (size_t i = 0; i < d->n_files; i++) {
		struct file *f = d->files[i];
		if (reclaim_may_take(d, f) &&
			(best == NULL || (f->live < f->used / 4 && f->live < best->live)))
			best = f;
	}
	(void)pthread_mutex_unlock(&d->files_lock);
	return best;
}

bool reclaim_one(struct kvdisk *d)
{
	struct file *f = reclaim_choose(d);
	if (f != NULL)
		reclaim_file(d, f);
	return f != NULL;
}

void reclaim_expired(struct kvdisk *d)
{
	uint64_t now = kvdisk_clock(d);
	for (;;) {
		struct file *old = NULL;
		(void)pthread_mutex_lock(&d->files_lock);
		for (size_t i = 0; i < d->n_files && old == NULL; i++)
			if (reclaim_may_take(d, d->files[i]) && (d->files[i]->newest_ms + d->ttl_ms < now))
				old = d->files[i];
		(void)pthread_mutex_unlock(&d->files_lock);
		if (old == NULL)
			return;
		reclaim_file(d, old);
	}
}
