/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of kvdisk. Lock order: room (making room, starting a file), a stripe (index entry of a key),
 * files (the table of files and its counts), removals. Each database counts its running calls, for reopening
 * it. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "base/core/buf.h"
#include "joint/kv/kvdisk/db_priv.h"
#include "joint/kv/kvdisk/record_priv.h"

#define KVDISK_STRIPES 64U

/* ---- slab.c: the table of files ---- */
struct file {
	uint32_t id;
	bool small;
	_Atomic bool open; /* this file is being written */
	bool doomed;       /* given up: not counted and not found any more */
	int fd;            /* slab files only; else -1 */
	/* The same file for direct reads; -1: the file system does not support them. */
	int direct;
	uint64_t bytes, used, live, newest_ms;
	uint32_t next; /* small values: number of the next record */
	_Atomic uint32_t refs;
};

/* ---- removal.c: removals that the disk did not take, to be repeated; at most 3 MiB ---- */
#define KVDISK_REMOVALS 65536U
struct removal {
	union {
		struct block_key key;
		kvdisk_place at; /* seq 0: of a record to strike, which the index does not have any more */
	};
	uint64_t seq; /* removes values with a lower sequence number */
};
struct removal_backlog {
	pthread_mutex_t lock; /* the innermost lock */
	struct removal *list;
	size_t n;
};

/* A clock in Unix ms that never goes back: the boot clock, on a base that is saved on disk. */
struct kvdisk_time {
	uint64_t (*wall_ms)(void);
	uint64_t (*boot_ms)(void);
	uint64_t base, from, saved; /* the time at |from|; boot times of the start and of the last save */
};

/* Whether the disk takes writes. */
struct kvdisk_health {
	pthread_mutex_t lock; /* an innermost lock; it guards |refusing| and |why| */
	bool refusing;
	char why[KVDISK_WHY];
	/* When databases may be reopened again, as a boot time, and the pause after that; under the room lock. */
	uint64_t next_ms, pause_ms;
};

struct kvdisk_counts {
	_Atomic uint64_t reopened, aside, entries, puts, put_bytes, gets, get_bytes, carried, written,
		reclaimed, dropped, expired, corrupt, failed;
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
	struct kvdisk_time time;
	struct rocksdb_cache_t *cache;
	struct db *index, *small;
	pthread_mutex_t room, files_lock, stripes[KVDISK_STRIPES];
	struct file **files; /* by id */
	size_t n_files, cap_files;
	struct file *writing[2]; /* slab, small */
	uint32_t next_file;
	struct removal_backlog removals;
	struct kvdisk_health health;
	_Atomic uint64_t next_seq;
	_Atomic uint64_t damaged_bytes; /* bytes of unusable files that are not deleted yet */
	_Atomic bool dirty;
	_Atomic bool named; /* A slab file was made, and the folder is not synced since. */
	_Atomic bool roomy; /* room for two files more, without reclaiming any */
	struct kvdisk_counts counts;
};
#define KVDISK_TAG 0x4b564469U

CGN_RC sync_all(struct kvdisk *d, struct cgn_err *err); /* Make the values safe from a power cut. */
uint64_t kvdisk_clock(const struct kvdisk *d);          /* Unix ms; never goes back */
pthread_mutex_t *kvdisk_stripe(struct kvdisk *d, const struct block_key *k);

/* Return a file with a reference, or NULL. A file with references stays, even when it is given up. */
struct file *file_find(struct kvdisk *d, uint32_t id, bool small);
void file_unref(struct kvdisk *d, struct file **take);
void file_free(struct file *f); /* the file is in no table any more */
/* Add a file to the table. |*out| is borrowed. */
struct file *file_add(struct kvdisk *d, uint32_t id, bool small, int fd, uint64_t bytes);
/* Create a slab file. CGN_OVERLOADED: the file system is full. */
CGN_RC slab_make(struct kvdisk *d, struct file **out, struct cgn_err *err);
/* Open an existing slab file. CGN_INVALID: it belongs to another store, or cannot be opened at all. */
CGN_RC slab_load(struct kvdisk *d, uint32_t id, struct cgn_err *err);
uint64_t slab_store_of(const char *path); /* the store that the head of a file names; 0: unknown */
/* Delete the file; it is closed with its last reference. */
void file_give_up(struct kvdisk *d, struct file *f);
void file_count(struct kvdisk *d, kvdisk_place at, int64_t sign); /* counts live bytes and entries */
uint64_t files_bytes(struct kvdisk *d);                           /* bytes of all slab files */
CGN_RC io_all(int fd, bool write, const struct iovec *iov, size_t n, uint64_t off, struct cgn_err *err);
CGN_RC slab_write(struct kvdisk *d, struct file *f, const struct record *r, const struct iovec *iov, size_t n,
	struct cgn_err *err);
/* Returns false when the disk did not take it; true also for a place where no record is. */
bool slab_strike(struct kvdisk *d, kvdisk_place at);
/* Read the record at unit |at|: the header into |head|, aligned to a unit, and the value into |to|. */
CGN_RC slab_read(const struct file *f, uint32_t at, uint8_t head[KVDISK_UNIT], const struct iovec *to,
	size_t n_to, struct cgn_err *err);
/* Call |fn| for each valid header from the begin of the file, across damage, until it returns false. */
CGN_RC slab_each(struct file *f, bool (*fn)(void *user, const struct record *r), void *user,
	struct cgn_err *err);

