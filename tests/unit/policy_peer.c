/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/route/peer/code.h"
#include "policy/route/peer/summary.h"
#include "policy/route/peer/trust.h"

#define SEED 77

/* The digests of blocks |from| to |to|, as a set. */
static struct peer_set *set_of(uint64_t from, uint64_t to)
{
	struct peer_draft d = {0};
	for (uint64_t i = from; i < to; i++)
		peer_draft_add(&d, peer_fingerprint(mix_seeded(i + SEED)));
	struct peer_set *s = peer_draft_finish(&d);
	assert_non_null(s);
	return s;
}

static bool set_has(const struct peer_set *s, uint32_t fingerprint)
{
	const uint64_t digest = (uint64_t)fingerprint << 32;
	return peer_set_match(s, 0, &digest, 1) == 1;
}

static void members_are_found_and_others_seldom(void **state)
{
	(void)state;
	enum { N = 100000 };
	CGN_ON_EXIT(peer_set_unref) struct peer_set *s = set_of(0, N), *none = set_of(0, 0);
	unsigned found = 0;
	for (uint64_t i = 0; i < N; i++)
		assert_true(set_has(s, peer_fingerprint(mix_seeded(i + SEED))));
	for (uint64_t i = N; i < 10 * (uint64_t)N; i++)
		found += set_has(s, peer_fingerprint(mix_seeded(i + SEED)));
	assert_true(found < 60); /* 21 expected: 900,000 times 100,000 / 2^32 */
	assert_true(none->n == 0 && none->sum == 0 && !set_has(none, 0) && !set_has(none, UINT32_MAX));
	peer_set_unref(&none);
	static const uint32_t sizes[] = {1, 2, 3, 15, 16, 17, 18, 33, 100};
	for (size_t k = 0; k < CGN_COUNT(sizes); k++) {
		CGN_ON_EXIT(peer_set_unref) struct peer_set *few = set_of(0, sizes[k]);
		for (uint32_t i = 0; i < few->n; i++) {
			assert_true(set_has(few, few->v[i]));
			assert_false(set_has(few, few->v[i] + 1));
			assert_false(set_has(few, few->v[i] - 1));
		}
	}
}

static void members_at_one_end_are_found_too(void **state)
{
	(void)state;
	struct peer_draft d = {0};
	for (uint32_t i = 0; i < 1000; i++)
		peer_draft_add(&d, i * 2);
	for (uint32_t i = 0; i < 1000; i++)
		peer_draft_add(&d, UINT32_MAX - i * 2);
	peer_draft_add(&d, 4); /* Once only. */
	CGN_ON_EXIT(peer_set_unref) struct peer_set *s = peer_draft_finish(&d);
	assert_int_equal(s->n, 2000);
	for (uint32_t i = 0; i < 1000; i++) {
		assert_true(set_has(s, i * 2) && set_has(s, UINT32_MAX - i * 2));
		assert_false(set_has(s, i * 2 + 1) || set_has(s, UINT32_MAX - i * 2 - 1));
	}
}

static void a_prefix_is_held_up_to_its_first_missing_block(void **state)
{
	(void)state;
	uint64_t chain[100];
	for (uint64_t i = 0; i < 100; i++)
		chain[i] = mix_seeded(i + SEED);
	for (uint64_t held = 0; held <= 100; held++) {
		CGN_ON_EXIT(peer_set_unref) struct peer_set *s = set_of(0, held);
		assert_int_equal(peer_set_match(s, 0, chain, 100), held);
	}
	/* Sampled: the last block of the sample that is held. */
	struct peer_draft d = {0};
	size_t last = 0;
	for (uint64_t i = 0; i < 60; i++)
		if (peer_sampled(chain[i], 2)) {
			peer_draft_add(&d, peer_fingerprint(chain[i]));
			last = i + 1;
		}
	CGN_ON_EXIT(peer_set_unref) struct peer_set *s = peer_draft_finish(&d);
	assert_true(s->n > 5 && s->n < 30);
	assert_int_equal(peer_set_match(s, 2, chain, 100), last);
}

