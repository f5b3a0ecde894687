/* SPDX-License-Identifier: Apache-2.0 */
/* Long random runs: against a model on one thread, and of several threads at once. */
#include "kvstore_world.h"

#include <pthread.h>

#include "eviction_stop.h"

static unsigned random_roll(unsigned *rng)
{
	*rng = *rng * 1103515245U + 12345U;
	return *rng >> 4;
}

/* ---- the model: the value of a key when all values fit ---- */
#define KEYS 500
struct model_entry {
	bool held, pinned;
	uint64_t size, version, expires;
};

static bool value_there(const struct model_entry *m)
{
	return m->held && (m->expires == 0 || m->expires > kvw_wall);
}

static void model_put(struct kvstore *s, struct model_entry *m, uint64_t n, unsigned r)
{
	const struct block_meta meta = {.tokens = r, .expires_unix_ms = r % 5 == 0 ? kvw_wall + r % 50 : 0};
	uint64_t size = r % 11 == 0 ? r % 150000 : r % 3000;
	struct block_key k = kvw_key(n);
	struct kvstore_writer *w = NULL;
	struct cgn_err err = {0};
	bool only_if_absent = r % 7 == 0;
	assert_true(cgn_ok(kvstore_put(s, &k, &meta, size, &w, &err)));
	kvw_fill(w, n, r);
	if (r % 13 == 0) {
		kvstore_writer_abort(&w);
		return;
	}
	cgn_rc rc = kvstore_writer_commit(&w, NULL, only_if_absent ? KVSTORE_IF_ABSENT : 0, &err);
	assert_int_equal(rc.code, only_if_absent && value_there(m) ? CGN_CONFLICT : CGN_FINE);
	if (cgn_ok(rc))
		*m = (struct model_entry){.held = true,
			.size = size,
			.version = r,
			.expires = meta.expires_unix_ms};
}

static void model_get(struct kvstore *s, const struct model_entry *m, uint64_t n, bool verify)
{
	struct block_key k = kvw_key(n);
	struct kvstore_block *b = kvstore_get_ram(s, &k, verify);
	assert_int_equal(b != NULL, value_there(m));
	if (b == NULL)
		return;
	assert_int_equal(kvstore_block_size(b), m->size);
	assert_int_equal(kvstore_block_info(b).tokens, m->version);
	assert_true(kvw_is(b, n, m->version));
	kvstore_block_unref(&b);
}

static void model_step(struct kvstore *s, struct model_entry *model, unsigned *rng)
{
	uint64_t n = random_roll(rng) % KEYS;
	struct model_entry *m = &model[n];
	struct block_key k = kvw_key(n);
	struct block_info info;
	unsigned r = random_roll(rng);
	switch (random_roll(rng) % 8) {
	case 0:
	case 1:
	case 2:
		model_put(s, m, n, r);
		return;
	case 3:
		assert_int_equal(kvstore_remove(s, &k), value_there(m));
		m->held = false;
		return;
	case 4:
		assert_int_equal(kvstore_expire(s, &k, KVSTORE_ANY_EXPIRY, kvw_wall + r % 60),
			value_there(m));
		m->expires = value_there(m) ? kvw_wall + r % 60 : m->expires;
		return;
	case 5:
		assert_int_equal(kvstore_pin(s, &k, r % 2 == 0 ? 0 : kvw_wall + r % 30, &(struct cgn_err){0})
					 .code,
			value_there(m) ? CGN_FINE : CGN_NOT_FOUND);
		return;
	case 6:
		assert_int_equal(kvstore_lookup(s, &k, &info), value_there(m));
		kvw_wall += r % 4;
		if (r % 64 == 0)
			kvstore_tick(s);
		return;
	default:
		model_get(s, m, n, r % 2 == 0);
	}
}

static void test_a_random_life_by_the_model(void **state)
{
	(void)state;
	static struct model_entry model[KEYS];
	struct kvstore *s = kvw_store(128 * MIB);
	unsigned rng = 42;
	memset(model, 0, sizeof model);
	for (int i = 0; i < 30000; i++)
		model_step(s, model, &rng);
	uint64_t blocks = 0, bytes = 0;
	for (uint64_t n = 0; n < KEYS; n++) {
		model_get(s, &model[n], n, true); /* Read with expiry, so that no expired block is left. */
		blocks += value_there(&model[n]);
		bytes += value_there(&model[n]) ? model[n].size : 0;
	}
	struct kvstore_stats st = kvw_stats(s);
	assert_int_equal(st.tier[BLOCK_RAM].blocks, blocks);
	assert_int_equal(st.tier[BLOCK_RAM].value_bytes, bytes);
	assert_int_equal(st.tier[BLOCK_RAM].evictions, 0);
	assert_int_equal(st.corrupt, 0);
	kvstore_free(&s);
}

