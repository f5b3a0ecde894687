/* SPDX-License-Identifier: Apache-2.0 */
/* The store in its simplest form: one lock, one table, the RAM tier alone, what came first goes first. */
#include "joint/kvstore/kvstore.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <xxhash.h>

#define KVSTORE_TAG 0x4b565354U
#define KV_BLOCK_TAG 0x4b56424cU
#define KV_CHAINS   65536U
#define KV_CHANGES  65536U

struct kv_block {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct kvstore *store;
	struct kv_key key;
	struct kv_info info;
	struct cgn_str model, name;
	char *bytes; /* value, then model and name */
	uint64_t written;
	struct kv_block *chain;
	struct cgn_link age;
	bool held; /* by the table */
};

struct kv_writer {
	struct kv_block *block;
};

struct kv_read {
	struct cgn_post post;
	struct kvstore *store;
	struct kv_key key;
	kv_read_done done; /* NULL: cancelled */
	void *user;
};

struct kvstore {
	uint32_t tag;
	pthread_mutex_t lock;
	struct kv_block *chains[KV_CHAINS];
	struct cgn_link ages;
	struct kv_stats stats;
	_Atomic uint64_t bytes;
	uint64_t change_end;
	struct kv_change changes[KV_CHANGES];
};

static struct kv_block **find(struct kvstore *s, const struct kv_key *k)
{
	struct kv_block **at = &s->chains[(digest_short(&k->digest) + k->segment) % KV_CHAINS];
	while (*at != NULL && ((*at)->key.segment != k->segment || memcmp(&(*at)->key.digest, &k->digest, sizeof k->digest) != 0))
		at = &(*at)->chain;
	return at;
}

static void note(struct kvstore *s, const struct kv_block *b, unsigned tiers)
{
	s->changes[s->change_end++ % KV_CHANGES] = (struct kv_change){b->key, tiers, b->info.size};
}

/* Under the lock. */
static struct kv_block *take_out(struct kvstore *s, struct kv_block **at)
{
	struct kv_block *b = *at;
	*at = b->chain;
	cgn_list_drop(&b->age);
	s->stats.tier[KV_RAM].blocks--;
	s->stats.tier[KV_RAM].value_bytes -= b->info.size;
	note(s, b, 0);
	return b;
}

