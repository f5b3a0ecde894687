/* SPDX-License-Identifier: Apache-2.0 */
/* Writers: values on their way in. The checksum is computed piece by piece, while the bytes are in the
 * cache. */
#include "ssd_priv.h"

#include <stdlib.h>

#include "base/sum/sum.h"

struct kvstore_writer {
	struct sum64 sum; /* first, as it has the strictest alignment */
	struct kvstore_block *block;
	uint64_t written;
};

static CGN_RC put_check(const struct kvstore *s, const struct block_meta *meta, uint64_t size,
	struct cgn_err *err)
{
	if (meta->model.n > BLOCK_MAX_MODEL || meta->name.n > BLOCK_MAX_NAME ||
		meta->tenant.n > BLOCK_MAX_TENANT)
		return CGN_FAIL(err, INVALID,
			"a model of %zu bytes (at most %d), a name of %zu (at most %d) or a tenant of %zu (at most %d)",
			meta->model.n, BLOCK_MAX_MODEL, meta->name.n, BLOCK_MAX_NAME, meta->tenant.n,
			BLOCK_MAX_TENANT);
	if (!kvstore_room_fits(s, size))
		return CGN_FAIL(err, TOO_LARGE,
			"a value of %llu bytes: at most %llu, and half of the tier, which is %llu",
			(unsigned long long)size, (unsigned long long)BLOCK_MAX_BYTES,
			(unsigned long long)pages_bytes(s->pages) / 2);
	return CGN_OK;
}

