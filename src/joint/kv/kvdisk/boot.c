/* SPDX-License-Identifier: Apache-2.0 */
/* Boot: opens the files, then the index, which says which records are in use. A lost or damaged index is put
 * aside and rebuilt from the headers of the records; removed records are marked as struck there. The index is
 * never repaired: a repair may restore removed values.
 *
 * A file beside each database says that its contents are not whole yet. It is made before the damaged database
 * is put aside and removed after the new one is synced, so that a start that is killed in between is finished
 * by the next one. The file has the number of the last slab file whose headers are in the index. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "io/os/disk/disk.h"

#define PROGRESS_EVERY 1000U /* ms */
#define ASK_EVERY      64U   /* entries of the index */
#define CLOCK_KEY      "clock"
#define MEMO_KEY       "memo"

struct booting {
	struct kvdisk *d;
	struct kvdisk_opening *how;
	uint64_t told_at, noted_at, done, newest_ms, max_seq;
	const char *what;
	uint32_t whole_file; /* slab files up to this one are in the index */
	bool fresh;          /* the index was made in this start */
	bool bad_files, stopped;
};

/* Count a record and report the progress. Return false when the owner ends the start. */
static bool boot_goes_on(struct booting *b, unsigned ask_every)
{
	struct kvdisk *d = b->d;
	if (++b->done % 1024 == 0 && d->owner->progress != NULL &&
		d->time.boot_ms() - b->told_at >= PROGRESS_EVERY) {
		b->told_at = d->time.boot_ms();
		d->owner->progress(d->user, b->what, b->done, 0);
	}
	if (b->done % ask_every == 0 && d->owner->goes_on != NULL && !d->owner->goes_on(d->user))
		b->stopped = true;
	return !b->stopped;
}

static CGN_RC boot_stopped(const struct booting *b, struct cgn_err *err)
{
	return b->stopped
		? CGN_FAIL(err, CANCELLED, "the start was ended while %s in %s; the next start goes on",
			  b->what, b->d->dir)
		: CGN_OK;
}

/* ---- databases that are not whole yet ---- */
static CGN_RC unfinished_path(const char *db, char out[PATH_MAX], struct cgn_err *err)
{
	return snprintf(out, PATH_MAX, "%s.unfinished", db) < PATH_MAX
		? CGN_OK
		: CGN_FAIL(err, STORAGE, "the path %.200s... is too long", db);
}

static CGN_RC unfinished_put(const char *db, uint32_t whole_file, struct cgn_err *err)
{
	char path[PATH_MAX], text[16];
	int n = snprintf(text, sizeof text, "%08" PRIx32 "\n", whole_file);
	CGN_TRY(unfinished_path(db, path, err));
	return kvdisk_as_storage(disk_write_file_atomic(path, (struct cgn_str){text, (size_t)n}, 0640, err),
		err);
}

/* A mark that cannot be read says only that nothing is known to be whole. */
static bool unfinished_get(const char *db, uint32_t *whole_file)
{
	char path[PATH_MAX], text[16] = "";
	struct cgn_buf b = cgn_buf_over(text, sizeof text - 1);
	struct cgn_err err;
	if (!cgn_ok(unfinished_path(db, path, &err)))
		return false;
	cgn_rc rc = disk_read_file(path, sizeof text - 2, &b, &err);
	if (!cgn_ok(rc) || sscanf(text, "%8" SCNx32, whole_file) != 1)
		*whole_file = 0;
	return rc.code != CGN_NOT_FOUND;
}

static void unfinished_drop(const char *db)
{
	char path[PATH_MAX];
	if (cgn_ok(unfinished_path(db, path, NULL)))
		(void)unlink(path);
}

/* ---- files ---- */
/* Whether the file was created but never written before a kill. */
static bool file_is_blank(const struct kvdisk *d, const char *name, char path[PATH_MAX])
{
	uint8_t head[FILE_HEAD] = {0}, zero[FILE_HEAD] = {0};
	if (snprintf(path, PATH_MAX, "%s/%s", d->dir, name) >= PATH_MAX)
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n = fd >= 0 ? read(fd, head, sizeof head) : -1;
	if (fd >= 0)
		close(fd);
	return n >= 0 && memcmp(head, zero, sizeof head) == 0;
}

static CGN_RC boot_put_aside(struct kvdisk *d, const char *name, const char *why, struct cgn_err *err)
{
	char to[64];
	CGN_TRY(dir_put_aside(d->dir, name, to, err));
	atomic_fetch_add(&d->damaged_bytes, dir_file_bytes(d->dir, to));
	kvdisk_tell_aside(d, name, to, why);
	return CGN_OK;
}

