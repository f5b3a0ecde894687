/* SPDX-License-Identifier: Apache-2.0 */
/* kvdisk: put, get, remove, tend, open and close. A put writes the record, then the index. A removal strikes
 * the record, then drops its entry. A crash in between leaves no value that was not put. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <errno.h>
#include <rocksdb/c.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/sum/sum.h"
#include "io/os/loop/loop.h"

#define CACHE_BYTES ((size_t)16 << 20)
#define CLOCK_EVERY 10000U /* ms */

/* ---- put ---- */
static CGN_RC put_index(struct kvdisk *d, const struct record *r, struct cgn_err *err)
{
	char names[KVDISK_NAMES];
	struct record was;
	pthread_mutex_t *stripe = kvdisk_stripe(d, &r->entry.key);
	(void)pthread_mutex_lock(stripe);
	cgn_rc had = entry_get(d, &r->entry.key, &was, names);
	cgn_rc rc = had.code != CGN_UNAVAILABLE ? entry_put(d, r, err)
						: CGN_FAIL(err, STORAGE, "the index cannot be read now");
	if (cgn_ok(rc))
		file_count(d, r->entry.place, 1);
	if (cgn_ok(rc) && cgn_ok(had)) {
		log_unwrite(d, was.entry.place);
		file_count(d, was.entry.place, -1);
	}
	(void)pthread_mutex_unlock(stripe);
	return rc;
}

static CGN_RC put_record(struct kvdisk *d, struct record *r, const struct iovec *value, size_t n_value,
	struct cgn_err *err)
{
	struct file *f = NULL;
	bool small = r->entry.size < d->small_bytes;
	CGN_TRY(log_room(d, small, record_bytes(&r->entry.meta, r->entry.size, small), false, &r->entry.place,
		&f, err));
	cgn_rc rc = log_write(d, f, r, value, n_value, err);
	if (cgn_ok(rc))
		rc = put_index(d, r, err);
	if (!cgn_ok(rc))
		log_unwrite(d, r->entry.place);
	file_unref(d, &f);
	return rc;
}

CGN_RC kvdisk_put(struct kvdisk *d, const struct block_key *k, const struct block_meta *meta,
	uint64_t checksum, const struct iovec *value, size_t n_value, kvdisk_place *out, struct cgn_err *err)
{
	CGN_LIVE(d, KVDISK_TAG);
	struct record r = {.entry = {.key = *k,
				   .size = cgn_iov_bytes(value, n_value),
				   .checksum = checksum,
				   .meta = *meta},
		.store = d->store};
	CGN_MUST(r.entry.size <= BLOCK_MAX_BYTES);
	r.seq = atomic_fetch_add(&d->next_seq, 1);
	r.stored_ms = kvdisk_clock(d);
	struct cgn_err why = {0};
	bool writable = health_writable(d, &why);
	cgn_rc rc = writable ? put_record(d, &r, value, n_value, &why) : CGN_RC_OF(CGN_STORAGE);
	if (!cgn_ok(rc)) {
		atomic_fetch_add(&d->counts.failed, 1);
		if (writable && rc.code == CGN_STORAGE)
			health_refused(d, why.msg);
		if (err != NULL)
			*err = why;
		return rc;
	}
	atomic_fetch_add(&d->counts.puts, 1);
	atomic_fetch_add(&d->counts.put_bytes, r.entry.size);
	*out = r.entry.place;
	return rc;
}

/* ---- get ---- */
struct wanted_value {
	const struct kvdisk *d;
	const struct block_key *key;
	kvdisk_place at;
	const struct iovec *to;
	size_t n_to;
	struct kvdisk_value *out;
	cgn_rc rc;
};

static CGN_RC value_check_head(const struct wanted_value *w, const uint8_t *p, size_t n, struct record *r)
{
	if (!record_read(p, n, r) || r->store != w->d->store || r->entry.place != w->at ||
		!block_key_eq(&r->entry.key, w->key))
		return CGN_RC_OF(CGN_INVALID);
	if (r->struck || entry_had_its_time(w->d, r) || r->entry.size != cgn_iov_bytes(w->to, w->n_to))
		return CGN_RC_OF(CGN_NOT_FOUND);
	w->out->checksum = r->entry.checksum;
	w->out->meta = record_keep_names(&r->entry.meta, w->out->names);
	return CGN_OK;
}

static CGN_RC value_check_sum(const struct wanted_value *w)
{
	return CGN_RC_OF(sum64_pieces(w->to, w->n_to) == w->out->checksum ? CGN_FINE : CGN_INVALID);
}

