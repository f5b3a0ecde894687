/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD tier inside kvstore: the queue and its one writing thread (ssd_queue.c, ssd.c), what kvdisk asks and
 * tells (ssd_owner.c), and the threads that read (fetch.c). */
#pragma once
#include "kvstore_priv.h"
#include "policy/kv/wear/wear.h"

/* The queue of blocks to write has 4,096 blocks, and a quarter of the RAM tier or 256 MiB at most. */
#define KVSTORE_SSD_QUEUE     4096U
#define KVSTORE_SSD_QUEUE_MAX ((uint64_t)256 << 20)
#define KVSTORE_SSD_FETCHES   1024U /* reads of different blocks that run or wait */
#define KVSTORE_SSD_READERS   8U

struct kvstore_ssd {
	struct kvstore *store;
	struct kvdisk *disk;
	struct kvstore_fetches *fetches;
	enum kvstore_admission admission;
	uint64_t most_bytes, most_blocks; /* in the queue; in the index */
	cgn_nsec flush_time;
	bool (*goes_on)(void *user); /* as in struct kvstore_ssd_cfg */
	void *goes_on_user;
	pthread_t thread;
	bool running;

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kvstore_block *job[KVSTORE_SSD_QUEUE]; /* blocks to write; a reference each */
	uint32_t first, n;
	uint64_t bytes; /* in the queue and being written */
	/* Extras of blocks on SSD whose expiry changed; each once, with a reference to the block. */
	struct cgn_link ending;
	struct kvstore_block *removed; /* unlinked blocks, newest first, by their |next|; a reference each */
	struct wear wear;
	/* The queue was full: blocks with SSD_BEHIND wait for it. The SSD thread looks for them from shard and
	 * bucket |behind_at| on; 0, 0: no pass has begun. */
	_Atomic bool behind;
	uint32_t behind_at[2];
	uint64_t spent; /* the SSD thread: bytes that |wear| knows of */
	bool stop;
	cgn_nsec stop_by; /* deadline of the flush at the end */
	/* The SSD thread remembers whether it has logged that the disk refuses writes, since when, and |failed|
	 * then. */
	bool refusing;
	cgn_nsec saved_at; /* when the write budget was saved */
	cgn_nsec refusing_since;
	uint64_t failed_before;
	bool refused; /* The SSD thread's: the disk refused a block, and was not seen to take writes since. */
	_Atomic uint64_t blocks, queue_full, index_full, failed;
};

/* ---- ssd.c ---- */
CGN_RC kvstore_ssd_open(struct kvstore *s, const struct kvstore_ssd_cfg *cfg, uint64_t ram_bytes,
	struct cgn_err *err);
/* Write the queue, as far as the flush time allows, and close the disk. */
void kvstore_ssd_close(struct kvstore *s);
void kvstore_ssd_add_stats(struct kvstore *s, struct kvstore_stats *out);

/* The mark of a block: its class when it was queued for SSD, plus one; 0: unknown, as after a restart. */
#define SSD_CLASS  7U
#define SSD_FAILED 64U            /* Waits for a disk that takes writes again. */
#define SSD_BEHIND KVSTORE_SPARED /* Waits to be written: the queue was full. */

/* ---- ssd_wear.c: which blocks are written, and what came of it ---- */
void kvstore_wear_open(struct kvstore_ssd *q, const struct kvstore_ssd_cfg *cfg);
/* Whether |b| is worth a write now. |used|: it is being used. Under the shard's lock. */
bool kvstore_wear_admits(struct kvstore_ssd *q, struct kvstore_block *b, bool used);
void kvstore_wear_wrote(struct kvstore_ssd *q, const struct kvstore_block *b);
void kvstore_wear_read(struct kvstore_ssd *q, const struct kvstore_block *b);
/* About once a second, on the SSD thread: count what the disk wrote besides, and save the budget. */
void kvstore_wear_tend(struct kvstore_ssd *q, uint64_t written_bytes);
void kvstore_wear_save(struct kvstore_ssd *q); /* keep the budget across a restart */
uint64_t kvstore_wear_left(struct kvstore_ssd *q);
/* Queue blocks that wait for the queue, on the SSD thread. */
void kvstore_catch_up(struct kvstore_ssd *q);
/* Whether blocks wait for the queue, or a pass that looks for them is not over. On the SSD thread. */
bool kvstore_ssd_is_behind(const struct kvstore_ssd *q);

/* ---- ssd_queue.c; the caller holds the shard's lock ---- */
/* Queue |b| for writing when it is linked and neither on SSD nor queued. */
void kvstore_ssd_offer(struct kvstore *s, struct kvstore_block *b);
/* Offer a block in RAM that is being used, when it is worth writing. */
void kvstore_ssd_on_use(struct kvstore *s, struct kvstore_block *b);
/* Offer a block that was linked just now, when it is worth writing already. */
void kvstore_ssd_on_link(struct kvstore *s, struct kvstore_block *b);
/* Remove a block that was unlinked from the disk. */
void kvstore_ssd_forget(struct kvstore *s, struct kvstore_block *b);
/* Tell the disk that the expiry of |b| changed. */
void kvstore_ssd_expires(struct kvstore *s, struct kvstore_block *b);
/* The link of the |removed| list: an unlinked block is in no bucket. */
static inline uint32_t *kvstore_ssd_removed_next(struct kvstore_block *b)
{
	return &b->next;
}

/* ---- ssd_owner.c ---- */
extern const struct kvdisk_owner kvstore_ssd_owner;
/* Under no lock: place |at| of the disk has no value any more. Unlinks the block when no other tier has it. */
void kvstore_ssd_lost(struct kvstore *s, const struct block_key *k, kvdisk_place at);

/* ---- fetch.c: one read from SSD answers all who wait for the block ---- */
struct kvstore_read {
	struct cgn_post post;
	struct kvstore_read *next;
	struct kvstore *store;
	struct cgn_loop *loop;
	struct block_key key;
	struct kvstore_block *block;
	struct cgn_err err;
	kvstore_read_done done; /* NULL: cancelled */
	void *user;
};
struct kvstore_fetches;
CGN_RC kvstore_fetches_new(struct kvstore *s, struct kvstore_fetches **out, struct cgn_err *err);
/* Answer all reads that wait, end the threads, and take no further read. */
void kvstore_fetches_stop(struct kvstore_fetches *f);
void kvstore_fetches_free(struct kvstore_fetches **take);
/* Read r->key from SSD. |r| is answered on its loop. Any thread. */
void kvstore_fetch(struct kvstore_fetches *f, struct kvstore_read *r);
/* Call r->done and free |r|: now, on the loop of |r|; or from any thread, on that loop. */
void kvstore_read_finish(struct kvstore_read *r);
