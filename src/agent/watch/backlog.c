/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/watch/backlog.h"
#include "base/unlikely/unlikely.h"

#include <stdlib.h>

/* ---- ranges ---- */

static bool ranges_has(const struct watch_ranges *s, unsigned r)
{
	return (s->bit[r / 64] >> r % 64 & 1) != 0;
}

static void ranges_set(struct watch_ranges *s, unsigned r, bool in)
{
	uint64_t bit = UINT64_C(1) << r % 64;
	s->bit[r / 64] = in ? s->bit[r / 64] | bit : s->bit[r / 64] & ~bit;
}

/* ---- the backlog ---- */

void watch_backlog_range_due(struct watch_backlog *b, unsigned range)
{
	ranges_set(&b->due, range, true);
	if (range < b->next_range)
		b->next_range = range;
}

void watch_backlog_resend(struct watch_backlog *b, unsigned range)
{
	watch_backlog_range_due(b, range);
	ranges_set(&b->known, range, true);
}

/* Return the lowest range that is due, or BLOCK_RANGES. */
static unsigned backlog_next_range(struct watch_backlog *b)
{
	while (b->next_range < BLOCK_RANGES && !ranges_has(&b->due, b->next_range))
		b->next_range++;
	return b->next_range;
}

static bool backlog_grow(struct watch_backlog *b)
{
	if (b->cap == WATCH_MAX_BACKLOG)
		return false;
	b->cap = b->cap > 0 ? 2 * b->cap : 256;
	b->touched = CGN_GROWN(b->touched, b->cap);
	return true;
}

size_t watch_backlog_add(struct watch_backlog *b, uint64_t digest)
{
	if (ranges_has(&b->due, block_range(digest)))
		return 0; /* Sent with the range */
	if (!unlikely_way(UNLIKELY_backlog_full) && (b->n < b->cap || backlog_grow(b))) {
		b->touched[b->n++] = digest;
		return 0;
	}
	size_t behind = b->n;
	for (size_t i = 0; i < behind; i++)
		watch_backlog_range_due(b, block_range(b->touched[i]));
	watch_backlog_range_due(b, block_range(digest));
	b->n = 0;
	return behind;
}

bool watch_backlog_is_empty(struct watch_backlog *b)
{
	return b->n == 0 && backlog_next_range(b) == BLOCK_RANGES;
}

void watch_backlog_fini(struct watch_backlog *b)
{
	free(b->touched);
	*b = (struct watch_backlog){.n = 0};
}

/* ---- the batch ---- */

static bool batch_grow(struct watch_batch *b)
{
	size_t cap = b->cap > 0 ? 2 * b->cap : WATCH_CHUNK_DIGESTS;
	uint64_t *digests = realloc(b->digests, cap * sizeof *digests);
	if (digests != NULL)
		b->digests = digests;
	uint8_t *tiers = realloc(b->tiers, cap);
	if (tiers != NULL)
		b->tiers = tiers;
	if (digests == NULL || tiers == NULL)
		return false;
	b->cap = cap;
	return true;
}

static void batch_add(void *user, uint64_t digest, unsigned tiers)
{
	struct watch_batch *b = user;
	if (b->n == b->cap && !batch_grow(b)) {
		b->bad = true;
		return;
	}
	b->digests[b->n] = digest;
	b->tiers[b->n++] = (uint8_t)tiers;
	b->off_gpu |= tiers != BLOCK_TIER_BIT(BLOCK_GPU);
}

/* Take the newest changes first; a digest that changed twice is sent twice, with its latest state. */
static void batch_gather_touched(struct watch_batch *batch, struct watch_backlog *b)
{
	while (b->n > 0 && batch->n < WATCH_CHUNK_DIGESTS) {
		uint64_t d = b->touched[--b->n];
		batch_add(batch, d, holdings_tiers(batch->holdings, d));
		ranges_set(&b->known, block_range(d), true);
	}
}

static void batch_gather_ranges(struct watch_batch *batch, struct watch_backlog *b)
{
	for (unsigned r; batch->n < WATCH_CHUNK_DIGESTS && (r = backlog_next_range(b)) < BLOCK_RANGES;) {
		if (ranges_has(&b->known, r))
			batch->ranges[batch->n_ranges++] = r;
		holdings_each(batch->holdings, r, batch_add, batch);
		ranges_set(&b->due, r, false);
		ranges_set(&b->known, r, true);
	}
}

/* An event has either changes or ranges: the reset of a range would remove a change before it. */
void watch_batch_gather(struct watch_batch *batch, struct watch_backlog *b)
{
	batch->n = batch->n_ranges = 0;
	batch->off_gpu = false;
	if (b->n > 0)
		batch_gather_touched(batch, b);
	else
		batch_gather_ranges(batch, b);
}

void watch_batch_fini(struct watch_batch *batch)
{
	free(batch->digests);
	free(batch->tiers);
}
