/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD tier, written behind: one thread removes what was unlinked, then writes what is worth it, then
 * tends the disk. As all changes of the disk but the dropping of damage are this thread's, what it was told
 * of a key in order happens in order. */
#include "kvstore_priv.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log/log.h"

#define TEND_EVERY  CGN_SEC
#define BLOCK_BYTES 512U /* of RAM tier for each block that the index may have on SSD */

struct kvstore_ssd {
	struct kvstore *store;
	struct kvdisk *disk;
	struct kvstore_fetches *fetches;
	bool all;
	uint64_t most_bytes, most_blocks;
	cgn_nsec flush_time;
	pthread_t thread;
	bool running;

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kvstore_block *job[KVSTORE_SSD_QUEUE]; /* to be written; a reference each */
	uint32_t first, n;
	uint64_t bytes;
	/* extras of blocks on SSD whose end was changed; each once, a reference each */
	struct cgn_link ending;
	struct kvstore_block *removed; /* the last first, by their |next| */
	bool stop;
	cgn_nsec stop_by;
	_Atomic uint64_t blocks, queue_full, index_full, failed;
};

struct kvdisk *kvstore_ssd_disk(const struct kvstore *s)
{
	return s->ssd->disk;
}

struct kvstore_fetches *kvstore_ssd_fetches(const struct kvstore *s)
{
	return s->ssd->fetches;
}

/* ---- what is told, under a shard's lock ---- */
static bool push(struct kvstore_ssd *q, struct kvstore_block *b)
{
	uint64_t bytes = pages_footprint(b->size);
	(void)pthread_mutex_lock(&q->lock);
	bool fits =
		q->n < KVSTORE_SSD_QUEUE && (q->bytes == 0 || q->bytes + bytes <= q->most_bytes) && !q->stop;
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
	if (atomic_load(&q->blocks) >= q->most_blocks) {
		atomic_fetch_add(&q->index_full, 1);
		return;
	}
	b->queued = push(q, b);
}

