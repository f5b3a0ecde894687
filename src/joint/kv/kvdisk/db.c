/* SPDX-License-Identifier: Apache-2.0 */
/* RocksDB behind a few calls. Each call writes to RocksDB's log, and db_sync syncs the log: kill -9 loses
 * nothing, a power cut what came after the last sync. All databases share two threads, one that flushes and
 * one that compacts.
 *
 * After an error of a write, RocksDB's files may be unusable for it, and calls that write or sync can hit an
 * assertion (Debian builds RocksDB with assertions). So all calls that write or sync exclude each other, and
 * none is made after the first error until the database was reopened. Reading goes on meanwhile. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <rocksdb/c.h>
#include <stdlib.h>
#include <string.h>

/* RocksDB's own log is a file like the others: the first message after one that did not fit on the disk hits an
 * assertion. Errors come back as results. RocksDB 7 takes a level above the highest one; 9 (Debian 13) refuses that,
 * and has loggers. */
#define LOG_FATAL    4
#define LOG_NOTHING  6
#define AGAIN_TRIES  1000 /* milliseconds */
#define LEVEL_TABLES 8U   /* Size of the first level, and most that one compaction reads, in memtables. */

struct db {
	pthread_mutex_t lock;
	/* Calls inside |rocks|. A counter instead of a lock: callbacks of db_each take the caller's locks,
	 * and other threads call in with these held. */
	unsigned users;
	char *path;
	struct db_cfg cfg;
	rocksdb_t *rocks;       /* NULL: the attempt to reopen failed */
	pthread_mutex_t writes; /* held during calls that write or sync; outside |lock| */
	char why[DB_WHY];       /* The error that set |stuck|. Under |lock|. */
	bool damaged;           /* True when that error is damage. Under |lock|. */
	rocksdb_options_t *options;
	rocksdb_writeoptions_t *write;
	rocksdb_readoptions_t *read;
	_Atomic bool stuck;
};

static bool db_message_says(const char *message, const char *what)
{
	return strstr(message, what) != NULL;
}

/* Return the system's text in an error that comes from the system; NULL: from damage in the files. */
static const char *environment_of(const char *m)
{
	static const char *const signs[] = {"No space left", "Permission denied", "Read-only file system",
		"Too many open files", "Input/output error", "Disk quota", "Cannot allocate",
		"File too large", "While lock file", "lock hold by"};
	for (size_t i = 0; i < CGN_COUNT(signs); i++)
		if (db_message_says(m, signs[i]))
			return signs[i];
	return NULL;
}

/* Fill |err| from RocksDB's message. Frees |message|. */
static CGN_RC db_fail(const struct db *d, const char *doing, char *message, struct cgn_err *err)
{
	if (message == NULL)
		return CGN_OK;
	enum cgn_code code = environment_of(message) != NULL ? CGN_STORAGE : CGN_INVALID;
	(void)CGN_FAIL_AS(err, code, "cannot %s the database %s: %.200s", doing, d->path, message);
	rocksdb_free(message);
	return CGN_RC_OF(code);
}

static void table_options(struct db *d)
{
	rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();
	rocksdb_block_based_options_set_block_cache(t, d->cfg.cache);
	rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
	rocksdb_block_based_options_set_block_size(t, d->cfg.block_bytes);
	if (d->cfg.bloom)
		rocksdb_block_based_options_set_filter_policy(t, rocksdb_filterpolicy_create_bloom_full(10));
	rocksdb_options_set_block_based_table_factory(d->options, t);
	rocksdb_block_based_options_destroy(t);
}

#if CGN_ROCKSDB_HAS_LOGGERS
static void log_drop(void *priv, unsigned level, char *text, size_t n)
{
	(void)priv;
	(void)level;
	(void)text;
	(void)n;
}

static void log_off(rocksdb_options_t *o)
{
	rocksdb_logger_t *logger = rocksdb_logger_create_callback_logger(LOG_FATAL, log_drop, NULL);
	rocksdb_options_set_info_log_level(o, LOG_FATAL);
	rocksdb_options_set_info_log(o, logger);
	rocksdb_logger_destroy(logger);
}
#else
static void log_off(rocksdb_options_t *o)
{
	rocksdb_options_set_info_log_level(o, LOG_NOTHING);
}
#endif