/* ---- log.c: where the next record goes ---- */
#define SMALL_KEY 8U
/* File and number, big-endian, so that rows are in the order of writing. */
void small_key_write(struct place p, uint8_t out[SMALL_KEY]);
/* Reserve |bytes| for a record: a place, and a reference to its file. |carrying|: the room lock is held, and
 * the reserve of the budget may be used. */
CGN_RC log_room(struct kvdisk *d, bool small, uint64_t bytes, bool carrying, kvdisk_place *out,
	struct file **f, struct cgn_err *err);
CGN_RC log_write(struct kvdisk *d, struct file *f, const struct record *r, const struct iovec *iov, size_t n,
	struct cgn_err *err);
void log_unwrite(struct kvdisk *d, kvdisk_place at); /* Strikes the record, later if the disk fails now. */
uint64_t disk_bytes(struct kvdisk *d);               /* bytes of all files */
/* Prepare room for the next file. The room lock is held. */
void log_ahead(struct kvdisk *d);
void log_resume(struct kvdisk *d, struct file *f); /* at boot: continue a file that is not full */

/* ---- reclaim.c; the room lock is held ---- */
bool reclaim_one(struct kvdisk *d); /* returns false when no file can be reclaimed */
void reclaim_expired(struct kvdisk *d);

/* ---- entry.c: index entries; the key's stripe is held ---- */
#define KVDISK_NAMES (BLOCK_MAX_MODEL + BLOCK_MAX_NAME + BLOCK_MAX_TENANT)
/* Copy the texts of |m| into |names|; returns |m| with the copies. */
struct block_meta record_keep_names(const struct block_meta *m, char names[KVDISK_NAMES]);
/* CGN_NOT_FOUND: there is no entry, or a damaged one. CGN_UNAVAILABLE: the index cannot be read now. */
CGN_RC entry_get(struct kvdisk *d, const struct block_key *k, struct record *out, char names[KVDISK_NAMES]);
CGN_RC entry_put(struct kvdisk *d, const struct record *r, struct cgn_err *err);
/* Returns false when the index still has the entry. */
bool entry_drop(struct kvdisk *d, const struct block_key *k, kvdisk_place at);
bool entry_had_its_time(const struct kvdisk *d, const struct record *r);

void removal_add(struct kvdisk *d, const struct block_key *k, uint64_t seq);
void removal_add_place(struct kvdisk *d, kvdisk_place at); /* a record that could not be struck */
void removal_repeat(struct kvdisk *d);                     /* under no lock */
/* entry.c: remove the value of |k| if its sequence number is below |seq|. Returns false when there was none. Takes
 * the stripe. */
bool entry_remove_before(struct kvdisk *d, const struct block_key *k, uint64_t seq);

/* ---- health.c: whether the disk takes writes ---- */
void health_refused(struct kvdisk *d, const char *why);      /* a write failed */
bool health_writable(struct kvdisk *d, struct cgn_err *err); /* False: a database takes no writes. */
void health_retry(struct kvdisk *d); /* Write refused blocks again. The room lock is held. */
bool health_stats(struct kvdisk *d, char why[KVDISK_WHY]); /* returns whether writes are refused */

/* ---- dir.c: whose directory it is ---- */
CGN_RC kvdisk_as_storage(cgn_rc rc, struct cgn_err *err); /* turns every error into CGN_STORAGE */
struct dir {
	bool made; /* True when it was empty. */
	bool lost; /* True when its marker was unreadable; it is renamed to |aside|. */
	char aside[64];
};
/* Create, check and lock a directory. |*store| 0: not known yet; then it is set, except when the marker was
 * lost: call dir_mark when it is known. */
CGN_RC dir_open(const char *path, const char *kind, uint64_t *store, struct dir *how, int *lock_fd,
	struct cgn_err *err);
/* Write the marker. |*store| 0: choose a number. */
CGN_RC dir_mark(const char *path, const char *kind, uint64_t *store, struct cgn_err *err);
uint64_t dir_store_of(const char *path, const char *kind); /* from the marker; 0: unknown */
/* Rename a file to a free name, NAME.aside or NAME.aside-N; |to| gets it. */
CGN_RC dir_put_aside(const char *path, const char *name, char to[64], struct cgn_err *err);
uint64_t dir_file_bytes(const char *path, const char *name);
CGN_RC dir_sync(const char *path, struct cgn_err *err); /* Make the names of its files safe. */
CGN_RC dir_each(const char *path, CGN_RC (*fn)(void *user, const char *name, struct cgn_err *err), void *user,
	struct cgn_err *err);
uint64_t dir_bytes(const char *path); /* bytes of its files, without subfolders */
void dir_remove(const char *path);    /* with its files */
CGN_RC dir_free_bytes(const char *path, uint64_t *out, struct cgn_err *err);
/* Count a file that was set aside, and tell the owner. */
void kvdisk_tell_aside(struct kvdisk *d, const char *from, const char *to, const char *why);
CGN_RC db_put_aside(struct kvdisk *d, const char *path, struct cgn_err *err); /* as PATH.damaged */

/* ---- boot.c ---- */
CGN_RC boot(struct kvdisk *d, bool made, struct kvdisk_opening *how, struct cgn_err *err);
CGN_RC boot_cap(struct kvdisk *d, struct cgn_err *err); /* Limit the budget to what the file system has. */
void boot_save_clock(struct kvdisk *d);
/* Find the number of a store whose marker is lost, in its slab files, and write the marker again. */
CGN_RC boot_find_store(struct kvdisk *d, struct cgn_err *err);
