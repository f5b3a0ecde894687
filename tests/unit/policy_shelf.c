/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/slots/shelf.h"

#define RAM KV_TIER_BIT(KV_RAM)
#define SSD KV_TIER_BIT(KV_SSD)

struct held {
	int of[KV_TIERS][512];
};

static void note(void *user, uint64_t digest, enum kv_tier tier, bool held)
{
	struct held *h = user;
	assert_true(digest < 512);
	h->of[tier][digest] += held ? 1 : -1;
	assert_true(h->of[tier][digest] >= 0);
}

static const uint64_t a[] = {1, 2, 3, 4}, longer[] = {1, 2, 3, 4, 5, 6}, branch[] = {1, 2, 31, 32},
		      sums[] = {9, 9};

static struct card card_of(const uint64_t *chain, size_t n, uint64_t bytes)
{
	return (struct card){.tokens = (uint32_t)n * 16,
		.prompt = (uint32_t)n * 16,
		.file_bytes = {bytes, 0},
		.sums = sums,
		.chain = chain,
		.n = n};
}

static void put(struct shelf *s, const struct card *c, unsigned tiers)
{
	for (uint32_t i = 1; i <= card_pieces(c); i++)
		assert_false(shelf_told(s, card_id(c), i, tiers));
	assert_true(shelf_told(s, card_id(c), 0, tiers)); /* wants the card */
	assert_true(cgn_ok(shelf_card(s, c, NULL)));
}

static uint64_t found(const struct shelf *s, const uint64_t *chain, size_t n)
{
	struct shelf_find f = shelf_find(s, chain, n);
	return card_id(&f.card);
}

static void a_state_counts_when_it_is_whole(void **state)
{
	(void)state;
	struct held h = {{{0}}};
	struct shelf *s = NULL;
	assert_true(cgn_ok(shelf_new(note, &h, &s, NULL)));
	const struct card c = card_of(a, 4, CARD_PIECE + 1); /* two pieces */
	assert_true(shelf_told(s, 4, 0, RAM));
	assert_true(cgn_ok(shelf_card(s, &c, NULL)));
	assert_false(shelf_told(s, 4, 1, RAM));
	assert_int_equal(shelf_states(s), 0);
	assert_int_equal(shelf_find(s, a, 4).common, 0);
	assert_false(shelf_told(s, 4, 2, RAM | SSD));
	assert_int_equal(shelf_states(s), 1);
	struct shelf_find f = shelf_find(s, longer, 6);
	assert_true(f.common == 4 && f.tier == KV_RAM && f.card.n == 4);
	assert_true(h.of[KV_RAM][1] == 1 && h.of[KV_RAM][4] == 1);
	/* A piece goes to SSD, then away. */
	assert_false(shelf_told(s, 4, 1, SSD));
	assert_true(shelf_find(s, a, 3).tier == KV_SSD && shelf_find(s, a, 3).common == 3);
	assert_true(h.of[KV_RAM][1] == 0 && h.of[KV_SSD][1] == 1);
	assert_false(shelf_told(s, 4, 1, 0));
	assert_true(shelf_states(s) == 0 && h.of[KV_SSD][1] == 0);
	assert_false(shelf_told(s, 4, 0, 0));
	assert_false(shelf_told(s, 4, 2, 0));
	assert_int_equal(shelf_blocks(s), 0);
	shelf_free(&s);
	assert_null(s);
	shelf_free(&s);
}

static void pieces_that_are_no_longer_part_do_not_count(void **state)
{
	(void)state;
	struct shelf *s = NULL;
	assert_true(cgn_ok(shelf_new(NULL, NULL, &s, NULL)));
	const struct card two = card_of(a, 4, CARD_PIECE + 1), one = card_of(a, 4, 100);
	put(s, &two, RAM);
	assert_true(cgn_ok(shelf_card(s, &one, NULL))); /* put again, and shorter */
	assert_int_equal(shelf_states(s), 1);
	assert_false(shelf_told(s, 4, 2, 0));
	assert_int_equal(shelf_states(s), 1);
	shelf_free(&s);
}

static void the_longest_and_nearest_is_found(void **state)
{
	(void)state;
	struct held h = {{{0}}};
	struct shelf *s = NULL;
	assert_true(cgn_ok(shelf_new(note, &h, &s, NULL)));
	const struct card ca = card_of(a, 4, 100), cl = card_of(longer, 6, 50), cb = card_of(branch, 4, 10);
	put(s, &ca, RAM);
	put(s, &cl, SSD);
	put(s, &cb, SSD);
	assert_true(found(s, longer, 6) == 6);
	assert_true(found(s, longer, 4) == 4); /* in RAM, though larger */
	assert_true(found(s, branch, 3) == 32);
	assert_true(found(s, a, 1) == 4);
	(void)shelf_told(s, 4, 1, 0);
	assert_true(found(s, a, 1) == 32); /* the smallest */
	const uint64_t none[] = {77, 78};
	assert_int_equal(shelf_find(s, none, 2).common, 0);
	assert_int_equal(shelf_find(s, none, 0).common, 0);
	assert_true(h.of[KV_SSD][1] == 2 && h.of[KV_SSD][5] == 1 && h.of[KV_RAM][1] == 0);
	shelf_clear(s);
	for (size_t t = 0; t < KV_TIERS; t++)
		for (size_t i = 0; i < 512; i++)
			assert_int_equal(h.of[t][i], 0);
	assert_true(shelf_states(s) == 0 && shelf_blocks(s) == 0);
	shelf_free(&s);
}