static void a_set_survives_its_code(void **state)
{
	(void)state;
	static const uint64_t sizes[] = {0, 1, 2, 1000, 200000};
	for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf code = {0};
		CGN_ON_EXIT(peer_set_unref) struct peer_set *s = set_of(0, sizes[i]), *again = NULL;
		peer_set_put(s, &code);
		struct cgn_cursor c = cgn_cursor_of(cgn_buf_view(&code));
		assert_true(cgn_ok(peer_set_get(&c, &again, NULL)) && cgn_cursor_end(&c));
		assert_true(again->n == s->n && again->sum == s->sum &&
			memcmp(again->v, s->v, 4 * (size_t)s->n) == 0);
		assert_true(sizes[i] < 1000 || code.n * 8 < s->n * (size_t)24);
		for (size_t n = 0; n < code.n && n < 200; n++) {
			struct peer_set *cut = NULL;
			c = cgn_cursor_of((struct cgn_str){code.p, n});
			assert_false(cgn_ok(peer_set_get(&c, &cut, NULL)));
		}
	}
}

static bool sets_equal(const struct peer_set *a, const struct peer_set *b)
{
	return a->n == b->n && a->width == b->width && a->sum == b->sum &&
		memcmp(a->v, b->v, 4 * (size_t)a->n) == 0;
}

static void a_narrow_set_survives_its_code(void **state)
{
	(void)state;
	static const uint64_t sizes[] = {0, 1, 2, 1000, 200000};
	for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf code = {0};
		CGN_ON_EXIT(peer_set_unref) struct peer_set *s = set_of(0, sizes[i]), *again = NULL;
		const unsigned width = peer_width(s->n, 0), drop = PEER_WIDTH - width;
		const uint64_t range = UINT64_C(1) << width;
		peer_set_narrow(s, width);
		peer_gaps_put(s, drop, range, &code);
		struct cgn_cursor c = cgn_cursor_of(cgn_buf_view(&code));
		assert_true(cgn_ok(peer_gaps_get(&c, drop, range, &again, NULL)) && cgn_cursor_end(&c));
		assert_true(sets_equal(again, s));
		assert_true(sizes[i] < 1000 || code.n * 8 < s->n * (size_t)16);
		for (size_t n = 0; n < code.n && n < 200; n++) {
			struct peer_set *cut = NULL;
			c = cgn_cursor_of((struct cgn_str){code.p, n});
			assert_false(cgn_ok(peer_gaps_get(&c, drop, range, &cut, NULL)));
		}
		if (s->n > 0) { /* The last member is not below itself. */
			struct peer_set *cut = NULL;
			c = cgn_cursor_of(cgn_buf_view(&code));
			assert_false(cgn_ok(peer_gaps_get(&c, drop, s->v[s->n - 1] >> drop, &cut, NULL)));
		}
	}
}

static void a_narrow_set_finds_its_members_and_others_seldom(void **state)
{
	(void)state;
	enum { N = 4000 };
	CGN_ON_EXIT(peer_set_unref) struct peer_set *s = set_of(0, N);
	unsigned found = 0;
	peer_set_narrow(s, peer_width(s->n, 0));
	assert_true(s->width == 24 && s->n > N - 10);
	for (uint64_t i = 0; i < N; i++)
		assert_true(set_has(s, peer_fingerprint(mix_seeded(i + SEED))));
	for (uint64_t i = N; i < N + 1000000; i++)
		found += set_has(s, peer_fingerprint(mix_seeded(i + SEED)));
	assert_true(found > 120 && found < 480); /* 238 expected: a million times 4,000 / 2^24. */
}

static void a_width_seldom_changes(void **state)
{
	(void)state;
	assert_true(peer_width(0, 0) == PEER_WIDTH_LEAST && peer_width(8191, 0) == 24);
	assert_true(peer_width(8192, 24) == 25 && peer_width(8191, 25) == 25);
	assert_true(peer_width(32768, 29) == 29 && peer_width(32767, 29) == 26);
	assert_true(peer_width(PEER_BLOCKS, 0) == PEER_WIDTH && peer_width(1 << 20, 0) == 32);
	assert_int_equal(peer_width((1 << 20) - 1, 0), 31);
}