/* Returns false when the name is not a slab file's. */
static bool slab_name_read(const char *name, uint32_t *id)
{
	int end = 0;
	return sscanf(name, "slab-%8" SCNx32 "%n", id, &end) == 1 && name[end] == '\0' && end == 13;
}

static CGN_RC boot_on_name(void *user, const char *name, struct cgn_err *err)
{
	struct booting *b = user;
	struct cgn_err why = {0};
	char path[PATH_MAX];
	uint32_t id;
	if (!slab_name_read(name, &id)) {
		if (strncmp(name, "slab-", 5) == 0) /* set aside by an earlier start */
			atomic_fetch_add(&b->d->damaged_bytes, dir_file_bytes(b->d->dir, name));
		return CGN_OK;
	}
	if (file_is_blank(b->d, name, path)) {
		(void)unlink(path);
		return CGN_OK;
	}
	cgn_rc rc = slab_load(b->d, id, &why);
	if (rc.code == CGN_INVALID)
		return boot_put_aside(b->d, name, why.msg, err);
	if (!cgn_ok(rc) && err != NULL)
		*err = why;
	return kvdisk_as_storage(rc, err);
}

/* ---- a lost marker ---- */
struct store_votes {
	const char *dir;
	uint64_t store;
	uint32_t votes;
};

/* Majority vote: a copied file of another store must not decide. */
static CGN_RC vote_on_name(void *user, const char *name, struct cgn_err *err)
{
	struct store_votes *v = user;
	char path[PATH_MAX];
	uint32_t id;
	(void)err;
	if (!slab_name_read(name, &id) || snprintf(path, sizeof path, "%s/%s", v->dir, name) >= PATH_MAX)
		return CGN_OK;
	uint64_t is = slab_store_of(path);
	if (is == 0)
		return CGN_OK;
	if (v->votes == 0)
		v->store = is;
	v->votes = v->store == is ? v->votes + 1 : v->votes - 1;
	return CGN_OK;
}

CGN_RC boot_find_store(struct kvdisk *d, struct cgn_err *err)
{
	struct store_votes v = {.dir = d->dir};
	if (d->store == 0)
		CGN_TRY(dir_each(d->dir, vote_on_name, &v, err));
	if (d->store == 0)
		d->store = v.store;
	return dir_mark(d->dir, "slab", &d->store, err);
}

/* ---- databases ---- */
static uint64_t memtable_bytes(const struct kvdisk *d)
{
	uint64_t n = d->budget / 256;
	return n < 128U << 10 ? 128U << 10 : n > 8U << 20 ? 8U << 20 : n;
}

static void boot_keep_why(struct kvdisk_opening *how, const struct cgn_err *e)
{
	(void)snprintf(how->why, sizeof how->why, "%.255s", e->msg);
}

/* Open a database; a damaged one is put aside. |*lost|: the database was damaged or missing, and is new and
 * marked as not whole. */
static CGN_RC open_db(struct kvdisk *d, const char *path, const struct db_cfg *cfg, bool make,
	struct db **out, bool *lost, struct kvdisk_opening *how, struct cgn_err *err)
{
	struct cgn_err why = {0};
	cgn_rc rc = db_open(path, cfg, make, out, &why);
	*lost = rc.code == CGN_INVALID;
	if (!*lost) {
		if (!cgn_ok(rc) && err != NULL)
			*err = why;
		return rc;
	}
	boot_keep_why(how, &why);
	CGN_TRY(unfinished_put(path, 0, err));
	CGN_TRY(db_put_aside(d, path, err));
	rc = db_open(path, cfg, true, out, err);
	return kvdisk_as_storage(rc, err);
}

static CGN_RC open_index(struct kvdisk *d, bool make, bool *lost, struct kvdisk_opening *how,
	struct cgn_err *err)
{
	const struct db_cfg cfg = {.memtable_bytes = memtable_bytes(d),
		.file_bytes = memtable_bytes(d),
		.cache = d->cache,
		.block_bytes = 8U << 10,
		.bloom = true};
	return open_db(d, d->index_path, &cfg, make, &d->index, lost, how, err);
}

static CGN_RC open_small(struct kvdisk *d, bool make, struct kvdisk_opening *how, struct cgn_err *err)
{
	const struct db_cfg cfg = {.memtable_bytes = memtable_bytes(d),
		.file_bytes = memtable_bytes(d),
		.cache = d->cache,
		.block_bytes = 16U << 10};
	return open_db(d, d->small_path, &cfg, make, &d->small, &how->small_lost, how, err);
}