static void value_on_small(void *user, const uint8_t *v, size_t n)
{
	struct wanted_value *w = user;
	struct record r;
	w->rc = value_check_head(w, v, n, &r);
	if (!cgn_ok(w->rc))
		return;
	size_t at = record_head_bytes(&r.entry.meta);
	if (n - at != r.entry.size) {
		w->rc = CGN_RC_OF(CGN_INVALID);
		return;
	}
	for (size_t i = 0; i < w->n_to; i++) {
		memcpy(w->to[i].iov_base, v + at, w->to[i].iov_len);
		at += w->to[i].iov_len;
	}
	w->rc = value_check_sum(w);
}

static CGN_RC value_read_small(struct wanted_value *w, struct kvdisk *d, struct cgn_err *err)
{
	uint8_t key[SMALL_KEY];
	small_key_write(place_of(w->at), key);
	CGN_TRY(db_get(d->small, key, sizeof key, value_on_small, w, err));
	return w->rc;
}

static CGN_RC value_read_slab(struct wanted_value *w, const struct file *f, struct cgn_err *err)
{
	_Alignas(KVDISK_UNIT) uint8_t head[KVDISK_UNIT];
	struct record r;
	CGN_TRY(slab_read(f, place_of(w->at).at, head, w->to, w->n_to, err));
	CGN_TRY(value_check_head(w, head, sizeof head, &r));
	return value_check_sum(w);
}

static CGN_RC value_read(struct wanted_value *w, struct kvdisk *d, struct cgn_err *err)
{
	struct place p = place_of(w->at);
	struct file *f = file_find(d, p.file, p.small);
	if (f == NULL)
		return CGN_RC_OF(CGN_NOT_FOUND);
	cgn_rc rc = p.small ? value_read_small(w, d, err) : value_read_slab(w, f, err);
	file_unref(d, &f);
	return rc;
}

/* Drop the entry of a value that is damaged or missing; |seq| is its sequence number. */
static void value_drop(struct kvdisk *d, const struct block_key *k, kvdisk_place at, uint64_t seq)
{
	if (!entry_drop(d, k, at))
		removal_add(d, k, seq + 1);
}

/* Read again under the stripe, so that no other thread changes the record. A record that is still damaged is
 * damaged on disk; an entry whose record is missing is useless. */
static CGN_RC value_read_locked(struct wanted_value *w, struct kvdisk *d, struct cgn_err *err)
{
	char names[KVDISK_NAMES];
	struct record is;
	pthread_mutex_t *stripe = kvdisk_stripe(d, w->key);
	cgn_rc rc = CGN_RC_OF(CGN_NOT_FOUND);
	(void)pthread_mutex_lock(stripe);
	cgn_rc entry = entry_get(d, w->key, &is, names);
	bool there = cgn_ok(entry) && is.entry.place == w->at;
	if (entry.code == CGN_UNAVAILABLE)
		rc = CGN_FAIL(err, UNAVAILABLE, "the index of the SSD tier cannot be read now");
	if (there)
		rc = value_read(w, d, err);
	if (there && rc.code == CGN_NOT_FOUND && !entry_had_its_time(d, &is) &&
		is.entry.size == cgn_iov_bytes(w->to, w->n_to))
		value_drop(d, w->key, w->at, is.seq);
	if (rc.code == CGN_INVALID || rc.code == CGN_STORAGE) {
		value_drop(d, w->key, w->at, is.seq);
		atomic_fetch_add(&d->counts.corrupt, 1);
		rc = CGN_FAIL(err, STORAGE, "what lies on disk is not the value that was put");
	}
	(void)pthread_mutex_unlock(stripe);
	return rc;
}

CGN_RC kvdisk_get(struct kvdisk *d, const struct block_key *k, kvdisk_place at, const struct iovec *to,
	size_t n_to, struct kvdisk_value *out, struct cgn_err *err)
{
	struct wanted_value w = {d, k, at, to, n_to, out, CGN_OK};
	CGN_LIVE(d, KVDISK_TAG);
	CGN_MUST(n_to <= KVDISK_MAX_PIECES);
	cgn_rc rc = value_read(&w, d, err);
	if (rc.code == CGN_INVALID || rc.code == CGN_STORAGE || rc.code == CGN_NOT_FOUND)
		rc = value_read_locked(&w, d, err);
	if (rc.code == CGN_NOT_FOUND)
		return CGN_FAIL(err, NOT_FOUND, "it is not on disk any more, or elsewhere");
	if (cgn_ok(rc)) {
		atomic_fetch_add(&d->counts.gets, 1);
		atomic_fetch_add(&d->counts.get_bytes, cgn_iov_bytes(to, n_to));
	}
	return rc;
}

/* ---- remove, tend, statistics ---- */
bool kvdisk_remove(struct kvdisk *d, const struct block_key *k)
{
	CGN_LIVE(d, KVDISK_TAG);
	return entry_remove_before(d, k, atomic_load(&d->next_seq));
}

