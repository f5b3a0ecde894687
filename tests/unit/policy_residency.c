/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/node/engine/residency.h"

struct seen {
	uint64_t v[256];
	size_t n;
};

static void note_change(void *user, uint64_t digest)
{
	struct seen *s = user;
	assert_true(s->n < CGN_COUNT(s->v));
	s->v[s->n++] = digest;
}

static struct residency *make_record(size_t capacity)
{
	struct residency *r = residency_new(capacity);
	return r;
}

static void the_oldest_goes(void **state)
{
	(void)state;
	struct residency *r = make_record(3);
	struct seen s = {0};
	const uint64_t a[] = {1, 2}, b[] = {3}, c[] = {4};
	residency_add(r, a, 2, note_change, &s);
	residency_add(r, b, 1, note_change, &s);
	assert_int_equal(s.n, 3);
	residency_add(r, c, 1, note_change, &s);
	/* In the chain 1, 2 the block 2 is evicted first, since it is of no use without 1. */
	assert_false(residency_has(r, 2));
	assert_true(residency_has(r, 1) && residency_has(r, 3) && residency_has(r, 4));
	assert_int_equal(s.n, 5);
	residency_add(r, a, 1, note_change, &s); /* A touch is not reported, and 3 becomes the oldest */
	assert_int_equal(s.n, 5);
	residency_add(r, a, 2, note_change, &s);
	assert_false(residency_has(r, 3));
	assert_true(residency_has(r, 1));
	residency_free(&r);
	assert_null(r);
	residency_free(&r);
}

static void a_chain_longer_than_the_record_keeps_its_beginning(void **state)
{
	(void)state;
	struct residency *r = make_record(4);
	const uint64_t chain[] = {10, 11, 12, 13, 14, 15};
	residency_add(r, chain, CGN_COUNT(chain), NULL, NULL);
	assert_int_equal(residency_count(r), 4);
	for (size_t i = 0; i < CGN_COUNT(chain); i++)
		assert_int_equal(residency_has(r, chain[i]), i < 4);
	residency_free(&r);
}

static void limits_and_clearing_tell_each_digest(void **state)
{
	(void)state;
	struct residency *r = make_record(8);
	struct seen s = {0};
	const uint64_t chain[] = {0, UINT64_MAX, 7, 8, 9};
	residency_add(r, chain, CGN_COUNT(chain), NULL, NULL);
	residency_limit(r, 2, note_change, &s);
	assert_int_equal(s.n, 3);
	assert_int_equal(s.v[0], 9);
	assert_true(residency_has(r, 0) && residency_has(r, UINT64_MAX));
	residency_limit(r, 1000, note_change, &s); /* Never above the capacity */
	residency_clear(r, note_change, &s);
	assert_int_equal(s.n, 5);
	assert_int_equal(residency_count(r), 0);
	for (size_t i = 0; i < CGN_COUNT(chain); i++)
		assert_false(residency_has(r, chain[i]));
	residency_add(r, chain, 1, NULL, NULL);
	assert_true(residency_has(r, 0));
	residency_free(&r);
}

static void nothing_in_nothing_out(void **state)
{
	(void)state;
	struct residency *r = make_record(1);
	residency_add(r, NULL, 0, NULL, NULL);
	assert_int_equal(residency_count(r), 0);
	const uint64_t twice[] = {5, 5};
	residency_add(r, twice, 2, NULL, NULL);
	assert_int_equal(residency_count(r), 1);
	residency_free(&r);
}

/* Compare with a plain array, for digests that often collide in the table's low bits. */
static void residency_agrees_with_a_model(void **state)
{
	(void)state;
	enum { CAP = 37, KEYS = 120 };
	struct residency *r = make_record(CAP);
	uint64_t age[KEYS] = {0}, now = 0;
	uint32_t rng = 12345;
	for (int step = 0; step < 20000; step++) {
		rng = rng * 1664525U + 1013904223U;
		uint64_t key = (rng >> 16) % KEYS;
		residency_add(r, &key, 1, NULL, NULL);
		age[key] = ++now;
		size_t held = 0;
		for (uint64_t k = 0; k < KEYS; k++) {
			size_t younger = 0;
			for (uint64_t j = 0; j < KEYS; j++)
				younger += age[j] > age[k];
			bool want = age[k] != 0 && younger < CAP;
			held += want;
			assert_int_equal(residency_has(r, k), want);
		}
		assert_int_equal(residency_count(r), held);
		if (step == 300)
			step = 19000; /* The model is slow, so the last thousand steps run on a full record */
	}
	residency_free(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_oldest_goes),
		cmocka_unit_test(a_chain_longer_than_the_record_keeps_its_beginning),
		cmocka_unit_test(limits_and_clearing_tell_each_digest),
		cmocka_unit_test(nothing_in_nothing_out),
		cmocka_unit_test(residency_agrees_with_a_model),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
