/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/kv/slots/slots.h"

struct held {
	int of[256]; /* Holders, by digest */
};

static void note_change(void *user, uint64_t digest, bool held)
{
	struct held *h = user;
	assert_true(digest < CGN_COUNT(h->of));
	h->of[digest] += held ? 1 : -1;
	assert_true(h->of[digest] >= 0);
}

static struct slots *make_slots(size_t n, struct held *h)
{
	struct slots *s = NULL;
	*h = (struct held){{0}};
	s = slots_new(n, note_change, h);
	assert_int_equal(slots_count(s), n);
	return s;
}

static void run_answer(struct slots *s, uint32_t slot, const uint64_t *chain, size_t n)
{
	struct slot_view v = slots_at(s, slot);
	size_t common = 0;
	while (common < n && common < v.n && v.chain[common] == chain[common])
		common++;
	slots_begin(s, slot, common);
	assert_int_equal(slots_at(s, slot).use, SLOT_BUSY);
	assert_int_equal(slots_at(s, slot).n, common);
	slots_prefilled(s, slot, chain, n);
	slots_end(s, slot, (uint32_t)(16 * n), (uint32_t)(16 * n + 5), (uint32_t)(16 * common));
}

static const uint64_t a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {11, 12, 13, 14, 15, 16},
		      c[] = {1, 2, 33, 34, 35, 36};

static void a_conversation_goes_on_where_it_lies(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(2, &h);
	struct slots_pick p = slots_choose(s, a, 6, 1);
	assert_int_equal(p.common, 0);
	assert_false(p.takes);
	run_answer(s, p.slot, a, 6);
	struct slots_pick q = slots_choose(s, b, 6, 1);
	assert_int_not_equal(q.slot, p.slot); /* The empty slot */
	run_answer(s, q.slot, b, 6);
	struct slots_pick again = slots_choose(s, a, 8, 1);
	assert_int_equal(again.slot, p.slot);
	assert_int_equal(again.common, 6);
	assert_false(again.takes);
	for (size_t i = 0; i < 6; i++)
		assert_true(h.of[a[i]] == 1 && h.of[b[i]] == 1);
	slots_free(&s);
	assert_null(s);
	slots_free(&s);
}

static void the_busy_are_not_taken(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(2, &h);
	slots_begin(s, 0, 0);
	assert_int_equal(slots_choose(s, a, 8, 1).slot, 1);
	slots_move(s, 1);
	assert_true(slots_choose(s, a, 8, 1).slot == SLOTS_NONE);
	slots_moved(s, 1);
	assert_int_equal(slots_choose(s, a, 8, 1).slot, 1);
	slots_free(&s);
}

/* Two common blocks do not justify the loss of six blocks of a conversation that was used just now, when an
 * older conversation can be replaced. */
static void a_common_beginning_does_not_cost_a_young_conversation(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(3, &h);
	const uint64_t old[] = {21, 22, 23, 24}, older[] = {25, 26, 27, 28};
	run_answer(s, 0, older, 4);
	run_answer(s, 1, old, 4);
	run_answer(s, 2, a, 8);
	struct slots_pick p = slots_choose(s, c, 6, 1);
	assert_int_equal(p.slot, 0);
	assert_true(p.takes);
	/* Most of the conversation is common, so its slot is chosen. */
	const uint64_t most[] = {1, 2, 3, 4, 5, 6, 99};
	p = slots_choose(s, most, 7, 1);
	assert_int_equal(p.slot, 2);
	assert_int_equal(p.common, 6);
	assert_true(p.takes);
	slots_free(&s);
}

static void a_conversation_that_is_expected_back_is_lost_last(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(3, &h);
	const uint64_t other[] = {50, 51, 52};
	run_answer(s, 0, b, 6);
	run_answer(s, 1, a, 6);
	run_answer(s, 2, c, 6);
	assert_int_equal(slots_choose(s, other, 3, 100).slot, 0); /* Used longest ago. */
	slots_keep(s, 0, 200);
	assert_true(slots_at(s, 0).kept_until == 200);
	assert_int_equal(slots_choose(s, other, 3, 100).slot, 1);
	assert_int_equal(slots_choose(s, other, 3, 200).slot, 0); /* The time is over. */
	slots_keep(s, 0, 1000);
	run_answer(s, 0, b, 6); /* A use ends the keeping. */
	assert_true(slots_at(s, 0).kept_until == 0);
	slots_keep(s, 1, 1000);
	slots_forget(s, 1);
	assert_true(slots_at(s, 1).kept_until == 0);
	slots_free(&s);
}

