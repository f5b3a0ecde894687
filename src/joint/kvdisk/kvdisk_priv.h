/* SPDX-License-Identifier: Apache-2.0 */
/* kvdisk, inside. Locks, taken in this order: room (who makes room or a new file), a stripe (a key's index
 * entry), files (the table of files and its counts). The databases have a lock of their own each, read-held
 * during a call, for opening them again. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "base/core/buf.h"
#include "joint/kvdisk/kvdisk.h"

#define KVDISK_UNIT    4096U /* slab records begin and end at multiples of it */
#define KVDISK_ROW     64U   /* small ones are counted in these */
#define KVDISK_HEAD    128U  /* a record's header; then model and name */
#define KVDISK_STRIPES 64U
#define KVDISK_FORMAT  1U

/* ---- record.c: what lies on disk, pure. All numbers little-endian ---- */
struct place {
	bool small;
	uint32_t file; /* 27 bits */
	uint32_t at;   /* 20 bits: units from the file's begin; small: number in the file */
	uint32_t len;  /* 16 bits: units; small: rows */
};
kvdisk_place place_pack(struct place p);
struct place place_of(kvdisk_place packed);
uint64_t place_bytes(kvdisk_place packed);

/* Header of a record: 0 magic, 4 format, 6 flags, 8 store, 16 place, 24 sequence, 32 digest, 64 segment, 68
 * tokens, 72 size, 80 checksum, 88 created, 96 expires, 104 stored, 112 lengths of model and name, 116 zero,
 * 120 XXH3-64 of the 120 bytes and the texts; 128 the texts. A slab record's value begins at the next unit, a
 * small one's right behind the texts. */
struct record {
	struct kvdisk_entry entry;
	uint64_t store, seq, stored_ms; /* stored: by the store's own clock */
	bool struck;                    /* removed: nobody's value any more */
};
#define RECORD_MAX_HEAD (KVDISK_HEAD + BLOCK_MAX_MODEL + BLOCK_MAX_NAME)
size_t record_head_bytes(const struct block_meta *meta);
/* units or rows, times their size */
uint64_t record_bytes(const struct block_meta *meta, uint64_t size, bool small);
size_t record_write(const struct record *r, uint8_t out[RECORD_MAX_HEAD]); /* returns record_head_bytes */
/* Texts are borrowed from |p|. False: no whole header. */
bool record_read(const uint8_t *p, size_t n, struct record *out);
/* The index's value for a key: 0 format, 2 lengths, 6 zero, 8 place, 16 sequence, 24 size, 32 checksum, 40
 * created, 48 expires, 56 stored, 64 tokens, 68 XXH3's low half over all but itself; 72 the texts. */
#define INDEX_KEY  36U
#define INDEX_HEAD 72U
#define INDEX_MAX  (INDEX_HEAD + BLOCK_MAX_MODEL + BLOCK_MAX_NAME)
void index_key_write(const struct block_key *k, uint8_t out[INDEX_KEY]);
bool index_key_read(const uint8_t *p, size_t n, struct block_key *out);
size_t index_write(const struct record *r, uint8_t out[INDEX_MAX]);
bool index_read(const struct block_key *k, const uint8_t *p, size_t n, struct record *out);
/* The first units of a slab file, and the file that says whose directory it is. */
#define FILE_HEAD 40U
struct file_head {
	uint64_t store, bytes;
	uint32_t id;
};
void file_head_write(const struct file_head *h, uint8_t out[FILE_HEAD]);
bool file_head_read(const uint8_t *p, size_t n, struct file_head *out);

/* ---- db.c: RocksDB ---- */
struct db_cfg {
	uint64_t memtable_bytes, file_bytes;
	struct rocksdb_cache_t *cache; /* borrowed */
	uint32_t block_bytes;
	bool bloom;
};
struct db;
/* CGN_NOT_FOUND: |make| is false and there is none. CGN_INVALID: it is damaged. CGN_STORAGE: the system's
 * fault. */
CGN_RC db_open(const char *path, const struct db_cfg *cfg, bool make, struct db **out, struct cgn_err *err);
void db_close(struct db **take);
CGN_RC db_put(struct db *d, const void *k, size_t n_k, const void *v, size_t n_v, struct cgn_err *err);
CGN_RC db_delete(struct db *d, const void *k, size_t n_k, struct cgn_err *err);
/* |fn| borrows the value. CGN_NOT_FOUND, CGN_INVALID (damaged), CGN_STORAGE. */
CGN_RC db_get(struct db *d, const void *k, size_t n_k, void (*fn)(void *user, const uint8_t *v, size_t n),
	void *user, struct cgn_err *err);
