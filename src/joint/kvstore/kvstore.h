/* SPDX-License-Identifier: Apache-2.0 */
/* kvstore: blocks of KV cache by digest, in tiers. A value is bytes that never change: to replace one is to
 * put another under its key.
 *
 * Everything here may be called on any thread; callbacks come on the loop that was given. No lock is held
 * while bytes are copied or summed (but for a small value that takes another's place), nor while a callback
 * runs.
 *
 * Memory: values lie in one arena of ram_bytes (io/pages), so there is never more of them than that,
 * fragmentation and what is being written, read or pinned included. Beside it the index: 120 bytes a block
 * and 4 of hash table, however many there are, and once blocks have to leave what policy/evict remembers of
 * them (20 to 25 bytes for each that was there at once). For the few that have a name, were pinned or lie in
 * several runs of pages, 120 more and the name or 8 bytes a run. As every value takes 1 KiB of the arena at
 * least, that is at most a seventh of ram_bytes (names, which are at most BLOCK_MAX_NAME, aside). What the index
 * took it keeps. 3 MiB are for changes; names of models are held once, of 65,535 at most.
 *
 * The SSD tier (joint/kvdisk) is written behind: a put never waits for it. Blocks worth writing wait in RAM
 * for one thread, 4,096 and 256 MiB or a quarter of the RAM tier at most; when the disk is slower than puts,
 * blocks are left out of it, and counted. The index, the same one, has an entry of each block on SSD too: at
 * most one for each 512 bytes of ram_bytes, further blocks are left out. A block that leaves RAM and is on
 * SSD stays there; one that is read from SSD goes to RAM as a new one would (where one that is read once
 * passes through), one read for all who wait for it: eight at a time, 1,024 waiting. A value that was removed
 * or replaced leaves the SSD within moments, in order.
 *
 * What is read is what was put: each value has a checksum, XXH3-64 (github.com/Cyan4973/xxHash), which is
 * computed or compared when it is put and compared each time that it is given out. A value that fails is
 * dropped, counted, and a miss. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/loop/loop.h"
#include "policy/block/block.h"

struct kvstore;
struct telemetry;
struct kvstore_ssd_cfg {
	const char *dir, *index_dir; /* index_dir NULL: in dir */
	uint64_t bytes, ttl_ms;      /* as kvdisk's */
	/* write every block; else those that were used again, or came back soon after they left */
	bool all;
	cgn_nsec flush_time; /* kvstore_free: for what still waits to be written */
};
struct kvstore_cfg {
	struct telemetry *telemetry;       /* borrowed */
	uint64_t ram_bytes;                /* budget of the RAM tier, rounded down to 64 KiB */
	uint64_t (*wall_ms)(void);         /* Unix time; NULL: the machine's clock. Any thread */
	const struct kvstore_ssd_cfg *ssd; /* NULL: none */
};
/* With an SSD tier: reads its index, says so in the log, and fails as kvdisk_open. */
CGN_RC kvstore_new(const struct kvstore_cfg *cfg, struct kvstore **out, struct cgn_err *err);
/* After every block, writer and read of it was let go. */
void kvstore_free(struct kvstore **take);
/* About once a second, on one thread: what expired goes, pins that are over end. Takes a bounded time; what
 * expired is not held before it was swept either. */
void kvstore_tick(struct kvstore *s);

/* ---- asking ---- */
/* Reads no value and counts as no use. False: not held (or expired), |out| has tiers 0. */
bool kvstore_lookup(struct kvstore *s, const struct block_key *k, struct block_info *out);
/* Up to |count| keys from |*cursor| on (0: the first), and some more where they lie together; fewer, or none,
 * when it went over 2 |count| + 1,024 buckets of the index to find them. *cursor is 0 again at the end. A key
 * that is there all the time is told at least once, whatever happens meanwhile. |fn| runs under no lock.
 * |name| is borrowed. */
