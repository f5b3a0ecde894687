/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD tier, written behind. One thread removes unlinked blocks, writes blocks that are worth it, then
 * tends the disk. This thread makes all changes of the disk except the removal of damaged values, so the
 * changes of a key happen in order. */
#include "ssd_priv.h"

#include <stdlib.h>
#include <time.h>

#include "base/log/log.h"
#include "base/unlikely/unlikely.h"

#define TEND_EVERY  CGN_SEC
#define BLOCK_BYTES 512U /* RAM tier bytes for each block that the index may have on SSD */

/* ---- the thread ---- */
static void ssd_remove_all(struct kvstore_ssd *q, struct kvstore_block *first)
{
	while (first != NULL) {
		struct kvstore_block *b = first;
		first = kvstore_block_at(q->store, *kvstore_ssd_removed_next(b));
		*kvstore_ssd_removed_next(b) = KVSTORE_NONE;
		(void)kvdisk_remove(q->disk, &b->key);
		kvstore_block_unref(&b);
	}
}

static bool ssd_still_wanted(struct kvstore *s, struct kvstore_block *b, struct block_meta *meta)
{
	struct kvstore_shard *sh = kvstore_shard_lock(s, &b->key);
	bool is = b->linked && b->place == 0 && !kvstore_block_expired(s, b);
	*meta = (struct block_meta){.tokens = b->tokens,
		.created_unix_ms = kvstore_ms_get(b->created),
		.expires_unix_ms = kvstore_ms_get(b->expires)};
	b->queued = is;
	(void)pthread_mutex_unlock(&sh->lock);
	meta->model = kvstore_block_model(b);
	meta->tenant = kvstore_block_tenant(b);
	meta->name = kvstore_block_name(b);
	return is;
}

/* Record that |b| is on disk at |at|. Returns false when |b| was removed meanwhile, or when |at| is 0.
 * |*expires|: the current expiry of |b|. */
static bool ssd_note_written(struct kvstore *s, struct kvstore_block *b, kvdisk_place at, uint64_t *expires)
{
	struct kvstore_shard *sh = kvstore_shard_lock(s, &b->key);
	bool kept = at != 0 && b->linked;
	b->queued = 0;
	*expires = kvstore_ms_get(b->expires);
	if (at == 0)
		atomic_fetch_or(&b->use.mark, (uint8_t)SSD_FAILED);
	if (kept) {
		b->place = at;
		b->reread = 0;
		b->tiers |= BLOCK_TIER_BIT(BLOCK_SSD);
		sh->n_ssd++;
		sh->ssd_value_bytes += b->size;
		atomic_fetch_add(&s->ssd->blocks, 1);
		kvstore_changes_add(s, b, b->tiers);
	}
	(void)pthread_mutex_unlock(&sh->lock);
	return kept;
}

static void ssd_write(struct kvstore_ssd *q, struct kvstore_block *b)
{
	struct kvstore *s = q->store;
	struct iovec iov[KVSTORE_MAX_EXTENTS];
	struct block_meta meta;
	size_t n = 0;
	uint64_t expires = 0;
	kvdisk_place at = 0;
	if (!ssd_still_wanted(s, b, &meta))
		return;
	(void)kvstore_block_iov(b, 0, UINT64_MAX, iov, CGN_COUNT(iov), &n);
	cgn_rc rc = kvdisk_put(q->disk, &b->key, &meta, b->checksum, iov, n, &at, NULL);
	if (!cgn_ok(rc)) {
		atomic_fetch_add(&q->failed, 1);
		q->refused |= rc.code == CGN_STORAGE;
		at = 0;
	}
	if (at != 0)
		kvstore_wear_wrote(q, b);
	if (!ssd_note_written(s, b, at, &expires) && at != 0)
		(void)kvdisk_remove(q->disk, &b->key);
	/* The expiry changed while the value was written; the disk was not told, as the place was not
	 * known. */
	else if (at != 0 && expires != meta.expires_unix_ms)
		(void)kvdisk_expire(q->disk, &b->key, expires);
}

static void ssd_expire(struct kvstore_ssd *q, struct kvstore_block *b)
{
	struct kvstore *s = q->store;
	struct kvstore_shard *sh = kvstore_shard_lock(s, &b->key);
	uint64_t at = kvstore_ms_get(b->expires);
	bool is = b->linked && b->place != 0;
	if (b->linked && atomic_load(&b->refs) == 2) {
		(void)pthread_mutex_lock(&s->ground);
		kvstore_extra_drop(s, b);
		(void)pthread_mutex_unlock(&s->ground);
	}
	(void)pthread_mutex_unlock(&sh->lock);
	if (is)
		(void)kvdisk_expire(q->disk, &b->key, at);
	kvstore_block_unref(&b);
}

/* Wait for work, for a second at most. Under the queue's lock. */
static void ssd_wait(struct kvstore_ssd *q)
{
	struct timespec until;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 1;
	if (q->removed == NULL && q->n == 0 && !kvstore_ssd_is_behind(q) && cgn_list_empty(&q->ending) &&
		!q->stop)
		(void)pthread_cond_timedwait(&q->more, &q->lock, &until);
}

