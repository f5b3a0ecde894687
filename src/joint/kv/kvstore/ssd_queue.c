/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD queue: blocks to write, to remove, or with a new expiry, for the SSD thread. The threads that
 * change the index fill it. The queue's lock is the innermost one. */
#include "base/unlikely/unlikely.h"
#include "ssd_priv.h"

static bool queue_push(struct kvstore_ssd *q, struct kvstore_block *b)
{
	uint64_t bytes = pages_footprint(b->size);
	(void)pthread_mutex_lock(&q->lock);
	/* An empty queue takes any block: the SSD thread would offer one that is refused again and again. */
	bool fits =
		q->n < KVSTORE_SSD_QUEUE && (q->bytes == 0 || q->bytes + bytes <= q->most_bytes) && !q->stop;
	if (q->n > 0 && unlikely_way(UNLIKELY_ssd_queue_full))
		fits = false;
	if (fits) {
		kvstore_block_ref(b);
		q->job[(q->first + q->n++) % KVSTORE_SSD_QUEUE] = b;
		q->bytes += bytes;
		(void)pthread_cond_signal(&q->more);
	}
	(void)pthread_mutex_unlock(&q->lock);
	if (!fits)
		atomic_fetch_add(&q->queue_full, 1);
	return fits;
}

void kvstore_ssd_offer(struct kvstore *s, struct kvstore_block *b)
{
	struct kvstore_ssd *q = s->ssd;
	if (b->place != 0 || b->queued || !b->linked)
		return;
	unsigned mark = atomic_load(&b->use.mark) & ~SSD_FAILED;
	if (atomic_load(&q->blocks) >= q->most_blocks) {
		atomic_fetch_add(&q->index_full, 1);
		atomic_store(&b->use.mark, (uint8_t)(mark & ~SSD_BEHIND));
		return;
	}
	b->queued = queue_push(q, b);
	atomic_store(&b->use.mark, (uint8_t)(b->queued ? mark & ~SSD_BEHIND : mark | SSD_BEHIND));
	if (!b->queued)
		atomic_store(&q->behind, true);
}

void kvstore_ssd_on_use(struct kvstore *s, struct kvstore_block *b)
{
	if (b->place == 0 && !b->queued && kvstore_wear_admits(s->ssd, b, true))
		kvstore_ssd_offer(s, b);
}

void kvstore_ssd_on_link(struct kvstore *s, struct kvstore_block *b)
{
	if (b->place == 0 && !b->queued && kvstore_wear_admits(s->ssd, b, false))
		kvstore_ssd_offer(s, b);
}

void kvstore_ssd_expires(struct kvstore *s, struct kvstore_block *b)
{
	struct kvstore_ssd *q = s->ssd;
	struct kvstore_extra *x = kvstore_extra_ensure(s, b);
	if (x == NULL) {
		atomic_fetch_add(&q->failed, 1);
		return;
	}
	(void)pthread_mutex_lock(&q->lock);
	if (cgn_list_empty(&x->ending)) {
		kvstore_block_ref(b);
		cgn_list_push(&q->ending, &x->ending);
		(void)pthread_cond_signal(&q->more);
	}
	(void)pthread_mutex_unlock(&q->lock);
}

void kvstore_ssd_forget(struct kvstore *s, struct kvstore_block *b)
{
	struct kvstore_ssd *q = s->ssd;
	kvstore_block_ref(b);
	(void)pthread_mutex_lock(&q->lock);
	*kvstore_ssd_removed_next(b) = q->removed != NULL ? kvstore_cell_id(q->removed) : KVSTORE_NONE;
	q->removed = b;
	(void)pthread_cond_signal(&q->more);
	(void)pthread_mutex_unlock(&q->lock);
	atomic_fetch_sub(&q->blocks, 1);
}