/* ---- reading the index ---- */
static void boot_saw(struct booting *b, const struct record *r)
{
	struct kvdisk *d = b->d;
	struct place p = place_of(r->entry.place);
	uint64_t end = ((uint64_t)p.at + p.len) * KVDISK_UNIT;
	if (r->seq > b->max_seq)
		b->max_seq = r->seq;
	if (r->stored_ms > b->newest_ms)
		b->newest_ms = r->stored_ms;
	struct file *f = file_find(d, p.file, p.small);
	if (f != NULL) {
		if (!p.small && end > f->used)
			f->used = end;
		if (r->stored_ms > f->newest_ms)
			f->newest_ms = r->stored_ms;
		if (p.small)
			f->used += place_bytes(r->entry.place);
	}
	file_unref(d, &f);
	file_count(d, r->entry.place, 1);
}

/* Whether the file of the place exists. Files of small values exist only through their entries. */
static bool boot_has_file(struct booting *b, kvdisk_place at)
{
	struct kvdisk *d = b->d;
	struct place p = place_of(at);
	struct file *f = file_find(d, p.file, p.small);
	bool is = f != NULL && (p.small || ((uint64_t)p.at + p.len) * KVDISK_UNIT <= f->bytes);
	file_unref(d, &f);
	if (is || !p.small || b->how->small_lost)
		return is;
	(void)file_add(d, p.file, true, -1, d->small_file_bytes);
	return true;
}

static bool boot_on_entry(void *user, const uint8_t *k, size_t n_k, const uint8_t *v, size_t n_v)
{
	struct booting *b = user;
	struct block_key key;
	struct record r;
	if (n_k == strlen(CLOCK_KEY) || n_k == strlen(MEMO_KEY))
		return true;
	bool whole = index_key_read(k, n_k, &key) && index_read(&key, v, n_v, &r);
	if (!whole || !boot_has_file(b, r.entry.place)) {
		b->how->dropped++;
		(void)cgn_ok(db_delete(b->d->index, k, n_k, NULL));
		return true;
	}
	boot_saw(b, &r);
	b->how->entries++;
	b->how->bytes += r.entry.size;
	if (b->d->owner->found != NULL && !b->d->owner->found(b->d->user, &r.entry)) {
		/* No owner reports the end of this value, so a rebuilt index must not find it. */
		log_unwrite(b->d, r.entry.place);
		entry_drop(b->d, &key, r.entry.place);
		b->how->dropped++;
		b->how->entries--;
		b->how->bytes -= r.entry.size;
	}
	return boot_goes_on(b, ASK_EVERY);
}

/* ---- rebuilding the index from headers ---- */
static bool boot_on_header(void *user, const struct record *r)
{
	struct booting *b = user;
	char names[KVDISK_NAMES];
	struct record was;
	if (!boot_goes_on(b, 1))
		return false;
	if (r->struck || r->store != b->d->store)
		return true;
	bool had = cgn_ok(entry_get(b->d, &r->entry.key, &was, names)), older = had && was.seq >= r->seq;
	if (!older && !cgn_ok(entry_put(b->d, r, NULL)))
		b->bad_files = true;
	/* A record that was replaced, but not struck: a later rebuild must not find it when the newer one is gone. */
	else if (had && was.entry.place != r->entry.place)
		log_unwrite(b->d, older ? r->entry.place : was.entry.place);
	return true;
}

static bool boot_on_row(void *user, const uint8_t *k, size_t n_k, const uint8_t *v, size_t n_v)
{
	struct record r;
	(void)k;
	(void)n_k;
	if (record_read(v, n_v, &r) && place_of(r.entry.place).small)
		return boot_on_header(user, &r);
	return true;
}

/* Note that the headers of the files up to |f| are in the index, so that a later start need not read them. */
static CGN_RC rebuild_note(struct booting *b, const struct file *f, struct cgn_err *err)
{
	struct kvdisk *d = b->d;
	if (d->time.boot_ms() - b->noted_at < PROGRESS_EVERY)
		return CGN_OK;
	b->noted_at = d->time.boot_ms();
	CGN_TRY(kvdisk_as_storage(db_sync(d->index, err), err));
	return unfinished_put(d->index_path, f->id, err);
}

