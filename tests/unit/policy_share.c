/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "base/mix/mix.h"
#include "policy/who/share/share.h"

static void assert_row(struct share_row r, uint32_t inflight, uint64_t queued, uint32_t decoding)
{
	assert_int_equal(r.inflight, inflight);
	assert_true(r.queued_tokens == queued);
	assert_int_equal(r.decoding, decoding);
}

static void what_one_router_has_is_told_apart(void **state)
{
	(void)state;
	struct share s = {0};
	struct share_ticket a = {0}, b = {0}, c = {0};
	share_enter(&s, 7, 100, &a);
	share_enter(&s, 7, 20, &b);
	share_enter(&s, 9, 3000, &c);
	assert_row(s.all, 3, 3120, 0);
	assert_row(share_of(&s, 7), 2, 120, 0);
	assert_row(share_of(&s, 9), 1, 3000, 0);
	share_begun(&s, &a);
	share_begun(&s, &a); /* A second call does nothing. */
	assert_row(s.all, 3, 3020, 1);
	assert_row(share_of(&s, 7), 2, 20, 1);
	share_leave(&s, &c); /* Before its first byte: the client left, or the router died. */
	assert_row(s.all, 2, 20, 1);
	assert_row(share_of(&s, 9), 0, 0, 0);
	share_leave(&s, &a);
	share_leave(&s, &a);
	assert_row(share_of(&s, 7), 1, 20, 0);
	share_leave(&s, &b);
	assert_row(s.all, 0, 0, 0);
	assert_row(share_of(&s, 7), 0, 0, 0);
	share_begun(&s, &b); /* Nothing is counted any more. */
	assert_row(s.all, 0, 0, 0);
}

static void whole_answers_are_told_apart_until_their_first_byte(void **state)
{
	(void)state;
	struct share s = {0};
	struct share_ticket a = {0}, b = {0}, c = {0};
	share_enter(&s, 7, 100, &a);
	share_enter(&s, 7, 100, &b);
	share_enter(&s, 0, 100, &c);
	share_whole(&s, &a, 5000);
	share_whole(&s, &c, 1000);
	assert_true(s.all.wholes == 2 && share_of(&s, 7).wholes == 1);
	share_begun(&s, &a);
	share_leave(&s, &c);
	assert_true(s.all.wholes == 0 && share_of(&s, 7).wholes == 0 && s.all.inflight == 2);
	share_leave(&s, &a);
	share_leave(&s, &b);
	assert_true(s.all.whole_us == 6000 && s.all.wholes == 0); /* A sum of what came. */
}

static void an_unknown_router_counts_for_all(void **state)
{
	(void)state;
	struct share s = {0};
	struct share_ticket t = {0};
	share_enter(&s, 0, 5, &t);
	assert_row(s.all, 1, 5, 0);
	assert_row(share_of(&s, 0), 0, 0, 0);
	share_begun(&s, &t);
	share_leave(&s, &t);
	assert_row(s.all, 0, 0, 0);
}

static void rows_are_bounded_and_given_back(void **state)
{
	(void)state;
	struct share s = {0};
	struct share_ticket t[SHARE_ROUTERS + 1] = {{0}}, again = {0};
	for (uint64_t i = 0; i <= SHARE_ROUTERS; i++)
		share_enter(&s, i + 1, 1, &t[i]);
	assert_row(s.all, SHARE_ROUTERS + 1, SHARE_ROUTERS + 1, 0);
	assert_row(share_of(&s, SHARE_ROUTERS), 1, 1, 0);
	assert_row(share_of(&s, SHARE_ROUTERS + 1), 0, 0,
		0); /* There was no row: the request is in |all| alone. */
	share_leave(&s, &t[3]);
	share_enter(&s, 1000, 8, &again);
	assert_row(share_of(&s, 1000), 1, 8, 0);
	share_begun(&s, &t[SHARE_ROUTERS]);
	share_leave(&s, &t[SHARE_ROUTERS]);
	for (size_t i = 0; i < SHARE_ROUTERS; i++)
		share_leave(&s, &t[i]);
	share_leave(&s, &again);
	assert_row(s.all, 0, 0, 0);
	for (size_t i = 0; i < SHARE_ROUTERS; i++)
		assert_true(s.rows[i].router == 0);
}

