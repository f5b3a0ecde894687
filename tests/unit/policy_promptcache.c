/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "policy/text/prefix/promptcache.h"

#define BLOCKS 512

static uint64_t next_random(uint64_t *s)
{
	(void)mix_lcg(s);
	return *s >> 33;
}

struct chain {
	struct prefix_tokens c;
	uint64_t digests[BLOCKS];
};

static void chain_start(struct chain *c, uint32_t block_tokens, size_t cap)
{
	const struct digest root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	memset(c->digests, 0, sizeof c->digests);
	prefix_tokens_start(&c->c, &root, block_tokens, c->digests, cap);
}

static void expect_same(const struct chain *a, const struct chain *b)
{
	assert_int_equal(a->c.n, b->c.n);
	assert_int_equal(a->c.n_tokens, b->c.n_tokens);
	assert_int_equal(a->c.n_left, b->c.n_left);
	assert_memory_equal(&a->c.last, &b->c.last, sizeof a->c.last);
	assert_memory_equal(a->digests, b->digests, a->c.n * sizeof a->digests[0]);
	assert_memory_equal(a->c.left, b->c.left, a->c.n_left * sizeof a->c.left[0]);
}

/* ---- chains of tokens ---- */

static void a_block_is_its_ids_as_little_endian_numbers(void **state)
{
	(void)state;
	struct chain c;
	const uint32_t ids[] = {1, 0x01020304, 70000};
	const char block[] = "\x01\0\0\0\x04\x03\x02\x01";
	struct digest root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	chain_start(&c, 2, BLOCKS);
	prefix_tokens_add(&c.c, ids, CGN_COUNT(ids));
	struct digest want = digest_chain_next(&root, (struct cgn_str){block, 8});
	assert_int_equal(c.c.n, 1);
	assert_int_equal(c.c.n_left, 1);
	assert_int_equal(c.c.left[0], 70000);
	assert_int_equal(c.digests[0], digest_short(&want));
}

static void how_ids_come_does_not_matter(void **state)
{
	(void)state;
	uint64_t rng = 7;
	uint32_t ids[1000];
	for (size_t i = 0; i < CGN_COUNT(ids); i++)
		ids[i] = (uint32_t)next_random(&rng);
	for (uint32_t block = 1; block <= 40; block += 13) {
		struct chain whole, parts;
		chain_start(&whole, block, BLOCKS);
		chain_start(&parts, block, BLOCKS);
		prefix_tokens_add(&whole.c, ids, CGN_COUNT(ids));
		for (size_t at = 0; at < CGN_COUNT(ids);) {
			size_t n = next_random(&rng) % 50;
			n = n < CGN_COUNT(ids) - at ? n : CGN_COUNT(ids) - at;
			prefix_tokens_add(&parts.c, ids + at, n);
			at += n;
		}
		expect_same(&whole, &parts);
	}
}

static void a_full_chain_takes_nothing_more(void **state)
{
	(void)state;
	struct chain c;
	const uint32_t ids[10] = {0};
	chain_start(&c, 2, 3);
	prefix_tokens_add(&c.c, ids, CGN_COUNT(ids));
	assert_true(prefix_tokens_full(&c.c));
	assert_int_equal(c.c.n_tokens, 6);
	assert_int_equal(c.c.n_left, 0);
}

static void what_is_no_text_is_no_vocabularys_id(void **state)
{
	(void)state;
	const struct digest one = digest_of(CGN_STR("a picture")), two = digest_of(CGN_STR("another"));
	uint32_t ids[PREFIX_FOREIGN_IDS], other[PREFIX_FOREIGN_IDS];
	prefix_tokens_foreign(&one, ids);
	prefix_tokens_foreign(&two, other);
	for (size_t i = 0; i < PREFIX_FOREIGN_IDS; i++)
		assert_true(ids[i] >= TOKENS_FOREIGN);
	assert_memory_not_equal(ids, other, sizeof ids);
}

/* ---- the cache ---- */