/* Keys from |from| on, up to but without |to| (n_to 0: to the end). |fn| false ends it. */
CGN_RC db_each(struct db *d, const void *from, size_t n_from, const void *to, size_t n_to,
	bool (*fn)(void *user, const uint8_t *k, size_t n_k, const uint8_t *v, size_t n_v), void *user,
	struct cgn_err *err);
CGN_RC db_drop_range(struct db *d, const void *from, const void *to, size_t n, struct cgn_err *err);
CGN_RC db_sync(struct db *d, struct cgn_err *err);
bool db_stuck(const struct db *d); /* writes failed: it takes none until it is opened again */
CGN_RC db_again(struct db *d, struct cgn_err *err); /* CGN_OVERLOADED: calls were under way for a second */
uint64_t db_file_bytes(const struct db *d);         /* as the file system has it */
uint64_t db_reserve(const struct db *d);            /* what it may need beside while it sorts */

/* ---- slab.c: the table of files ---- */
struct file {
	uint32_t id;
	bool small;
	_Atomic bool open; /* the one that is being written */
	bool doomed;       /* not to be counted or found any more */
	int fd;            /* slab: >= 0 */
	/* the same for reading past the page cache; -1: the file system has no such thing */
	int direct;
	uint64_t bytes, used, live, newest_ms;
	uint32_t next; /* small: number of the next record */
	_Atomic uint32_t refs;
};

/* ---- owed.c: removals that the index did not take; 3 MiB at most, beyond it they are counted as failed
 * ---- */
#define KVDISK_OWED 65536U
struct owed {
	struct block_key key;
	uint64_t seq; /* what has less is removed */
};

struct kvdisk {
	uint32_t tag;
	char *dir, *index_path, *small_path;
	int lock_fd, index_lock_fd;
	_Atomic uint64_t budget;
	uint64_t store, asked, file_bytes, small_file_bytes, ttl_ms;
	uint32_t small_bytes;
	const struct kvdisk_owner *owner;
	void *user;
	uint64_t (*wall_ms)(void);
	uint64_t (*boot_ms)(void);
	uint64_t clock_base, clock_from, clock_saved;
	struct rocksdb_cache_t *cache;
	struct db *index, *small;
	pthread_mutex_t room, files_lock, stripes[KVDISK_STRIPES];
	struct file **files; /* by id */
	size_t n_files, cap_files;
	struct file *writing[2]; /* slab, small */
	uint32_t next_file;
	pthread_mutex_t owed_lock; /* the innermost */
	struct owed *owed;
	size_t n_owed;
	_Atomic uint64_t next_seq;
	_Atomic uint64_t damaged_bytes; /* of files that are of no use any more, but still there */
	_Atomic bool dirty;
	_Atomic uint64_t entries, puts, put_bytes, gets, get_bytes, carried, written, reclaimed, dropped,
		expired, corrupt, failed;
};
#define KVDISK_TAG 0x4b564469U

uint64_t kvdisk_clock(const struct kvdisk *d); /* ms; never goes back, whatever is done to the wall clock */
pthread_mutex_t *kvdisk_stripe(struct kvdisk *d, const struct block_key *k);

/* A reference: the file is there until file_unref, even when it is given up. NULL: there is none. */
struct file *file_find(struct kvdisk *d, uint32_t id, bool small);
void file_unref(struct kvdisk *d, struct file **take);
void file_free(struct file *f); /* nobody knows it any more */
/* *out is borrowed */
CGN_RC file_add(struct kvdisk *d, uint32_t id, bool small, int fd, uint64_t bytes, struct file **out,
	struct cgn_err *err);
/* CGN_OVERLOADED: no space on the file system */
CGN_RC slab_make(struct kvdisk *d, struct file **out, struct cgn_err *err);
/* one that is there; CGN_INVALID: not ours */
CGN_RC slab_load(struct kvdisk *d, uint32_t id, struct cgn_err *err);
/* unlinked, and closed with its last reference */
void file_give_up(struct kvdisk *d, struct file *f);
void file_count(struct kvdisk *d, kvdisk_place at, int64_t sign); /* live bytes and entries */
uint64_t files_bytes(struct kvdisk *d);                           /* of all slab files */
CGN_RC io_all(int fd, bool write, const struct iovec *iov, size_t n, uint64_t off, struct cgn_err *err);
CGN_RC slab_write(struct kvdisk *d, struct file *f, const struct record *r, const struct iovec *iov, size_t n,
	struct cgn_err *err);