/* Against a plain account, over random orders. */
static void sums_stay_true(void **state)
{
	(void)state;
	enum { CALLS = 200, ROUTERS = 5 };
	struct share s = {0};
	struct share_ticket t[CALLS] = {{0}};
	uint64_t of[CALLS] = {0}, rng = 42;
	uint32_t tokens[CALLS] = {0};
	for (int step = 0; step < 20000; step++) {
		(void)mix_lcg(&rng);
		size_t i = (size_t)(rng >> 33) % CALLS;
		if (!t[i].counted) {
			of[i] = (rng >> 20) % ROUTERS; /* 0 is drawn too. */
			tokens[i] = (uint32_t)(rng >> 40) & 0xfff;
			share_enter(&s, of[i], tokens[i], &t[i]);
		} else if (!t[i].begun && (rng >> 50 & 1) != 0) {
			share_begun(&s, &t[i]);
		} else {
			share_leave(&s, &t[i]);
		}
		struct share_row want[ROUTERS] = {{0}}, all = {0};
		for (size_t k = 0; k < CALLS; k++) {
			if (!t[k].counted)
				continue;
			struct share_row *rows[] = {&all, &want[of[k]]};
			for (size_t r = 0; r < 2; r++) {
				rows[r]->inflight++;
				rows[r]->decoding += t[k].begun;
				rows[r]->queued_tokens += t[k].begun ? 0 : tokens[k];
			}
		}
		assert_row(s.all, all.inflight, all.queued_tokens, all.decoding);
		for (uint64_t r = 1; r < ROUTERS; r++)
			assert_row(share_of(&s, r), want[r].inflight, want[r].queued_tokens,
				want[r].decoding);
	}
}

static uint32_t foreign_of(struct share_peak *p, uint64_t in_engine, uint32_t inflight)
{
	uint32_t f = share_foreign(p, in_engine);
	share_peak_next(p, inflight);
	return f;
}

static void what_engines_have_beyond_is_foreign(void **state)
{
	(void)state;
	struct share_peak p = {0};
	assert_int_equal(foreign_of(&p, 3, 0), 0); /* A single excess may be chance. */
	assert_int_equal(foreign_of(&p, 3, 0), 3);
	assert_int_equal(foreign_of(&p, 1, 0), 1);
	assert_int_equal(foreign_of(&p, 5, 0), 1);
	share_peak_note(&p, 4);
	share_peak_note(&p, 1);
	assert_int_equal(foreign_of(&p, 5, 1), 1);
	/* Three relayed requests ended, and the engine may not have reported it yet. */
	assert_int_equal(foreign_of(&p, 4, 0), 0);
	assert_int_equal(foreign_of(&p, UINT64_MAX, 0), 0);
	assert_int_equal(foreign_of(&p, UINT64_MAX, 0), UINT32_MAX);
}

static void requests_aside_are_in_flight_alone(void **state)
{
	(void)state;
	struct share s = {0};
	struct share_ticket a = {0}, b = {0};
	share_enter(&s, 7, 0, &a);
	share_aside(&s, &a);
	share_enter(&s, 7, 50, &b);
	share_begun(&s, &a);
	assert_int_equal(s.all.asides, 1);
	assert_int_equal(s.all.inflight, 2);
	assert_int_equal(s.all.decoding, 0);
	assert_int_equal(share_of(&s, 7).asides, 1);
	share_leave(&s, &a);
	assert_int_equal(s.all.asides, 0);
	assert_int_equal(s.all.inflight, 1);
	assert_int_equal(s.all.queued_tokens, 50);
	assert_int_equal(share_of(&s, 7).asides, 0);
	share_leave(&s, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_router_has_is_told_apart),
		cmocka_unit_test(whole_answers_are_told_apart_until_their_first_byte),
		cmocka_unit_test(requests_aside_are_in_flight_alone),
		cmocka_unit_test(an_unknown_router_counts_for_all),
		cmocka_unit_test(rows_are_bounded_and_given_back),
		cmocka_unit_test(sums_stay_true),
		cmocka_unit_test(what_engines_have_beyond_is_foreign),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
