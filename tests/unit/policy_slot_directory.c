/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/kv/slots/directory.h"

#define RAM BLOCK_TIER_BIT(BLOCK_RAM)
#define SSD BLOCK_TIER_BIT(BLOCK_SSD)

struct held {
	int of[BLOCK_TIERS][512];
};

static void note_change(void *user, uint64_t digest, enum block_tier tier, bool held)
{
	struct held *h = user;
	assert_true(digest < 512);
	h->of[tier][digest] += held ? 1 : -1;
	assert_true(h->of[tier][digest] >= 0);
}

static const uint64_t a[] = {1, 2, 3, 4}, longer[] = {1, 2, 3, 4, 5, 6}, branch[] = {1, 2, 31, 32},
		      sums[] = {9, 9};

static struct slot_entry sample_entry(const uint64_t *chain, size_t n, uint64_t bytes)
{
	return (struct slot_entry){.tokens = (uint32_t)n * 16,
		.prompt = (uint32_t)n * 16,
		.file_bytes = {bytes, 0},
		.sums = sums,
		.chain = chain,
		.n = n};
}

static void put_state(struct slot_directory *s, const struct slot_entry *c, unsigned tiers)
{
	for (uint32_t i = 1; i <= slot_entry_pieces(c); i++)
		assert_false(slot_directory_piece_told(s, slot_entry_id(c), i, tiers));
	assert_true(slot_directory_piece_told(s, slot_entry_id(c), 0, tiers)); /* The entry is wanted */
	assert_true(cgn_ok(slot_directory_add(s, c, NULL)));
}

static uint64_t blocks_found(const struct slot_directory *s, const uint64_t *chain, size_t n)
{
	struct slot_directory_find f = slot_directory_find(s, chain, n);
	return slot_entry_id(&f.entry);
}

static void a_state_counts_when_it_is_whole(void **state)
{
	(void)state;
	struct held h = {{{0}}};
	struct slot_directory *s = slot_directory_new(note_change, &h);
	const struct slot_entry c = sample_entry(a, 4, SLOT_PIECE_BYTES + 1); /* Two pieces */
	assert_true(slot_directory_piece_told(s, 4, 0, RAM));
	assert_true(cgn_ok(slot_directory_add(s, &c, NULL)));
	assert_false(slot_directory_piece_told(s, 4, 1, RAM));
	assert_int_equal(slot_directory_states(s), 0);
	assert_int_equal(slot_directory_find(s, a, 4).common, 0);
	assert_false(slot_directory_piece_told(s, 4, 2, RAM | SSD));
	assert_int_equal(slot_directory_states(s), 1);
	struct slot_directory_find f = slot_directory_find(s, longer, 6);
	assert_true(f.common == 4 && f.tier == BLOCK_RAM && f.entry.n == 4);
	assert_true(h.of[BLOCK_RAM][1] == 1 && h.of[BLOCK_RAM][4] == 1);
	/* A piece moves to SSD, then it is evicted. */
	assert_false(slot_directory_piece_told(s, 4, 1, SSD));
	assert_true(
		slot_directory_find(s, a, 3).tier == BLOCK_SSD && slot_directory_find(s, a, 3).common == 3);
	assert_true(h.of[BLOCK_RAM][1] == 0 && h.of[BLOCK_SSD][1] == 1);
	assert_false(slot_directory_piece_told(s, 4, 1, 0));
	assert_true(slot_directory_states(s) == 0 && h.of[BLOCK_SSD][1] == 0);
	assert_false(slot_directory_piece_told(s, 4, 0, 0));
	assert_false(slot_directory_piece_told(s, 4, 2, 0));
	assert_int_equal(slot_directory_blocks(s), 0);
	/* No store has a piece in GPU memory. */
	assert_false(slot_directory_piece_told(s, 4, 0, BLOCK_TIER_BIT(BLOCK_GPU)));
	slot_directory_free(&s);
	assert_null(s);
	slot_directory_free(&s);
}

static void pieces_that_are_no_longer_part_do_not_count(void **state)
{
	(void)state;
	struct slot_directory *s = slot_directory_new(NULL, NULL);
	const struct slot_entry two = sample_entry(a, 4, SLOT_PIECE_BYTES + 1), one = sample_entry(a, 4, 100);
	put_state(s, &two, RAM);
	assert_true(cgn_ok(slot_directory_add(s, &one, NULL))); /* Put again, with fewer pieces */
	assert_int_equal(slot_directory_states(s), 1);
	assert_false(slot_directory_piece_told(s, 4, 2, 0));
	assert_int_equal(slot_directory_states(s), 1);
	slot_directory_free(&s);
}