/* A text is a list of segments, named by their numbers; its tokens are a function of them. */
#define SEGMENTS_MAX 40
struct text {
	uint32_t segment[SEGMENTS_MAX];
	size_t n;
};

static void add_segment(struct chain *c, uint32_t segment)
{
	uint64_t rng = segment;
	uint32_t ids[64];
	size_t n = next_random(&rng) % CGN_COUNT(ids);
	for (size_t i = 0; i < n; i++)
		ids[i] = (uint32_t)next_random(&rng) % 100000;
	prefix_tokens_add(&c->c, ids, n);
}

static void without_cache(const struct text *t, struct chain *out, uint32_t block, size_t cap)
{
	chain_start(out, block, cap);
	for (size_t i = 0; i < t->n; i++)
		add_segment(out, t->segment[i]);
}

static void keys_of(const struct text *t, struct promptcache_key *keys)
{
	struct digest d = digest_of(CGN_STR("texts"));
	for (size_t i = 0; i < t->n; i++) {
		d = digest_keyed(&d, (struct cgn_str){(const char *)&t->segment[i], sizeof t->segment[i]});
		memcpy(keys[i].b, d.b, sizeof keys[i].b);
	}
}

/* Encode as the router does: load the known segments, add and store the rest. Returns the number of known
 * segments. */
static size_t with_cache(struct promptcache *c, const struct text *t, struct chain *out, uint32_t block,
	size_t cap)
{
	struct promptcache_key keys[SEGMENTS_MAX];
	size_t at = 0, known = 0;
	keys_of(t, keys);
	chain_start(out, block, cap);
	struct promptcache_entry *e = promptcache_find(c, keys, t->n, &at);
	if (e != NULL) {
		promptcache_load(e, &out->c);
		known = at + 1;
	}
	bool keep = true;
	for (size_t i = known; i < t->n; i++) {
		add_segment(out, t->segment[i]);
		if (!keep)
			continue;
		e = promptcache_put(c, &keys[i], e, &out->c);
		keep = e != NULL;
	}
	return known;
}

static void run_conversation(uint64_t seed, size_t budget, uint32_t block, size_t cap, bool must_hit)
{
	uint64_t rng = seed;
	struct text texts[8] = {0};
	struct promptcache *c = promptcache_new(budget);
	for (unsigned turn = 0; turn < 400; turn++) {
		struct text *t = &texts[next_random(&rng) % CGN_COUNT(texts)];
		struct chain want, got;
		if (t->n + 3 > SEGMENTS_MAX)
			t->n = 0;
		if (t->n == 0) /* Few openings, so that conversations share them. */
			t->segment[t->n++] = (uint32_t)next_random(&rng) % 3;
		for (size_t more = next_random(&rng) % 3; more > 0; more--)
			t->segment[t->n++] = 1000 + (uint32_t)next_random(&rng) % 5;
		without_cache(t, &want, block, cap);
		(void)with_cache(c, t, &got, block, cap);
		expect_same(&want, &got);
		assert_true(promptcache_stats(c).bytes <= budget || promptcache_stats(c).entries == 0);
	}
	struct promptcache_stats s = promptcache_stats(c);
	assert_int_equal(s.hits + s.misses, 400);
	if (must_hit)
		assert_true(s.hits > 350 && s.evictions == 0);
	promptcache_free(&c);
	assert_null(c);
}

static void a_cached_chain_is_the_chain(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		run_conversation(seed, (size_t)1 << 24, 16, BLOCKS, true);
		run_conversation(seed, (size_t)1 << 24, 1 + (uint32_t)(seed % 7), 40,
			true); /* Cut by the bound. */
	}
}

static void at_any_budget(void **state)
{
	(void)state;
	for (size_t budget = 0; budget < 40000; budget = budget * 3 / 2 + 61)
		for (uint64_t seed = 1; seed <= 4; seed++)
			run_conversation(seed, budget, 16, BLOCKS, false);
}

