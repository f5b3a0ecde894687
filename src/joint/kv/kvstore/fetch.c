/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from SSD: a few threads, each of which reads one block at a time. Requests for a block that is being
 * read join the running read. */
#include "ssd_priv.h"

#include <stdlib.h>

#define BUCKETS 256U
#define TRIES   4U /* attempts, as a block may move or be replaced while it is read */

struct fetch {
	struct fetch *chain; /* next in the bucket */
	struct cgn_link waiting;
	struct block_key key;
	struct kvstore_read *reads;
};

struct kvstore_fetches {
	struct kvstore *store;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct fetch *bucket[BUCKETS];
	struct cgn_link waiting;
	uint32_t n;
	bool stop;
	pthread_t thread[KVSTORE_SSD_READERS];
	unsigned n_threads;
	struct metric_cell *hit, *miss, *corrupt;
};

static struct fetch **fetch_find(struct kvstore_fetches *f, const struct block_key *k)
{
	struct fetch **at = &f->bucket[(digest_short(&k->digest) ^ k->segment) % BUCKETS];
	while (*at != NULL && !block_key_eq(&(*at)->key, k))
		at = &(*at)->chain;
	return at;
}

/* ---- reading ---- */
struct wanted {
	struct kvstore_block *entry; /* with a reference */
	kvdisk_place place;
};

/* Look up the current block of the key: |*out| when it is in RAM, w->entry when it is on SSD, else
 * neither. */
static void fetch_lookup(struct kvstore *s, const struct block_key *k, struct wanted *w,
	struct kvstore_block **out)
{
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	*w = (struct wanted){0};
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	if (b != NULL)
		kvstore_block_ref(b);
	if (b != NULL && kvstore_block_in_ram(b))
		*out = b;
	else if (b != NULL)
		*w = (struct wanted){b, b->place};
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
}

/* Move the bytes that were read to |b|. Returns false when |b| was removed or replaced meanwhile. */
static bool fetch_promote(struct kvstore *s, struct kvstore_block *b, struct kvstore_block *fresh)
{
	struct kvstore_shard *sh = kvstore_shard_of(s, kvstore_hash(s, &b->key));
	(void)pthread_mutex_lock(&sh->lock);
	bool is = b->linked && !kvstore_block_in_ram(b);
	if (is) {
		kvstore_promote(s, sh, b, fresh);
		kvstore_wear_read(s->ssd, b);
		sh->ssd_hits++;
	}
	(void)pthread_mutex_unlock(&sh->lock);
	return is;
}

/* Read the value of w->entry into |*fresh|. CGN_NOT_FOUND: the place has no such value any more. */
static CGN_RC read_value(struct kvstore *s, const struct wanted *w, struct kvstore_block **fresh,
	struct cgn_err *err)
{
	struct iovec iov[KVSTORE_MAX_EXTENTS];
	struct kvdisk_value v;
	size_t n = 0;
	if (!kvstore_room_fits(s, w->entry->size)) /* The value was put when the RAM tier was larger. */
		return CGN_FAIL(err, TOO_LARGE,
			"a value of %u bytes on SSD is larger than half of the RAM tier, which is %llu now: raise kv.ram to have it back",
			w->entry->size, (unsigned long long)pages_bytes(s->pages) / 2);
	CGN_TRY(kvstore_room_make(s, w->entry->size, false, fresh, err));
	(void)kvstore_block_iov(*fresh, 0, UINT64_MAX, iov, CGN_COUNT(iov), &n);
	CGN_TRY(kvdisk_get(s->ssd->disk, &w->entry->key, w->place, iov, n, &v, err));
	if (v.checksum == w->entry->checksum)
		return CGN_OK;
	return CGN_FAIL(err, STORAGE, "what lies on disk is another value than the index says");
}