static void places_name_members(void **state)
{
	(void)state;
	CGN_ON_EXIT(peer_set_unref) struct peer_set *s = set_of(0, 1000), *some = set_of(300, 400);
	CGN_ON_EXIT(peer_set_unref) struct peer_set *places = peer_set_places(s, some);
	assert_true(places->n == 100 && places->v[99] < s->n);
	CGN_ON_EXIT(peer_set_unref) struct peer_set *again = peer_set_at(s, places);
	assert_true(sets_equal(again, some));
}

static void numbers_survive_their_code(void **state)
{
	(void)state;
	static const uint64_t values[] = {0, 1, 127, 128, 16383, 16384, UINT32_MAX, UINT64_MAX - 1,
		UINT64_MAX};
	for (size_t i = 0; i < CGN_COUNT(values); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		peer_number_put(values[i], &b);
		struct cgn_cursor c = cgn_cursor_of(cgn_buf_view(&b));
		assert_true(peer_number_get(&c, UINT64_MAX) == values[i] && cgn_cursor_end(&c));
		c = cgn_cursor_of((struct cgn_str){b.p, b.n - 1});
		assert_true(peer_number_get(&c, UINT64_MAX) == 0 && c.bad);
		c = cgn_cursor_of(cgn_buf_view(&b));
		assert_true(values[i] == 0 || (peer_number_get(&c, values[i] - 1) == 0 && c.bad));
	}
	struct cgn_cursor c = cgn_cursor_of(CGN_STR("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"));
	assert_true(peer_number_get(&c, UINT64_MAX) == 0 && c.bad); /* 65 bits. */
}

/* ---- generations ---- */

struct pair {
	unsigned version; /* 0: the greatest. */
	struct peer_journal there;
	struct peer_known here;
	struct peer_summary got;
};

static unsigned version_of(const struct pair *p)
{
	return p->version > 0 ? p->version : PEER_VERSION;
}

static void generation_add(struct pair *p, uint64_t from, uint64_t to)
{
	struct peer_set *s = set_of(from, to);
	peer_journal_add(&p->there, &s, 0, version_of(p), 1000);
	assert_null(s);
}

/* Ask as |since|; |flip|: change that byte of the answer. Return the answer's bytes, negative if it was refused with
 * CGN_CONFLICT. */
static int64_t summary_ask(struct pair *p, uint64_t since, ssize_t flip)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf sets = {0}, bytes = {0};
	CGN_ON_EXIT(peer_set_unref) struct peer_set *whole = NULL;
	struct peer_set *now = NULL;
	struct cgn_err err;
	p->got = (struct peer_summary){.n_models = 1,
		.models = {
			{.name = CGN_STR("sim"), .nodes = 3, .room = 4, .prefill_ns = 50000, .wait_us = 7}}};
	peer_journal_ask(&p->there, since, version_of(p), &p->got, &whole, &sets);
	peer_summary_put(&p->got, whole, cgn_buf_view(&sets), &bytes);
	assert_false(bytes.bad);
	if (flip >= 0)
		bytes.p[flip] ^= 1;
	cgn_rc rc = peer_summary_get(cgn_buf_view(&bytes), &p->here, &p->got, &now, &err);
	if (!cgn_ok(rc)) {
		assert_int_equal(rc.code, CGN_CONFLICT);
		return -(int64_t)bytes.n;
	}
	assert_true(cgn_str_is(p->got.models[0].name, "sim"));
	assert_true(p->got.generation == 0 || now->sum == p->there.set->sum);
	peer_set_unref(&p->here.set);
	p->here = (struct peer_known){now, p->got.generation, p->got.shift};
	return (int64_t)bytes.n;
}

static void pair_fini(struct pair *p)
{
	peer_journal_fini(&p->there);
	peer_set_unref(&p->here.set);
}

