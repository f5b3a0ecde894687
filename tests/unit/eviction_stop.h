/* SPDX-License-Identifier: Apache-2.0 */
/* Stop an eviction on another thread when it has chosen its blocks, before the first of them leaves. Include
 * after cmocka.h. */
#pragma once
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "joint/kv/kvstore/kvstore_priv.h"

struct eviction_stop {
	struct kvstore *store;
	struct kvstore_shard *held; /* The shard of the oldest block, locked. */
	struct block_key other;     /* A chosen block of another shard. */
	uint64_t bytes;
	pthread_t thread;
	enum cgn_code code; /* How the put ended. */
};

static void *eviction_run(void *arg)
{
	struct eviction_stop *e = arg;
	const struct block_key k = {.segment = 4242};
	const struct block_meta meta = {.tokens = 1};
	struct kvstore_writer *w = NULL;
	char *value = calloc(e->bytes, 1);
	cgn_rc rc = kvstore_put(e->store, &k, &meta, e->bytes, &w, NULL);
	if (cgn_ok(rc)) {
		kvstore_writer_add(w, value, e->bytes);
		rc = kvstore_writer_commit(&w, NULL, 0, NULL);
	}
	e->code = rc.code;
	free(value);
	return NULL;
}

static const struct kvstore_block *eviction_block(struct kvstore *s, const struct block_key *k)
{
	struct kvstore_shard *sh = kvstore_shard_lock(s, k);
	const struct kvstore_block *b = kvstore_index_find(s, sh, k, kvstore_hash(s, k));
	(void)pthread_mutex_unlock(&sh->lock);
	assert_non_null(b);
	return b;
}

/* Begin to put |bytes| into a full store, for which its oldest blocks, those of |key_of| 0 and up, must leave. */
static void eviction_begin(struct eviction_stop *e, struct kvstore *s, struct block_key (*key_of)(uint32_t n),
	uint64_t bytes)
{
	const struct block_key first = key_of(0);
	uint32_t n = 1;
	*e = (struct eviction_stop){.store = s,
		.held = kvstore_shard_of(s, kvstore_hash(s, &first)),
		.other = key_of(1),
		.bytes = bytes};
	while (kvstore_shard_of(s, kvstore_hash(s, &e->other)) == e->held)
		e->other = key_of(++n);
	const struct kvstore_block *oldest = eviction_block(s, &first), *b = eviction_block(s, &e->other);
	(void)pthread_mutex_lock(&e->held->lock);
	assert_int_equal(pthread_create(&e->thread, NULL, eviction_run, e), 0);
	while (atomic_load(&oldest->refs) != 2 || atomic_load(&b->refs) != 2)
		(void)sched_yield();
}

/* Let it go on to its end. */
static void eviction_end(struct eviction_stop *e)
{
	(void)pthread_mutex_unlock(&e->held->lock);
	assert_int_equal(pthread_join(e->thread, NULL), 0);
	assert_int_equal(e->code, CGN_FINE);
}
