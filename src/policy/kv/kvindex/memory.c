/* SPDX-License-Identifier: Apache-2.0 */
/* The byte budget and epoch-based reclamation. A reader notes the epoch when a match begins. Objects that the
 * writer replaces go on |fresh|. That list becomes |aging| as a whole and the epoch is incremented. Once
 * every reader is idle or has noted a later epoch, no reader can have a pointer into |aging|: later matches
 * found the replacements. */
#include <stdlib.h>
#include <string.h>

#include "policy/kv/kvindex/kvindex_priv.h"

#define MMAP_FROM ((size_t)128 << 10) /* From this size on, glibc may allocate whole pages. */

size_t mem_cost(size_t bytes, bool aligned)
{
	size_t chunk = (bytes + 8 + 15) & ~(size_t)15;
	if (chunk < 32)
		chunk = 32;
	return chunk + (aligned ? 64 : 0) + (bytes >= MMAP_FROM ? 4096 : 0);
}

bool mem_take(struct kvindex *ix, size_t cost, size_t spare)
{
	size_t limit = ix->max_bytes - spare;
	for (unsigned tries = 0; ix->bytes + cost > limit; tries++)
		if (ix->retired_bytes == 0 || tries == 2) /* The first round may only close the epoch. */
			return false;
		else
			(void)mem_reclaim(ix, 1024);
	ix->bytes += cost;
	return true;
}

void mem_give(struct kvindex *ix, size_t cost)
{
	ix->bytes -= cost;
}

static size_t cost_of(const struct epoch_head *s)
{
	return mem_cost(s->bytes, s->kind == EPOCH_TABLE);
}

struct epoch_head *epoch_new(struct kvindex *ix, enum epoch_kind kind, size_t bytes)
{
	bool table = kind == EPOCH_TABLE;
	size_t cost = mem_cost(bytes, table);
	if (bytes > UINT32_MAX || !mem_take(ix, cost, table ? ix->max_bytes / 16 : 0))
		return NULL;
	struct epoch_head *s = table ? aligned_alloc(64, bytes) : malloc(bytes);
	if (s == NULL) {
		mem_give(ix, cost);
		return NULL;
	}
	memset(s, 0, bytes);
	s->kind = (uint8_t)kind;
	s->bytes = (uint32_t)bytes;
	return s;
}

void epoch_free(struct kvindex *ix, struct epoch_head *s)
{
	mem_give(ix, cost_of(s));
	free(s);
}

void epoch_retire(struct kvindex *ix, struct epoch_head *s)
{
	s->next = ix->fresh;
	ix->fresh = s;
	ix->retired_bytes += cost_of(s);
}

bool readers_passed(struct kvindex *ix, uint64_t epoch)
{
	/* Objects unlinked before the fence are unlinked for every reader that has not noted its epoch
	 * yet. */
	full_fence();
	for (unsigned i = 0; i < ix->max_readers; i++) {
		uint64_t at = atomic_load_explicit(&ix->readers[i].epoch, memory_order_acquire);
		if (at != 0 && at <= epoch)
			return false;
	}
	return true;
}

static void close_epoch(struct kvindex *ix)
{
	ix->aging = ix->fresh;
	ix->fresh = NULL;
	ix->aging_epoch = atomic_load_explicit(&ix->epoch, memory_order_relaxed);
	atomic_store_explicit(&ix->epoch, ix->aging_epoch + 1, memory_order_release);
}

bool mem_reclaim(struct kvindex *ix, unsigned max)
{
	if (ix->aging == NULL && ix->fresh != NULL)
		close_epoch(ix);
	if (ix->free_now == NULL && ix->aging != NULL && readers_passed(ix, ix->aging_epoch)) {
		ix->free_now = ix->aging;
		ix->aging = NULL;
	}
	for (struct epoch_head *s; max > 0 && (s = ix->free_now) != NULL; max--) {
		ix->free_now = s->next;
		ix->retired_bytes -= cost_of(s);
		epoch_free(ix, s);
	}
	return ix->retired_bytes > 0;
}

void mem_fini(struct kvindex *ix)
{
	struct epoch_head **lists[] = {&ix->fresh, &ix->aging, &ix->free_now};
	for (size_t i = 0; i < CGN_COUNT(lists); i++)
		for (struct epoch_head *s; (s = *lists[i]) != NULL;) {
			*lists[i] = s->next;
			epoch_free(ix, s);
		}
}