static void the_longest_and_nearest_is_found(void **state)
{
	(void)state;
	struct held h = {{{0}}};
	struct slot_directory *s = slot_directory_new(note_change, &h);
	const struct slot_entry ca = sample_entry(a, 4, 100), cl = sample_entry(longer, 6, 50),
				cb = sample_entry(branch, 4, 10);
	put_state(s, &ca, RAM);
	put_state(s, &cl, SSD);
	put_state(s, &cb, SSD);
	assert_true(blocks_found(s, longer, 6) == 6);
	assert_true(blocks_found(s, longer, 4) == 4); /* The state in RAM, though it is larger */
	assert_true(blocks_found(s, branch, 3) == 32);
	assert_true(blocks_found(s, a, 1) == 4);
	(void)slot_directory_piece_told(s, 4, 1, 0);
	assert_true(blocks_found(s, a, 1) == 32); /* The smallest state */
	const uint64_t none[] = {77, 78};
	assert_int_equal(slot_directory_find(s, none, 2).common, 0);
	assert_int_equal(slot_directory_find(s, none, 0).common, 0);
	assert_true(h.of[BLOCK_SSD][1] == 2 && h.of[BLOCK_SSD][5] == 1 && h.of[BLOCK_RAM][1] == 0);
	slot_directory_clear(s);
	for (size_t t = 0; t < BLOCK_TIERS; t++)
		for (size_t i = 0; i < 512; i++)
			assert_int_equal(h.of[t][i], 0);
	assert_true(slot_directory_states(s) == 0 && slot_directory_blocks(s) == 0);
	slot_directory_free(&s);
}

static void a_beginning_is_within(void **state)
{
	(void)state;
	struct slot_directory *s = slot_directory_new(NULL, NULL);
	struct slot_directory_find f;
	const struct slot_entry ca = sample_entry(a, 4, 100), cl = sample_entry(longer, 6, 50),
				cb = sample_entry(branch, 4, 10);
	put_state(s, &ca, RAM);
	put_state(s, &cb, RAM);
	assert_true(slot_directory_find_prefix(s, &cl, &f) && slot_entry_id(&f.entry) == 4 && f.common == 4);
	assert_false(slot_directory_find_prefix(s, &ca, &f));
	assert_false(slot_directory_find_prefix(s, &cb, &f));
	assert_true(slot_directory_get(s, 4, &f) && f.entry.n == 4 && f.tier == BLOCK_RAM);
	assert_false(slot_directory_get(s, 6, &f)); /* Not in the store. */
	slot_directory_free(&s);
}

static void many_states_are_found(void **state)
{
	(void)state;
	struct slot_directory *s = slot_directory_new(NULL, NULL);
	uint64_t chain[100];
	for (uint64_t i = 0; i < 2000; i++) { /* More blocks than initial buckets */
		for (uint64_t k = 0; k < 100; k++)
			chain[k] = (i + 1) * 1000 + k;
		const struct slot_entry c = sample_entry(chain, 100, 10);
		put_state(s, &c, RAM);
	}
	assert_true(slot_directory_states(s) == 2000 && slot_directory_blocks(s) == 200000);
	for (uint64_t i = 0; i < 2000; i++) {
		for (uint64_t k = 0; k < 100; k++)
			chain[k] = (i + 1) * 1000 + k;
		assert_int_equal(slot_directory_find(s, chain, 1 + i % 100).common, 1 + i % 100);
		assert_false(slot_directory_piece_told(s, chain[99], 1, 0));
		assert_false(slot_directory_piece_told(s, chain[99], 0, 0));
	}
	assert_true(slot_directory_states(s) == 0 && slot_directory_blocks(s) == 0);
	slot_directory_free(&s);
}