bool kvdisk_expire(struct kvdisk *d, const struct block_key *k, uint64_t unix_ms)
{
	char names[KVDISK_NAMES];
	struct record is;
	pthread_mutex_t *stripe = kvdisk_stripe(d, k);
	CGN_LIVE(d, KVDISK_TAG);
	(void)pthread_mutex_lock(stripe);
	bool done = cgn_ok(entry_get(d, k, &is, names));
	if (done) {
		is.entry.meta.expires_unix_ms = unix_ms;
		done = cgn_ok(entry_put(d, &is, NULL));
	}
	(void)pthread_mutex_unlock(stripe);
	return done;
}

void kvdisk_tend(struct kvdisk *d)
{
	CGN_LIVE(d, KVDISK_TAG);
	if (pthread_mutex_trylock(&d->room) != 0)
		return; /* another thread tends the disk */
	if (d->ttl_ms > 0)
		reclaim_expired(d);
	log_ahead(d);
	health_retry(d);
	if (d->time.boot_ms() - d->time.saved >= CLOCK_EVERY) {
		boot_save_clock(d);
		(void)cgn_ok(boot_cap(d, NULL));
	}
	(void)pthread_mutex_unlock(&d->room);
	removal_repeat(d);
	if (atomic_exchange(&d->dirty, false) && !cgn_ok(sync_all(d, NULL)))
		atomic_store(&d->dirty, true);
}

bool kvdisk_roomy(const struct kvdisk *d)
{
	return atomic_load(&d->roomy);
}

void kvdisk_stats(struct kvdisk *d, struct kvdisk_stats *out)
{
	CGN_LIVE(d, KVDISK_TAG);
	*out = (struct kvdisk_stats){.entries = d->counts.entries,
		.budget = d->budget,
		.puts = d->counts.puts,
		.put_bytes = d->counts.put_bytes,
		.gets = d->counts.gets,
		.get_bytes = d->counts.get_bytes,
		.carried_bytes = d->counts.carried,
		.written_bytes = d->counts.written,
		.reclaimed = d->counts.reclaimed,
		.dropped = d->counts.dropped,
		.expired = d->counts.expired,
		.corrupt = d->counts.corrupt,
		.failed = d->counts.failed,
		.aside = d->counts.aside,
		.reopened = d->counts.reopened};
	out->refusing = health_stats(d, out->why);
	out->index_bytes = db_file_bytes(d->index) + db_file_bytes(d->small);
	out->bytes = disk_bytes(d);
	(void)pthread_mutex_lock(&d->files_lock);
	out->files = d->n_files;
	for (size_t i = 0; i < d->n_files; i++)
		out->live_bytes += d->files[i]->live;
	(void)pthread_mutex_unlock(&d->files_lock);
}