/* Return the next block whose expiry changed, or NULL. Under the queue's lock. */
static struct kvstore_block *ssd_take_ending(struct kvstore_ssd *q)
{
	struct cgn_link *l = cgn_list_first(&q->ending);
	if (l == NULL)
		return NULL;
	cgn_list_drop(l);
	return CGN_CONTAINER(l, struct kvstore_extra, ending)->block;
}

/* Take the next work. The caller does *removed first, then *ending, then *job. Returns false at the end. */
static bool ssd_take_work(struct kvstore_ssd *q, struct kvstore_block **removed,
	struct kvstore_block **ending, struct kvstore_block **job)
{
	(void)pthread_mutex_lock(&q->lock);
	ssd_wait(q);
	bool over = q->stop && ((q->n == 0 && cgn_list_empty(&q->ending)) || cgn_clock_now() >= q->stop_by);
	*removed = q->removed;
	q->removed = NULL;
	*ending = over ? NULL : ssd_take_ending(q);
	*job = NULL;
	if (q->n > 0 && !over) {
		*job = q->job[q->first];
		q->first = (q->first + 1) % KVSTORE_SSD_QUEUE;
		q->n--;
	}
	(void)pthread_mutex_unlock(&q->lock);
	return !over;
}

static void ssd_write_done(struct kvstore_ssd *q, struct kvstore_block *job)
{
	(void)pthread_mutex_lock(&q->lock);
	q->bytes -= pages_footprint(job->size);
	(void)pthread_mutex_unlock(&q->lock);
	kvstore_block_unref(&job);
}

/* Log when the disk begins and ends to refuse writes. */
static void ssd_watch_health(struct kvstore_ssd *q)
{
	struct kvdisk_stats d;
	kvdisk_stats(q->disk, &d);
	kvstore_wear_tend(q, d.written_bytes);
	if (q->refused && !d.refusing) { /* The disk may refuse and recover between two looks. */
		q->refused = false;
		atomic_store(&q->behind, true); /* look for the blocks that were not written */
	}
	if (!d.refusing && !q->refusing)
		q->failed_before = atomic_load(&q->failed);
	if (d.refusing == q->refusing)
		return;
	q->refusing = d.refusing;
	if (d.refusing) {
		q->refusing_since = cgn_clock_now();
		cgn_log(WARN, "kvstore.ssd_refuses", F_STR("why", d.why),
			F_STR("then",
				"blocks stay in RAM only; what is on SSD is read; writing is tried again every second"),
			F_STR("do", "free space, or look at the disk (dmesg, mount)"));
		return;
	}
	cgn_log(INFO, "kvstore.ssd_writes_again",
		F_DUR("after", cgn_since(cgn_clock_now(), q->refusing_since)),
		F_U64("not_written", atomic_load(&q->failed) - q->failed_before),
		F_U64("reopened", d.reopened));
}

static void *ssd_thread(void *arg)
{
	struct kvstore_ssd *q = arg;
	cgn_nsec tended = 0;
	struct kvstore_block *removed = NULL, *ending = NULL, *job = NULL;
	bool more = true;
	while (more) {
		more = ssd_take_work(q, &removed, &ending, &job);
		ssd_remove_all(q, removed);
		if (ending != NULL)
			ssd_expire(q, ending);
		if (job != NULL) {
			ssd_write(q, job);
			ssd_write_done(q, job);
		} else if (more && kvstore_ssd_is_behind(q)) {
			kvstore_catch_up(q);
		}
		if (cgn_since(cgn_clock_now(), tended) >= TEND_EVERY || unlikely_way(UNLIKELY_disk_tended)) {
			kvdisk_tend(q->disk);
			ssd_watch_health(q);
			tended = cgn_clock_now();
		}
	}
	return NULL;
}

/* ---- open and close ---- */
static void ssd_log_opening(const struct kvstore_ssd_cfg *cfg, const struct kvdisk_opening *how,
	cgn_nsec took)
{
	cgn_log(INFO, "kvstore.ssd", F_STR("dir", cfg->dir), F_U64("blocks", how->entries),
		F_U64("value_bytes", how->bytes), F_U64("dropped", how->dropped),
		F_U64("budget_bytes", how->budget), F_DUR("took", took));
	if (how->capped)
		cgn_log(WARN, "kvstore.ssd_capped", F_U64("asked_bytes", cfg->bytes),
			F_U64("budget_bytes", how->budget), F_STR("why", "that is all the file system has"));
	if (how->rebuilt)
		cgn_log(WARN, "kvstore.ssd_index_rebuilt", F_STR("why", how->why),
			F_STR("then",
				"the index was rebuilt from the values' headers; the old one is kept as index.damaged"));
	if (how->small_lost)
		cgn_log(WARN, "kvstore.ssd_small_lost", F_STR("why", how->why),
			F_STR("then", "small values are lost; their files are kept as small.damaged"));
}