void kvstore_ssd_on_link(struct kvstore *s, struct kvstore_block *b)
{
	if (s->ssd->all || (evict_worth(&b->use) & EVICT_CAME_BACK) != 0)
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

static uint32_t *next_of(struct kvstore_block *b)
{
	return &b->next; /* it is in no bucket any more */
}

void kvstore_ssd_forget(struct kvstore *s, struct kvstore_block *b)
{
	struct kvstore_ssd *q = s->ssd;
	kvstore_block_ref(b);
	(void)pthread_mutex_lock(&q->lock);
	*next_of(b) = q->removed != NULL ? kvstore_cell_id(q->removed) : KVSTORE_NONE;
	q->removed = b;
	(void)pthread_cond_signal(&q->more);
	(void)pthread_mutex_unlock(&q->lock);
	atomic_fetch_sub(&q->blocks, 1);
}

/* ---- the thread ---- */
static void remove_all(struct kvstore_ssd *q, struct kvstore_block *first)
{
	while (first != NULL) {
		struct kvstore_block *b = first;
		first = kvstore_block_at(q->store, *next_of(b));
		*next_of(b) = KVSTORE_NONE;
		(void)kvdisk_remove(q->disk, &b->key);
		kvstore_block_unref(&b);
	}
}

static struct kvstore_shard *lock_shard(struct kvstore *s, const struct block_key *k)
{
	struct kvstore_shard *sh = kvstore_shard_of(s, kvstore_hash(s, k));
	(void)pthread_mutex_lock(&sh->lock);
	return sh;
}

static bool still_wanted(struct kvstore *s, struct kvstore_block *b, struct block_meta *meta)
{
	struct kvstore_shard *sh = lock_shard(s, &b->key);
	bool is = b->linked && b->place == 0 && !kvstore_block_expired(s, b);
	*meta = (struct block_meta){.tokens = b->tokens,
		.created_unix_ms = kvstore_ms_get(b->created),
		.expires_unix_ms = kvstore_ms_get(b->expires)};
	b->queued = is;
	(void)pthread_mutex_unlock(&sh->lock);
	meta->model = kvstore_block_model(b);
	meta->name = kvstore_block_name(b);
	return is;
}

/* It is on disk now, unless it was not wanted any more meanwhile. */
/* |*expires|: when it ends by now. */
static bool note_written(struct kvstore *s, struct kvstore_block *b, kvdisk_place at, uint64_t *expires)
{
	struct kvstore_shard *sh = lock_shard(s, &b->key);
	bool kept = at != 0 && b->linked;
	b->queued = 0;
	*expires = kvstore_ms_get(b->expires);
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

static void write_one(struct kvstore_ssd *q, struct kvstore_block *b)
{
	struct kvstore *s = q->store;
	struct iovec iov[KVSTORE_MAX_EXTENTS];
	struct block_meta meta;
	size_t n = 0;
	uint64_t expires = 0;
	kvdisk_place at = 0;
	if (!still_wanted(s, b, &meta))
		return;
	(void)kvstore_block_iov(b, 0, UINT64_MAX, iov, CGN_COUNT(iov), &n);
	if (!cgn_ok(kvdisk_put(q->disk, &b->key, &meta, b->checksum, iov, n, &at, NULL))) {
		atomic_fetch_add(&q->failed, 1);
		at = 0;
	}
	if (!note_written(s, b, at, &expires) && at != 0)
		(void)kvdisk_remove(q->disk, &b->key);
	/* changed while it was written: nobody knew that it would lie there */
	else if (at != 0 && expires != meta.expires_unix_ms)
		(void)kvdisk_expire(q->disk, &b->key, expires);
}

static void expire_one(struct kvstore_ssd *q, struct kvstore_block *b)
{
	struct kvstore *s = q->store;
	struct kvstore_shard *sh = lock_shard(s, &b->key);
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

/* Under the queue's lock: sleeps until there is something, or a second is over. */
static void wait_for_more(struct kvstore_ssd *q)
{
	struct timespec until;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 1;
	if (q->removed == NULL && q->n == 0 && cgn_list_empty(&q->ending) && !q->stop)
		(void)pthread_cond_timedwait(&q->more, &q->lock, &until);
}

/* Under the queue's lock. NULL: none. */
static struct kvstore_block *take_ending(struct kvstore_ssd *q)
{
	struct cgn_link *l = cgn_list_first(&q->ending);
	if (l == NULL)
		return NULL;
	cgn_list_drop(l);
	return CGN_CONTAINER(l, struct kvstore_extra, ending)->block;
}

/* What is to be done next; *removed before *ending before *job. */
static bool take(struct kvstore_ssd *q, struct kvstore_block **removed, struct kvstore_block **ending,
	struct kvstore_block **job)
{
	(void)pthread_mutex_lock(&q->lock);
	wait_for_more(q);
	bool over = q->stop && ((q->n == 0 && cgn_list_empty(&q->ending)) || cgn_clock_now() >= q->stop_by);
	*removed = q->removed;
	q->removed = NULL;
	*ending = over ? NULL : take_ending(q);
	*job = NULL;
	if (q->n > 0 && !over) {
		*job = q->job[q->first];
		q->first = (q->first + 1) % KVSTORE_SSD_QUEUE;
		q->n--;
	}
	(void)pthread_mutex_unlock(&q->lock);
	return !over;
}

static void did(struct kvstore_ssd *q, struct kvstore_block *job)
{
	(void)pthread_mutex_lock(&q->lock);
	q->bytes -= pages_footprint(job->size);
	(void)pthread_mutex_unlock(&q->lock);
	kvstore_block_unref(&job);
}

static void *run(void *arg)
{
	struct kvstore_ssd *q = arg;
	cgn_nsec tended = 0;
	struct kvstore_block *removed = NULL, *ending = NULL, *job = NULL;
	bool more = true;
	while (more) {
		more = take(q, &removed, &ending, &job);
		remove_all(q, removed);
		if (ending != NULL)
			expire_one(q, ending);
		if (job != NULL) {
			write_one(q, job);
			did(q, job);
		}
		if (cgn_clock_now() - tended >= TEND_EVERY) {
			kvdisk_tend(q->disk);
			tended = cgn_clock_now();
		}
	}
	return NULL;
}

/* ---- what kvdisk asks and tells ---- */
/* Under the shard's lock: the block that lies at |at|. NULL: it does no more. */
static struct kvstore_block *at_place(struct kvstore *s, struct kvstore_shard *sh, const struct block_key *k,
	kvdisk_place at)
{
	struct kvstore_block *b = kvstore_index_find(s, sh, k, kvstore_hash(s, k));
	return b != NULL && b->place == at ? b : NULL;
}

static enum kvdisk_worth worth_of(void *user, const struct block_key *k, kvdisk_place at)
{
	struct kvstore *s = user;
	struct kvstore_shard *sh = lock_shard(s, k);
	struct kvstore_block *b = at_place(s, sh, k, at);
	enum kvdisk_worth worth = KVDISK_DROP;
	if (b != NULL && !kvstore_block_expired(s, b)) {
		bool hot = kvstore_block_in_ram(b) && (evict_worth(&b->use) & EVICT_USED) != 0;
		worth = b->pinned ? KVDISK_PINNED : b->reread || hot ? KVDISK_CARRY : KVDISK_DROP;
		b->reread = 0;
	}
	(void)pthread_mutex_unlock(&sh->lock);
	return worth;
}

static void on_moved(void *user, const struct block_key *k, kvdisk_place from, kvdisk_place to)
{
	struct kvstore *s = user;
	struct kvstore_shard *sh = lock_shard(s, k);
	struct kvstore_block *b = at_place(s, sh, k, from);
	if (b != NULL)
		b->place = to;
	(void)pthread_mutex_unlock(&sh->lock);
}

static void on_gone(void *user, const struct block_key *k, kvdisk_place at)
{
	kvstore_ssd_lost(user, k, at);
}

void kvstore_ssd_lost(struct kvstore *s, const struct block_key *k, kvdisk_place at)
{
	struct kvstore_shard *sh = lock_shard(s, k);
	struct kvstore_block *b = at_place(s, sh, k, at), *gone = NULL;
	if (b != NULL) {
		b->place = 0;
		atomic_fetch_sub(&s->ssd->blocks, 1);
	}
	if (b != NULL && kvstore_block_in_ram(b)) {
		b->tiers &= (uint8_t)~BLOCK_TIER_BIT(BLOCK_SSD) & BLOCK_TIER_MASK;
		sh->n_ssd--;
		sh->ssd_value_bytes -= b->size;
		kvstore_changes_add(s, b, b->tiers);
	} else if (b != NULL) {
		kvstore_unlink(s, sh, b, kvstore_hash(s, k));
		gone = b;
	}
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
}

/* ---- the boot ---- */
static CGN_RC describe(struct kvstore *s, struct kvstore_block *b, const struct kvdisk_entry *e)
{
	b->key = e->key;
	b->checksum = e->checksum;
	b->place = e->place;
	b->size = (uint32_t)e->size;
	b->tokens = e->meta.tokens;
	b->created = kvstore_ms_of(e->meta.created_unix_ms);
	b->expires = kvstore_ms_of(e->meta.expires_unix_ms);
	b->page = b->tail_page = KVSTORE_NO_PAGE;
	struct kvstore_extra *x = kvstore_block_extra(b);
	if (x != NULL) {
		x->name = malloc(e->meta.name.n);
		if (x->name == NULL)
			return CGN_RC_OF(CGN_NO_MEMORY);
		memcpy(x->name, e->meta.name.p, e->meta.name.n);
		x->n_name = e->meta.name.n;
		atomic_fetch_add(&s->aside_bytes, x->n_name);
	}
	return kvstore_model_take(s, e->meta.model, &b->model, NULL);
}

static struct kvstore_block *new_entry(struct kvstore *s, bool named)
{
	(void)pthread_mutex_lock(&s->ground);
	union kvstore_cell *b = kvstore_cell_take(s), *x = b != NULL && named ? kvstore_cell_take(s) : NULL;
	if (b != NULL && named && x == NULL) {
		kvstore_cell_give(s, b);
		b = NULL;
	}
	if (b != NULL) {
		b->block.page = b->block.tail_page = KVSTORE_NO_PAGE;
		atomic_init(&b->block.refs, 1);
		if (x != NULL)
			(void)kvstore_extra_init(x, &b->block);
		atomic_init(&b->block.extra, x != NULL ? kvstore_cell_id(x) : KVSTORE_NONE);
	}
	(void)pthread_mutex_unlock(&s->ground);
	return b != NULL ? &b->block : NULL;
}

static bool on_found(void *user, const struct kvdisk_entry *e)
{
	struct kvstore *s = user;
	struct kvstore_ssd *q = s->ssd;
	struct kvstore_block *b =
		atomic_load(&q->blocks) < q->most_blocks ? new_entry(s, e->meta.name.n > 0) : NULL;
	if (b == NULL || !cgn_ok(describe(s, b, e))) {
		atomic_fetch_add(&q->index_full, 1);
		kvstore_block_unref(&b);
		return false;
	}
	uint64_t hash = kvstore_hash(s, &b->key);
	struct kvstore_shard *sh = lock_shard(s, &b->key);
	struct kvstore_block *was = kvstore_index_find(s, sh, &b->key, hash);
	if (was != NULL) { /* told of again, after the index was made anew */
		was->place = 0;
		kvstore_unlink(s, sh, was, hash);
	} else {
		atomic_fetch_add(&q->blocks, 1);
	}
	kvstore_link(s, sh, b, hash);
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&was);
	return true;
}

static void on_progress(void *user, const char *what, uint64_t done, uint64_t total)
{
	(void)user;
	(void)total;
	cgn_log(INFO, "kvstore.ssd_boot", F_STR("what", what), F_U64("blocks", done));
}

static void say_how(const struct kvstore_ssd_cfg *cfg, const struct kvdisk_opening *how, cgn_nsec took)
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
				"made again of the values' headers; the old one lies beside it as index.damaged"));
	if (how->small_lost)
		cgn_log(WARN, "kvstore.ssd_small_lost", F_STR("why", how->why),
			F_STR("then", "small values are gone; their files lie beside as small.damaged"));
}