static void two_who_answer_in_turn_are_told_apart(void **state)
{
	static struct peer_summary got;
	struct pair a = {.version = 2}, b = {.version = 2};
	struct peer_set *s = set_of(0, 100);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf sets = {0}, bytes = {0};
	struct peer_set *whole = NULL;
	(void)state;
	generation_add(&a, 0, 100);
	peer_journal_add(&b.there, &s, 0, 2, 5000);
	(void)summary_ask(&a, 0, -1);
	(void)summary_ask(&b, 0, -1);
	const struct peer_known known[] = {a.here, b.here};
	const uint64_t since[] = {a.here.generation, b.here.generation, 0};
	generation_add(&a, 0, 110);
	generation_add(&a, 0, 120);
	const uint64_t older[] = {a.here.generation, a.here.generation + 1};
	assert_int_equal(peer_journal_pick(&a.there, since, 3), a.here.generation);
	assert_int_equal(peer_journal_pick(&b.there, since, 3), b.here.generation);
	assert_int_equal(peer_journal_pick(&b.there, since, 1), 0);
	assert_int_equal(peer_journal_pick(&a.there, older, 2), a.here.generation + 1);
	got = (struct peer_summary){.n_models = 0};
	peer_journal_ask(&a.there, peer_journal_pick(&a.there, since, 3), 2, &got, &whole, &sets);
	assert_null(whole);
	peer_summary_put(&got, NULL, cgn_buf_view(&sets), &bytes);
	assert_int_equal(peer_summary_which(cgn_buf_view(&bytes), known, 2, &got), 0);
	assert_int_equal(peer_summary_which(cgn_buf_view(&bytes), known + 1, 1, &got), 1); /* none */
	assert_int_equal(peer_summary_which(CGN_STR("nonsense"), known, 2, &got), 2);
	pair_fini(&a);
	pair_fini(&b);
}

static void one_who_follows_gets_the_changes_alone(void **state)
{
	const unsigned version = *(const unsigned *)*state;
	struct pair p = {.version = version};
	assert_true(summary_ask(&p, 0, -1) > 0 && p.got.generation == 0 && p.here.set->n == 0);
	p.here.generation = 0;
	generation_add(&p, 0, 10000);
	int64_t whole = summary_ask(&p, 0, -1);
	assert_true(p.here.generation == 1000 && p.here.set->n == p.there.set->n && p.got.base == 0);
	assert_true(p.got.n_models == 1 && p.got.models[0].room == 4);
	assert_true(summary_ask(&p, 1000, -1) < 200 && p.got.base == 1000);
	generation_add(&p, 0, 10000); /* The same: no generation. */
	assert_int_equal(p.there.generation, 1000);
	for (uint64_t i = 1; i <= 3; i++)
		generation_add(&p, 100 * i, 10000 + 50 * i);
	int64_t changes = summary_ask(&p, 1000, -1);
	assert_true(changes < whole / 5 && p.here.generation == 1003 && p.got.base == 1000);
	assert_in_range(p.here.set->n, 9840, 9850); /* Few of a narrow set are equal. */
	pair_fini(&p);
}

static void one_who_fell_behind_or_knows_another_run_gets_the_whole(void **state)
{
	const unsigned version = *(const unsigned *)*state;
	struct pair p = {.version = version};
	generation_add(&p, 0, 1000);
	assert_true(summary_ask(&p, 0, -1) > 0);
	for (uint64_t i = 1; i <= PEER_DELTAS + 1; i++)
		generation_add(&p, i, 1000 + i);
	assert_true(summary_ask(&p, 1000, -1) > 0 && p.got.base == 0 &&
		p.here.generation == 1000 + PEER_DELTAS + 1);
	assert_true(summary_ask(&p, 999999, -1) > 0 && p.got.base == 0);
	struct peer_set *sampled = set_of(0, 10);
	peer_journal_add(&p.there, &sampled, 3, version_of(&p), 1);
	assert_true(summary_ask(&p, p.here.generation, -1) > 0 && p.got.base == 0 && p.here.shift == 3);
	pair_fini(&p);
}

