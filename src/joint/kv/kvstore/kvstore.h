/* SPDX-License-Identifier: Apache-2.0 */
/* kvstore: a store for blocks of KV cache, by digest, in tiers. A value never changes; a put replaces it as a
 * whole.
 *
 * Threads: every function may be called on any thread. Callbacks run on the given loop. No lock is held while
 * a callback runs or while bytes are copied or summed, except for a value of at most KVSTORE_SMALL bytes that
 * is replaced in place.
 *
 * Memory: values lie in one arena of ram_bytes (io/os/pages). Fragmentation and values that are being written,
 * read or pinned are part of it. The index takes 120 bytes a block and 4 bytes of hash table, and what
 * policy/kv/evict remembers of evicted blocks (20 to 25 bytes a block). A block that has a name, was pinned, or
 * lies in several runs of pages takes 120 bytes more, and the name or 8 bytes a run. Every value takes at
 * least 1 KiB of the arena, so the index takes at most a seventh of ram_bytes, without names (BLOCK_MAX_NAME
 * each). The index never shrinks. The ring of changes takes 4 MiB. The names of a model and a tenant are stored
 * once for all of their blocks, for at most 65,535 such pairs.
 *
 * SSD tier (joint/kv/kvdisk): written behind, so a put never waits for it. Blocks worth writing wait in RAM for
 * one thread: at most 4,096 blocks, and 256 MiB or a quarter of the RAM tier. When the disk is slower than
 * the puts, further blocks are counted, are evicted after others, and are queued when the queue is empty, if
 * they are still in RAM. The index has an entry of each block on SSD too: at most one
 * for each 512 bytes of ram_bytes; further blocks are not written. A block that is evicted from RAM stays on
 * SSD. A block that is read from SSD enters RAM as a new block does. One read answers all requests for the
 * block; eight reads run at a time, 1,024 wait. A value that was removed or replaced leaves the SSD within
 * moments, in order.
 *
 * Integrity: each value has a checksum, XXH3-64 (github.com/Cyan4973/xxHash), computed or compared when it is
 * put, and compared each time that it is read. A value that fails is dropped, counted, and a miss. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/os/loop/loop.h"
#include "joint/kv/kvstore/stats.h"
#include "policy/kv/block/block.h"

struct kvstore;
struct kvsites;
struct telemetry;
/* The blocks that are written to SSD: those that were used again, or came back soon after their eviction; all;
 * or all while there is room and budget, and then those worth it (policy/kv/wear). */
enum kvstore_admission { KVSTORE_WRITE_REUSED, KVSTORE_WRITE_ALL, KVSTORE_WRITE_AUTO };
struct kvstore_ssd_cfg {
	const char *dir, *index_dir; /* index_dir NULL: the index lies in |dir| */
	uint64_t bytes, ttl_ms;      /* as in struct kvdisk_cfg */
	enum kvstore_admission admission;
	double writes_per_day; /* KVSTORE_WRITE_AUTO: the day's budget, as a multiple of |bytes|; 0: no limit */
	cgn_nsec flush_time;   /* time that kvstore_free spends on writing the queue */
	bool (*goes_on)(void *user); /* as in struct kvdisk_owner; NULL: kvstore_new always goes on */
	void *user;
};
struct kvstore_cfg {
	struct telemetry *telemetry;       /* borrowed */
	uint64_t ram_bytes;                /* budget of the RAM tier, rounded down to 64 KiB */
	uint64_t (*wall_ms)(void);         /* Unix ms, callable on any thread; NULL: the system's clock */
	const struct kvstore_ssd_cfg *ssd; /* NULL: no SSD tier */
	const struct kvsites *sites; /* decide block_info.leave; borrowed; NULL: there are no other sites */
};
/* Create a store. With an SSD tier: read its index, log it, and fail as kvdisk_open does. */
CGN_RC kvstore_new(const struct kvstore_cfg *cfg, struct kvstore **out, struct cgn_err *err);
/* Free the store. All blocks, writers and reads were given up before. */
void kvstore_free(struct kvstore **take);
/* Remove expired blocks and end pins that are over, in bounded time. Call about once a second, on one thread.
 * An expired block is not returned before its removal either. */
void kvstore_tick(struct kvstore *s);

/* ---- lookups ---- */
/* Describe the block of |k|. Reads no value and counts as no use. Returns false, with tiers 0, when the block
 * is not held or has expired. */