static CGN_RC ssd_open_disk(struct kvstore *s, const struct kvstore_ssd_cfg *cfg, struct cgn_err *err)
{
	const struct kvdisk_cfg disk = {.dir = cfg->dir,
		.index_dir = cfg->index_dir,
		.budget = cfg->bytes,
		.ttl_ms = cfg->ttl_ms,
		.owner = &kvstore_ssd_owner,
		.user = s};
	struct kvdisk_opening how;
	cgn_nsec began = cgn_clock_now();
	CGN_TRY(kvdisk_open(&disk, &s->ssd->disk, &how, err));
	ssd_log_opening(cfg, &how, cgn_since(cgn_clock_now(), began));
	return CGN_OK;
}

static void ssd_init(struct kvstore_ssd *q)
{
	cgn_list_init(&q->ending);
	pthread_condattr_t a;
	(void)pthread_condattr_init(&a);
	(void)pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&q->more, &a);
	(void)pthread_condattr_destroy(&a);
	(void)pthread_mutex_init(&q->lock, NULL);
}

CGN_RC kvstore_ssd_open(struct kvstore *s, const struct kvstore_ssd_cfg *cfg, uint64_t ram_bytes,
	struct cgn_err *err)
{
	struct kvstore_ssd *q = CGN_NEW(struct kvstore_ssd);
	q->store = s;
	q->most_bytes = ram_bytes / 4 < KVSTORE_SSD_QUEUE_MAX ? ram_bytes / 4 : KVSTORE_SSD_QUEUE_MAX;
	q->most_blocks = ram_bytes / BLOCK_BYTES;
	q->flush_time = cfg->flush_time;
	q->goes_on = cfg->goes_on;
	q->goes_on_user = cfg->user;
	ssd_init(q);
	s->ssd = q;
	CGN_TRY(ssd_open_disk(s, cfg, err));
	kvstore_wear_open(q, cfg);
	CGN_TRY(kvstore_fetches_new(s, &q->fetches, err));
	if (pthread_create(&q->thread, NULL, ssd_thread, q) != 0)
		return CGN_FAIL(err, NO_MEMORY, "cannot start the thread that writes to SSD");
	q->running = true;
	return CGN_OK;
}

static void ssd_drop_queue(struct kvstore_ssd *q)
{
	for (; q->n > 0; q->n--) {
		kvstore_block_unref(&q->job[q->first]);
		q->first = (q->first + 1) % KVSTORE_SSD_QUEUE;
	}
	for (struct kvstore_block *b = NULL; (b = ssd_take_ending(q)) != NULL;)
		ssd_expire(q, b);
}

void kvstore_reads_stop(struct kvstore *s)
{
	CGN_LIVE(s, KVSTORE_TAG);
	if (s->ssd != NULL && s->ssd->fetches != NULL)
		kvstore_fetches_stop(s->ssd->fetches);
}

void kvstore_ssd_close(struct kvstore *s)
{
	struct kvstore_ssd *q = s->ssd;
	if (q == NULL)
		return;
	kvstore_fetches_free(&q->fetches);
	(void)pthread_mutex_lock(&q->lock);
	q->stop = true;
	q->stop_by = cgn_clock_now() + q->flush_time;
	(void)pthread_cond_signal(&q->more);
	(void)pthread_mutex_unlock(&q->lock);
	if (q->running)
		(void)pthread_join(q->thread, NULL);
	ssd_remove_all(q, q->removed);
	ssd_drop_queue(q);
	if (q->disk != NULL)
		kvstore_wear_save(q);
	kvdisk_close(&q->disk);
	s->ssd = NULL;
	(void)pthread_cond_destroy(&q->more);
	(void)pthread_mutex_destroy(&q->lock);
	free(q);
}

void kvstore_ssd_add_stats(struct kvstore *s, struct kvstore_stats *out)
{
	struct kvstore_ssd *q = s->ssd;
	struct kvdisk_stats d;
	kvdisk_stats(q->disk, &d);
	out->tier[BLOCK_SSD].bytes = d.bytes;
	out->tier[BLOCK_SSD].budget = d.budget;
	out->tier[BLOCK_SSD].evictions = d.dropped + d.expired;
	out->corrupt += d.corrupt;
	(void)pthread_mutex_lock(&q->lock);
	out->ssd = (struct kvstore_ssd_stats){.queue_blocks = q->n,
		.queue_bytes = q->bytes,
		.put_bytes = d.put_bytes,
		.carried_bytes = d.carried_bytes,
		.written_bytes = d.written_bytes};
	(void)pthread_mutex_unlock(&q->lock);
	out->ssd.queue_full = q->queue_full;
	out->ssd.index_full = q->index_full;
	out->ssd.failed = q->failed;
	out->ssd.reopened = d.reopened;
	out->ssd.aside = d.aside;
	out->ssd.budget_left = kvstore_wear_left(q);
	out->ssd.refusing = d.refusing;
	(void)cgn_str_copyz(out->ssd.why, sizeof out->ssd.why, cgn_str_of(d.why));
}