CGN_RC slab_head(struct file *f, uint32_t at, uint8_t buf[KVDISK_UNIT], struct record *out,
	struct cgn_err *err);
void slab_strike(struct kvdisk *d, kvdisk_place at);
/* Header and value of the record at unit |at| into |head|, which lies at a multiple of a unit, and |to|. */
CGN_RC slab_read(const struct file *f, uint32_t at, uint8_t head[KVDISK_UNIT], const struct iovec *to,
	size_t n_to, struct cgn_err *err);
/* Each whole header from the file's begin, with gaps of damage skipped. |fn| false ends it. */
CGN_RC slab_each(struct file *f, bool (*fn)(void *user, const struct record *r), void *user,
	struct cgn_err *err);

/* ---- log.c: where the next record goes ---- */
#define SMALL_KEY 8U
/* file and number, big-endian: so they lie in the order of writing */
void small_key_write(struct place p, uint8_t out[SMALL_KEY]);
/* Room for a record of |bytes|: a place, and a reference to its file. |carrying|: the room lock is held, and
 * the last of the budget may be used. */
CGN_RC log_room(struct kvdisk *d, bool small, uint64_t bytes, bool carrying, kvdisk_place *out,
	struct file **f, struct cgn_err *err);
CGN_RC log_write(struct kvdisk *d, struct file *f, const struct record *r, const struct iovec *iov, size_t n,
	struct cgn_err *err);
void log_unwrite(struct kvdisk *d, kvdisk_place at); /* what lies there is nobody's any more */
uint64_t disk_bytes(struct kvdisk *d);               /* of all files */
/* the room lock is held: so that the next file need not wait for room */
void log_ahead(struct kvdisk *d);
void log_resume(struct kvdisk *d, struct file *f); /* at boot: goes on with a file that is not full */

/* ---- reclaim.c; the room lock is held ---- */
bool reclaim_one(struct kvdisk *d); /* false: there is nothing that could go */
void reclaim_expired(struct kvdisk *d);

/* ---- index entries, kvdisk.c; the key's stripe is held ---- */
#define KVDISK_NAMES (BLOCK_MAX_MODEL + BLOCK_MAX_NAME)
bool entry_get(struct kvdisk *d, const struct block_key *k, struct record *out,
	char names[BLOCK_MAX_MODEL + BLOCK_MAX_NAME]);
CGN_RC entry_put(struct kvdisk *d, const struct record *r, struct cgn_err *err);
/* false: the index still has it */
bool entry_drop(struct kvdisk *d, const struct block_key *k, kvdisk_place at);
bool entry_had_its_time(const struct kvdisk *d, const struct record *r);

void owed_add(struct kvdisk *d, const struct block_key *k, uint64_t seq);
void owed_pay(struct kvdisk *d); /* under no lock */
/* kvdisk.c; false: there was none */
bool remove_before(struct kvdisk *d, const struct block_key *k, uint64_t seq);

/* ---- dir.c: whose directory it is ---- */
CGN_RC as_storage(cgn_rc rc, struct cgn_err *err); /* whatever failed, to our caller it is the storage */
/* Made, looked through, locked. |*made|: it was empty. */
CGN_RC dir_open(const char *path, const char *kind, uint64_t *store, bool *made, int *lock_fd,
	struct cgn_err *err);
CGN_RC dir_each(const char *path, CGN_RC (*fn)(void *user, const char *name, struct cgn_err *err), void *user,
	struct cgn_err *err);
uint64_t dir_bytes(const char *path); /* of the files in it, without folders below */
void dir_remove(const char *path);    /* with the files in it */
CGN_RC dir_free_bytes(const char *path, uint64_t *out, struct cgn_err *err);

/* ---- boot.c ---- */
CGN_RC boot(struct kvdisk *d, bool made, struct kvdisk_opening *how, struct cgn_err *err);
/* the budget is no more than the file system has, as others fill and empty it */
CGN_RC boot_cap(struct kvdisk *d, struct cgn_err *err);
void boot_save_clock(struct kvdisk *d);