CGN_RC kvstore_new(const struct kvstore_cfg *cfg, struct kvstore **out, struct cgn_err *err)
{
	struct kvstore *s = calloc(1, sizeof *s);
	if (s == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the block store");
	s->tag = KVSTORE_TAG;
	s->stats.tier[KV_RAM].budget = cfg->ram_bytes;
	cgn_list_init(&s->ages);
	(void)pthread_mutex_init(&s->lock, NULL);
	*out = s;
	return CGN_OK;
}

void kvstore_free(struct kvstore **take)
{
	struct kvstore *s = *take;
	*take = NULL;
	if (s == NULL)
		return;
	CGN_LIVE(s, KVSTORE_TAG);
	cgn_list_each_safe (l, &s->ages) {
		struct kv_block *b = CGN_CONTAINER(l, struct kv_block, age);
		kv_block_unref(&b);
	}
	(void)pthread_mutex_destroy(&s->lock);
	s->tag = 0;
	free(s);
}

bool kvstore_lookup(struct kvstore *s, const struct kv_key *k, struct kv_info *out)
{
	CGN_LIVE(s, KVSTORE_TAG);
	*out = (struct kv_info){0};
	(void)pthread_mutex_lock(&s->lock);
	const struct kv_block *b = *find(s, k);
	if (b != NULL)
		*out = b->info;
	(void)pthread_mutex_unlock(&s->lock);
	return b != NULL;
}

void kvstore_scan(struct kvstore *s, uint64_t *cursor, size_t count,
	void (*fn)(void *user, const struct kv_key *k, const struct kv_info *info, struct cgn_str name), void *user)
{
	CGN_LIVE(s, KVSTORE_TAG);
	for (size_t n = 0; n < count && *cursor < KV_CHAINS; (*cursor)++) {
		struct kv_block *seen[64];
		size_t n_seen = 0;
		(void)pthread_mutex_lock(&s->lock);
		for (struct kv_block *b = s->chains[*cursor]; b != NULL && n_seen < CGN_COUNT(seen); b = b->chain) {
			kv_block_ref(b);
			seen[n_seen++] = b;
		}
		(void)pthread_mutex_unlock(&s->lock);
		for (size_t i = 0; i < n_seen; i++) {
			fn(user, &seen[i]->key, &seen[i]->info, seen[i]->name);
			kv_block_unref(&seen[i]);
		}
		n += n_seen;
	}
	*cursor %= KV_CHAINS;
}

void kv_block_ref(struct kv_block *b)
{
	CGN_LIVE(b, KV_BLOCK_TAG);
	atomic_fetch_add(&b->refs, 1);
}

void kv_block_unref(struct kv_block **take)
{
	struct kv_block *b = *take;
	*take = NULL;
	if (b == NULL)
		return;
	CGN_LIVE(b, KV_BLOCK_TAG);
	if (atomic_fetch_sub(&b->refs, 1) != 1)
		return;
	atomic_fetch_sub(&b->store->bytes, b->info.size);
	b->tag = 0;
	free(b->bytes);
	free(b);
}

uint64_t kv_block_size(const struct kv_block *b)
{
	return b->info.size;
}

uint64_t kv_block_checksum(const struct kv_block *b)
{
	return b->info.checksum;
}

struct kv_info kv_block_info(const struct kv_block *b)
{
	(void)pthread_mutex_lock(&b->store->lock);
	struct kv_info info = b->info;
	(void)pthread_mutex_unlock(&b->store->lock);
	return info;
}

/* Values lie in malloc'd memory: there is nothing to map. */
size_t kv_block_extents(const struct kv_block *b, struct kv_extent *out, size_t cap)
{
	CGN_LIVE(b, KV_BLOCK_TAG);
	(void)out;
	(void)cap;
	return 0;
}

int kvstore_arena(const struct kvstore *s, uint64_t *bytes)
{
	CGN_LIVE(s, KVSTORE_TAG);
	*bytes = 0;
	return -1;
}

struct cgn_str kv_block_model(const struct kv_block *b)
{
	return b->model;
}

struct cgn_str kv_block_name(const struct kv_block *b)
{
	return b->name;
}

static uint64_t piece(const struct kv_block *b, uint64_t off, uint64_t n, struct iovec *iov, size_t cap, size_t *n_iov)
{
	*n_iov = 0;
	if (off >= b->info.size || cap == 0)
		return 0;
	n = n < b->info.size - off ? n : b->info.size - off;
	iov[0] = (struct iovec){b->bytes + off, n};
	*n_iov = n > 0;
	return n;
}

uint64_t kv_block_iov(const struct kv_block *b, uint64_t off, uint64_t n, struct iovec *iov, size_t cap, size_t *n_iov)
{
	CGN_LIVE(b, KV_BLOCK_TAG);
	return piece(b, off, n, iov, cap, n_iov);
}

struct kv_block *kvstore_get_ram(struct kvstore *s, const struct kv_key *k, bool verify)
{
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	struct kv_block *b = *find(s, k);
	if (b != NULL)
		kv_block_ref(b);
	s->stats.tier[KV_RAM].hits += b != NULL;
	s->stats.misses += b == NULL;
	(void)pthread_mutex_unlock(&s->lock);
	if (b != NULL && verify && XXH3_64bits(b->bytes, b->info.size) != b->info.checksum) {
		(void)kvstore_remove(s, k);
		s->stats.corrupt++;
		kv_block_unref(&b);
	}
	return b;
}

static void read_now(struct cgn_loop *l, struct cgn_post *p)
{
	struct kv_read *r = CGN_CONTAINER(p, struct kv_read, post);
	struct cgn_err err = {0};
	(void)l;
	if (r->done != NULL) {
		struct kv_block *b = kvstore_get_ram(r->store, &r->key, true);
		if (b == NULL)
			(void)CGN_FAIL(&err, NOT_FOUND, "no tier holds the block");
		r->done(r->user, &b, &err);
		kv_block_unref(&b);
	}
	free(r);
}

CGN_RC kvstore_get(struct kvstore *s, struct cgn_loop *l, const struct kv_key *k, kv_read_done done, void *user, struct kv_read **out,
	struct cgn_err *err)
{
	struct kv_read *r = calloc(1, sizeof *r);
	if (r == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a read");
	*r = (struct kv_read){.store = s, .key = *k, .done = done, .user = user};
	cgn_loop_post(l, &r->post, read_now);
	*out = r;
	return CGN_OK;
}

void kv_read_cancel(struct kv_read **take)
{
	if (*take != NULL)
		(*take)->done = NULL;
	*take = NULL;
}

/* Under the lock: the oldest go until |size| more bytes fit. What is being read still counts. */
static bool make_room(struct kvstore *s, uint64_t size, struct cgn_link *gone)
{
	uint64_t budget = s->stats.tier[KV_RAM].budget, freed = 0;
	while (atomic_load(&s->bytes) - freed + size > budget) {
		struct cgn_link *l = cgn_list_first(&s->ages);
		if (l == NULL)
			return false;
		struct kv_block *b = take_out(s, find(s, &CGN_CONTAINER(l, struct kv_block, age)->key));
		freed += atomic_load(&b->refs) == 1 ? b->info.size : 0;
		s->stats.tier[KV_RAM].evictions++;
		cgn_list_push(gone, &b->age);
	}
	return true;
}

static void let_go(struct cgn_link *gone)
{
	cgn_list_each_safe (l, gone) {
		struct kv_block *b = CGN_CONTAINER(l, struct kv_block, age);
		cgn_list_drop(l);
		kv_block_unref(&b);
	}
}

CGN_RC kvstore_put(struct kvstore *s, const struct kv_key *k, const struct kv_meta *meta, uint64_t size, struct kv_writer **out,
	struct cgn_err *err)
{
	CGN_LIVE(s, KVSTORE_TAG);
	if (meta->model.n > KV_MAX_MODEL || meta->name.n > KV_MAX_NAME)
		return CGN_FAIL(err, INVALID, "a model of %zu bytes (at most %d) or a name of %zu (at most %d)", meta->model.n, KV_MAX_MODEL,
			meta->name.n, KV_MAX_NAME);
	if (size > KV_MAX_VALUE || size > s->stats.tier[KV_RAM].budget / 2)
		return CGN_FAIL(err, TOO_LARGE, "a value of %llu bytes: at most %llu, and half of the tier's budget", (unsigned long long)size,
			(unsigned long long)KV_MAX_VALUE);
	struct kv_writer *w = calloc(1, sizeof *w);
	struct kv_block *b = calloc(1, sizeof *b);
	char *bytes = malloc(size + meta->model.n + meta->name.n + 1);
	if (w == NULL || b == NULL || bytes == NULL) {
		free(w);
		free(b);
		free(bytes);
		return CGN_FAIL(err, NO_MEMORY, "no memory for a value of %llu bytes", (unsigned long long)size);
	}
	*b = (struct kv_block){.tag = KV_BLOCK_TAG, .refs = 1, .store = s, .key = *k, .bytes = bytes,
		.info = {.size = size, .tokens = meta->tokens, .created_unix_ms = meta->created_unix_ms, .expires_unix_ms = meta->expires_unix_ms}};
	b->model = (struct cgn_str){bytes + size, meta->model.n};
	b->name = (struct cgn_str){bytes + size + meta->model.n, meta->name.n};
	if (meta->model.n > 0)
		memcpy(bytes + size, meta->model.p, meta->model.n);
	if (meta->name.n > 0)
		memcpy(bytes + size + meta->model.n, meta->name.p, meta->name.n);
	cgn_list_init(&b->age);
	struct cgn_link gone;
	cgn_list_init(&gone);
	(void)pthread_mutex_lock(&s->lock);
	bool fits = make_room(s, size, &gone);
	(void)pthread_mutex_unlock(&s->lock);
	let_go(&gone);
	atomic_fetch_add(&s->bytes, size);
	w->block = b;
	if (!fits) {
		kv_writer_abort(&w);
		return CGN_FAIL(err, OVERLOADED, "no room for %llu bytes: all of the tier is being read", (unsigned long long)size);
	}
	*out = w;
	return CGN_OK;
}

uint64_t kv_writer_missing(const struct kv_writer *w)
{
	return w->block->info.size - w->block->written;
}

uint64_t kv_writer_room(const struct kv_writer *w, struct iovec *iov, size_t cap, size_t *n_iov)
{
	return piece(w->block, w->block->written, UINT64_MAX, iov, cap, n_iov);
}

void kv_writer_wrote(struct kv_writer *w, uint64_t n)
{
	CGN_MUST(n <= kv_writer_missing(w));
	w->block->written += n;
}

void kv_writer_add(struct kv_writer *w, const void *p, size_t n)
{
	CGN_MUST(n <= kv_writer_missing(w));
	if (n > 0)
		memcpy(w->block->bytes + w->block->written, p, n);
	w->block->written += n;
}

CGN_RC kv_writer_commit(struct kv_writer **take, const uint64_t *checksum, bool only_if_absent, struct cgn_err *err)
{
	struct kv_block *b = (*take)->block, *old = NULL;
	struct kvstore *s = b->store;
	CGN_MUST(b->written == b->info.size);
	b->info.checksum = XXH3_64bits(b->bytes, b->info.size);
	if (checksum != NULL && *checksum != b->info.checksum) {
		kv_writer_abort(take);
		return CGN_FAIL(err, INVALID, "the value is not what its checksum says");
	}
	(void)pthread_mutex_lock(&s->lock);
	struct kv_block **at = find(s, &b->key);
	bool refused = *at != NULL && only_if_absent;
	if (!refused) {
		if (*at != NULL)
			old = take_out(s, at);
		at = find(s, &b->key);
		b->chain = *at;
		*at = b;
		b->info.tiers = KV_TIER_BIT(KV_RAM);
		cgn_list_push(&s->ages, &b->age);
		s->stats.tier[KV_RAM].blocks++;
		s->stats.tier[KV_RAM].value_bytes += b->info.size;
		note(s, b, b->info.tiers);
	}
	(void)pthread_mutex_unlock(&s->lock);
	kv_block_unref(&old);
	if (refused) {
		kv_writer_abort(take);
		return CGN_FAIL(err, CONFLICT, "the key has a value");
	}
	free(*take);
	*take = NULL;
	return CGN_OK;
}

void kv_writer_abort(struct kv_writer **take)
{
	if (*take != NULL)
		kv_block_unref(&(*take)->block);
	free(*take);
	*take = NULL;
}

bool kvstore_remove(struct kvstore *s, const struct kv_key *k)
{
	struct kv_block *b = NULL;
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	struct kv_block **at = find(s, k);
	if (*at != NULL)
		b = take_out(s, at);
	(void)pthread_mutex_unlock(&s->lock);
	bool was = b != NULL;
	kv_block_unref(&b);
	return was;
}

bool kvstore_expire(struct kvstore *s, const struct kv_key *k, uint64_t unix_ms)
{
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	struct kv_block *b = *find(s, k);
	if (b != NULL)
		b->info.expires_unix_ms = unix_ms;
	(void)pthread_mutex_unlock(&s->lock);
	return b != NULL;
}

CGN_RC kvstore_pin(struct kvstore *s, const struct kv_key *k, uint64_t until_unix_ms, struct cgn_err *err)
{
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	struct kv_block *b = *find(s, k);
	if (b != NULL)
		b->info.pinned = until_unix_ms > 0;
	(void)pthread_mutex_unlock(&s->lock);
	return b != NULL ? CGN_OK : CGN_FAIL(err, NOT_FOUND, "there is no such block");
}

bool kvstore_changes(struct kvstore *s, uint64_t *at, struct kv_change *out, size_t cap, size_t *n)
{
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	bool kept = s->change_end - *at <= KV_CHANGES;
	for (*n = 0; kept && *n < cap && *at < s->change_end; (*n)++)
		out[*n] = s->changes[(*at)++ % KV_CHANGES];
	(void)pthread_mutex_unlock(&s->lock);
	return kept;
}

uint64_t kvstore_changes_end(struct kvstore *s)
{
	(void)pthread_mutex_lock(&s->lock);
	uint64_t end = s->change_end;
	(void)pthread_mutex_unlock(&s->lock);
	return end;
}

void kvstore_stats(struct kvstore *s, struct kv_stats *out)
{
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->lock);
	*out = s->stats;
	(void)pthread_mutex_unlock(&s->lock);
	out->tier[KV_RAM].bytes = atomic_load(&s->bytes);
}