/* CGN_INVALID: the index is damaged. */
static CGN_RC index_rebuild(struct booting *b, struct cgn_err *err)
{
	struct kvdisk *d = b->d;
	char why[DB_WHY];
	b->what = "reading the headers of all values, since the index is gone";
	for (size_t i = 0; i < d->n_files && !b->bad_files; i++) {
		struct file *f = d->files[i];
		if (f->small || f->id <= b->whole_file)
			continue;
		CGN_TRY(slab_each(f, boot_on_header, b, err));
		CGN_TRY(boot_stopped(b, err));
		if (!b->bad_files)
			CGN_TRY(rebuild_note(b, f, err));
	}
	(void)cgn_ok(db_each(d->small, "", 0, NULL, 0, boot_on_row, b, NULL)); /* damaged rows are lost */
	if (b->bad_files)
		return db_why(d->index, why)
			? CGN_FAIL(err, INVALID, "the new index is damaged: %s", why)
			: CGN_FAIL(err, STORAGE, "cannot write the new index in %s", d->index_path);
	return boot_stopped(b, err);
}

static void boot_forget(struct booting *b)
{
	struct kvdisk *d = b->d;
	for (size_t i = 0; i < d->n_files; i++) {
		d->files[i]->live = 0;
		d->files[i]->used = d->files[i]->small ? 0 : KVDISK_UNIT;
	}
	atomic_store(&d->counts.entries, 0);
	b->how->entries = b->how->bytes = 0;
}

/* ---- the clock ---- */
struct saved {
	uint64_t clock, wall;
};

static void boot_on_clock(void *user, const uint8_t *v, size_t n)
{
	if (n == sizeof(struct saved))
		memcpy(user, v, n);
}

void boot_save_clock(struct kvdisk *d)
{
	struct saved s = {kvdisk_clock(d), d->time.wall_ms()};
	d->time.saved = d->time.boot_ms();
	(void)cgn_ok(db_put(d->index, CLOCK_KEY, strlen(CLOCK_KEY), &s, sizeof s, NULL));
}

struct memo {
	void *to;
	size_t n;
	bool got;
};

static void boot_on_memo(void *user, const uint8_t *v, size_t n)
{
	struct memo *m = user;
	m->got = n == m->n;
	if (m->got)
		memcpy(m->to, v, n);
}

bool kvdisk_memo_get(struct kvdisk *d, void *p, size_t n)
{
	struct memo m = {p, n, false};
	CGN_LIVE(d, KVDISK_TAG);
	(void)cgn_ok(db_get(d->index, MEMO_KEY, strlen(MEMO_KEY), boot_on_memo, &m, NULL));
	return m.got;
}

void kvdisk_memo_put(struct kvdisk *d, const void *p, size_t n)
{
	CGN_LIVE(d, KVDISK_TAG);
	CGN_MUST(n <= KVDISK_MEMO);
	(void)cgn_ok(db_put(d->index, MEMO_KEY, strlen(MEMO_KEY), p, n, NULL));
}

/* The wall clock says how long the store was down. It may have been set meanwhile, so at most half of the
 * time to live counts, and the clock never goes back. */
static void boot_start_clock(struct booting *b)
{
	struct kvdisk *d = b->d;
	struct saved s = {0};
	(void)cgn_ok(db_get(d->index, CLOCK_KEY, strlen(CLOCK_KEY), boot_on_clock, &s, NULL));
	uint64_t wall = d->time.wall_ms(), away = s.wall > 0 && wall > s.wall ? wall - s.wall : 0;
	if (away > d->ttl_ms / 2)
		away = d->ttl_ms / 2;
	d->time.base = (s.clock > b->newest_ms ? s.clock : b->newest_ms) + away;
	d->time.from = d->time.boot_ms();
}

/* ---- all of it ---- */
CGN_RC boot_cap(struct kvdisk *d, struct cgn_err *err)
{
	uint64_t is = 0;
	CGN_TRY(dir_free_bytes(d->dir, &is, err));
	uint64_t most = is + disk_bytes(d);
	most -= most / 64; /* keep some of the file system free */
	d->budget = most < d->asked ? most : d->asked;
	return CGN_OK;
}

static CGN_RC boot_cap_files(struct kvdisk *d, struct kvdisk_opening *how, struct cgn_err *err)
{
	CGN_TRY(boot_cap(d, err));
	how->budget = d->budget;
	how->capped = d->budget < d->asked;
	if (d->budget < KVDISK_MIN_BUDGET && how->made) /* a store that has values starts anyway */
		return CGN_FAIL(err, STORAGE,
			"the file system of %s has %llu bytes for an SSD tier, which needs %llu", d->dir,
			(unsigned long long)d->budget, (unsigned long long)KVDISK_MIN_BUDGET);
	while (d->file_bytes > (uint64_t)1 << 20 && d->file_bytes > d->budget / 12)
		d->file_bytes /= 2;
	if (d->small_file_bytes > d->file_bytes)
		d->small_file_bytes = d->file_bytes;
	return CGN_OK;
}