static CGN_RC open_disk(struct kvstore *s, const struct kvstore_ssd_cfg *cfg, struct cgn_err *err)
{
	static const struct kvdisk_owner owner = {on_found, on_progress, worth_of, on_moved, on_gone};
	const struct kvdisk_cfg disk = {.dir = cfg->dir,
		.index_dir = cfg->index_dir,
		.budget = cfg->bytes,
		.ttl_ms = cfg->ttl_ms,
		.owner = &owner,
		.user = s};
	struct kvdisk_opening how;
	cgn_nsec began = cgn_clock_now();
	CGN_TRY(kvdisk_open(&disk, &s->ssd->disk, &how, err));
	say_how(cfg, &how, cgn_clock_now() - began);
	return CGN_OK;
}

static void init(struct kvstore_ssd *q)
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
	struct kvstore_ssd *q = calloc(1, sizeof *q);
	if (q == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the SSD tier");
	q->store = s;
	q->all = cfg->all;
	q->most_bytes = ram_bytes / 4 < KVSTORE_SSD_QUEUE_MAX ? ram_bytes / 4 : KVSTORE_SSD_QUEUE_MAX;
	q->most_blocks = ram_bytes / BLOCK_BYTES;
	q->flush_time = cfg->flush_time;
	init(q);
	s->ssd = q;
	CGN_TRY(open_disk(s, cfg, err));
	CGN_TRY(kvstore_fetches_new(s, &q->fetches, err));
	if (pthread_create(&q->thread, NULL, run, q) != 0)
		return CGN_FAIL(err, NO_MEMORY, "cannot start the thread that writes to SSD");
	q->running = true;
	return CGN_OK;
}

static void let_go(struct kvstore_ssd *q)
{
	for (; q->n > 0; q->n--) {
		kvstore_block_unref(&q->job[q->first]);
		q->first = (q->first + 1) % KVSTORE_SSD_QUEUE;
	}
	for (struct kvstore_block *b = NULL; (b = take_ending(q)) != NULL;)
		expire_one(q, b);
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
	remove_all(q, q->removed);
	let_go(q);
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
}
