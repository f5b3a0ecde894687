/* SPDX-License-Identifier: Apache-2.0 */
/* kvdisk: blocks of KV cache on SSD. Values go one behind the other into files of one size (slab files),
 * small ones into RocksDB, and are never changed; an index in RocksDB says which key lies where. To make room
 * the oldest file is given up as a whole, after what is worth it was carried on to the newest: so the medium
 * is written in one direction, and once per value but for what is carried.
 *
 * Synchronous, and thread-safe: for threads of the pool. Its only memory per value is what its owner keeps:
 * the place. Memory beside: RocksDB's (block cache, memtables, at most 48 MiB), 64 bytes a slab file, one
 * value while room is made, 3 MiB once something was removed that RocksDB did not take: 65,536 of these are
 * done when it does again.
 *
 * What is kept: everything that was put, replaced or removed before kill -9, and before a power cut but for
 * the last second or so (what was removed in it may be back). What is damaged on disk is a miss, dropped and
 * counted; no get returns bytes that are not those that were put under that key: header and value carry
 * XXH3-64 checksums, and the header says of which store, file, place and key it is.
 *
 * A store belongs to one process: a directory that another one has open, or that holds other things, is
 * refused (CGN_STORAGE). */
#pragma once
#include <sys/uio.h>

#include "base/core/err.h"
#include "policy/block/block.h"

struct kvdisk;
/* where a value lies; 0: nowhere. One that is out of date is a miss, never another value */
typedef uint64_t kvdisk_place;

#define KVDISK_MIN_BUDGET ((uint64_t)32 << 20)

struct kvdisk_entry {
	struct block_key key;
	kvdisk_place place;
	uint64_t size, checksum;
	struct block_meta meta; /* texts borrowed */
};
enum kvdisk_worth {
	KVDISK_DROP,  /* nobody asked for it since it was written: the room is worth more */
	KVDISK_CARRY, /* it is in use; still dropped when half of a file is carried already */
	KVDISK_PINNED /* always carried */
};
/* Who keeps the places. Called on whichever thread is inside a kvdisk call, under a lock on the key: the
 * owner may take locks of his own, holds none of them when he calls kvdisk, and calls no kvdisk from here.
 * Each may be NULL. */
struct kvdisk_owner {
	/* In kvdisk_open: here lies a value. A second one for a key replaces the first. False: not wanted; it
	 * leaves the index, since nobody would say when it is removed or replaced. */
	bool (*found)(void *user, const struct kvdisk_entry *e);
	/* every second or so, in kvdisk_open; total 0: not known */
	void (*progress)(void *user, const char *what, uint64_t done, uint64_t total);
	/* NULL: KVDISK_DROP */
	enum kvdisk_worth (*worth)(void *user, const struct block_key *k, kvdisk_place at);
	void (*moved)(void *user, const struct block_key *k, kvdisk_place from, kvdisk_place to);
	/* to make room, or it had its time */
	void (*gone)(void *user, const struct block_key *k, kvdisk_place at);
};
#define KVDISK_MAX_PIECES 1100
struct kvdisk_cfg {
	const char *dir;       /* slab files and small values; made when missing */
	const char *index_dir; /* the index; NULL: in dir */
	uint64_t budget;       /* bytes of all files, RocksDB's included: never more */
	uint64_t ttl_ms;       /* after it was written; 0: none */
	uint32_t small_bytes;  /* a value of less lies in RocksDB; 0: KVDISK_SMALL */
	uint64_t file_bytes;   /* of a slab file; 0: by the budget, 256 MiB for 2 GiB or more */
	const struct kvdisk_owner *owner;
	void *user;
	uint64_t (*wall_ms)(void); /* NULL: the system's clocks */
	uint64_t (*boot_ms)(void); /* runs on whatever is done to the wall clock */
};
#define KVDISK_SMALL (32U << 10)
/* What opening it came upon. */
struct kvdisk_opening {
	uint64_t entries, bytes; /* values found, and their bytes */
	uint64_t dropped;        /* entries that were not whole or not wanted, or whose file is gone */
	uint64_t budget;         /* less than asked for: that is all the file system has */
	bool capped, made, rebuilt, small_lost;
	/* rebuilt or small_lost: what was wrong with the index or the small values, which lie beside it as
	 * *.damaged now */
	char why[256];
};
/* CGN_STORAGE: not a directory of ours (and it is left as it is), of another version, in use by another
 * process, not to be written, full. CGN_INVALID: a budget too small. Reads the index whole: about a second
 * per million entries; the slab files' headers too when the index is gone. */
CGN_RC kvdisk_open(const struct kvdisk_cfg *cfg, struct kvdisk **out, struct kvdisk_opening *how,
	struct cgn_err *err);
void kvdisk_close(struct kvdisk **take); /* flushes; no call may be running */

/* A value under its key, in the place of what was there. |checksum| is of the value and not looked at.
 * CGN_TOO_LARGE: larger than a slab file holds; CGN_STORAGE: the disk is full or fails; what the key had
 * before is then still there or gone. */
CGN_RC kvdisk_put(struct kvdisk *d, const struct block_key *k, const struct block_meta *meta,
	uint64_t checksum, const struct iovec *value, size_t n_value, kvdisk_place *out, struct cgn_err *err);

struct kvdisk_value {
	uint64_t checksum;
	struct block_meta meta; /* texts point into |names|; expires as when it was put */
	char names[BLOCK_MAX_MODEL + BLOCK_MAX_NAME];
};
/* The value into |to|, at most KVDISK_MAX_PIECES whose lengths add up to its size. No read of the index.
 * CGN_NOT_FOUND: it moved, is removed, had its time; look whether the place is still the same, and else
 * again. CGN_STORAGE: what lies there is not the value, or can't be read: dropped and counted. |to| may hold
 * anything then. */
CGN_RC kvdisk_get(struct kvdisk *d, const struct block_key *k, kvdisk_place at, const struct iovec *to,
	size_t n_to, struct kvdisk_value *out, struct cgn_err *err);
bool kvdisk_remove(struct kvdisk *d, const struct block_key *k);                   /* false: there was none */
bool kvdisk_expire(struct kvdisk *d, const struct block_key *k, uint64_t unix_ms); /* 0: never */

/* About once a second: makes room ahead, ends what had its time, syncs the index's log, tries again what a
 * full disk stopped. */
void kvdisk_tend(struct kvdisk *d);

struct kvdisk_stats {
	uint64_t entries, live_bytes; /* records that are of use */
	uint64_t bytes, budget;       /* of all files */
	uint64_t index_bytes;         /* RocksDB's part of bytes: index and small values */
	uint64_t files;
	uint64_t puts, put_bytes; /* since it was opened; values only */
	uint64_t gets, get_bytes;
	uint64_t carried_bytes;    /* written again to make room */
	uint64_t written_bytes;    /* to slab files and RocksDB's log */
	uint64_t reclaimed;        /* files */
	uint64_t dropped, expired; /* values: to make room, by time */
	uint64_t corrupt, failed;  /* gets that found damage; puts that the disk did not take */
};
void kvdisk_stats(struct kvdisk *d, struct kvdisk_stats *out);
