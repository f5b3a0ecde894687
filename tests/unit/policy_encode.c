/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "policy/text/prompt/encode.h"
#include "toy_tokenizer.h"

#define BLOCKS 8192

static struct tokenizer *tokenizer;
static struct tokenizer_work *work;

static int tokenizer_setup(void **state)
{
	(void)state;
	struct cgn_buf json = {0};
	struct cgn_err err;
	toy_tokenizer(&json);
	if (!cgn_ok(tokenizer_load(cgn_buf_view(&json), &tokenizer, &err)))
		fail_msg("%s", err.msg);
	cgn_buf_fini(&json);
	work = tokenizer_work_new(tokenizer);
	return 0;
}

static int tokenizer_teardown(void **state)
{
	(void)state;
	tokenizer_work_free(&work);
	tokenizer_free(&tokenizer);
	return 0;
}

static uint64_t next_random(uint64_t *s)
{
	(void)mix_lcg(s);
	return *s >> 33;
}

struct chain {
	struct prefix_tokens c;
	uint64_t *digests;
	size_t left; /* Bytes that were tokenised. */
};

static void chain_free(struct chain *c)
{
	free(c->digests);
}

static struct chain chain_start(size_t cap)
{
	struct chain out = {.digests = calloc(cap, sizeof(uint64_t))};
	const struct digest root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	prefix_tokens_start(&out.c, &root, 16, out.digests, cap);
	return out;
}

static struct chain by_cache(struct promptcache *cache, struct cgn_str text, bool specials,
	const struct digest *media, size_t n_media, size_t cap)
{
	struct chain out = chain_start(cap);
	struct encode e;
	struct cgn_err err;
	const struct prompt_encode_ask ask = {.tokenizer = tokenizer,
		.root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR("")),
		.text = text,
		.specials = specials,
		.media = media,
		.n_media = n_media,
		.max_ids = cap * 16};
	prompt_encode_open(&e, &ask);
	out.left = prompt_encode_resume(&e, cache, &out.c);
	assert_true(cgn_ok(prompt_encode_run(&e, work, &err)));
	prompt_encode_finish(&e, cache, &out.c);
	prompt_encode_close(&e);
	return out;
}

/* Make the chain by the tokenizer, without the cache. */
static struct chain chain_uncached(struct cgn_str text, bool specials, size_t cap)
{
	struct chain out = chain_start(cap);
	struct tokenizer_ids ids = {0};
	assert_true(cgn_ok(
		tokenizer_encode(tokenizer, work, text, specials ? TOKENIZER_SPECIALS : 0, &ids, NULL)));
	prefix_tokens_add(&out.c, ids.ids, ids.n);
	tokenizer_ids_fini(&ids);
	return out;
}

static void expect_same(const struct chain *a, const struct chain *b)
{
	assert_int_equal(a->c.n, b->c.n);
	assert_int_equal(a->c.n_tokens, b->c.n_tokens);
	assert_memory_equal(&a->c.last, &b->c.last, sizeof a->c.last);
	assert_memory_equal(a->digests, b->digests, a->c.n * sizeof(uint64_t));
	assert_memory_equal(a->c.left, b->c.left, a->c.n_left * sizeof(uint32_t));
}

static void put_words(struct cgn_buf *b, uint64_t *rng, size_t most)
{
	static const char *const words[] = {"the ", "another", "\n", "winter ", "<|im", "\xc3\xa4", "1234",
		"  ", "in", "on the"};
	cgn_buf_putz(b, next_random(rng) % 2 == 0 ? "<|im_start|>user\n" : "<|im_start|>assistant\n");
	for (size_t n = next_random(rng) % most; n > 0; n--)
		cgn_buf_putz(b, words[next_random(rng) % CGN_COUNT(words)]);
	cgn_buf_putz(b, "<|im_end|>\n");
}