static void what_the_store_has_is_lost_first(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(2, &h);
	run_answer(s, 0, b, 6);
	run_answer(s, 1, a, 6);
	slots_move(s, 1);
	slots_moved(s, 1);
	slots_stored(s, 1, slots_at(s, 1).used_at - 1, 101); /* The number of an earlier use */
	assert_int_equal(slots_at(s, 1).saved, 0);
	slots_stored(s, 1, slots_at(s, 1).used_at, 101);
	assert_int_equal(slots_at(s, 1).saved, 101);
	const uint64_t other[] = {50, 51, 52};
	assert_int_equal(slots_choose(s, other, 3, 1).slot, 1); /* A quarter of 6 is less than half of 6 */
	slots_free(&s);
}

static void what_is_computed_again_is_lost_at_once(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(1, &h);
	run_answer(s, 0, a, 8);
	slots_begin(s, 0, 2);
	assert_true(h.of[2] == 1 && h.of[3] == 0);
	/* The client left before the prompt was computed: the end carries no numbers. */
	slots_end(s, 0, 0, 0, 0);
	assert_int_equal(slots_at(s, 0).n, 2);
	assert_int_equal(slots_at(s, 0).tokens, 0);
	slots_counted(s, 0, 40);
	slots_counted(s, 0, 50);
	assert_int_equal(slots_at(s, 0).tokens, 40);
	slots_forget(s, 0);
	assert_true(h.of[1] == 0 && slots_at(s, 0).n == 0);
	slots_free(&s);
}

static void a_state_comes_back(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(2, &h);
	slots_move(s, 1);
	slots_restored(s, 1, a, 8, 128, 130);
	struct slot_view v = slots_at(s, 1);
	assert_true(v.use == SLOT_IDLE && v.n == 8 && v.prompt == 128 && v.tokens == 130 && v.saved == 130);
	/* In another turn, the new tokens are not saved. */
	slots_begin(s, 1, 6);
	slots_prefilled(s, 1, a, 8);
	slots_end(s, 1, 130, 170, 96);
	v = slots_at(s, 1);
	assert_true(v.tokens == 170 && v.saved == 96);
	slots_forget_all(s);
	for (size_t i = 0; i < 256; i++)
		assert_int_equal(h.of[i], 0);
	assert_int_equal(slots_at(s, 1).use, SLOT_IDLE);
	slots_free(&s);
}

/* For random sequences of allowed calls, the reported blocks are the sum of the chains. */
static void the_sum_is_kept(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(3, &h);
	uint32_t rng = 7;
	for (int i = 0; i < 20000; i++) {
		uint64_t chain[12];
		rng = rng * 1664525 + 1013904223;
		size_t n = rng >> 16 & 7;
		for (size_t k = 0; k < n; k++)
			chain[k] = k + 12 * (rng >> 24 & 3);
		struct slots_pick p = slots_choose(s, chain, n, 1);
		if (p.slot == SLOTS_NONE || (rng >> 20 & 7) == 0)
			slots_forget_all(s);
		else if ((rng >> 20 & 7) == 1)
			slots_begin(s, p.slot, p.common);
		else if ((rng >> 20 & 7) == 2) {
			slots_move(s, p.slot);
			slots_restored(s, p.slot, chain, n, 8, 9);
		} else
			run_answer(s, p.slot, chain, n);
	}
	int sum = 0, chains = 0;
	for (size_t i = 0; i < CGN_COUNT(h.of); i++)
		sum += h.of[i];
	for (uint32_t i = 0; i < 3; i++)
		chains += (int)slots_at(s, i).n;
	assert_int_equal(sum, chains);
	slots_free(&s);
}

static void pace_is_learned(void **state)
{
	(void)state;
	double pace = 0;
	slots_pace_learn(&pace, 100, 10, 64);
	assert_true(pace == 0); /* Too small a measurement */
	slots_pace_learn(&pace, 100, 1000, 64);
	assert_true(pace > 0.099 && pace < 0.101);
	slots_pace_learn(&pace, 200, 1000, 64);
	assert_true(pace > 0.12 && pace < 0.14);
	slots_pace_learn(&pace, -1, 1000, 64);
	slots_pace_learn(&pace, 0.0 / 1.0, 0, 0);
	assert_true(pace > 0.12 && pace < 0.14);
}