static CGN_RC read_index(struct booting *b, bool lost, struct cgn_err *err);

/* Put the damaged index aside and make a new one of all headers. */
static CGN_RC index_start_over(struct booting *b, const struct cgn_err *why, struct cgn_err *err)
{
	struct kvdisk *d = b->d;
	bool lost;
	boot_keep_why(b->how, why);
	db_close(&d->index);
	boot_forget(b);
	CGN_TRY(unfinished_put(d->index_path, 0, err));
	CGN_TRY(db_put_aside(d, d->index_path, err));
	CGN_TRY(open_index(d, true, &lost, b->how, err));
	b->fresh = true;
	b->bad_files = false;
	b->whole_file = 0;
	return read_index(b, true, err);
}

static CGN_RC read_index(struct booting *b, bool lost, struct cgn_err *err)
{
	struct cgn_err why = {0};
	cgn_rc rc = lost ? index_rebuild(b, &why) : CGN_OK;
	b->how->rebuilt = lost;
	if (cgn_ok(rc)) {
		b->what = "reading the index";
		rc = db_each(b->d->index, "", 0, NULL, 0, boot_on_entry, b, &why);
		CGN_TRY(boot_stopped(b, err));
	}
	if (rc.code == CGN_INVALID && !b->fresh)
		return index_start_over(b, &why, err);
	if (cgn_ok(rc))
		return CGN_OK;
	return CGN_FAIL_AS(err, rc.code == CGN_CANCELLED ? CGN_CANCELLED : CGN_STORAGE, "%s", why.msg);
}

/* The index and the small values are whole on disk: a later start need not finish this one's work. */
static CGN_RC boot_finish(struct kvdisk *d, struct kvdisk_opening *how, struct cgn_err *err)
{
	if (!how->rebuilt && !how->small_lost)
		return CGN_OK;
	CGN_TRY(kvdisk_as_storage(db_sync(d->index, err), err));
	unfinished_drop(d->index_path);
	unfinished_drop(d->small_path);
	return CGN_OK;
}

/* The bytes behind the last record of the file that was written last may be the remains of a kill. */
static void boot_cut_last_file(struct kvdisk *d)
{
	struct file *last = NULL;
	for (size_t i = 0; i < d->n_files; i++) {
		struct file *f = d->files[i];
		if (f->small)
			continue;
		bool has_room = f->used < f->bytes;
		if (has_room && ftruncate(f->fd, (off_t)f->used) == 0)
			f->bytes = f->used;
		/* older files would be reclaimed before a new record comes to them */
		last = has_room ? f : NULL;
	}
	if (last != NULL)
		log_resume(d, last);
}

static void boot_drop_damaged(const char *path)
{
	char old[PATH_MAX];
	if (snprintf(old, sizeof old, "%s.damaged", path) < (int)sizeof old)
		dir_remove(old);
}

/* Free space when other files fill the file system: the databases need some to open, and the values are a
 * cache. */
static void boot_free_space(struct kvdisk *d)
{
	uint64_t is = 0;
	while (d->n_files > 0 && cgn_ok(dir_free_bytes(d->dir, &is, NULL)) && is < 8 * memtable_bytes(d))
		file_give_up(d, d->files[0]);
}

CGN_RC boot(struct kvdisk *d, bool made, struct kvdisk_opening *how, struct cgn_err *err)
{
	struct booting b = {.d = d, .how = how, .told_at = d->time.boot_ms(), .what = "reading the index"};
	bool lost = false;
	uint32_t none;
	b.noted_at = b.told_at;
	CGN_TRY(dir_each(d->dir, boot_on_name, &b, err));
	CGN_TRY(boot_cap_files(d, how, err));
	boot_free_space(d);
	CGN_TRY(open_small(d, made, how, err));
	CGN_TRY(open_index(d, made, &b.fresh, how, err));
	how->small_lost = unfinished_get(d->small_path, &none);
	lost = unfinished_get(d->index_path, &b.whole_file);
	if (lost && !b.fresh)
		boot_keep_why(how,
			&(struct cgn_err){.msg = "an earlier start ended before the index was whole"});
	CGN_TRY(read_index(&b, lost, err));
	CGN_TRY(boot_finish(d, how, err));
	if (!how->rebuilt)
		boot_drop_damaged(d->index_path);
	if (!how->small_lost)
		boot_drop_damaged(d->small_path);
	boot_start_clock(&b);
	atomic_store(&d->next_seq, b.max_seq + 1);
	boot_cut_last_file(d);
	boot_save_clock(d);
	log_ahead(d);
	return CGN_OK;
}