static void db_options(struct db *d)
{
	rocksdb_options_t *o = d->options = rocksdb_options_create();
	rocksdb_options_set_compression(o, rocksdb_no_compression); /* KV cache does not compress */
	rocksdb_options_set_write_buffer_size(o, d->cfg.memtable_bytes);
	rocksdb_options_set_max_write_buffer_number(o, 2);
	rocksdb_options_set_target_file_size_base(o, d->cfg.file_bytes);
	rocksdb_options_set_max_bytes_for_level_base(o, LEVEL_TABLES * d->cfg.memtable_bytes);
	rocksdb_options_set_max_compaction_bytes(o, LEVEL_TABLES * d->cfg.memtable_bytes);
	rocksdb_options_set_max_background_jobs(o, 2);
	rocksdb_options_set_max_open_files(o, 256);
	rocksdb_options_set_paranoid_checks(o, 1);
	rocksdb_options_set_wal_recovery_mode(o, rocksdb_point_in_time_recovery);
	rocksdb_options_set_manifest_preallocation_size(o, 64 << 10);
	rocksdb_options_set_max_manifest_file_size(o, 4 << 20);
	log_off(o);
	rocksdb_options_set_keep_log_file_num(o, 1);
	rocksdb_options_set_max_log_file_size(o, 0);
	rocksdb_options_set_stats_dump_period_sec(o, 0);
	rocksdb_options_set_stats_persist_period_sec(o, 0);
	rocksdb_options_set_skip_stats_update_on_db_open(o, 1);
	table_options(d);
}

static CGN_RC open_rocks(struct db *d, bool make, struct cgn_err *err)
{
	char *message = NULL;
	rocksdb_options_set_create_if_missing(d->options, make);
	d->rocks = rocksdb_open(d->options, d->path, &message);
	if (d->rocks != NULL)
		atomic_store(&d->stuck, false);
	return db_fail(d, "open", message, err);
}

CGN_RC db_open(const char *path, const struct db_cfg *cfg, bool make, struct db **out, struct cgn_err *err)
{
	struct db *d = CGN_NEW(struct db);
	d->path = cgn_str_dupz(cgn_str_of(path));
	(void)pthread_mutex_init(&d->lock, NULL);
	(void)pthread_mutex_init(&d->writes, NULL);
	d->cfg = *cfg;
	d->write = rocksdb_writeoptions_create();
	d->read = rocksdb_readoptions_create();
	rocksdb_readoptions_set_verify_checksums(d->read, 1);
	db_options(d);
	cgn_rc rc = open_rocks(d, make, err);
	if (!cgn_ok(rc))
		db_close(&d);
	*out = d;
	return rc;
}

void db_close(struct db **take)
{
	struct db *d = CGN_TAKE(take);
	if (d == NULL)
		return;
	if (d->rocks != NULL)
		rocksdb_close(d->rocks);
	rocksdb_options_destroy(d->options);
	rocksdb_writeoptions_destroy(d->write);
	rocksdb_readoptions_destroy(d->read);
	(void)pthread_mutex_destroy(&d->writes);
	(void)pthread_mutex_destroy(&d->lock);
	free(d->path);
	free(d);
}

/* Enter the database for one call; NULL: it is closed, and needs no db_leave. */
static rocksdb_t *db_enter(struct db *d)
{
	(void)pthread_mutex_lock(&d->lock);
	rocksdb_t *r = d->rocks;
	d->users += r != NULL;
	(void)pthread_mutex_unlock(&d->lock);
	return r;
}

static void db_leave(struct db *d)
{
	(void)pthread_mutex_lock(&d->lock);
	d->users--;
	(void)pthread_mutex_unlock(&d->lock);
}

static CGN_RC db_fail_closed(struct db *d, struct cgn_err *err)
{
	return CGN_FAIL(err, UNAVAILABLE, "the database %s is closed after an error", d->path);
}