void kvstore_scan(struct kvstore *s, uint64_t *cursor, size_t count,
	void (*fn)(void *user, const struct block_key *k, const struct block_info *info, struct cgn_str name),
	void *user);

/* ---- values ---- */
/* A value in RAM that somebody reads: it neither moves nor goes while it is held. */
struct kvstore_block;
void kvstore_block_ref(struct kvstore_block *b);
void kvstore_block_unref(struct kvstore_block **take);
uint64_t kvstore_block_size(const struct kvstore_block *b);
uint64_t kvstore_block_checksum(const struct kvstore_block *b);
struct block_info kvstore_block_info(const struct kvstore_block *b); /* as it is now */
struct cgn_str kvstore_block_model(const struct kvstore_block *b);
struct cgn_str kvstore_block_name(const struct kvstore_block *b);
/* Where bytes |off| to |off| + |n| lie: at most |cap| pieces; *n_iov of them are used. Returns the bytes they
 * cover. */
uint64_t kvstore_block_iov(const struct kvstore_block *b, uint64_t off, uint64_t n, struct iovec *iov,
	size_t cap, size_t *n_iov);

/* Where the value lies in the arena, in order: at most |cap| extents, KVSTORE_MAX_EXTENTS are enough for any.
 * Returns how many there are. */
struct kvstore_extent {
	uint64_t offset, length;
};
#define KVSTORE_MAX_EXTENTS 1025
size_t kvstore_block_extents(const struct kvstore_block *b, struct kvstore_extent *out, size_t cap);
/* The memory that all values lie in, for clients of this node to map: |*bytes| long, a descriptor that can be
 * mapped for reading only, whatever the client tries; the store's own, to be sent, not closed. -1: this
 * kernel has no such thing (before Linux 5.1). What lies outside the extents of blocks that are held for the
 * client changes at any time. */
int kvstore_arena(const struct kvstore *s, uint64_t *bytes);

/* From RAM, at once. NULL: it is not there (or was not whole). Counts as a use. |verify| false is for who
 * hands it to somebody who will. */
struct kvstore_block *kvstore_get_ram(struct kvstore *s, const struct block_key *k, bool verify);
/* From whichever tier, for who was told NULL by kvstore_get_ram: a miss in RAM is not counted once more.
 * |done| comes on |l|, never inline; it owns |*take| (NULL: |why| says CGN_NOT_FOUND, CGN_STORAGE,
 * CGN_OVERLOADED, or CGN_TOO_LARGE: put when the RAM tier was larger). *out is gone when |done| is called or
 * after kvstore_read_cancel, after which no |done| comes. */
struct kvstore_read;
typedef void (*kvstore_read_done)(void *user, struct kvstore_block **take, const struct cgn_err *why);
CGN_RC kvstore_get(struct kvstore *s, struct cgn_loop *l, const struct block_key *k, kvstore_read_done done,
	void *user, struct kvstore_read **out, struct cgn_err *err);
void kvstore_read_cancel(
	struct kvstore_read **take); /* on |l|, which it still needs until the tier below answered */
/* Waits until every read that was cancelled is over, and begins none from SSD any more: before the first of
 * their loops is freed. */
void kvstore_reads_stop(struct kvstore *s);

/* A value that is being written: nobody sees it before kvstore_writer_commit. One thread at a time. */
struct kvstore_writer;
/* |size| bytes are set aside now; others may have to go for them. CGN_TOO_LARGE: over BLOCK_MAX_BYTES, or over
 * what the tier can hold; CGN_OVERLOADED: all that could go is being read; CGN_INVALID: |meta| out of bounds;
 * CGN_NO_MEMORY. |meta| is copied. */
CGN_RC kvstore_put(struct kvstore *s, const struct block_key *k, const struct block_meta *meta, uint64_t size,
	struct kvstore_writer **out, struct cgn_err *err);
