/* SPDX-License-Identifier: Apache-2.0 */
/* kvdisk: stores blocks of KV cache on SSD. Values are appended to files of one size (slab files), small
 * values to RocksDB, and never change. An index in RocksDB maps keys to places. To make room, the oldest file
 * is reclaimed as a whole, after the values worth keeping were carried to the newest file. So the medium is
 * written in one direction, and once per value plus once for each value that is carried over.
 *
 * Threads: synchronous and thread-safe, for threads of the pool. Memory per value: the place, which the owner
 * keeps. Memory otherwise: RocksDB's block cache and memtables (at most 48 MiB), 64 bytes a slab file, one
 * value during a reclaim, and 3 MiB for at most 65,536 removals that RocksDB did not take yet.
 *
 * Durability: every put, replacement and removal survives kill -9, and a power cut except for the last second
 * or so (a removal of that second may be undone). Integrity: headers and values carry XXH3-64 checksums, and
 * a header names its store, file, place and key. A damaged value is a miss, dropped and counted; no get
 * returns other bytes than those that were put under the key.
 *
 * A store belongs to one process. A directory that another process has open, or that holds other files, is
 * refused (CGN_STORAGE). A file of the store itself that is unusable (a slab file of another store, a damaged
 * marker or database) is renamed, and the store opens without it. */
#pragma once
#include <sys/uio.h>

#include "base/core/err.h"
#include "policy/kv/block/block.h"

struct kvdisk;
/* The place of a value; 0: none. An outdated place is a miss, never another value. */
typedef uint64_t kvdisk_place;

#define KVDISK_MIN_BUDGET ((uint64_t)32 << 20)

struct kvdisk_entry {
	struct block_key key;
	kvdisk_place place;
	uint64_t size, checksum;
	struct block_meta meta; /* texts are borrowed */
};
enum kvdisk_worth {
	KVDISK_DROP,  /* not used since it was written */
	KVDISK_CARRY, /* in use; dropped anyway when half of a file is carried already */
	KVDISK_PINNED /* carried always */
};
/* The owner keeps the places. Its functions run on the thread that is inside a kvdisk call, under a lock on
 * the key. The owner may take its own locks in them, holds none of its locks when it calls kvdisk, and does
 * not call kvdisk from them. Each may be NULL. */
struct kvdisk_owner {
	/* In kvdisk_open: a value was found. A second value of a key replaces the first. Return false to drop
	 * it from the index. */
	bool (*found)(void *user, const struct kvdisk_entry *e);
	/* In kvdisk_open, every second or so. total 0: not known. */
	void (*progress)(void *user, const char *what, uint64_t done, uint64_t total);
	/* In kvdisk_open, often: return false to end it with CGN_CANCELLED. A later kvdisk_open goes on. */
	bool (*goes_on)(void *user);
	/* NULL counts as KVDISK_DROP. */
	enum kvdisk_worth (*worth)(void *user, const struct block_key *k, kvdisk_place at);
	void (*moved)(void *user, const struct block_key *k, kvdisk_place from, kvdisk_place to);
	/* In kvdisk_open: |from|, a file in the way of the store, was renamed to |to| in the same folder. Nothing
	 * removes it; it counts against the budget. */
	void (*aside)(void *user, const char *from, const char *to, const char *why);
	/* The value was dropped to make room, or at the end of its time to live. */
	void (*gone)(void *user, const struct block_key *k, kvdisk_place at);
};
#define KVDISK_MAX_PIECES 1100
struct kvdisk_cfg {
	const char *dir;       /* folder of slab files and small values; created when missing */
	const char *index_dir; /* folder of the index; NULL: dir */
	uint64_t budget;       /* upper limit of the bytes of all files, RocksDB's included */
	uint64_t ttl_ms;       /* time to live after the write; 0: none */
	uint32_t small_bytes;  /* smaller values lie in RocksDB; 0: KVDISK_SMALL */
	uint64_t file_bytes;   /* size of a slab file; 0: depends on the budget, 256 MiB from 2 GiB on */
	const struct kvdisk_owner *owner;
	void *user;
	uint64_t (*wall_ms)(void); /* Unix ms; NULL: the system's clock */
	uint64_t (*boot_ms)(void); /* monotonic ms, also while the machine sleeps; NULL: the system's clock */
};
#define KVDISK_SMALL (32U << 10)
/* The findings of kvdisk_open. */
struct kvdisk_opening {
	uint64_t entries, bytes; /* values, and their bytes */
	uint64_t dropped;        /* entries that were damaged, refused by the owner, or without a file */
	uint64_t budget;         /* the budget in use: less than requested when the file system is smaller */
	bool capped, made, rebuilt, small_lost;
	/* With rebuilt or small_lost: the fault of the index or of the small values, which are kept as
	 * *.damaged. */
	char why[256];
};
/* Open a store. CGN_STORAGE: the directory holds other files (and is left as it is), has another version, is
 * in use, not writable or full. CGN_INVALID: the budget is too small. CGN_CANCELLED: kvdisk_owner.goes_on
 * said so. Reads the whole index, about a second per million entries, and the headers of all records when the index is
 * lost. A process that is killed meanwhile loses nothing: the next kvdisk_open goes on behind the last slab file that
 * was read to its end. */