/* ---- writing ---- */
static void db_set_stuck(struct db *d, const char *message)
{
	const char *system = environment_of(message);
	(void)pthread_mutex_lock(&d->lock);
	if (!atomic_load(&d->stuck)) {
		(void)snprintf(d->why, sizeof d->why, "%.60s (%.90s)", system != NULL ? system : message,
			d->path);
		d->damaged = system == NULL;
	}
	atomic_store(&d->stuck, true);
	(void)pthread_mutex_unlock(&d->lock);
}

/* Enter the database for a call that writes or syncs. NULL: it takes none until it is reopened; no
 * leave_write then. */
static rocksdb_t *enter_write(struct db *d)
{
	(void)pthread_mutex_lock(&d->writes);
	rocksdb_t *r = atomic_load(&d->stuck) ? NULL : db_enter(d);
	if (r == NULL)
		(void)pthread_mutex_unlock(&d->writes);
	return r;
}

static CGN_RC leave_write(struct db *d, char *message, struct cgn_err *err)
{
	if (message != NULL)
		db_set_stuck(d, message);
	db_leave(d);
	(void)pthread_mutex_unlock(&d->writes);
	return db_fail(d, "write to", message, err);
}

static CGN_RC db_fail_stuck(struct db *d, struct cgn_err *err)
{
	char why[DB_WHY];
	db_why(d, why);
	return CGN_FAIL(err, STORAGE, "the database takes no writes after an error: %.100s", why);
}

CGN_RC db_put(struct db *d, const void *k, size_t n_k, const void *v, size_t n_v, struct cgn_err *err)
{
	char *message = NULL;
	rocksdb_t *r = enter_write(d);
	if (r == NULL)
		return db_fail_stuck(d, err);
	rocksdb_put(r, d->write, k, n_k, v, n_v, &message);
	return leave_write(d, message, err);
}

CGN_RC db_delete(struct db *d, const void *k, size_t n_k, struct cgn_err *err)
{
	char *message = NULL;
	rocksdb_t *r = enter_write(d);
	if (r == NULL)
		return db_fail_stuck(d, err);
	rocksdb_delete(r, d->write, k, n_k, &message);
	return leave_write(d, message, err);
}

CGN_RC db_get(struct db *d, const void *k, size_t n_k, void (*fn)(void *user, const uint8_t *v, size_t n),
	void *user, struct cgn_err *err)
{
	char *message = NULL;
	size_t n = 0;
	rocksdb_t *r = db_enter(d);
	if (r == NULL)
		return db_fail_closed(d, err);
	rocksdb_pinnableslice_t *s = rocksdb_get_pinned(r, d->read, k, n_k, &message);
	const char *v = s != NULL ? rocksdb_pinnableslice_value(s, &n) : NULL;
	if (v != NULL)
		fn(user, (const uint8_t *)v, n);
	if (s != NULL)
		rocksdb_pinnableslice_destroy(s);
	db_leave(d);
	if (message != NULL)
		return db_fail(d, "read", message, err);
	return v != NULL ? CGN_OK : CGN_RC_OF(CGN_NOT_FOUND);
}

static rocksdb_readoptions_t *scan_options(const void *to, size_t n_to)
{
	rocksdb_readoptions_t *o = rocksdb_readoptions_create();
	rocksdb_readoptions_set_verify_checksums(o, 1);
	rocksdb_readoptions_set_fill_cache(o, 0);
	rocksdb_readoptions_set_readahead_size(o, 1 << 20);
	if (n_to > 0)
		rocksdb_readoptions_set_iterate_upper_bound(o, to, n_to);
	return o;
}

CGN_RC db_each(struct db *d, const void *from, size_t n_from, const void *to, size_t n_to,
	bool (*fn)(void *user, const uint8_t *k, size_t n_k, const uint8_t *v, size_t n_v), void *user,
	struct cgn_err *err)
{
	char *message = NULL;
	rocksdb_t *r = db_enter(d);
	if (r == NULL)
		return db_fail_closed(d, err);
	rocksdb_readoptions_t *o = scan_options(to, n_to);
	rocksdb_iterator_t *it = rocksdb_create_iterator(r, o);
	for (rocksdb_iter_seek(it, from, n_from); rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
		size_t n_k, n_v;
		const char *k = rocksdb_iter_key(it, &n_k), *v = rocksdb_iter_value(it, &n_v);
		if (!fn(user, (const uint8_t *)k, n_k, (const uint8_t *)v, n_v))
			break;
	}
	rocksdb_iter_get_error(it, &message);
	rocksdb_iter_destroy(it);
	rocksdb_readoptions_destroy(o);
	db_leave(d);
	return db_fail(d, "read", message, err);
}