static void a_restore_must_pay(void **state)
{
	(void)state;
	struct slots_pace p = {.prefill_ms = 0};
	/* Nothing is measured yet: try */
	assert_true(slots_restore_pays(&p, 300, 256, 64 << 20, SLOTS_FROM_PEER));
	assert_false(slots_restore_pays(&p, 200, 256, 64 << 20, SLOTS_FROM_RAM));
	assert_false(slots_restore_pays(&p, 0, 0, 1, SLOTS_FROM_RAM));
	p = (struct slots_pace){.prefill_ms = 0.1, .load_ms = 0.5, .fetch_ms = {0.1, 2, 10}};
	/* 1,000 tokens are 100 ms; 64 MiB from RAM 40 ms, from SSD 162, from a peer 674. */
	assert_true(slots_restore_pays(&p, 1000, 256, 64 << 20, SLOTS_FROM_RAM));
	assert_false(slots_restore_pays(&p, 1000, 256, 64 << 20, SLOTS_FROM_SSD));
	assert_false(slots_restore_pays(&p, 1000, 256, 64 << 20, SLOTS_FROM_PEER));
	assert_true(slots_restore_pays(&p, 4000, 256, 64 << 20, SLOTS_FROM_SSD));
	assert_true(slots_restore_ms(&p, 64 << 20, SLOTS_FROM_SSD) > 160);
}

static void a_save_must_pay(void **state)
{
	(void)state;
	struct slots_pace p = {.prefill_ms = 0};
	struct slot_view v = {.use = SLOT_IDLE, .n = 4, .tokens = 1000, .saved = 0};
	assert_true(slots_save_pays(&p, &v, 256));
	v.saved = 900;
	assert_false(slots_save_pays(&p, &v, 256)); /* Hardly any new tokens */
	v.saved = 1000;
	assert_false(slots_save_pays(&p, &v, 0));
	v.saved = 0;
	v.use = SLOT_BUSY;
	assert_false(slots_save_pays(&p, &v, 256));
	v.use = SLOT_IDLE;
	v.n = 0;
	assert_false(slots_save_pays(&p, &v, 256)); /* Without blocks the state can't be found */
	v.n = 4;
	/* A token is 64 KiB, so the state is 62.5 MiB. */
	p = (struct slots_pace){.prefill_ms = 0.2, .token_bytes = 65536, .save_ms = 0.5};
	assert_true(slots_save_pays(&p, &v, 256)); /* 31 ms against 200 ms */
	p.save_ms = 2;
	assert_false(slots_save_pays(&p, &v, 256));
}

static void waiting_for_a_save_pays_when_it_is_shorter_than_the_prompt(void **state)
{
	(void)state;
	struct slots_pace p = {.token_bytes = SLOTS_MIB / 100, .save_ms = 2, .prefill_ms = 0.5};
	assert_false(slots_await_pays(&p, 1000, 0));
	assert_false(slots_await_pays(&p, 1000, 40)); /* 20 ms to save, 20 to compute */
	assert_true(slots_await_pays(&p, 1000, 41));
	p.save_ms = 0;
	assert_true(slots_await_pays(&p, 1000, 1)); /* Not measured */
	assert_false(slots_await_pays(&p, 1000, 0));
}

static void blocks_in_common_are_counted_in_any_use(void **state)
{
	(void)state;
	struct held h;
	struct slots *s = make_slots(2, &h);
	run_answer(s, 1, a, 6);
	assert_int_equal(slots_common(s, 1, a, 8), 6);
	assert_int_equal(slots_common(s, 1, a, 3), 3);
	assert_int_equal(slots_common(s, 1, c, 6), 2);
	assert_int_equal(slots_common(s, 0, a, 8), 0);
	slots_move(s, 1);
	assert_int_equal(slots_common(s, 1, a, 8), 6);
	slots_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_conversation_goes_on_where_it_lies),
		cmocka_unit_test(the_busy_are_not_taken),
		cmocka_unit_test(a_common_beginning_does_not_cost_a_young_conversation),
		cmocka_unit_test(a_conversation_that_is_expected_back_is_lost_last),
		cmocka_unit_test(what_the_store_has_is_lost_first),
		cmocka_unit_test(what_is_computed_again_is_lost_at_once),
		cmocka_unit_test(a_state_comes_back),
		cmocka_unit_test(the_sum_is_kept),
		cmocka_unit_test(pace_is_learned),
		cmocka_unit_test(a_restore_must_pay),
		cmocka_unit_test(a_save_must_pay),
		cmocka_unit_test(waiting_for_a_save_pays_when_it_is_shorter_than_the_prompt),
		cmocka_unit_test(blocks_in_common_are_counted_in_any_use),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