static void changes_that_are_longer_than_a_quarter_are_not_kept(void **state)
{
	(void)state;
	struct pair p = {0};
	generation_add(&p, 0, 200000);
	generation_add(&p, 200000, 400000);
	assert_true(p.there.n_deltas == 0 && p.there.bytes == 0);
	generation_add(&p, 200100, 400000);
	assert_true(p.there.n_deltas == 1 && p.there.bytes > 0 && p.there.bytes < 400);
	pair_fini(&p);
}

static void sets_that_differ_are_noticed(void **state)
{
	(void)state;
	struct pair p = {.version = 1};
	generation_add(&p, 0, 1000);
	assert_true(summary_ask(&p, 0, -1) > 0);
	generation_add(&p, 10, 1010);
	assert_true(summary_ask(&p, 1000, 24) < 0 && p.here.generation == 1000); /* A bit of the sum. */
	/* A member that this side lacks, as if a change had been lost. */
	struct peer_set *other = set_of(1, 1000);
	peer_set_unref(&p.here.set);
	p.here.set = other;
	generation_add(&p, 20, 1020);
	assert_true(summary_ask(&p, 1000, -1) > 0); /* Block 0 left meanwhile: both agree again. */
	other = set_of(21, 1020);
	peer_set_unref(&p.here.set);
	p.here.set = other;
	generation_add(&p, 20, 1030);
	assert_true(summary_ask(&p, p.here.generation, -1) < 0);
	assert_true(summary_ask(&p, 0, -1) > 0 && p.here.set->n == 1010);
	pair_fini(&p);
}

static void narrow_sets_that_differ_are_noticed(void **state)
{
	(void)state;
	struct pair p = {0};
	generation_add(&p, 0, 1000);
	assert_true(summary_ask(&p, 0, -1) > 0);
	generation_add(&p, 10, 1010);
	assert_true(summary_ask(&p, 1000, 17) < 0 && p.here.generation == 1000); /* A bit of the sum. */
	struct peer_set *other = set_of(1, 1001);
	peer_set_narrow(other, p.here.set->width);
	peer_set_unref(&p.here.set);
	p.here.set = other;
	assert_true(summary_ask(&p, 1000, -1) < 0);
	assert_true(summary_ask(&p, 0, -1) > 0 && p.here.set->n == 1000);
	pair_fini(&p);
}

static void changes_take_few_bits(void **state)
{
	(void)state;
	struct pair p = {0};
	generation_add(&p, 0, 6000);
	assert_true(summary_ask(&p, 0, -1) > 0 && p.here.set->width == 24);
	generation_add(&p, 50, 6050);
	/* At least log2 of 6,000 over 50 for the places, and of 2^24 over 50 for the new ones: 187 bytes. */
	assert_in_range(summary_ask(&p, 1000, -1), 187, 250);
	pair_fini(&p);
}

static void a_set_that_outgrows_its_width_is_told_as_a_whole(void **state)
{
	(void)state;
	struct pair p = {0};
	generation_add(&p, 0, 8000);
	assert_true(summary_ask(&p, 0, -1) > 0 && p.here.set->width == 24);
	generation_add(&p, 0, 8300);
	assert_true(summary_ask(&p, 1000, -1) > 0 && p.got.base == 0 && p.here.set->width == 25);
	generation_add(&p, 0, 7000);
	assert_true(summary_ask(&p, 1001, -1) > 0 && p.got.base == 1001 && p.here.set->width == 25);
	pair_fini(&p);
}