static bool block_moved(struct kvstore *s, const struct wanted *w)
{
	struct kvstore_shard *sh = kvstore_shard_of(s, kvstore_hash(s, &w->entry->key));
	(void)pthread_mutex_lock(&sh->lock);
	bool is = w->entry->place != w->place;
	(void)pthread_mutex_unlock(&sh->lock);
	return is;
}

/* Verify a block that came to RAM while its read waited. */
static CGN_RC ram_verify(struct kvstore *s, struct kvstore_block **b, struct cgn_err *err)
{
	if (kvstore_block_sum(*b) == (*b)->checksum)
		return CGN_OK;
	kvstore_drop_corrupt(s, b, false);
	return CGN_FAIL(err, STORAGE, "the value in RAM is not the one that was put");
}

static cgn_rc fetch_try(struct kvstore *s, const struct block_key *k, struct kvstore_block **out, bool *again,
	struct cgn_err *err)
{
	CGN_ON_EXIT(kvstore_block_unref) struct kvstore_block *fresh = NULL;
	struct wanted w;
	*again = false;
	fetch_lookup(s, k, &w, out);
	if (*out != NULL)
		return ram_verify(s, out, err);
	if (w.entry == NULL)
		return CGN_FAIL(err, NOT_FOUND, "no tier holds the block");
	cgn_rc rc = read_value(s, &w, &fresh, err);
	if (cgn_ok(rc) && fetch_promote(s, w.entry, fresh)) {
		*out = w.entry;
		return rc;
	}
	*again = cgn_ok(rc) || block_moved(s, &w);
	if (!*again && (rc.code == CGN_NOT_FOUND || rc.code == CGN_STORAGE))
		kvstore_ssd_lost(s, k, w.place);
	kvstore_block_unref(&w.entry);
	return cgn_ok(rc)
		? CGN_FAIL(err, NOT_FOUND, "the block was replaced again and again while it was read")
		: rc;
}

static struct kvstore_block *read_block(struct kvstore_fetches *f, const struct block_key *k,
	struct cgn_err *err)
{
	cgn_nsec began = cgn_clock_now();
	struct kvstore_block *b = NULL;
	cgn_rc rc = CGN_OK;
	bool again = true;
	for (unsigned i = 0; i < TRIES && again; i++)
		rc = fetch_try(f->store, k, &b, &again, err);
	metric_observe(cgn_ok(rc)                ? f->hit
			: rc.code == CGN_STORAGE ? f->corrupt
						 : f->miss,
		cgn_since(cgn_clock_now(), began));
	return b;
}

/* ---- the threads ---- */
static struct fetch *next_fetch(struct kvstore_fetches *f)
{
	(void)pthread_mutex_lock(&f->lock);
	while (cgn_list_empty(&f->waiting) && !f->stop)
		(void)pthread_cond_wait(&f->more, &f->lock);
	struct cgn_link *l = cgn_list_first(&f->waiting);
	if (l != NULL)
		cgn_list_drop(l);
	(void)pthread_mutex_unlock(&f->lock);
	return l != NULL ? CGN_CONTAINER(l, struct fetch, waiting) : NULL;
}

/* Remove |x| from the table and return its reads. A later request for the block starts another read. */
static struct kvstore_read *fetch_take_reads(struct kvstore_fetches *f, struct fetch *x)
{
	(void)pthread_mutex_lock(&f->lock);
	struct fetch **at = fetch_find(f, &x->key);
	CGN_MUST(*at == x);
	*at = x->chain;
	f->n--;
	struct kvstore_read *reads = x->reads;
	(void)pthread_mutex_unlock(&f->lock);
	free(x);
	return reads;
}

static void kvstore_read_answer(struct kvstore_read *r);