/* ---- the storm: shared keys, a small tier, blocks that are held, everything at once ---- */
#define THREADS 4
#define BUDGET  (8 * MIB)
#define HELD    6
struct rider {
	pthread_t thread;
	struct kvstore *store;
	unsigned rng;
	struct kvstore_block *held[HELD];
	uint64_t whose[HELD];
	_Atomic uint64_t *bad;
	uint64_t hits, puts, refused;
};

static void let_go(struct rider *r, size_t i)
{
	if (r->held[i] != NULL && !kvw_is(r->held[i], r->whose[i], kvstore_block_info(r->held[i]).tokens))
		(*r->bad)++;
	kvstore_block_unref(&r->held[i]);
}

static void ride_get(struct rider *r, uint64_t n)
{
	size_t i = random_roll(&r->rng) % HELD;
	struct block_key k = kvw_key(n);
	let_go(r, i);
	r->held[i] = kvstore_get_ram(r->store, &k, true);
	r->whose[i] = n;
	r->hits += r->held[i] != NULL;
}

/* Small values, of which many take each other's place. */
static void ride_set(struct rider *r, uint64_t n)
{
	unsigned v = random_roll(&r->rng) % 2;
	const struct block_meta meta = {.tokens = v,
		.expires_unix_ms = random_roll(&r->rng) % 5 == 0 ? kvw_wall + 3 : 0};
	struct block_key k = kvw_key(n);
	struct cgn_err err = {0};
	char value[600];
	size_t size = random_roll(&r->rng) % sizeof value;
	for (size_t i = 0; i < size; i++)
		value[i] = kvw_byte(n, v, i);
	cgn_rc rc = kvstore_set(r->store, &k, &meta, value, size, 0, &err);
	r->puts += cgn_ok(rc);
	*r->bad += !cgn_ok(rc) && rc.code != CGN_OVERLOADED;
}

static void ride_put(struct rider *r, uint64_t n)
{
	unsigned v = random_roll(&r->rng);
	if (v % 4 == 0) {
		ride_set(r, n % 20);
		return;
	}
	const struct block_meta meta = {.model = v % 2 == 0 ? CGN_STR("a") : CGN_STR("b"),
		.name = v % 3 == 0 ? CGN_STR("n") : CGN_STR(""),
		.tokens = v,
		.expires_unix_ms = v % 5 == 0 ? kvw_wall + 3 : 0};
	cgn_rc rc = kvw_try_put(r->store, n, v, v % 17 == 0 ? v % MIB : v % 20000, &meta);
	r->puts += cgn_ok(rc);
	r->refused += rc.code == CGN_OVERLOADED;
	*r->bad += !cgn_ok(rc) && rc.code != CGN_OVERLOADED;
}

static void on_scan(void *user, const struct block_key *k, const struct block_info *info, struct cgn_str name)
{
	struct rider *r = user;
	(void)k;
	*r->bad += info->size > MIB || name.n > 1;
}

static void ride_other(struct rider *r, uint64_t n, uint64_t *cursor)
{
	struct block_key k = kvw_key(n);
	struct block_change changes[16];
	struct block_info info;
	struct cgn_err err = {0};
	uint64_t at = kvstore_changes_end(r->store);
	size_t n_changes = 0;
	switch (random_roll(&r->rng) % 7) {
	case 0:
		(void)kvstore_remove(r->store, &k);
		return;
	case 1:
		*r->bad += kvstore_pin(r->store, &k, random_roll(&r->rng) % 2 * (kvw_wall + 2), &err).code ==
			CGN_NO_MEMORY;
		return;
	case 2:
		(void)kvstore_expire(r->store, &k, KVSTORE_ANY_EXPIRY, kvw_wall + 2);
		return;
	case 3:
		kvstore_scan(r->store, cursor, 20, on_scan, r);
		return;
	case 4:
		kvw_wall++;
		kvstore_tick(r->store);
		return;
	case 5:
		at = at > 10 ? at - 10 : 0;
		(void)kvstore_changes(r->store, &at, changes, 16, &n_changes);
		return;
	default:
		(void)kvstore_lookup(r->store, &k, &info);
	}
}

static void *storm_ride(void *arg)
{
	struct rider *r = arg;
	uint64_t cursor = 0;
	for (int i = 0; i < 4000; i++) {
		uint64_t n = random_roll(&r->rng) % 400;
		unsigned what = random_roll(&r->rng) % 8;
		if (what < 3)
			ride_get(r, n);
		else if (what < 6)
			ride_put(r, n);
		else
			ride_other(r, n, &cursor);
		*r->bad += kvw_stats(r->store).tier[BLOCK_RAM].bytes > BUDGET;
	}
	for (size_t i = 0; i < HELD; i++)
		let_go(r, i);
	return NULL;
}