bool kvstore_lookup(struct kvstore *s, const struct block_key *k, struct block_info *out);
/* Report up to |count| keys from |*cursor| on (0: the first), and some more where they lie together. Fewer,
 * or none, when the scan visited 2 |count| + 1,024 buckets. |*cursor| is 0 again at the end. A key that is
 * there from begin to end is reported at least once. |fn| runs under no lock; |name| is borrowed. */
void kvstore_scan(struct kvstore *s, uint64_t *cursor, size_t count,
	void (*fn)(void *user, const struct block_key *k, const struct block_info *info, struct cgn_str name),
	void *user);

/* ---- values ---- */
/* A value in RAM that a reader holds. It neither moves nor is freed while it is held. */
struct kvstore_block;
void kvstore_block_ref(struct kvstore_block *b);
void kvstore_block_unref(struct kvstore_block **take);
uint64_t kvstore_block_size(const struct kvstore_block *b);
uint64_t kvstore_block_checksum(const struct kvstore_block *b);
struct block_info kvstore_block_info(const struct kvstore_block *b); /* the current description */
struct cgn_str kvstore_block_model(const struct kvstore_block *b);
struct cgn_str kvstore_block_tenant(const struct kvstore_block *b); /* empty: not known */
struct cgn_str kvstore_block_name(const struct kvstore_block *b);
/* Fill |iov| with the memory of bytes |off| to |off| + |n|, at most |cap| pieces; *n_iov of them are used.
 * Returns the number of bytes that they cover. */
uint64_t kvstore_block_iov(const struct kvstore_block *b, uint64_t off, uint64_t n, struct iovec *iov,
	size_t cap, size_t *n_iov);

struct kvstore_extent {
	uint64_t offset, length;
};
#define KVSTORE_MAX_EXTENTS 1025
/* Fill |out| with the place of the value in the arena, in order, at most |cap| extents. Returns how many
 * extents the value has; KVSTORE_MAX_EXTENTS are enough for any value. */
size_t kvstore_block_extents(const struct kvstore_block *b, struct kvstore_extent *out, size_t cap);
/* Return a descriptor of the arena, |*bytes| long, for clients of this node. It can be mapped for reading
 * only. The store owns the descriptor: send it, do not close it. -1: this kernel cannot seal memory (before
 * Linux 5.1). Bytes outside the extents of held blocks change at any time. */
int kvstore_arena(const struct kvstore *s, uint64_t *bytes);

/* Return the value from RAM, with a reference; NULL: it is not there, or is damaged. Counts as a use.
 * |verify| false: the caller's client compares the checksum. */
struct kvstore_block *kvstore_get_ram(struct kvstore *s, const struct block_key *k, bool verify);
/* Read a value from any tier, after kvstore_get_ram returned NULL: the miss in RAM is not counted again.
 * |done| runs on |l|, never inline, and owns |*take|. NULL: |why| is CGN_NOT_FOUND, CGN_STORAGE,
 * CGN_OVERLOADED, or CGN_TOO_LARGE (put when the RAM tier was larger). The read is valid until |done| runs or
 * until kvstore_read_cancel, after which |done| does not run. */
struct kvstore_read;
typedef void (*kvstore_read_done)(void *user, struct kvstore_block **take, const struct cgn_err *why);
struct kvstore_read *kvstore_get(struct kvstore *s, struct cgn_loop *l, const struct block_key *k,
	kvstore_read_done done, void *user);
void kvstore_read_cancel(
	struct kvstore_read **take); /* on |l|, which must live until the tier below answered */
/* Wait until every cancelled read is over, and start no further read from SSD. Call before the first of their
 * loops is freed. */
void kvstore_reads_stop(struct kvstore *s);

/* A value that is being written. No reader sees it before kvstore_writer_commit. One thread at a time. */
struct kvstore_writer;
/* Reserve |size| bytes for a value; others may be evicted for it. CGN_TOO_LARGE: over BLOCK_MAX_BYTES, or over
 * half of the tier; CGN_OVERLOADED: no block can be evicted; CGN_INVALID: |meta| is out of bounds;
 * CGN_NO_MEMORY.
 * |meta| is copied. */
CGN_RC kvstore_put(struct kvstore *s, const struct block_key *k, const struct block_meta *meta, uint64_t size,
	struct kvstore_writer **out, struct cgn_err *err);
/* Fill |iov| with the memory of the next bytes, as kvstore_block_iov. Call kvstore_writer_wrote
 * afterwards. */