static void *fetch_thread(void *arg)
{
	struct kvstore_fetches *f = arg;
	for (struct fetch *x = NULL; (x = next_fetch(f)) != NULL;) {
		struct cgn_err err = {0};
		struct kvstore_block *b = read_block(f, &x->key, &err);
		for (struct kvstore_read *r = fetch_take_reads(f, x), *next = NULL; r != NULL; r = next) {
			next = r->next;
			r->err = err;
			if (b != NULL)
				kvstore_block_ref(b);
			r->block = b;
			kvstore_read_answer(r);
		}
		kvstore_block_unref(&b);
	}
	return NULL;
}

/* ---- asking ---- */
/* Add |r| to the fetch of its block. The caller holds the lock. */
static bool fetch_join(struct kvstore_fetches *f, struct kvstore_read *r)
{
	struct fetch **at = fetch_find(f, &r->key);
	if (*at == NULL && !f->stop && f->n < KVSTORE_SSD_FETCHES) {
		*at = CGN_NEW(struct fetch);
		(*at)->key = r->key;
		cgn_list_push(&f->waiting, &(*at)->waiting);
		f->n++;
		(void)pthread_cond_signal(&f->more);
	}
	if (*at == NULL)
		return false;
	r->next = (*at)->reads;
	(*at)->reads = r;
	return true;
}

void kvstore_fetch(struct kvstore_fetches *f, struct kvstore_read *r)
{
	(void)pthread_mutex_lock(&f->lock);
	bool joined = fetch_join(f, r);
	(void)pthread_mutex_unlock(&f->lock);
	if (joined)
		return;
	(void)CGN_FAIL(&r->err, OVERLOADED, "%u reads from SSD wait already", KVSTORE_SSD_FETCHES);
	kvstore_read_answer(r);
}

CGN_RC kvstore_fetches_new(struct kvstore *s, struct kvstore_fetches **out, struct cgn_err *err)
{
	struct kvstore_fetches *f = CGN_NEW(struct kvstore_fetches);
	f->store = s;
	cgn_list_init(&f->waiting);
	(void)pthread_mutex_init(&f->lock, NULL);
	(void)pthread_cond_init(&f->more, NULL);
	f->hit = METRIC_OF(s->telemetry, KV_LOOKUP_SECONDS, "ssd", "hit");
	f->miss = METRIC_OF(s->telemetry, KV_LOOKUP_SECONDS, "ssd", "miss");
	f->corrupt = METRIC_OF(s->telemetry, KV_LOOKUP_SECONDS, "ssd", "corrupt");
	*out = f;
	for (; f->n_threads < KVSTORE_SSD_READERS; f->n_threads++)
		if (pthread_create(&f->thread[f->n_threads], NULL, fetch_thread, f) != 0)
			return CGN_FAIL(err, NO_MEMORY, "cannot start the threads that read from SSD");
	return CGN_OK;
}

void kvstore_fetches_stop(struct kvstore_fetches *f)
{
	(void)pthread_mutex_lock(&f->lock);
	f->stop = true;
	(void)pthread_cond_broadcast(&f->more);
	(void)pthread_mutex_unlock(&f->lock);
	for (unsigned i = 0; i < f->n_threads; i++)
		(void)pthread_join(f->thread[i], NULL);
	f->n_threads = 0;
}

void kvstore_fetches_free(struct kvstore_fetches **take)
{
	struct kvstore_fetches *f = CGN_TAKE(take);
	if (f == NULL)
		return;
	kvstore_fetches_stop(f);
	CGN_MUST(f->n == 0); /* every read was answered */
	(void)pthread_cond_destroy(&f->more);
	(void)pthread_mutex_destroy(&f->lock);
	free(f);
}

void kvstore_read_finish(struct kvstore_read *r)
{
	if (r->done != NULL)
		r->done(r->user, &r->block, &r->err);
	kvstore_block_unref(&r->block);
	free(r);
}

static void read_answered(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	kvstore_read_finish(CGN_CONTAINER(p, struct kvstore_read, post));
}

static void kvstore_read_answer(struct kvstore_read *r)
{
	cgn_loop_post(r->loop, &r->post, read_answered);
}