/* ---- open and close ---- */
static uint64_t real_boot_ms(void)
{
	struct timespec t;
	CGN_MUST(clock_gettime(CLOCK_BOOTTIME, &t) == 0);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static uint64_t floor_power(uint64_t n)
{
	return n > 0 ? 1ULL << (63 - __builtin_clzll(n)) : 0;
}

static uint64_t u64_clamp(uint64_t n, uint64_t min, uint64_t max)
{
	return n < min ? min : n > max ? max : n;
}

/* Return the size of a slab file: at least 16 files fit the budget, and about a thousand at most. */
static uint64_t usual_file_bytes(uint64_t budget)
{
	uint64_t most = u64_clamp(floor_power(budget / 1024), (uint64_t)256 << 20, (uint64_t)4 << 30);
	return u64_clamp(floor_power(budget / 16), (uint64_t)1 << 20, most);
}

static struct kvdisk *kvdisk_new(const struct kvdisk_cfg *cfg)
{
	static const struct kvdisk_owner nobody;
	struct kvdisk *d = CGN_NEW(struct kvdisk);
	d->dir = cgn_str_dupz(cgn_str_of(cfg->dir));
	d->tag = KVDISK_TAG;
	d->lock_fd = d->index_lock_fd = -1;
	d->asked = cfg->budget;
	d->budget = cfg->budget;
	d->ttl_ms = cfg->ttl_ms;
	d->small_bytes = cfg->small_bytes > 0 ? cfg->small_bytes : KVDISK_SMALL;
	d->owner = cfg->owner != NULL ? cfg->owner : &nobody;
	d->user = cfg->user;
	d->time.wall_ms = cfg->wall_ms != NULL ? cfg->wall_ms : cgn_clock_wall_ms;
	d->time.boot_ms = cfg->boot_ms != NULL ? cfg->boot_ms : real_boot_ms;
	d->time.from = d->time.boot_ms();
	d->next_file = 1;
	atomic_store(&d->next_seq, 1);
	(void)pthread_mutex_init(&d->room, NULL);
	(void)pthread_mutex_init(&d->files_lock, NULL);
	(void)pthread_mutex_init(&d->removals.lock, NULL);
	(void)pthread_mutex_init(&d->health.lock, NULL);
	for (size_t i = 0; i < KVDISK_STRIPES; i++)
		(void)pthread_mutex_init(&d->stripes[i], NULL);
	d->cache = rocksdb_cache_create_lru(CACHE_BYTES);
	return d;
}

static void paths_make(struct kvdisk *d, const struct kvdisk_cfg *cfg)
{
	const char *at = cfg->index_dir != NULL ? cfg->index_dir : cfg->dir;
	struct cgn_buf b = {0};
	cgn_buf_fmt(&b, "%s/index", at);
	d->index_path = cgn_str_dupz(cgn_str_of(cgn_buf_z(&b)));
	b.n = 0;
	cgn_buf_fmt(&b, "%s/small", cfg->dir);
	d->small_path = cgn_str_dupz(cgn_str_of(cgn_buf_z(&b)));
	cgn_buf_fini(&b);
}

static CGN_RC kvdisk_open_parts(struct kvdisk *d, const struct kvdisk_cfg *cfg, struct kvdisk_opening *how,
	struct cgn_err *err)
{
	struct dir slab, index = {0};
	bool apart = cfg->index_dir != NULL && strcmp(cfg->index_dir, cfg->dir) != 0;
	paths_make(d, cfg);
	CGN_TRY(dir_open(cfg->dir, "slab", &d->store, &slab, &d->lock_fd, err));
	how->made = slab.made;
	if (slab.lost) {
		d->store = apart ? dir_store_of(cfg->index_dir, "index") : 0;
		CGN_TRY(boot_find_store(d, err));
		kvdisk_tell_aside(d, "cognitora-kv", slab.aside, "it is damaged");
	}
	if (apart)
		CGN_TRY(dir_open(cfg->index_dir, "index", &d->store, &index, &d->index_lock_fd, err));
	if (index.lost)
		kvdisk_tell_aside(d, "cognitora-kv", index.aside, "it is damaged");
	d->file_bytes = cfg->file_bytes > 0 ? cfg->file_bytes : usual_file_bytes(cfg->budget);
	d->small_file_bytes = u64_clamp(d->file_bytes / 4, (uint64_t)1 << 20, (uint64_t)64 << 20);
	return boot(d, how->made, how, err);
}

CGN_RC kvdisk_open(const struct kvdisk_cfg *cfg, struct kvdisk **out, struct kvdisk_opening *how,
	struct cgn_err *err)
{
	*how = (struct kvdisk_opening){0};
	if (cfg->budget < KVDISK_MIN_BUDGET)
		return CGN_FAIL(err, INVALID, "an SSD tier of %llu bytes: at least %llu",
			(unsigned long long)cfg->budget, (unsigned long long)KVDISK_MIN_BUDGET);
	struct kvdisk *d = kvdisk_new(cfg);
	cgn_rc rc = kvdisk_open_parts(d, cfg, how, err);
	if (!cgn_ok(rc))
		kvdisk_close(&d);
	*out = d;
	return rc;
}

static void kvdisk_close_files(struct kvdisk *d)
{
	for (size_t i = 0; i < d->n_files; i++) {
		struct file *f = d->files[i];
		CGN_MUST(atomic_load(&f->refs) == 1);
		if (f->open && !f->small && ftruncate(f->fd, (off_t)f->used) == 0)
			(void)fdatasync(f->fd);
		file_free(f);
	}
	free(d->files);
}

void kvdisk_close(struct kvdisk **take)
{
	struct kvdisk *d = CGN_TAKE_LIVE(take, KVDISK_TAG);
	if (d == NULL)
		return;
	if (d->index != NULL && d->small != NULL) {
		health_retry(d);
		removal_repeat(d);
		boot_save_clock(d);
		(void)cgn_ok(sync_all(d, NULL));
	}
	kvdisk_close_files(d);
	db_close(&d->small);
	db_close(&d->index);
	rocksdb_cache_destroy(d->cache);
	for (size_t i = 0; i < KVDISK_STRIPES; i++)
		(void)pthread_mutex_destroy(&d->stripes[i]);
	(void)pthread_mutex_destroy(&d->files_lock);
	(void)pthread_mutex_destroy(&d->removals.lock);
	(void)pthread_mutex_destroy(&d->health.lock);
	(void)pthread_mutex_destroy(&d->room);
	if (d->index_lock_fd >= 0)
		close(d->index_lock_fd);
	if (d->lock_fd >= 0)
		close(d->lock_fd); /* last, as another process may open the store now */
	free(d->dir);
	free(d->index_path);
	free(d->small_path);
	free(d->removals.list);
	d->tag = 0;
	free(d);
}