/* A side that reads version 1 alone is told nothing until the journal is of version 1, which a newer side reads too. */
static void an_old_side_is_answered_in_its_version(void **state)
{
	(void)state;
	struct pair old = {.version = 1}, new = {0};
	generation_add(&new, 0, 1000);
	assert_true(summary_ask(&new, 0, -1) > 0 && new.got.version == PEER_VERSION);
	old.there = new.there;
	assert_true(summary_ask(&old, 0, -1) > 0 && old.got.version == 1 && old.got.generation == 0);
	old.here.generation = 0;
	generation_add(&old, 0, 1000);
	assert_true(summary_ask(&old, 0, -1) > 0 && old.got.generation == 1001 && old.here.set->n == 1000);
	generation_add(&old, 5, 1005);
	assert_true(summary_ask(&old, 1001, -1) > 0 && old.got.base == 1001);
	new.there = old.there;
	assert_true(summary_ask(&new, 1000, -1) > 0 && new.got.version == 1 && new.here.set->width == 32);
	generation_add(&new, 5, 1005); /* The old one is gone. */
	assert_true(summary_ask(&new, 1002, -1) > 0 && new.got.version == 2 && new.got.base == 0);
	peer_set_unref(&old.here.set);
	pair_fini(&new);
}

static void an_answer_that_is_wrong_is_refused(void **state)
{
	const unsigned version = *(const unsigned *)*state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bytes = {0};
	struct peer_set *set = set_of(0, 50), *now = NULL;
	static struct peer_summary s, got;
	struct peer_known nothing = {0};
	struct cgn_err err;
	s = (struct peer_summary){.version = version,
		.width = PEER_WIDTH,
		.generation = 5,
		.sum = set->sum,
		.blocks = set->n,
		.n_models = 2,
		.models = {{.name = CGN_STR("a")}, {.name = CGN_STR("b")}}};
	peer_summary_put(&s, set, (struct cgn_str){0}, &bytes);
	peer_set_unref(&set);
	for (size_t n = 0; n < bytes.n; n++)
		assert_int_equal(peer_summary_get((struct cgn_str){bytes.p, n}, &nothing, &got, &now, &err)
					 .code,
			CGN_INVALID);
	assert_true(cgn_ok(peer_summary_get(cgn_buf_view(&bytes), &nothing, &got, &now, &err)));
	assert_true(got.n_models == 2 && cgn_str_is(got.models[1].name, "b"));
	peer_set_unref(&now);
	cgn_put_u8(&bytes, 0);
	assert_int_equal(peer_summary_get(cgn_buf_view(&bytes), &nothing, &got, &now, &err).code,
		CGN_INVALID);
	/* Changes for one who has nothing. */
	bytes.n = 0;
	s.base = 4;
	peer_summary_put(&s, NULL, (struct cgn_str){0}, &bytes);
	assert_int_equal(peer_summary_get(cgn_buf_view(&bytes), &nothing, &got, &now, &err).code,
		CGN_INVALID);
}

/* ---- trust ---- */

static const struct peer_load busy = {.nodes = 2, .prefill_ns = 100000, .wait_us = 50000};

static void what_is_cached_there_need_not_be_computed(void **state)
{
	(void)state;
	struct peer_trust t = {0};
	struct peer_forecast f = peer_foresee(&busy, &t, 40 * CGN_MSEC, 1000, 0);
	assert_true(f.known && f.ttft == 190 * CGN_MSEC);
	f = peer_foresee(&busy, &t, 40 * CGN_MSEC, 1000, 900);
	assert_true(f.known && f.ttft == 100 * CGN_MSEC && f.cached == 900);
	assert_true(peer_foresee(&busy, &t, 0, 100, 900).ttft == 50 * CGN_MSEC);
	const struct peer_load slow = {.nodes = 2}, gone = {.prefill_ns = 5};
	assert_false(peer_foresee(&slow, &t, 0, 1, 0).known || peer_foresee(&gone, &t, 0, 1, 0).known);
}

