/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the blocks that are written to SSD (policy/kv/wear, under the queue's lock), and finds the blocks that wait because the
 * queue was full. */
#include "ssd_priv.h"

#include <string.h>

#define CATCH_UP_BUCKETS 1024U /* looked at in one go */
#define SAVE_EVERY       (10 * CGN_SEC)

struct wear_saved {
	double left;
	uint64_t wall_ms;
};

/* The budget goes on where it was before a restart, so that restarts do not add up to more writes. */
void kvstore_wear_open(struct kvstore_ssd *q, const struct kvstore_ssd_cfg *cfg)
{
	struct wear_saved saved = {0};
	cgn_nsec now = cgn_clock_now();
	uint64_t wall = cgn_clock_wall_ms();
	q->admission = cfg->admission;
	wear_init(&q->wear, cfg->bytes, (uint64_t)((double)cfg->bytes * cfg->writes_per_day), now);
	if (!kvdisk_memo_get(q->disk, &saved, sizeof saved) || !(saved.left >= 0) ||
		saved.left > q->wear.left)
		return;
	uint64_t away = wall > saved.wall_ms ? wall - saved.wall_ms : 0;
	wear_resume(&q->wear, saved.left, away * CGN_MSEC);
}

bool kvstore_wear_admits(struct kvstore_ssd *q, struct kvstore_block *b, bool used)
{
	enum wear_class c = wear_class_of(evict_worth(&b->use));
	if (used && c == WEAR_ONCE)
		c = WEAR_USED;
	bool admits =
		q->admission == KVSTORE_WRITE_ALL || (q->admission == KVSTORE_WRITE_REUSED && c != WEAR_ONCE);
	if (q->admission == KVSTORE_WRITE_AUTO) {
		(void)pthread_mutex_lock(&q->lock);
		admits = wear_admits(&q->wear, c, b->size, kvdisk_roomy(q->disk), cgn_clock_now());
		(void)pthread_mutex_unlock(&q->lock);
	}
	if (admits)
		atomic_store(&b->use.mark, (uint8_t)(c + 1U));
	return admits;
}

/* Returns false when the class is unknown. */
static bool class_of_mark(const struct kvstore_block *b, enum wear_class *out)
{
	unsigned mark = atomic_load(&b->use.mark) & SSD_CLASS;
	*out = (enum wear_class)(mark - 1);
	return mark != 0;
}

void kvstore_wear_wrote(struct kvstore_ssd *q, const struct kvstore_block *b)
{
	enum wear_class c;
	bool known = class_of_mark(b, &c);
	(void)pthread_mutex_lock(&q->lock);
	if (known)
		wear_wrote(&q->wear, c, b->size);
	wear_spent(&q->wear, b->size);
	q->spent += b->size;
	(void)pthread_mutex_unlock(&q->lock);
}

void kvstore_wear_read(struct kvstore_ssd *q, const struct kvstore_block *b)
{
	enum wear_class c;
	if (!class_of_mark(b, &c))
		return;
	(void)pthread_mutex_lock(&q->lock);
	wear_read(&q->wear, c, b->size);
	(void)pthread_mutex_unlock(&q->lock);
}

void kvstore_wear_save(struct kvstore_ssd *q)
{
	struct wear_saved saved = {.left = (double)kvstore_wear_left(q), .wall_ms = cgn_clock_wall_ms()};
	q->saved_at = cgn_clock_now();
	if (q->admission == KVSTORE_WRITE_AUTO)
		kvdisk_memo_put(q->disk, &saved, sizeof saved);
}

void kvstore_wear_tend(struct kvstore_ssd *q, uint64_t written_bytes)
{
	(void)pthread_mutex_lock(&q->lock);
	if (written_bytes > q->spent) { /* headers, index, blocks written again to make room */
		wear_spent(&q->wear, written_bytes - q->spent);
		q->spent = written_bytes;
	}
	(void)pthread_mutex_unlock(&q->lock);
	if (cgn_since(cgn_clock_now(), q->saved_at) >= SAVE_EVERY)
		kvstore_wear_save(q);
}

uint64_t kvstore_wear_left(struct kvstore_ssd *q)
{
	(void)pthread_mutex_lock(&q->lock);
	uint64_t left = (uint64_t)q->wear.left;
	(void)pthread_mutex_unlock(&q->lock);
	return left;
}

/* Offer the blocks of a bucket that wait. Returns false when the queue is full again. */
static bool bucket_catch_up(struct kvstore *s, struct kvstore_shard *sh, uint32_t bucket)
{
	struct kvstore_block *b = kvstore_block_at(s, kvstore_index_bucket(sh, bucket));
	for (; b != NULL; b = kvstore_block_at(s, b->next)) {
		if ((atomic_load(&b->use.mark) & (SSD_BEHIND | SSD_FAILED)) == 0 || !kvstore_block_in_ram(b))
			continue;
		kvstore_ssd_offer(s, b);
		if ((atomic_load(&b->use.mark) & SSD_BEHIND) != 0)
			return false;
	}
	return true;
}

void kvstore_catch_up(struct kvstore_ssd *q)
{
	struct kvstore *s = q->store;
	uint32_t *shard = &q->behind_at[0], *bucket = &q->behind_at[1], left = CATCH_UP_BUCKETS;
	bool room = true;
	if (*shard == 0 && *bucket == 0)
		atomic_store(&q->behind, false); /* set again by each block that finds the queue full */
	while (room && left > 0 && *shard < KVSTORE_SHARDS) {
		struct kvstore_shard *sh = &s->shard[*shard];
		(void)pthread_mutex_lock(&sh->lock);
		for (; room && left > 0 && *bucket < sh->n_buckets; *bucket += room, left--)
			room = bucket_catch_up(s, sh, *bucket);
		if (*bucket >= sh->n_buckets) {
			*bucket = 0;
			++*shard;
		}
		(void)pthread_mutex_unlock(&sh->lock);
	}
	if (*shard == KVSTORE_SHARDS)
		*shard = 0; /* The pass is over */
}

bool kvstore_ssd_is_behind(const struct kvstore_ssd *q)
{
	return atomic_load(&q->behind) || q->behind_at[0] != 0 || q->behind_at[1] != 0;
}