CGN_RC db_drop_range(struct db *d, const void *from, const void *to, size_t n, struct cgn_err *err)
{
	char *message = NULL;
	rocksdb_t *r = enter_write(d);
	if (r == NULL)
		return db_fail_stuck(d, err);
	/* Drops whole files at once, without reading them. Other rows are marked, and dropped by
	 * compaction. */
	rocksdb_delete_file_in_range(r, from, n, to, n, &message);
	rocksdb_writebatch_t *b = rocksdb_writebatch_create();
	rocksdb_writebatch_delete_range(b, from, n, to, n);
	if (message == NULL)
		rocksdb_write(r, d->write, b, &message);
	rocksdb_writebatch_destroy(b);
	return leave_write(d, message, err);
}

/* A failed flush or compaction is known only by this count. RocksDB's own repair is not waited for. */
static char *background_error(rocksdb_t *r)
{
	uint64_t n = 0;
	if (rocksdb_property_int(r, "rocksdb.background-errors", &n) != 0 || n == 0)
		return NULL;
	return strdup("Input/output error");
}

CGN_RC db_sync(struct db *d, struct cgn_err *err)
{
	rocksdb_t *r = enter_write(d);
	if (r == NULL)
		return db_fail_stuck(d, err);
	char *message = background_error(r);
	if (message == NULL)
		rocksdb_flush_wal(r, 1, &message);
	return leave_write(d, message, err);
}

/* ---- reopening ---- */
bool db_stuck(const struct db *d)
{
	return atomic_load(&d->stuck);
}

bool db_why(struct db *d, char out[DB_WHY])
{
	(void)pthread_mutex_lock(&d->lock);
	memcpy(out, d->why, DB_WHY);
	bool damaged = d->damaged;
	(void)pthread_mutex_unlock(&d->lock);
	return damaged;
}

/* Lock the database when no call is inside it. */
static CGN_RC lock_unused(struct db *d, struct cgn_err *err)
{
	static const struct timespec moment = {.tv_nsec = 1000000};
	(void)pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; d->users > 0 && i < AGAIN_TRIES; i++) {
		(void)pthread_mutex_unlock(&d->lock);
		(void)nanosleep(&moment, NULL);
		(void)pthread_mutex_lock(&d->lock);
	}
	if (d->users == 0)
		return CGN_OK;
	(void)pthread_mutex_unlock(&d->lock);
	return CGN_FAIL(err, OVERLOADED, "the database %s is in use", d->path);
}

CGN_RC db_again(struct db *d, CGN_RC (*between)(void *user, const char *path, struct cgn_err *err),
	void *user, struct cgn_err *err)
{
	char *message = NULL;
	(void)pthread_mutex_lock(&d->writes);
	cgn_rc rc = lock_unused(d, err);
	if (cgn_ok(rc)) {
		if (d->rocks != NULL)
			rocksdb_close(d->rocks);
		d->rocks = NULL;
		if (between != NULL)
			rc = between(user, d->path, err);
		if (cgn_ok(rc))
			rc = open_rocks(d, between != NULL, err);
		d->damaged &= !cgn_ok(rc);
		if (d->rocks == NULL) /* The rows can be read at least. */
			d->rocks = rocksdb_open_for_read_only(d->options, d->path, 0, &message);
		rocksdb_free(message);
		(void)pthread_mutex_unlock(&d->lock);
	}
	(void)pthread_mutex_unlock(&d->writes);
	return rc;
}

uint64_t db_file_bytes(const struct db *d)
{
	return dir_bytes(d->path);
}

uint64_t db_reserve(const struct db *d)
{
	uint64_t sorted = 2 * LEVEL_TABLES * d->cfg.memtable_bytes, all = db_file_bytes(d);
	return 4 * d->cfg.memtable_bytes + (all < sorted ? all : sorted);
}
