/* SPDX-License-Identifier: Apache-2.0 */
/* The store as a whole: create, free, and statistics. */
#include "ssd_priv.h"

#include <stdlib.h>

static uint64_t evict_hash_of(struct evict_node *n)
{
	const struct kvstore_block *b = CGN_CONTAINER(n, struct kvstore_block, use);
	return kvstore_hash(kvstore_block_store(b), &b->key);
}

static void init_locks(struct kvstore *s)
{
	pthread_mutex_t *locks[] = {&s->ground, &s->evict_lock, &s->pins_lock, &s->changes_lock,
		&s->labels.lock};
	for (size_t i = 0; i < CGN_COUNT(locks); i++)
		(void)pthread_mutex_init(locks[i], NULL);
}

static CGN_RC init_parts(struct kvstore *s, const struct kvstore_cfg *cfg, struct cgn_err *err)
{
	for (size_t i = 0; i < KVSTORE_SHARDS; i++)
		kvstore_shard_init(&s->shard[i]);
	return pages_new(cfg->ram_bytes, &s->pages, err);
}

CGN_RC kvstore_new(const struct kvstore_cfg *cfg, struct kvstore **out, struct cgn_err *err)
{
	/* Most of the struct is tables whose pages have no memory before their first use; malloc maps a
	 * struct of this size apart from the heap. */
	struct kvstore *s = CGN_NEW(struct kvstore);
	s->tag = KVSTORE_TAG;
	s->wall_ms = cfg->wall_ms != NULL ? cfg->wall_ms : cgn_clock_wall_ms;
	s->top_cell = s->labels.top = 1; /* cell 0 is KVSTORE_NONE */
	s->sites = cfg->sites;
	cgn_random(&s->seed, sizeof s->seed);
	cgn_list_init(&s->pins);
	init_locks(s);
	evict_init(&s->evict, &(struct evict_cfg){.bytes = cfg->ram_bytes, .hash_of = evict_hash_of});
	s->telemetry = cfg->telemetry;
	s->seconds_hit = METRIC_OF(s->telemetry, KV_LOOKUP_SECONDS, "ram", "hit");
	s->seconds_miss = METRIC_OF(s->telemetry, KV_LOOKUP_SECONDS, "ram", "miss");
	s->seconds_corrupt = METRIC_OF(s->telemetry, KV_LOOKUP_SECONDS, "ram", "corrupt");
	cgn_rc rc = init_parts(s, cfg, err);
	if (cgn_ok(rc) && cfg->ssd != NULL)
		rc = kvstore_ssd_open(s, cfg->ssd, cfg->ram_bytes, err);
	if (!cgn_ok(rc)) {
		kvstore_free(&s);
		return rc;
	}
	*out = s;
	return CGN_OK;
}

static void shard_unlink_all(struct kvstore *s, struct kvstore_shard *sh)
{
	for (uint32_t i = 0; i < sh->n_buckets; i++)
		for (struct kvstore_block *b = NULL;
			(b = kvstore_block_at(s, kvstore_index_bucket(sh, i))) != NULL;) {
			kvstore_unlink(s, sh, b, kvstore_hash(s, &b->key));
			kvstore_block_unref(&b);
		}
}

void kvstore_free(struct kvstore **take)
{
	struct kvstore *s = CGN_TAKE_LIVE(take, KVSTORE_TAG);
	if (s == NULL)
		return;
	kvstore_ssd_close(s);
	for (size_t i = 0; i < KVSTORE_SHARDS; i++)
		shard_unlink_all(s, &s->shard[i]);
	CGN_MUST(s->n_cells == 0); /* all references were given up */
	for (size_t i = 0; i < KVSTORE_SHARDS; i++)
		kvstore_shard_fini(&s->shard[i]);
	evict_fini(&s->evict);
	kvstore_cells_free(s);
	pages_free(&s->pages);
	pthread_mutex_t *locks[] = {&s->ground, &s->evict_lock, &s->pins_lock, &s->changes_lock,
		&s->labels.lock};
	for (size_t i = 0; i < CGN_COUNT(locks); i++)
		(void)pthread_mutex_destroy(locks[i]);
	s->tag = 0;
	free(s);
}

int kvstore_arena(const struct kvstore *s, uint64_t *bytes)
{
	CGN_LIVE(s, KVSTORE_TAG);
	*bytes = pages_bytes(s->pages);
	return pages_fd(s->pages);
}

static void stats_add_shard(struct kvstore_shard *sh, struct kvstore_stats *out)
{
	struct kvstore_tier_stats *ram = &out->tier[BLOCK_RAM];
	(void)pthread_mutex_lock(&sh->lock);
	ram->blocks += sh->n_ram;
	ram->value_bytes += sh->ram_value_bytes;
	ram->hits += sh->hits;
	out->misses += sh->misses;
	out->tier[BLOCK_SSD].blocks += sh->n_ssd;
	out->tier[BLOCK_SSD].value_bytes += sh->ssd_value_bytes;
	out->tier[BLOCK_SSD].hits += sh->ssd_hits;
	out->index_bytes += kvstore_shard_bytes(sh);
	(void)pthread_mutex_unlock(&sh->lock);
}

static void stats_add_ground(struct kvstore *s, struct kvstore_stats *out)
{
	struct pages_stats pages;
	(void)pthread_mutex_lock(&s->ground);
	pages_stats(s->pages, &pages);
	out->index_bytes += (uint64_t)s->top_cell * sizeof(union kvstore_cell) + pages.table_bytes;
	(void)pthread_mutex_unlock(&s->ground);
	out->tier[BLOCK_RAM].bytes = pages.used_bytes;
	out->tier[BLOCK_RAM].budget = pages_bytes(s->pages);
}

void kvstore_stats(struct kvstore *s, struct kvstore_stats *out)
{
	CGN_LIVE(s, KVSTORE_TAG);
	*out = (struct kvstore_stats){0};
	for (size_t i = 0; i < KVSTORE_SHARDS; i++)
		stats_add_shard(&s->shard[i], out);
	stats_add_ground(s, out);
	(void)pthread_mutex_lock(&s->evict_lock);
	out->index_bytes += evict_bytes(&s->evict);
	(void)pthread_mutex_unlock(&s->evict_lock);
	(void)pthread_mutex_lock(&s->pins_lock);
	out->pinned_bytes = s->pinned_bytes;
	(void)pthread_mutex_unlock(&s->pins_lock);
	out->index_bytes += atomic_load(&s->aside_bytes);
	out->tier[BLOCK_RAM].evictions = atomic_load(&s->evictions);
	out->corrupt = atomic_load(&s->corrupt);
	if (s->ssd != NULL)
		kvstore_ssd_add_stats(s, out);
}