static void test_a_storm(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(BUDGET);
	struct rider riders[THREADS];
	_Atomic uint64_t bad = 0;
	uint64_t hits = 0, puts = 0;
	for (unsigned i = 0; i < THREADS; i++) {
		riders[i] = (struct rider){.store = s, .rng = 99 + i, .bad = &bad};
		assert_int_equal(pthread_create(&riders[i].thread, NULL, storm_ride, &riders[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		(void)pthread_join(riders[i].thread, NULL);
		hits += riders[i].hits;
		puts += riders[i].puts;
	}
	assert_int_equal(bad, 0);
	assert_true(hits > 1000 && puts > 1000);
	struct kvstore_stats st = kvw_stats(s);
	assert_int_equal(st.corrupt, 0);
	assert_true(st.tier[BLOCK_RAM].evictions > 0);
	for (uint64_t n = 0; n < 400; n++) {
		struct block_key k = kvw_key(n);
		(void)kvstore_remove(s, &k);
	}
	st = kvw_stats(s);
	assert_int_equal(st.tier[BLOCK_RAM].blocks, 0);
	assert_int_equal(st.tier[BLOCK_RAM].bytes, 0);
	assert_int_equal(st.tier[BLOCK_RAM].value_bytes, 0);
	assert_int_equal(st.pinned_bytes, 0);
	kvstore_free(&s);
}

/* No writer waits for ever or is refused while each holds less than its share. */
static void *value_fill(void *arg)
{
	struct rider *r = arg;
	const struct block_meta meta = {0};
	for (uint64_t i = 0; i < 600; i++)
		*r->bad += !cgn_ok(kvw_try_put(r->store, r->rng * 1000 + i, i,
			100000 + random_roll(&r->rng) % 300000, &meta));
	return NULL;
}

static void test_room_for_all_who_hold_little(void **state)
{
	(void)state;
	struct kvstore *s = kvw_store(BUDGET);
	struct rider riders[THREADS];
	_Atomic uint64_t bad = 0;
	for (unsigned i = 0; i < THREADS; i++) {
		riders[i] = (struct rider){.store = s, .rng = i + 1, .bad = &bad};
		assert_int_equal(pthread_create(&riders[i].thread, NULL, value_fill, &riders[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		(void)pthread_join(riders[i].thread, NULL);
	assert_int_equal(bad, 0);
	kvstore_free(&s);
}

/* ---- blocks that change between their choice and their leaving ---- */
static struct block_key numbered_key(uint32_t n)
{
	return kvw_key(n);
}

static struct kvstore *full_store(void)
{
	struct kvstore *s = kvw_store(2 * MIB);
	for (uint64_t n = 0; n < 32; n++)
		kvw_put(s, n, 1, 65536);
	return s;
}

static void test_a_chosen_block_that_is_pinned_stays(void **state)
{
	(void)state;
	struct kvstore *s = full_store();
	struct eviction_stop e;
	struct block_info info;
	struct cgn_err err;
	eviction_begin(&e, s, numbered_key, MIB);
	assert_true(cgn_ok(kvstore_pin(s, &e.other, UINT64_MAX, &err)));
	eviction_end(&e);
	assert_true(kvstore_lookup(s, &e.other, &info) && info.pinned);
	kvstore_free(&s);
}

/* The block stays for its reader, and leaves at the next need. */
static void test_a_chosen_block_that_is_read_is_chosen_again(void **state)
{
	(void)state;
	struct kvstore *s = full_store();
	struct eviction_stop e;
	struct block_info info;
	eviction_begin(&e, s, numbered_key, MIB);
	struct kvstore_block *held = kvstore_get_ram(s, &e.other, true);
	assert_non_null(held);
	eviction_end(&e);
	assert_true(kvstore_lookup(s, &e.other, &info));
	kvstore_block_unref(&held);
	const struct block_key half = kvw_key(2000);
	kvw_put(s, 2000, 1, MIB);
	held = kvstore_get_ram(s, &half, true);
	kvw_put(s, 2001, 1, MIB); /* No room is left for any other. */
	assert_true(kvw_has(s, 2001));
	kvstore_block_unref(&held);
	kvstore_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_random_life_by_the_model),
		cmocka_unit_test(test_a_storm),
		cmocka_unit_test(test_room_for_all_who_hold_little),
		cmocka_unit_test(test_a_chosen_block_that_is_pinned_stays),
		cmocka_unit_test(test_a_chosen_block_that_is_read_is_chosen_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