static void a_beginning_is_within(void **state)
{
	(void)state;
	struct shelf *s = NULL;
	struct shelf_find f;
	assert_true(cgn_ok(shelf_new(NULL, NULL, &s, NULL)));
	const struct card ca = card_of(a, 4, 100), cl = card_of(longer, 6, 50), cb = card_of(branch, 4, 10);
	put(s, &ca, RAM);
	put(s, &cb, RAM);
	assert_true(shelf_within(s, &cl, &f) && card_id(&f.card) == 4 && f.common == 4);
	assert_false(shelf_within(s, &ca, &f));
	assert_false(shelf_within(s, &cb, &f));
	shelf_free(&s);
}

static void many_states_are_found(void **state)
{
	(void)state;
	struct shelf *s = NULL;
	uint64_t chain[100];
	assert_true(cgn_ok(shelf_new(NULL, NULL, &s, NULL)));
	for (uint64_t i = 0; i < 2000; i++) { /* more blocks than buckets, at first */
		for (uint64_t k = 0; k < 100; k++)
			chain[k] = (i + 1) * 1000 + k;
		const struct card c = card_of(chain, 100, 10);
		put(s, &c, RAM);
	}
	assert_true(shelf_states(s) == 2000 && shelf_blocks(s) == 200000);
	for (uint64_t i = 0; i < 2000; i++) {
		for (uint64_t k = 0; k < 100; k++)
			chain[k] = (i + 1) * 1000 + k;
		assert_int_equal(shelf_find(s, chain, 1 + i % 100).common, 1 + i % 100);
		assert_false(shelf_told(s, chain[99], 1, 0));
		assert_false(shelf_told(s, chain[99], 0, 0));
	}
	assert_true(shelf_states(s) == 0 && shelf_blocks(s) == 0);
	shelf_free(&s);
}

static void out_of_bounds_is_not_kept(void **state)
{
	(void)state;
	struct shelf *s = NULL;
	assert_true(cgn_ok(shelf_new(NULL, NULL, &s, NULL)));
	assert_false(shelf_told(s, 1, CARD_MAX_PIECES + 1, RAM));
	for (uint64_t i = 0; i < SHELF_MAX_STATES + 10; i++)
		assert_true(shelf_told(s, i + 1, 0, RAM) == (i < SHELF_MAX_STATES));
	const struct card c = card_of(branch, 4, 10);
	assert_true(cgn_ok(shelf_card(s, &c, NULL))); /* 32 is one of them */
	const uint64_t high[] = {UINT64_MAX};
	const struct card beyond = card_of(high, 1, 10);
	assert_false(cgn_ok(shelf_card(s, &beyond, NULL)));
	shelf_free(&s);
}

/* Two engines of a kind share a store: the other one's turn of the conversation has the same key, and is
 * another state. */
static void a_card_that_is_put_again_is_read_again(void **state)
{
	(void)state;
	struct held h = {{{0}}};
	struct shelf *s = NULL;
	const uint64_t theirs[] = {5};
	assert_true(cgn_ok(shelf_new(note, &h, &s, NULL)));
	const struct card ours = card_of(a, 4, 100);
	struct card other = ours;
	other.sums = theirs;
	put(s, &ours, RAM);
	assert_false(shelf_told(s, 4, 1, 0)); /* the piece, then the card */
	assert_false(shelf_told(s, 4, 1, RAM));
	assert_int_equal(shelf_states(s), 1);
	assert_false(shelf_told(s, 4, 0, 0));
	assert_true(shelf_states(s) == 0 && shelf_blocks(s) == 0 && h.of[KV_RAM][1] == 0);
	assert_true(shelf_told(s, 4, 0, RAM)); /* wanted, though there was one */
	assert_int_equal(shelf_states(s), 0);
	assert_true(cgn_ok(shelf_card(s, &other, NULL)));
	struct shelf_find f = shelf_find(s, a, 4);
	assert_true(f.common == 4 && f.card.sums[0] == 5 && h.of[KV_RAM][1] == 1);
	assert_false(shelf_told(s, 4, 0, SSD)); /* it only moved */
	assert_int_equal(shelf_states(s), 1);
	shelf_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_state_counts_when_it_is_whole),
		cmocka_unit_test(pieces_that_are_no_longer_part_do_not_count),
		cmocka_unit_test(the_longest_and_nearest_is_found),
		cmocka_unit_test(a_beginning_is_within),
		cmocka_unit_test(many_states_are_found),
		cmocka_unit_test(out_of_bounds_is_not_kept),
		cmocka_unit_test(a_card_that_is_put_again_is_read_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