CGN_RC kvdisk_open(const struct kvdisk_cfg *cfg, struct kvdisk **out, struct kvdisk_opening *how,
	struct cgn_err *err);
void kvdisk_close(struct kvdisk **take); /* flushes; no call may be running */

/* Store a value under its key; replaces the old value. |checksum| is stored, not compared. CGN_TOO_LARGE:
 * larger than a slab file; CGN_STORAGE: the disk is full or fails; then the old value is there or gone. After
 * an error of the index or of small values, all puts fail until kvdisk_tend has reopened the database. */
CGN_RC kvdisk_put(struct kvdisk *d, const struct block_key *k, const struct block_meta *meta,
	uint64_t checksum, const struct iovec *value, size_t n_value, kvdisk_place *out, struct cgn_err *err);

struct kvdisk_value {
	uint64_t checksum;
	struct block_meta meta; /* texts point into |names|; expires as at the put */
	char names[BLOCK_MAX_MODEL + BLOCK_MAX_NAME + BLOCK_MAX_TENANT];
};
/* Read a value into |to|, at most KVDISK_MAX_PIECES pieces as long as the value. Reads no index.
 * CGN_NOT_FOUND: the value moved, was removed or expired; if the owner has another place by now, try again.
 * CGN_STORAGE: the value is damaged or unreadable; dropped and counted. CGN_UNAVAILABLE: not readable while a
 * database is reopened; nothing is dropped. On failure |to| may hold anything. */
CGN_RC kvdisk_get(struct kvdisk *d, const struct block_key *k, kvdisk_place at, const struct iovec *to,
	size_t n_to, struct kvdisk_value *out, struct cgn_err *err);
/* returns false when there was no value */
bool kvdisk_remove(struct kvdisk *d, const struct block_key *k);
/* 0: never; returns false when there is no value */
bool kvdisk_expire(struct kvdisk *d, const struct block_key *k, uint64_t unix_ms);

/* Call about once a second: makes room ahead, ends values whose time to live is over, syncs the log of the
 * index, and retries what a full disk stopped. */
void kvdisk_tend(struct kvdisk *d);

#define KVDISK_WHY 200
/* Whether the next values find room without others giving it up. Any thread, no lock; as of the last tend. */
bool kvdisk_roomy(const struct kvdisk *d);
/* A few bytes that the owner keeps across restarts, at most KVDISK_MEMO. Returns false when there are none of
 * that length. */
#define KVDISK_MEMO 64U
bool kvdisk_memo_get(struct kvdisk *d, void *p, size_t n);
void kvdisk_memo_put(struct kvdisk *d, const void *p, size_t n);

struct kvdisk_stats {
	uint64_t entries, live_bytes; /* values in use, and the bytes of their records */
	uint64_t bytes, budget;       /* all files together */
	uint64_t index_bytes;         /* the part of |bytes| that is RocksDB's: index and small values */
	uint64_t files;
	uint64_t puts, put_bytes; /* since kvdisk_open; bytes of values only */
	uint64_t gets, get_bytes;
	uint64_t carried_bytes;    /* bytes that were written again to make room */
	uint64_t written_bytes;    /* bytes written to slab files and RocksDB's log */
	uint64_t reclaimed;        /* files that were reclaimed */
	uint64_t dropped, expired; /* values: to make room, at the end of their time to live */
	uint64_t corrupt, failed;  /* gets that found damage; puts that the disk refused */
	uint64_t aside;            /* files and databases that were set aside */
	uint64_t reopened;         /* databases that were reopened after an error */
	/* The disk takes no writes at the moment (full, failing, read-only): puts fail at once, gets go on.
	 * |why|: the latest reason, kept when it is over. */
	bool refusing;
	char why[KVDISK_WHY];
};
void kvdisk_stats(struct kvdisk *d, struct kvdisk_stats *out);
