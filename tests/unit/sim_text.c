/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's tokenizer, hash chain, words and plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/mix/mix.h"
#include "sim/text/skill.h"
#include "sim/text/text.h"

static size_t round_trip(struct cgn_str text)
{
	struct cgn_buf back = {0};
	struct cgn_str rest = text;
	size_t n = 0;
	while (rest.n > 0) {
		uint32_t id = 0;
		char piece[SIM_TOKEN_TEXT_MAX];
		struct cgn_str cut = sim_token_cut(&rest, &id);
		size_t len = sim_token_text(id, piece);
		assert_int_equal(len, cut.n);
		assert_memory_equal(piece, cut.p, len);
		cgn_buf_add(&back, piece, len);
		n++;
	}
	assert_true(cgn_str_eq(cgn_buf_view(&back), text));
	cgn_buf_fini(&back);
	return n;
}

static void any_bytes_round_trip(void **state)
{
	(void)state;
	uint64_t rng = 7;
	char noise[257];
	for (unsigned round = 0; round < 2000; round++) {
		size_t n = 1 + round % 256;
		for (size_t i = 0; i < n; i++) {
			rng = mix64(rng + i);
			noise[i] = round % 2 ? (char)rng : " aAzZ09.e"[rng % 9];
		}
		assert_true(round_trip((struct cgn_str){noise, n}) <= n);
	}
	for (unsigned b = 0; b < 256; b++) {
		char one = (char)b;
		assert_int_equal(round_trip((struct cgn_str){&one, 1}), 1);
	}
}

static void tokens_are_word_sized(void **state)
{
	(void)state;
	assert_int_equal(round_trip(CGN_STR("Hello world")), 2);
	assert_int_equal(round_trip(CGN_STR(" Zzzzz zzzzz Aaaaa a")), 4);
	assert_int_equal(round_trip(CGN_STR("engineering")), 3);
	assert_int_equal(round_trip(CGN_STR("12345")), 2);
	assert_int_equal(round_trip(CGN_STR("007")), 1);
	assert_int_equal(round_trip(CGN_STR("HTTP")), 4);
	assert_int_equal(round_trip(CGN_STR("\xc3\xa9")), 2);
}

static void ids_do_not_collide(void **state)
{
	(void)state;
	const char *all[] = {"a", " a", "A", " A", "aa", "0", "00", "000", "z", "zzzzz", " Zzzzz", "999",
		"ba"};
	uint32_t ids[CGN_COUNT(all)] = {0};
	for (size_t i = 0; i < CGN_COUNT(all); i++) {
		struct cgn_str rest = cgn_str_of(all[i]);
		(void)sim_token_cut(&rest, &ids[i]);
		assert_int_equal(rest.n, 0);
		assert_true(ids[i] < SIM_TOK_SYSTEM);
		for (size_t k = 0; k < i; k++)
			assert_int_not_equal(ids[i], ids[k]);
	}
}

static void foreign_ids_have_no_text(void **state)
{
	(void)state;
	char out[SIM_TOKEN_TEXT_MAX];
	assert_int_equal(sim_token_text(49999999, out), 0);
	assert_int_equal(sim_token_text(SIM_TOK_LAST + 1, out), 0);
	assert_int_equal(sim_token_text(UINT32_MAX, out), 0);
	assert_int_equal(sim_token_text(SIM_TOK_USER, out), 8);
	assert_memory_equal(out, "<|user|>", 8);
	assert_int_equal(sim_token_text(SIM_TOK_LAST, out), 9);
}

static struct sim_chain chain_of(const char *model, const char *salt, const char *text)
{
	struct sim_chain c;
	sim_chain_init(&c,
		&(struct sim_chain_cfg){.model = cgn_str_of(model),
			.salt = cgn_str_of(salt),
			.block_tokens = 4,
			.max_tokens = 1000});
	sim_chain_text(&c, cgn_str_of(text));
	return c;
}

static void chain_names_prefixes(void **state)
{
	(void)state;
	struct sim_chain a = chain_of("m", "", "one two three four five six seven eight nine");
	struct sim_chain b = chain_of("m", "", "one two three four five six seven EIGHT nine");
	struct sim_chain other = chain_of("m2", "", "one two three four five six seven eight nine");
	struct sim_chain salted = chain_of("m", "s", "one two three four five six seven eight nine");
	assert_int_equal(a.n, 2);
	assert_true(a.hashes[0] == b.hashes[0]);
	assert_true(a.hashes[1] != b.hashes[1]);
	assert_true(a.hashes[0] != other.hashes[0]);
	assert_true(a.hashes[0] != salted.hashes[0]);
	/* The answer depends on the tokens alone. */
	assert_true(sim_chain_digest(&a) == sim_chain_digest(&other));
	assert_true(sim_chain_digest(&a) == sim_chain_digest(&salted));
	assert_true(sim_chain_digest(&a) != sim_chain_digest(&b));
	struct sim_chain copy;
	sim_chain_copy(&copy, &a);
	sim_chain_text(&copy, CGN_STR(" x y z"));
	assert_int_equal(copy.n, 3);
	assert_int_equal(a.n, 2);
	assert_true(copy.hashes[1] == a.hashes[1]);
	sim_chain_fini(&a);
	sim_chain_fini(&b);
	sim_chain_fini(&other);
	sim_chain_fini(&salted);
	sim_chain_fini(&copy);
}