static void run_conversation(uint64_t seed, size_t budget, size_t cap, bool specials)
{
	uint64_t rng = seed;
	struct cgn_buf texts[4] = {0};
	struct promptcache *cache = promptcache_new(budget);
	for (unsigned turn = 0; turn < 80; turn++) {
		struct cgn_buf *b = &texts[next_random(&rng) % CGN_COUNT(texts)];
		if (next_random(&rng) % 16 == 0)
			b->n = 0;
		put_words(b, &rng, 400);
		/* The generation prompt that a template appends is absent in the next turn. */
		size_t before = b->n;
		cgn_buf_putz(b, "<|im_start|>assistant\n");
		struct chain got = by_cache(cache, cgn_buf_view(b), specials, NULL, 0, cap);
		struct chain want = chain_uncached(cgn_buf_view(b), specials, cap);
		expect_same(&want, &got);
		assert_true(
			promptcache_stats(cache).entries == 0 || promptcache_stats(cache).bytes <= budget);
		chain_free(&got);
		chain_free(&want);
		b->n = before;
	}
	promptcache_free(&cache);
	for (size_t i = 0; i < CGN_COUNT(texts); i++)
		cgn_buf_fini(&texts[i]);
}

static void a_conversation_by_cache_is_what_the_tokenizer_says(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++) {
		run_conversation(seed, (size_t)1 << 22, BLOCKS, seed % 2 == 0);
		run_conversation(seed, 20000 * (size_t)seed, BLOCKS, seed % 2 == 1);
		run_conversation(seed, 0, BLOCKS, true);
		run_conversation(seed, (size_t)1 << 22, 20,
			true); /* The chain is full long before the text ends. */
	}
}

static void a_turn_costs_its_new_text(void **state)
{
	(void)state;
	uint64_t rng = 5;
	struct cgn_buf b = {0};
	struct promptcache *cache = promptcache_new((size_t)1 << 22);
	for (unsigned turn = 0; turn < 50; turn++) {
		size_t before = b.n;
		put_words(&b, &rng, 1000);
		struct chain got = by_cache(cache, cgn_buf_view(&b), false, NULL, 0, BLOCKS);
		assert_true(got.left <= b.n - before + ENCODE_SEGMENT + 64);
		chain_free(&got);
		got = by_cache(cache, cgn_buf_view(&b), false, NULL, 0, BLOCKS);
		assert_true(got.left < ENCODE_SEGMENT + 64);
		chain_free(&got);
	}
	promptcache_free(&cache);
	cgn_buf_fini(&b);
}

static void a_text_without_cuts_is_known_as_a_whole(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct promptcache *cache = promptcache_new((size_t)1 << 22);
	for (int i = 0; i < 1000; i++)
		cgn_buf_fmt(&b, "the %d ", i);
	struct chain first = by_cache(cache, cgn_buf_view(&b), true, NULL, 0, BLOCKS);
	struct chain again = by_cache(cache, cgn_buf_view(&b), true, NULL, 0, BLOCKS);
	assert_int_equal(first.left, b.n);
	assert_int_equal(again.left, 0);
	expect_same(&first, &again);
	/* The same text with and without special tokens has two entries, and so has a longer text. */
	struct chain bare = by_cache(cache, cgn_buf_view(&b), false, NULL, 0, BLOCKS);
	assert_int_equal(bare.left, b.n);
	cgn_buf_putz(&b, "end");
	struct chain longer = by_cache(cache, cgn_buf_view(&b), true, NULL, 0, BLOCKS);
	assert_int_equal(longer.left, b.n);
	chain_free(&first);
	chain_free(&again);
	chain_free(&bare);
	chain_free(&longer);
	promptcache_free(&cache);
	cgn_buf_fini(&b);
}

static void put_mark(struct cgn_buf *b, const struct digest *d)
{
	cgn_buf_putz(b, PROMPT_MEDIUM);
	for (size_t i = 0; i < DIGEST_BYTES; i++)
		cgn_buf_fmt(b, "%02x", d->b[i]);
}

static size_t common_blocks(const struct chain *a, const struct chain *b)
{
	size_t n = 0;
	while (n < a->c.n && n < b->c.n && a->digests[n] == b->digests[n])
		n++;
	return n;
}