uint64_t kvstore_writer_room(const struct kvstore_writer *w, struct iovec *iov, size_t cap, size_t *n_iov);
void kvstore_writer_wrote(struct kvstore_writer *w, uint64_t n);
/* |n|: at most kvstore_writer_missing */
void kvstore_writer_add(struct kvstore_writer *w, const void *p, size_t n);
uint64_t kvstore_writer_missing(const struct kvstore_writer *w);
/* Set the expiry in place of the one in |meta|. 0: never. */
void kvstore_writer_expires(struct kvstore_writer *w, uint64_t unix_ms);
/* Make the value the one of its key. All bytes must be written. |checksum| NULL: it is computed; else
 * CGN_INVALID when it differs.
 * |how|: KVSTORE_IF_ABSENT fails with CGN_CONFLICT when the key has a value. KVSTORE_IF_HELD fails with
 * CGN_NOT_FOUND when it has none. KVSTORE_KEEP_EXPIRY takes the expiry of the replaced value. The check and
 * the change are one step. On failure nothing changes, and the writer is freed. */
enum kvstore_commit { KVSTORE_IF_ABSENT = 1, KVSTORE_IF_HELD = 2, KVSTORE_KEEP_EXPIRY = 4 };
CGN_RC kvstore_writer_commit(struct kvstore_writer **take, const uint64_t *checksum, unsigned how,
	struct cgn_err *err);
void kvstore_writer_abort(struct kvstore_writer **take);
/* As kvstore_writer_commit without a checksum, and return the value that the key had in |*old|, with a reference,
 * whether it was replaced or not; NULL: it had none. CGN_UNAVAILABLE: that value is in another tier than RAM;
 * nothing changes, and the writer stays. Then read the value with kvstore_get, hold it, and try again. */
CGN_RC kvstore_writer_exchange(struct kvstore_writer **take, unsigned how, struct kvstore_block **old,
	struct cgn_err *err);
/* Commit |n| values in one step: no other thread sees some of them without the others. Of two values of one key,
 * the later one stays. |how|: KVSTORE_IF_ABSENT (CGN_CONFLICT: one of the keys has a value), or 0. On success
 * the writers are freed; on failure nothing changes, and they stay. */
CGN_RC kvstore_commit_all(struct kvstore_writer **list, size_t n, unsigned how, struct cgn_err *err);
/* kvstore_put, kvstore_writer_add and kvstore_writer_commit of |n| bytes in one; fails as they do. A value of
 * at most KVSTORE_SMALL bytes is written in place when the old value takes the same memory, is not held and
 * is in no other tier; this counts as a use. */
#define KVSTORE_SMALL 4096U
CGN_RC kvstore_set(struct kvstore *s, const struct block_key *k, const struct block_meta *meta, const void *p,
	size_t n, unsigned how, struct cgn_err *err);

/* The same for kvstore_writer_exchange. */
CGN_RC kvstore_exchange(struct kvstore *s, const struct block_key *k, const struct block_meta *meta,
	const void *p, size_t n, unsigned how, struct kvstore_block **old, struct cgn_err *err);

/* Remove the value of |k| and return it in |*out|, with a reference: one of several callers gets it.
 * CGN_NOT_FOUND; CGN_UNAVAILABLE as in kvstore_writer_exchange. */
CGN_RC kvstore_take(struct kvstore *s, const struct block_key *k, struct kvstore_block **out,
	struct cgn_err *err);
bool kvstore_remove(struct kvstore *s,
	const struct block_key *k); /* Returns false when the key had no value. */
/* Set the expiry to |unix_ms| (0: never) if it is |from|. Returns false when the key has no value, or one with another
 * expiry. */
#define KVSTORE_ANY_EXPIRY UINT64_MAX
bool kvstore_expire(struct kvstore *s, const struct block_key *k, uint64_t from, uint64_t unix_ms);
/* Keep the value in its tier until |until_unix_ms| (UINT64_MAX: until unpinned; 0: unpin). CGN_OVERLOADED:
 * pins take half of a tier's budget already. CGN_NOT_FOUND. A later value of the same key is not pinned. */
CGN_RC kvstore_pin(struct kvstore *s, const struct block_key *k, uint64_t until_unix_ms, struct cgn_err *err);

/* ---- changes ---- */
/* Copy the changes from number |*at| on to |out|, and advance |*at|. The last 65,536 changes are kept.
 * Returns false when number |*at| is not kept any more. Then, and at first: set *at = kvstore_changes_end(s),
 * scan with kvstore_scan, and continue from |*at|. */
bool kvstore_changes(struct kvstore *s, uint64_t *at, struct block_change *out, size_t cap, size_t *n);
uint64_t kvstore_changes_end(struct kvstore *s);