/* Set the fields of a new block that no other thread sees yet. */
static CGN_RC put_describe(struct kvstore *s, struct kvstore_block *b, const struct block_key *k,
	const struct block_meta *meta, struct cgn_err *err)
{
	struct kvstore_extra *x = kvstore_block_extra(b);
	b->key = *k;
	b->tokens = meta->tokens;
	b->created = kvstore_ms_of(meta->created_unix_ms);
	b->expires = kvstore_ms_of(meta->expires_unix_ms);
	if (meta->name.n > 0) {
		x->name = malloc(meta->name.n);
		if (x->name == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for the name of a block");
		memcpy(x->name, meta->name.p, meta->name.n);
		x->n_name = meta->name.n;
		atomic_fetch_add(&s->aside_bytes, x->n_name);
	}
	return kvstore_label_take(s, meta->model, meta->tenant, &b->label, err);
}

/* Create a block for a new value. No other thread sees it before it is linked. */
static CGN_RC put_make_block(struct kvstore *s, const struct block_key *k, const struct block_meta *meta,
	uint64_t size, struct kvstore_block **out, struct cgn_err *err)
{
	CGN_ON_EXIT(kvstore_block_unref) struct kvstore_block *b = NULL;
	CGN_TRY(put_check(s, meta, size, err));
	CGN_TRY(kvstore_room_make(s, size, meta->name.n > 0, &b, err));
	CGN_TRY(put_describe(s, b, k, meta, err));
	*out = CGN_TAKE(&b);
	return CGN_OK;
}

CGN_RC kvstore_put(struct kvstore *s, const struct block_key *k, const struct block_meta *meta, uint64_t size,
	struct kvstore_writer **out, struct cgn_err *err)
{
	CGN_LIVE(s, KVSTORE_TAG);
	CGN_ON_EXIT(kvstore_block_unref) struct kvstore_block *b = NULL;
	CGN_TRY(put_make_block(s, k, meta, size, &b, err));
	struct kvstore_writer *w = aligned_alloc(_Alignof(struct kvstore_writer), sizeof *w);
	if (w == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory to write a value");
	sum64_begin(&w->sum);
	w->block = b;
	w->written = 0;
	b = NULL;
	*out = w;
	return CGN_OK;
}

uint64_t kvstore_writer_missing(const struct kvstore_writer *w)
{
	return w->block->size - w->written;
}

uint64_t kvstore_writer_room(const struct kvstore_writer *w, struct iovec *iov, size_t cap, size_t *n_iov)
{
	return kvstore_block_iov(w->block, w->written, UINT64_MAX, iov, cap, n_iov);
}

/* Add the next |n| bytes of the value to the checksum, piece by piece. |from| not NULL: copy them into the
 * block first. */
static void writer_take_in(struct kvstore_writer *w, const char *from, uint64_t n)
{
	const struct kvstore *s = kvstore_block_store(w->block);
	struct pages_place place = kvstore_block_place(w->block);
	struct pages_walk walk = {.at = w->written};
	uint64_t at = 0, length = 0;
	CGN_MUST(n <= kvstore_writer_missing(w));
	for (w->written += n; n > 0 && pages_next(&place, w->block->size, &walk, &at, &length); n -= length) {
		char *to = pages_at(s->pages, at);
		length = length < n ? length : n;
		if (from == NULL) {
			sum64_add(&w->sum, to, length);
			continue;
		}
		sum64_copy(&w->sum, to, from, length);
		from += length;
	}
}

void kvstore_writer_wrote(struct kvstore_writer *w, uint64_t n)
{
	writer_take_in(w, NULL, n);
}

void kvstore_writer_add(struct kvstore_writer *w, const void *p, size_t n)
{
	writer_take_in(w, p, n);
}

void kvstore_writer_expires(struct kvstore_writer *w, uint64_t unix_ms)
{
	w->block->expires = kvstore_ms_of(unix_ms);
}

/* Link |b| under its key, as |how| says. The block that it replaces goes to |*old|. |was| not NULL: |*was|
 * becomes the block that the key had, which must be in RAM. Under the shard's lock. */
static enum cgn_code commit_link(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b,
	uint64_t hash, unsigned how, struct kvstore_block **was, struct kvstore_block **old)
{
	struct kvstore_block *now = kvstore_find_live(s, sh, &b->key, hash, old);
	if (was != NULL && now != NULL && !kvstore_block_in_ram(now))
		return CGN_UNAVAILABLE;
	if (was != NULL && now != NULL) {
		kvstore_block_ref(now);
		*was = now;
		sh->hits++;
	}
	if (now != NULL && (how & KVSTORE_IF_ABSENT) != 0)
		return CGN_CONFLICT;
	if (now == NULL && (how & KVSTORE_IF_HELD) != 0)
		return CGN_NOT_FOUND;
	if (now != NULL && (how & KVSTORE_KEEP_EXPIRY) != 0)
		b->expires = now->expires;
	if (now != NULL) {
		kvstore_unlink(s, sh, now, hash);
		*old = now;
	}
	kvstore_link(s, sh, b, hash);
	return CGN_FINE;
}

/* Link |b|. On success the index takes over the caller's reference. */
static CGN_RC commit_block(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b,
	uint64_t hash, unsigned how, struct kvstore_block **was, struct cgn_err *err)
{
	struct kvstore_block *old = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	enum cgn_code code = commit_link(s, sh, b, hash, how, was, &old);
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&old);
	if (code != CGN_FINE)
		return CGN_FAIL_AS(err, code, "%s",
			code == CGN_CONFLICT            ? "the key has a value"
				: code == CGN_NOT_FOUND ? "the key has no value"
							: "the value that the key has is not in RAM");
	atomic_fetch_add(&s->turn, 1);
	return CGN_OK;
}

CGN_RC kvstore_writer_commit(struct kvstore_writer **take, const uint64_t *checksum, unsigned how,
	struct cgn_err *err)
{
	struct kvstore_writer *w = *take;
	struct kvstore_block *b = w->block;
	struct kvstore *s = kvstore_block_store(b);
	uint64_t hash = kvstore_hash(s, &b->key);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	CGN_MUST(w->written == b->size);
	b->checksum = sum64_end(&w->sum);
	if (checksum != NULL && *checksum != b->checksum) {
		kvstore_writer_abort(take);
		return CGN_FAIL(err, INVALID, "the value is not what its checksum says");
	}
	cgn_rc rc = commit_block(s, sh, b, hash, how, NULL, err);
	if (!cgn_ok(rc)) {
		kvstore_writer_abort(take);
		return rc;
	}
	*take = NULL;
	free(w);
	return CGN_OK;
}

void kvstore_writer_abort(struct kvstore_writer **take)
{
	if (*take != NULL)
		kvstore_block_unref(&(*take)->block);
	free(*take);
	*take = NULL;
}

/* ---- exchanges: the old value is returned ---- */

/* A damaged value counts as none. */
static void exchange_verify(struct kvstore *s, struct kvstore_block **old)
{
	if (*old != NULL && kvstore_block_sum(*old) != (*old)->checksum)
		kvstore_drop_corrupt(s, old, true);
}

CGN_RC kvstore_writer_exchange(struct kvstore_writer **take, unsigned how, struct kvstore_block **old,
	struct cgn_err *err)
{
	struct kvstore_writer *w = *take;
	struct kvstore_block *b = w->block;
	struct kvstore *s = kvstore_block_store(b);
	uint64_t hash = kvstore_hash(s, &b->key);
	CGN_MUST(w->written == b->size);
	b->checksum = sum64_end(&w->sum);
	*old = NULL;
	cgn_rc rc = commit_block(s, kvstore_shard_of(s, hash), b, hash, how, old, err);
	if (rc.code == CGN_UNAVAILABLE)
		return rc;
	exchange_verify(s, old);
	if (cgn_ok(rc))
		w->block = NULL;
	kvstore_writer_abort(take);
	return rc;
}

CGN_RC kvstore_exchange(struct kvstore *s, const struct block_key *k, const struct block_meta *meta,
	const void *p, size_t n, unsigned how, struct kvstore_block **old, struct cgn_err *err)
{
	struct kvstore_writer *w = NULL;
	CGN_TRY(kvstore_put(s, k, meta, n, &w, err));
	kvstore_writer_add(w, p, n);
	cgn_rc rc = kvstore_writer_exchange(&w, how, old, err);
	kvstore_writer_abort(&w);
	return rc;
}

/* ---- several values in one step ---- */

static_assert(KVSTORE_SHARDS == 64, "a bit for each shard");

/* Lock these shards in the order of their numbers. Other threads that lock several do the same. */
static void shards_lock(struct kvstore *s, uint64_t shards)
{
	for (; shards != 0; shards &= shards - 1)
		(void)pthread_mutex_lock(&s->shard[__builtin_ctzll(shards)].lock);
}

static void shards_unlock(struct kvstore *s, uint64_t shards)
{
	for (; shards != 0; shards &= shards - 1)
		(void)pthread_mutex_unlock(&s->shard[__builtin_ctzll(shards)].lock);
}

/* Under the locks of all shards of the keys. Blocks that leave go to |gone|, at most two for each writer. */
static bool all_link(struct kvstore *s, struct kvstore_writer **list, size_t n, unsigned how,
	struct kvstore_block **gone)
{
	bool held = false;
	for (size_t i = 0; i < n && (how & KVSTORE_IF_ABSENT) != 0; i++) {
		uint64_t hash = kvstore_hash(s, &list[i]->block->key);
		held |= kvstore_find_live(s, kvstore_shard_of(s, hash), &list[i]->block->key, hash,
				&gone[2 * i]) != NULL;
	}
	for (size_t i = 0; i < n && !held; i++) {
		uint64_t hash = kvstore_hash(s, &list[i]->block->key);
		(void)commit_link(s, kvstore_shard_of(s, hash), list[i]->block, hash, 0, NULL,
			&gone[2 * i + 1]);
		list[i]->block = NULL;
	}
	return !held;
}

CGN_RC kvstore_commit_all(struct kvstore_writer **list, size_t n, unsigned how, struct cgn_err *err)
{
	if (n == 0)
		return CGN_OK;
	struct kvstore *s = kvstore_block_store(list[0]->block);
	struct kvstore_block **gone = calloc(2 * n, sizeof(struct kvstore_block *));
	uint64_t shards = 0;
	if (gone == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory to store %zu values at once", n);
	for (size_t i = 0; i < n; i++) {
		CGN_MUST(list[i]->written == list[i]->block->size);
		list[i]->block->checksum = sum64_end(&list[i]->sum);
		shards |= 1ULL << (kvstore_shard_of(s, kvstore_hash(s, &list[i]->block->key)) - s->shard);
	}
	shards_lock(s, shards);
	bool did = all_link(s, list, n, how, gone);
	shards_unlock(s, shards);
	for (size_t i = 0; i < 2 * n; i++)
		kvstore_block_unref(&gone[i]);
	free(gone);
	if (!did)
		return CGN_FAIL(err, CONFLICT, "one of the keys has a value");
	atomic_fetch_add(&s->turn, 1);
	for (size_t i = 0; i < n; i++)
		kvstore_writer_abort(&list[i]); /* the index has the block */
	return CGN_OK;
}

/* ---- in one ---- */

static void block_copy_in(const struct kvstore *s, const struct kvstore_block *b, const char *p)
{
	struct pages_place place = kvstore_block_place(b);
	struct pages_walk walk = {0};
	uint64_t at = 0, length = 0;
	for (; pages_next(&place, b->size, &walk, &at, &length); p += length)
		memcpy(pages_at(s->pages, at), p, length);
}

/* Whether |n| bytes may overwrite the value of |b| in place: no other thread reads it or writes it to SSD,
 * and everything but bytes, expiry and checksum stays the same. The acquire orders this after the last unref
 * of another holder. Under the shard's lock. */
static bool set_may_reuse(const struct kvstore *s, const struct kvstore_block *b,
	const struct block_meta *meta, size_t n)
{
	return n <= KVSTORE_SMALL && b->size <= KVSTORE_SMALL && kvstore_block_in_ram(b) && b->place == 0 &&
		!b->pinned && !b->queued && atomic_load_explicit(&b->refs, memory_order_acquire) == 1 &&
		pages_footprint(b->size) == pages_footprint(n) && b->tokens == meta->tokens &&
		cgn_str_eq(kvstore_block_name(b), meta->name) &&
		cgn_str_eq(kvstore_label_model(s, b->label), meta->model) &&
		cgn_str_eq(kvstore_label_tenant(s, b->label), meta->tenant);
}

static void set_reuse(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b,
	const struct block_meta *meta, const void *p, size_t n, uint64_t sum, unsigned how)
{
	uint64_t was = kvstore_ms_get(b->expires),
		 ends = (how & KVSTORE_KEEP_EXPIRY) != 0 ? was : meta->expires_unix_ms;
	sh->ram_value_bytes += n - (uint64_t)b->size;
	sh->n_expiring += (uint32_t)(ends != 0) - (uint32_t)(was != 0);
	b->size = (uint32_t)n;
	b->checksum = sum;
	b->created = kvstore_ms_of(meta->created_unix_ms);
	b->expires = kvstore_ms_of(ends);
	block_copy_in(s, b, p);
	evict_touch(&b->use);
	kvstore_changes_add(s, b, b->tiers);
	if (s->ssd != NULL)
		kvstore_ssd_on_link(s, b);
}

/* Returns false when the value needs a block of its own, or when |how| forbids the change. */
static bool set_in_place(struct kvstore *s, const struct block_key *k, const struct block_meta *meta,
	const void *p, size_t n, uint64_t sum, unsigned how)
{
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	bool can = b != NULL && (how & KVSTORE_IF_ABSENT) == 0 && set_may_reuse(s, b, meta, n);
	if (can)
		set_reuse(s, sh, b, meta, p, n, sum, how);
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	return can;
}

CGN_RC kvstore_set(struct kvstore *s, const struct block_key *k, const struct block_meta *meta, const void *p,
	size_t n, unsigned how, struct cgn_err *err)
{
	CGN_LIVE(s, KVSTORE_TAG);
	CGN_ON_EXIT(kvstore_block_unref) struct kvstore_block *b = NULL;
	uint64_t sum = sum64(p, n);
	if (n <= KVSTORE_SMALL && set_in_place(s, k, meta, p, n, sum, how))
		return CGN_OK;
	CGN_TRY(put_make_block(s, k, meta, n, &b, err));
	block_copy_in(s, b, p);
	b->checksum = sum;
	uint64_t hash = kvstore_hash(s, k);
	CGN_TRY(commit_block(s, kvstore_shard_of(s, hash), b, hash, how, NULL, err));
	b = NULL;
	return CGN_OK;
}