static void a_chain_is_exact_up_to_the_first_medium(void **state)
{
	(void)state;
	struct digest media[3] = {digest_of(CGN_STR("a")), digest_of(CGN_STR("b")),
		digest_of(CGN_STR("nowhere"))};
	struct cgn_buf front = {0}, b = {0};
	struct promptcache *cache = promptcache_new((size_t)1 << 22);
	uint64_t rng = 9;
	for (int i = 0; i < 3; i++)
		put_words(&front, &rng, 500);
	cgn_buf_str(&b, cgn_buf_view(&front));
	put_mark(&b, &media[0]);
	cgn_buf_putz(&b, " what is it?<|im_end|>\n");
	put_mark(&b, &media[1]);
	put_words(&b, &rng, 600);
	struct chain text = chain_uncached(cgn_buf_view(&front), false, BLOCKS);
	struct chain one = by_cache(cache, cgn_buf_view(&b), false, media, 3, BLOCKS);
	struct chain again = by_cache(cache, cgn_buf_view(&b), false, media, 3, BLOCKS);
	expect_same(&one, &again);
	assert_true(again.left < one.left);
	assert_int_equal(common_blocks(&text, &one), text.c.n);
	struct digest other[3] = {media[1], media[0], media[2]};
	b.n = front.n;
	put_mark(&b, &other[0]);
	cgn_buf_putz(&b, " what is it?<|im_end|>\n");
	put_mark(&b, &other[1]);
	struct chain two = by_cache(cache, cgn_buf_view(&b), false, other, 3, BLOCKS);
	assert_int_equal(common_blocks(&one, &two), text.c.n);
	chain_free(&text);
	chain_free(&one);
	chain_free(&again);
	chain_free(&two);
	promptcache_free(&cache);
	cgn_buf_fini(&front);
	cgn_buf_fini(&b);
}

static void of_a_very_long_text_the_front_is_looked_at(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct promptcache *cache = promptcache_new((size_t)1 << 22);
	for (int i = 0; i < 300000; i++)
		cgn_buf_putz(&b, "th\xc3\xa4 ");
	struct chain got = by_cache(cache, cgn_buf_view(&b), true, NULL, 0, 100);
	struct chain want = chain_uncached((struct cgn_str){b.p, 20000}, true, 100);
	assert_true(got.left <= 100 * 16 * ENCODE_TOKEN_BYTES);
	assert_int_equal(got.c.n, 100);
	expect_same(&want, &got);
	chain_free(&got);
	chain_free(&want);
	promptcache_free(&cache);
	cgn_buf_fini(&b);
}

/* A conversation that has outgrown its chain: no text is tokenised whose tokens the chain could not take. */
static void a_chain_that_is_full_costs_no_more_tokens(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct promptcache *cache = promptcache_new((size_t)1 << 22);
	struct chain got = chain_start(100);
	struct encode e;
	for (int i = 0; i < 100; i++)
		cgn_buf_putz(&b, "<|im_start|>winter winter winter winter winter winter<|im_end|>\n");
	struct chain first = by_cache(cache, cgn_buf_view(&b), false, NULL, 0, 100);
	assert_true(prefix_tokens_full(&first.c));
	const struct prompt_encode_ask ask = {.tokenizer = tokenizer,
		.root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR("")),
		.text = cgn_buf_view(&b),
		.max_ids = 1600};
	prompt_encode_open(&e, &ask);
	assert_int_equal(prompt_encode_resume(&e, cache, &got.c), 0);
	assert_true(cgn_ok(prompt_encode_run(&e, work, NULL)));
	assert_int_equal(e.ids.n, 0);
	prompt_encode_finish(&e, cache, &got.c);
	expect_same(&first, &got);
	prompt_encode_close(&e);
	chain_free(&first);
	chain_free(&got);
	promptcache_free(&cache);
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_conversation_by_cache_is_what_the_tokenizer_says),
		cmocka_unit_test(a_turn_costs_its_new_text),
		cmocka_unit_test(a_text_without_cuts_is_known_as_a_whole),
		cmocka_unit_test(a_chain_is_exact_up_to_the_first_medium),
		cmocka_unit_test(of_a_very_long_text_the_front_is_looked_at),
		cmocka_unit_test(a_chain_that_is_full_costs_no_more_tokens),
	};
	return cmocka_run_group_tests(tests, tokenizer_setup, tokenizer_teardown);
}