static void chain_is_bounded(void **state)
{
	(void)state;
	struct sim_chain c;
	sim_chain_init(&c,
		&(struct sim_chain_cfg){.model = CGN_STR("m"), .block_tokens = 16, .max_tokens = 100});
	for (unsigned i = 0; i < 100000; i++)
		sim_chain_add(&c, i);
	assert_int_equal(c.n_tokens, 100000);
	assert_int_equal(c.n, 6);
	assert_true(c.cap <= 32);
	sim_chain_fini(&c);
	sim_chain_init(&c,
		&(struct sim_chain_cfg){.model = CGN_STR("m"), .block_tokens = 16, .max_tokens = 1000});
	sim_chain_image(&c, CGN_STR("data:a"));
	uint64_t first = sim_chain_digest(&c);
	assert_int_equal(c.n_tokens, SIM_IMAGE_TOKENS);
	sim_chain_fini(&c);
	sim_chain_init(&c,
		&(struct sim_chain_cfg){.model = CGN_STR("m"), .block_tokens = 16, .max_tokens = 1000});
	sim_chain_image(&c, CGN_STR("data:b"));
	assert_true(sim_chain_digest(&c) != first);
	sim_chain_fini(&c);
}

static void put_words(struct sim_text t, unsigned n, struct cgn_buf *out)
{
	for (unsigned i = 0; i < n; i++) {
		struct cgn_str piece;
		uint32_t id = 0;
		if (!sim_text_next(&t, &piece, &id))
			break;
		cgn_buf_str(out, piece);
	}
}

static void words_are_deterministic_and_one_token_each(void **state)
{
	(void)state;
	struct sim_text t, again;
	struct cgn_buf a = {0}, b = {0};
	for (uint64_t seed = 0; seed < 50; seed++) {
		a.n = b.n = 0;
		sim_text_words(&t, seed);
		sim_text_words(&again, seed);
		put_words(t, 200, &a);
		put_words(again, 200, &b);
		assert_true(cgn_str_eq(cgn_buf_view(&a), cgn_buf_view(&b)));
		/* An answer returns in the next prompt as the same tokens: the prefix cache depends on
		 * that. */
		assert_int_equal(round_trip(cgn_buf_view(&a)), 200);
		assert_true(a.p[0] >= 'A' && a.p[0] <= 'Z');
		b.n = 0;
		sim_text_words(&again, seed + 1);
		put_words(again, 200, &b);
		assert_false(cgn_str_eq(cgn_buf_view(&a), cgn_buf_view(&b)));
	}
	cgn_buf_fini(&a);
	cgn_buf_fini(&b);
}

static void scripts_come_whole_character_by_character(void **state)
{
	(void)state;
	struct cgn_str script = CGN_STR("{\"city\":\"Z\xc3\xbcrich \xf0\x9f\x98\x80\"}");
	struct sim_text t;
	struct cgn_buf all = {0};
	struct cgn_str piece;
	uint32_t id = 0;
	sim_text_script(&t, script);
	while (sim_text_next(&t, &piece, &id)) {
		assert_true(cgn_utf8_valid(piece.p, piece.n));
		cgn_buf_str(&all, piece);
	}
	assert_true(cgn_str_eq(cgn_buf_view(&all), script));
	assert_false(sim_text_next(&t, &piece, &id));
	/* Bytes that are not UTF-8 pass through, and no byte before the script is read. */
	sim_text_script(&t, CGN_STR("\x80\x80\x80\x80\x80\x80\x80"));
	all.n = 0;
	while (sim_text_next(&t, &piece, &id))
		cgn_buf_str(&all, piece);
	assert_int_equal(all.n, 7);
	cgn_buf_fini(&all);
}

static struct sim_plan plan_of(uint64_t seed, const struct sim_limits *lim)
{
	struct sim_text t;
	struct sim_plan plan;
	sim_text_words(&t, seed);
	assert_true(sim_plan_make(t, lim, NULL, NULL, &plan));
	return plan;
}