/* Where the next bytes go, as kvstore_block_iov; follow with kvstore_writer_wrote. */
uint64_t kvstore_writer_room(const struct kvstore_writer *w, struct iovec *iov, size_t cap, size_t *n_iov);
void kvstore_writer_wrote(struct kvstore_writer *w, uint64_t n);
void kvstore_writer_add(struct kvstore_writer *w, const void *p, size_t n); /* at most what is missing */
uint64_t kvstore_writer_missing(const struct kvstore_writer *w);
/* When the value ends, if not as its meta said: its writer may not have known. 0: never. */
void kvstore_writer_expires(struct kvstore_writer *w, uint64_t unix_ms);
/* From now on it is what the key means. Needs all of its bytes. |checksum| NULL: computed; else CGN_INVALID
 * when it differs.
 * |how|: KVSTORE_IF_ABSENT, CGN_CONFLICT when the key has a value; KVSTORE_IF_HELD, CGN_NOT_FOUND when it has none;
 * KVSTORE_KEEP_EXPIRY, it ends when the value that it replaces would have, if there is one. All of it in one step. On
 * failure nothing changed. */
enum kvstore_commit { KVSTORE_IF_ABSENT = 1, KVSTORE_IF_HELD = 2, KVSTORE_KEEP_EXPIRY = 4 };
CGN_RC kvstore_writer_commit(struct kvstore_writer **take, const uint64_t *checksum, unsigned how,
	struct cgn_err *err);
void kvstore_writer_abort(struct kvstore_writer **take);
/* kvstore_put, kvstore_writer_add and kvstore_writer_commit of |n| bytes that are here, in one; fails as they do. One
 * of at most KVSTORE_SMALL bytes that replaces one that takes as much, which nobody holds and which is in no other
 * tier, is written where that lies, and counts as a use of it. */
#define KVSTORE_SMALL 4096U
CGN_RC kvstore_set(struct kvstore *s, const struct block_key *k, const struct block_meta *meta, const void *p,
	size_t n, unsigned how, struct cgn_err *err);

bool kvstore_remove(struct kvstore *s, const struct block_key *k); /* false: there was none */
/* It ends then; 0: never. False: there is none. */
bool kvstore_expire(struct kvstore *s, const struct block_key *k, uint64_t unix_ms);
/* Not evicted from the tier it is in until |until_unix_ms| (UINT64_MAX: until unpinned; 0: unpin). At most
 * half of a tier's budget can be pinned: CGN_OVERLOADED. CGN_NOT_FOUND. It is the value that is pinned:
 * another under the key is not. */
CGN_RC kvstore_pin(struct kvstore *s, const struct block_key *k, uint64_t until_unix_ms, struct cgn_err *err);

/* ---- what changes ---- */
/* The last changes are kept, 65,536 of them, numbered. Copies those from number |*at| on and moves it; false:
 * they are no longer kept. Then, and at first: *at = kvstore_changes_end(s), kvstore_scan for what is there,
 * and go on from *at. */
bool kvstore_changes(struct kvstore *s, uint64_t *at, struct block_change *out, size_t cap, size_t *n);
uint64_t kvstore_changes_end(struct kvstore *s);

struct kvstore_tier_stats {
	uint64_t blocks, bytes, value_bytes, budget, hits, evictions;
};
struct kvstore_stats {
	struct kvstore_tier_stats tier[BLOCK_TIERS];
	uint64_t misses, corrupt, index_bytes, pinned_bytes;
	struct kvstore_ssd_stats {
		/* in RAM, and kept there, until they are written */
		uint64_t queue_blocks, queue_bytes;
		/* values written; those written again to make room; all that went to the disk */
		uint64_t put_bytes, carried_bytes, written_bytes;
		uint64_t queue_full, index_full, failed; /* blocks that were not written */
	} ssd;
};
void kvstore_stats(struct kvstore *s, struct kvstore_stats *out);