static void out_of_bounds_is_not_kept(void **state)
{
	(void)state;
	struct slot_directory *s = slot_directory_new(NULL, NULL);
	assert_false(slot_directory_piece_told(s, 1, SLOT_ENTRY_MAX_PIECES + 1, RAM));
	for (uint64_t i = 0; i < SLOT_DIRECTORY_MAX_STATES + 10; i++)
		assert_true(slot_directory_piece_told(s, i + 1, 0, RAM) == (i < SLOT_DIRECTORY_MAX_STATES));
	const struct slot_entry c = sample_entry(branch, 4, 10);
	assert_true(cgn_ok(slot_directory_add(s, &c, NULL))); /* Replaces one of the 32 states */
	const uint64_t high[] = {UINT64_MAX};
	const struct slot_entry beyond = sample_entry(high, 1, 10);
	assert_false(cgn_ok(slot_directory_add(s, &beyond, NULL)));
	slot_directory_free(&s);
}

/* Two engines with the same fingerprint share a store: a state of the other engine has the same key and
 * replaces the first one. */
static void an_entry_that_is_put_again_is_read_again(void **state)
{
	(void)state;
	struct held h = {{{0}}};
	struct slot_directory *s = slot_directory_new(note_change, &h);
	const uint64_t theirs[] = {5};
	const struct slot_entry ours = sample_entry(a, 4, 100);
	struct slot_entry other = ours;
	other.sums = theirs;
	put_state(s, &ours, RAM);
	assert_false(slot_directory_piece_told(s, 4, 1, 0)); /* The piece is removed before the entry */
	assert_false(slot_directory_piece_told(s, 4, 1, RAM));
	assert_int_equal(slot_directory_states(s), 1);
	assert_false(slot_directory_piece_told(s, 4, 0, 0));
	assert_true(
		slot_directory_states(s) == 0 && slot_directory_blocks(s) == 0 && h.of[BLOCK_RAM][1] == 0);
	/* Wanted again, though an entry was known before */
	assert_true(slot_directory_piece_told(s, 4, 0, RAM));
	assert_int_equal(slot_directory_states(s), 0);
	assert_true(cgn_ok(slot_directory_add(s, &other, NULL)));
	struct slot_directory_find f = slot_directory_find(s, a, 4);
	assert_true(f.common == 4 && f.entry.sums[0] == 5 && h.of[BLOCK_RAM][1] == 1);
	assert_false(slot_directory_piece_told(s, 4, 0, SSD)); /* The entry moved to another tier */
	assert_int_equal(slot_directory_states(s), 1);
	slot_directory_free(&s);
}

static void state_take(struct slot_directory *s, uint64_t id)
{
	for (uint32_t piece = 0; piece < 2; piece++)
		(void)slot_directory_piece_told(s, id, piece, 0);
}

/* The first goes first, so that others move. A chain with one block several times is the store's mistake. */
static void states_go_in_any_order(void **state)
{
	(void)state;
	const uint64_t same[] = {7, 7, 7};
	struct held h = {{{0}}};
	struct slot_directory *s = slot_directory_new(note_change, &h);
	const struct slot_entry short_one = sample_entry(a, 4, 100), long_one = sample_entry(longer, 6, 100),
				other = sample_entry(branch, 4, 100), odd = sample_entry(same, 3, 100);
	put_state(s, &short_one, RAM);
	put_state(s, &odd, RAM);
	put_state(s, &long_one, RAM);
	put_state(s, &other, RAM);
	assert_int_equal(slot_directory_blocks(s), 17);
	state_take(s, 4);
	assert_int_equal(slot_directory_find(s, a, 4).entry.n, 6);
	assert_int_equal(blocks_found(s, branch, 4), 32);
	assert_int_equal(slot_directory_find(s, same, 3).common, 3);
	state_take(s, 7);
	assert_int_equal(slot_directory_find(s, same, 3).common, 0);
	assert_int_equal(slot_directory_find(s, longer, 6).common, 6);
	state_take(s, 6);
	assert_int_equal(slot_directory_find(s, longer, 6).common, 2);
	assert_int_equal(slot_directory_blocks(s), 4);
	state_take(s, 32);
	assert_true(slot_directory_blocks(s) == 0 && slot_directory_states(s) == 0);
	for (size_t i = 0; i < CGN_COUNT(h.of[BLOCK_RAM]); i++)
		assert_int_equal(h.of[BLOCK_RAM][i], 0);
	slot_directory_free(&s);
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
		cmocka_unit_test(an_entry_that_is_put_again_is_read_again),
		cmocka_unit_test(states_go_in_any_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