static void a_peer_that_lies_is_demoted_and_returns_on_probation(void **state)
{
	(void)state;
	struct peer_trust t = {0};
	const struct peer_forecast f = peer_foresee(&busy, &t, 0, 1000, 900);
	const struct peer_shown lie = {.counted = true, .cached = 16, .tokens = 1000},
				honest = {.counted = true, .cached = 880, .tokens = 1000},
				late = {.ttft = 5 * CGN_SEC};
	cgn_nsec now = CGN_SEC;
	for (int i = 0; i < PEER_BAD - 1; i++)
		assert_false(peer_trust_learn(&t, &f, i % 2 == 0 ? &lie : &late, now));
	assert_true(!peer_is_demoted(&t, now) && peer_trust_share(&t, now) < 0.5);
	assert_true(peer_trust_learn(&t, &f, &lie, now));
	assert_true(peer_is_demoted(&t, now) && peer_trust_share(&t, now) <= 0);
	assert_false(peer_trust_learn(&t, &f, &lie, now)); /* Not again while it lasts. */
	now += PEER_PAUSE;
	assert_false(peer_is_demoted(&t, now));
	assert_true(peer_trust_learn(&t, &f, &lie, now));
	assert_true(t.until == now + 2 * PEER_PAUSE);
	now = t.until;
	for (int i = 0; i < 40; i++)
		assert_false(peer_trust_learn(&t, &f, &honest, now));
	assert_true(t.strikes == 0 && peer_trust_share(&t, now) > 0.9);
	for (int i = 0; i < 20; i++) {
		while (!peer_trust_learn(&t, &f, &lie, now))
			;
		assert_true(t.until <= now + PEER_PAUSE_MOST);
		now = t.until;
	}
}

static void a_constant_delay_is_learned_and_is_no_lie(void **state)
{
	(void)state;
	struct peer_trust t = {0};
	for (int i = 0; i < 100; i++) {
		struct peer_forecast f = peer_foresee(&busy, &t, 0, 1000, 900);
		assert_false(peer_trust_learn(&t, &f, &(struct peer_shown){.ttft = 160 * CGN_MSEC}, 1));
	}
	assert_true(t.bad == 0 && t.late_ms > 95 && t.late_ms < 105);
	for (int i = 0; i < 100; i++) {
		struct peer_forecast f = peer_foresee(&busy, &t, 0, 1000, 900);
		(void)peer_trust_learn(&t, &f, &(struct peer_shown){.ttft = 10 * CGN_MSEC}, 1);
	}
	assert_true(t.late_ms < 1);
}

int main(void)
{
	static unsigned oldest = 1, newest = PEER_VERSION;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_are_found_and_others_seldom),
		cmocka_unit_test(members_at_one_end_are_found_too),
		cmocka_unit_test(a_prefix_is_held_up_to_its_first_missing_block),
		cmocka_unit_test(a_set_survives_its_code),
		cmocka_unit_test(a_narrow_set_survives_its_code),
		cmocka_unit_test(a_narrow_set_finds_its_members_and_others_seldom),
		cmocka_unit_test(a_width_seldom_changes),
		cmocka_unit_test(places_name_members),
		cmocka_unit_test(numbers_survive_their_code),
		cmocka_unit_test_prestate(one_who_follows_gets_the_changes_alone, &oldest),
		cmocka_unit_test_prestate(one_who_follows_gets_the_changes_alone, &newest),
		cmocka_unit_test_prestate(one_who_fell_behind_or_knows_another_run_gets_the_whole, &oldest),
		cmocka_unit_test_prestate(one_who_fell_behind_or_knows_another_run_gets_the_whole, &newest),
		cmocka_unit_test(changes_that_are_longer_than_a_quarter_are_not_kept),
		cmocka_unit_test(sets_that_differ_are_noticed),
		cmocka_unit_test(narrow_sets_that_differ_are_noticed),
		cmocka_unit_test(changes_take_few_bits),
		cmocka_unit_test(a_set_that_outgrows_its_width_is_told_as_a_whole),
		cmocka_unit_test(an_old_side_is_answered_in_its_version),
		cmocka_unit_test_prestate(an_answer_that_is_wrong_is_refused, &oldest),
		cmocka_unit_test_prestate(an_answer_that_is_wrong_is_refused, &newest),
		cmocka_unit_test(two_who_answer_in_turn_are_told_apart),
		cmocka_unit_test(what_is_cached_there_need_not_be_computed),
		cmocka_unit_test(a_peer_that_lies_is_demoted_and_returns_on_probation),
		cmocka_unit_test(a_constant_delay_is_learned_and_is_no_lie),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
