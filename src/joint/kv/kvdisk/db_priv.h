/* SPDX-License-Identifier: Apache-2.0 */
/* db: one RocksDB database of a kvdisk, which can be reopened while calls come. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

struct db_cfg {
	uint64_t memtable_bytes, file_bytes;
	struct rocksdb_cache_t *cache; /* borrowed */
	uint32_t block_bytes;
	bool bloom;
};
struct db;
/* CGN_NOT_FOUND: there is no database and |make| is false. CGN_INVALID: it is damaged. CGN_STORAGE: the
 * system failed. */
CGN_RC db_open(const char *path, const struct db_cfg *cfg, bool make, struct db **out, struct cgn_err *err);
void db_close(struct db **take);
CGN_RC db_put(struct db *d, const void *k, size_t n_k, const void *v, size_t n_v, struct cgn_err *err);
CGN_RC db_delete(struct db *d, const void *k, size_t n_k, struct cgn_err *err);
/* Read a row. |fn| borrows the value. CGN_NOT_FOUND, CGN_INVALID (damaged), CGN_STORAGE, CGN_UNAVAILABLE: the
 * database is closed after an error, and is reopened later. */
CGN_RC db_get(struct db *d, const void *k, size_t n_k, void (*fn)(void *user, const uint8_t *v, size_t n),
	void *user, struct cgn_err *err);
/* Call |fn| for each row from |from| up to but without |to| (n_to 0: to the end), until it returns false. */
CGN_RC db_each(struct db *d, const void *from, size_t n_from, const void *to, size_t n_to,
	bool (*fn)(void *user, const uint8_t *k, size_t n_k, const uint8_t *v, size_t n_v), void *user,
	struct cgn_err *err);
CGN_RC db_drop_range(struct db *d, const void *from, const void *to, size_t n, struct cgn_err *err);
CGN_RC db_sync(struct db *d, struct cgn_err *err);
/* Whether a write failed. The database then refuses every write, and reads go on, until it is reopened. */
bool db_stuck(const struct db *d);
#define DB_WHY 160
bool db_why(struct db *d, char out[DB_WHY]); /* why it is stuck; returns true when that is damage */
/* Reopen the database; when that fails, for reading only. |between| (may be NULL) runs while it is closed;
 * then a missing database is made. CGN_OVERLOADED: calls ran for a second. */
CGN_RC db_again(struct db *d, CGN_RC (*between)(void *user, const char *path, struct cgn_err *err),
	void *user, struct cgn_err *err);
uint64_t db_file_bytes(const struct db *d); /* bytes on the file system */
uint64_t db_reserve(const struct db *d);    /* bytes that compaction may need in addition */