static void plans_end_for_the_right_reason(void **state)
{
	(void)state;
	struct sim_limits lim = {.max_tokens = 10, .natural_tokens = 40};
	struct sim_plan p = plan_of(1, &lim);
	assert_int_equal(p.n_tokens, 10);
	assert_int_equal(p.finish, SIM_FINISH_LENGTH);
	lim.max_tokens = 100;
	p = plan_of(1, &lim);
	assert_int_equal(p.n_tokens, 40);
	assert_int_equal(p.finish, SIM_FINISH_STOP);
	lim.ignore_eos = true;
	p = plan_of(1, &lim);
	assert_int_equal(p.n_tokens, 100);
	assert_int_equal(p.finish, SIM_FINISH_LENGTH);
	assert_int_equal(p.stop_index, -1);
	/* An engine gives no end before min_tokens. */
	lim.ignore_eos = false;
	lim.min_tokens = 70;
	lim.natural_tokens = 10;
	p = plan_of(1, &lim);
	assert_int_equal(p.n_tokens, 70);
	assert_int_equal(p.finish, SIM_FINISH_STOP);
	lim.min_tokens = 200;
	assert_int_equal(plan_of(1, &lim).n_tokens, 100);
}

static void stop_strings_cut_the_text(void **state)
{
	(void)state;
	struct sim_text t;
	struct cgn_buf said = {0};
	sim_text_words(&t, 3);
	put_words(t, 60, &said);
	const char *dot = memchr(said.p, '.', said.n);
	assert_non_null(dot);
	struct sim_limits lim = {.max_tokens = 60, .natural_tokens = 60, .n_stops = 2};
	lim.stops[0] = CGN_STR("never said");
	lim.stops[1] = (struct cgn_str){dot - 3, 5}; /* Across three tokens. */
	struct sim_plan p = plan_of(3, &lim);
	assert_int_equal(p.finish, SIM_FINISH_STOP);
	assert_int_equal(p.stop_index, 1);
	assert_int_equal(p.text_bytes, (size_t)(dot - 3 - said.p));
	lim.keep_stop = true;
	assert_int_equal(plan_of(3, &lim).text_bytes, (size_t)(dot + 2 - said.p));
	lim.min_tokens = 60; /* Stop strings do not apply before. */
	assert_int_equal(plan_of(3, &lim).n_tokens, 60);
	cgn_buf_fini(&said);
}

static void logprobs_are_ordered(void **state)
{
	(void)state;
	for (uint64_t at = 0; at < 500; at++) {
		double last = 0;
		for (unsigned k = 0; k < 20; k++) {
			double p = sim_text_logprob(42, at, k);
			assert_true(p < last);
			last = p;
			for (unsigned j = 0; j < k; j++)
				assert_false(cgn_str_eq(sim_text_alternative(42, at, j),
					sim_text_alternative(42, at, k)));
		}
	}
}

/* The share of right answers falls with the difficulty, and so does how sure they look. */
static void skill_meets_difficulty(void **state)
{
	unsigned right[3] = {0};
	double sure[3] = {0};
	static const double difficulty[] = {0.3, 0.5, 0.7};
	(void)state;
	for (uint64_t prompt = 0; prompt < 2000; prompt++)
		for (unsigned d = 0; d < 3; d++) {
			struct sim_skill s = sim_skill_of(0.5, difficulty[d], prompt, 7);
			right[d] += s.right;
			sure[d] += s.sure / 2000;
		}
	assert_true(right[0] > 1850 && right[1] > 850 && right[1] < 1150 && right[2] < 150);
	assert_true(sure[0] > 0.8 && sure[1] > 0.5 && sure[1] < 0.75 && sure[2] < 0.25);
	for (unsigned k = 1; k < 20; k++)
		assert_true(sim_skill_logprob(0.1, 1, 2, k) < sim_skill_logprob(0.1, 1, 2, k - 1));
	assert_true(sim_skill_logprob(0.9, 1, 2, 0) > sim_skill_logprob(0.1, 1, 2, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_bytes_round_trip),
		cmocka_unit_test(skill_meets_difficulty),
		cmocka_unit_test(tokens_are_word_sized),
		cmocka_unit_test(ids_do_not_collide),
		cmocka_unit_test(foreign_ids_have_no_text),
		cmocka_unit_test(chain_names_prefixes),
		cmocka_unit_test(chain_is_bounded),
		cmocka_unit_test(words_are_deterministic_and_one_token_each),
		cmocka_unit_test(scripts_come_whole_character_by_character),
		cmocka_unit_test(plans_end_for_the_right_reason),
		cmocka_unit_test(stop_strings_cut_the_text),
		cmocka_unit_test(logprobs_are_ordered),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