static void a_small_budget_evicts_what_was_not_used(void **state)
{
	(void)state;
	struct promptcache *c = promptcache_new(6000);
	struct chain out;
	const struct text kept = {.segment = {1, 2, 3}, .n = 3};
	(void)with_cache(c, &kept, &out, 16, BLOCKS);
	for (uint32_t i = 0; i < 300; i++) {
		struct text other = {.segment = {5000 + i, 6000 + i}, .n = 2};
		(void)with_cache(c, &other, &out, 16, BLOCKS);
		assert_int_equal(with_cache(c, &kept, &out, 16, BLOCKS), 3);
	}
	assert_true(promptcache_stats(c).evictions > 500);
	struct text first = {.segment = {5000, 6000}, .n = 2};
	assert_int_equal(with_cache(c, &first, &out, 16, BLOCKS), 0);
	promptcache_free(&c);
}

static void turns_share_memory(void **state)
{
	(void)state;
	struct promptcache *c = NULL;
	struct chain out;
	struct text t = {.segment = {1}, .n = 1};
	c = promptcache_new(1 << 20);
	(void)with_cache(c, &t, &out, 1, BLOCKS);
	size_t empty = promptcache_stats(c).bytes;
	for (uint32_t i = 2; i <= SEGMENTS_MAX; i++) {
		size_t before = promptcache_stats(c).bytes;
		uint64_t tokens = out.c.n_tokens;
		t.segment[t.n++] = i;
		(void)with_cache(c, &t, &out, 1, BLOCKS);
		size_t grew = promptcache_stats(c).bytes - before;
		/* Only the new digests take memory. */
		assert_true(grew <= empty + 8 * (out.c.n_tokens - tokens));
	}
	assert_int_equal(promptcache_stats(c).entries, SEGMENTS_MAX);
	promptcache_free(&c);
}

/* Two requests with one prompt encode it at the same time, and both put it: the second goes on from what the first
 * has put. */
static void what_is_put_twice_is_kept_once(void **state)
{
	(void)state;
	struct promptcache *c = NULL;
	struct promptcache_key keys[SEGMENTS_MAX];
	struct chain out;
	const struct text t = {.segment = {1, 2}, .n = 2};
	keys_of(&t, keys);
	c = promptcache_new(1 << 20);
	(void)with_cache(c, &t, &out, 16, BLOCKS);
	chain_start(&out, 16, BLOCKS);
	add_segment(&out, t.segment[0]);
	struct promptcache_entry *e = promptcache_put(c, &keys[0], NULL, &out.c);
	assert_non_null(e);
	add_segment(&out, t.segment[1]);
	assert_non_null(promptcache_put(c, &keys[1], e, &out.c));
	assert_int_equal(promptcache_stats(c).entries, 2);
	promptcache_free(&c);
}

static void without_a_budget_nothing_is_kept(void **state)
{
	(void)state;
	struct promptcache *c = promptcache_new(0);
	struct chain out;
	const struct text t = {.segment = {1, 2}, .n = 2};
	assert_int_equal(with_cache(c, &t, &out, 16, BLOCKS), 0);
	assert_int_equal(with_cache(c, &t, &out, 16, BLOCKS), 0);
	assert_int_equal(promptcache_stats(c).entries, 0);
	assert_int_equal(promptcache_stats(c).misses, 2);
	promptcache_free(&c);
	promptcache_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_its_ids_as_little_endian_numbers),
		cmocka_unit_test(how_ids_come_does_not_matter),
		cmocka_unit_test(a_full_chain_takes_nothing_more),
		cmocka_unit_test(what_is_no_text_is_no_vocabularys_id),
		cmocka_unit_test(a_cached_chain_is_the_chain),
		cmocka_unit_test(at_any_budget),
		cmocka_unit_test(a_small_budget_evicts_what_was_not_used),
		cmocka_unit_test(turns_share_memory),
		cmocka_unit_test(what_is_put_twice_is_kept_once),
		cmocka_unit_test(without_a_budget_nothing_is_kept),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
