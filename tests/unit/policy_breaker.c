/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/node/breaker/breaker.h"
#include "policy/node/breaker/budget.h"
#include "policy/node/breaker/pulse.h"

#define T0 (1000 * CGN_SEC)

static const struct breaker_rules rules = {.failures = 3, .open_for = 10 * CGN_SEC};

static uint64_t breaker_after(uint64_t w, enum breaker_event ev, cgn_nsec now)
{
	const struct breaker_input in = {.event = ev, .reason = BREAKER_FOR_STALL, .now = now};
	return breaker_step(w, &rules, &in);
}

/* An event at a second, and the state after it. */
struct row {
	unsigned at_s;
	enum breaker_event event;
	enum breaker_state state;
	enum breaker_gate gate;
	unsigned left_s;
};

static void play_rows(const struct row *rows, size_t n)
{
	uint64_t w = 0;
	for (size_t i = 0; i < n; i++) {
		cgn_nsec now = T0 + rows[i].at_s * CGN_SEC;
		w = breaker_after(w, rows[i].event, now);
		if (breaker_state(w, now) != rows[i].state || breaker_gate(w, now) != rows[i].gate ||
			breaker_left(w, now) != rows[i].left_s * CGN_SEC)
			fail_msg("row %zu: state %d gate %d left %llu ms", i, breaker_state(w, now),
				breaker_gate(w, now), (unsigned long long)(breaker_left(w, now) / CGN_MSEC));
	}
}
#define PLAY(...)                                    \
	play_rows((const struct row[]){__VA_ARGS__}, \
		sizeof((const struct row[]){__VA_ARGS__}) / sizeof(struct row))

#define CLOSED  BREAKER_CLOSED, BREAKER_PASS, 0
#define OPEN(s) BREAKER_OPEN, BREAKER_SHUT, s
#define WAITING BREAKER_HALF_OPEN, BREAKER_PROBE, 0
#define PROBING BREAKER_HALF_OPEN, BREAKER_SHUT, 0

static void failures_in_a_row_open_it(void **state)
{
	(void)state;
	PLAY({0, BREAKER_FAILED, CLOSED}, {0, BREAKER_FAILED, CLOSED}, {1, BREAKER_OK, CLOSED},
		{1, BREAKER_FAILED, CLOSED}, {1, BREAKER_FAILED, CLOSED}, {2, BREAKER_FAILED, OPEN(10)},
		{3, BREAKER_OK, OPEN(9)} /* An attempt from before the breaker opened. */,
		{4, BREAKER_FAILED, OPEN(8)}, {5, BREAKER_TRIP, OPEN(7)} /* The breaker is open already. */,
		{11, BREAKER_CLAIM, OPEN(1)});
}

static void one_probe_at_a_time_closes_or_reopens_it(void **state)
{
	(void)state;
	PLAY({0, BREAKER_TRIP, OPEN(10)}, {10, BREAKER_OK, WAITING}, {10, BREAKER_CLAIM, PROBING},
		{10, BREAKER_CLAIM, PROBING}, {11, BREAKER_PROBE_LEFT, WAITING}, {11, BREAKER_CLAIM, PROBING},
		{12, BREAKER_FAILED, PROBING} /* An attempt from before the probe. */,
		{12, BREAKER_PROBE_BAD, OPEN(20)}, {32, BREAKER_CLAIM, PROBING},
		{33, BREAKER_PROBE_OK, CLOSED}, {33, BREAKER_PROBE_LEFT, CLOSED}, {34, BREAKER_CLAIM, CLOSED},
		{34, BREAKER_FAILED, CLOSED});
}

static void a_probe_whose_verdict_got_lost_is_given_up(void **state)
{
	(void)state;
	PLAY({0, BREAKER_TRIP, OPEN(10)}, {10, BREAKER_CLAIM, PROBING}, {309, BREAKER_CLAIM, PROBING},
		{310, BREAKER_OK, WAITING}, {310, BREAKER_CLAIM, PROBING}, {609, BREAKER_PROBE_BAD, OPEN(20)},
		{629, BREAKER_CLAIM, PROBING}, {900, BREAKER_PROBE_LEFT, WAITING},
		{901, BREAKER_CLAIM, PROBING}, {1500, BREAKER_PROBE_OK, CLOSED});
}

static void trouble_that_returns_soon_lasts_longer(void **state)
{
	(void)state;
	PLAY({0, BREAKER_TRIP, OPEN(10)}, {10, BREAKER_CLAIM, PROBING}, {10, BREAKER_PROBE_OK, CLOSED},
		{29, BREAKER_TRIP, OPEN(20)}, {49, BREAKER_CLAIM, PROBING}, {49, BREAKER_TRIP, OPEN(40)},
		{89, BREAKER_CLAIM, PROBING}, {89, BREAKER_PROBE_OK, CLOSED},
		{169, BREAKER_TRIP, OPEN(10)} /* Twice the 40 s were quiet. */);
}

static void a_hint_or_a_success_needs_no_waiting(void **state)
{
	(void)state;
	PLAY({0, BREAKER_HINT, CLOSED}, {0, BREAKER_TRIP, OPEN(10)}, {1, BREAKER_HINT, WAITING},
		{1, BREAKER_CLAIM, PROBING}, {1, BREAKER_HINT, PROBING}, {2, BREAKER_PROBE_BAD, OPEN(20)},
		{3, BREAKER_PROBE_BAD, OPEN(19)} /* Sent although the breaker was open. */,
		{4, BREAKER_PROBE_OK, CLOSED});
}

static void a_breaker_is_open_for_five_minutes_at_most_and_never_shorter_than_asked(void **state)
{
	(void)state;
	for (unsigned j = 0; j <= 4; j++) {
		uint64_t w = 0;
		cgn_nsec now = T0, last = 0;
		for (unsigned i = 0; i < 40; i++) {
			struct breaker_input in = {.event = i == 0 ? BREAKER_TRIP : BREAKER_PROBE_BAD,
				.now = now,
				.jitter = j / 4.0};
			w = breaker_step(w, &rules, &in);
			cgn_nsec left = breaker_left(w, now);
			assert_true(
				left >= last && left <= BREAKER_OPEN_MAX + BREAKER_OPEN_MAX / 4 + CGN_MSEC);
			assert_true(left >= rules.open_for);
			last = left;
			now += left;
			w = breaker_after(w, BREAKER_CLAIM, now);
			assert_int_equal(breaker_gate(w, now), BREAKER_SHUT);
		}
		assert_true(last >= BREAKER_OPEN_MAX);
	}
}

static void zero_failures_never_open_it_and_long_ones_are_kept(void **state)
{
	(void)state;
	const struct breaker_rules never = {0, CGN_SEC}, longest = {1, 400 * CGN_SEC};
	struct breaker_input in = {.event = BREAKER_FAILED, .now = T0};
	uint64_t w = 0;
	for (int i = 0; i < 1000; i++)
		w = breaker_step(w, &never, &in);
	assert_int_equal(breaker_state(w, T0), BREAKER_CLOSED);
	w = breaker_step(0, &longest, &in);
	assert_true(breaker_left(w, T0) == 400 * CGN_SEC);
}

static void texts_say_why(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	uint64_t w = 0;
#define SAYS(now, text) (cgn_buf_fini(&b), breaker_text(w, now, &b), assert_string_equal(cgn_buf_z(&b), text))
	SAYS(T0, "closed");
	w = breaker_after(w, BREAKER_FAILED, T0);
	SAYS(T0, "closed: 1 failure in a row");
	w = breaker_after(breaker_after(w, BREAKER_FAILED, T0), BREAKER_FAILED, T0);
	SAYS(T0 + 1500 * CGN_MSEC, "open: 3 failures, 9 s left");
	SAYS(T0 + 10 * CGN_SEC, "half-open: waits for a request");
	w = breaker_after(w, BREAKER_CLAIM, T0 + 10 * CGN_SEC);
	SAYS(T0 + 10 * CGN_SEC, "half-open: a request is trying it");
	w = breaker_after(0, BREAKER_TRIP, T0);
	SAYS(T0, "open: stalled, 10 s left");
	assert_int_equal(breaker_why(w), BREAKER_FOR_STALL);
	assert_true(breaker_badness(w) > breaker_badness(breaker_after(0, BREAKER_FAILED, T0)));
	cgn_buf_fini(&b);
}

static void changes_are_told_once(void **state)
{
	(void)state;
	breaker_word w = 0;
	struct breaker_input trip = {.event = BREAKER_TRIP, .reason = BREAKER_FOR_ERRORS, .now = T0};
	struct breaker_change c = breaker_apply(&w, &rules, &trip);
	assert_true(breaker_opened(&c) && !breaker_closed(&c));
	c = breaker_apply(&w, &rules, &trip);
	assert_true(c.was == c.is && !breaker_opened(&c));
	struct breaker_input claim = {.event = BREAKER_CLAIM, .now = T0 + 10 * CGN_SEC};
	c = breaker_apply(&w, &rules, &claim);
	assert_true(c.was != c.is && !breaker_opened(&c) && !breaker_closed(&c));
	struct breaker_input left = {.event = BREAKER_PROBE_LEFT, .now = T0 + 10 * CGN_SEC};
	c = breaker_apply(&w, &rules, &left);
	assert_false(breaker_opened(&c));
	(void)breaker_apply(&w, &rules, &claim);
	struct breaker_input bad = {.event = BREAKER_PROBE_BAD, .now = T0 + 10 * CGN_SEC};
	c = breaker_apply(&w, &rules, &bad);
	assert_true(breaker_opened(&c));
	struct breaker_input good = {.event = BREAKER_PROBE_OK, .now = T0 + 31 * CGN_SEC};
	assert_int_equal(breaker_why(w),
		BREAKER_FOR_ERRORS); /* The failed probe opened it for the same reason. */
	c = breaker_apply(&w, &rules, &good);
	assert_true(breaker_closed(&c));
	assert_int_equal(breaker_why(w), BREAKER_FOR_NOTHING);
}

static uint64_t random_of(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* For any events in any order: never two probes, never open for ever, never opened by one failure. */
static void whatever_happens_it_stays_sound(void **state)
{
	(void)state;
	uint64_t w = 0, dice = 88172645463325252ULL;
	cgn_nsec now = T0;
	bool out = false;
	for (int i = 0; i < 300000; i++) {
		now += random_of(&dice) % (4 * CGN_SEC);
		struct breaker_input in = {.event = (enum breaker_event)(random_of(&dice) % 8),
			.reason = BREAKER_FOR_SHARE,
			.now = now,
			.jitter = (double)(random_of(&dice) % 100) / 100};
		bool ends = in.event == BREAKER_PROBE_OK || in.event == BREAKER_PROBE_BAD ||
			in.event == BREAKER_PROBE_LEFT;
		if (ends && !out)
			continue;
		uint64_t is = breaker_step(w, &rules, &in);
		if (in.event == BREAKER_CLAIM && is != w) {
			assert_false(out && breaker_state(w, now) == BREAKER_HALF_OPEN &&
				breaker_gate(w, now) != BREAKER_PROBE);
			out = true;
		} else if (ends || in.event == BREAKER_TRIP) {
			out = false; /* Tripped: the probe's result no longer matters. */
		}
		w = is;
		assert_true(breaker_left(w, now) <= BREAKER_OPEN_MAX * 5 / 4 + CGN_MSEC);
		assert_int_equal(breaker_gate(w, now) == BREAKER_PASS,
			breaker_state(w, now) == BREAKER_CLOSED);
	}
}

static void words_of_retry_on(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	breaker_failure_words(&b);
	assert_string_equal(cgn_buf_z(&b), "connect, reset, 5xx, error, refused, 429, timeout, stall, local");
	cgn_buf_fini(&b);
	assert_int_equal(breaker_failure_bit("connect"), 1U << BREAKER_CONNECT);
	assert_int_equal(breaker_failure_bit("429"), 1U << BREAKER_FULL);
	assert_int_equal(breaker_failure_bit("cut"), 0); /* A cut answer is too late for a retry. */
	assert_int_equal(breaker_failure_bit(""), 0);
	assert_false(breaker_failure_counts(BREAKER_FULL));
	assert_false(breaker_failure_counts(BREAKER_OURS));
	assert_true(breaker_failure_counts(BREAKER_CUT));
}

/* ---- budget ---- */

static void a_quiet_router_may_always_retry(void **state)
{
	(void)state;
	struct retry_budget b = {0};
	for (int i = 0; i < BUDGET_RESERVE; i++)
		assert_true(retry_budget_take(&b, T0));
	assert_false(retry_budget_take(&b, T0));
	assert_true(retry_budget_take(&b, T0 + CGN_SEC));
}

static void an_outage_is_not_amplified(void **state)
{
	(void)state;
	struct retry_budget b = {0};
	unsigned retries = 0, requests = 100000;
	for (unsigned i = 0; i < requests; i++) { /* 10,000 a second, each of which fails on every node. */
		cgn_nsec now = T0 + i * (CGN_SEC / 10000);
		retry_budget_add(&b, 0.2);
		for (int try = 0; try < 2; try++)
			retries += retry_budget_take(&b, now);
	}
	unsigned most = requests / 5 + BUDGET_RESERVE + BUDGET_RATE * 10;
	assert_in_range(retries, requests / 5, most);
	for (int i = 0; i < 100000; i++)
		retry_budget_add(&b, 0.2);
	for (int i = 0; i < BUDGET_MOST; i++)
		assert_true(retry_budget_take(&b, T0));
}

/* ---- stall detection ---- */

static void a_slow_engine_gets_more_patience(void **state)
{
	(void)state;
	struct pulse p = {0};
	assert_true(pulse_limit(&p, 0, 5) == UINT64_MAX);
	assert_true(pulse_limit(&p, 10 * CGN_SEC, 0) == 10 * CGN_SEC);
	assert_true(pulse_limit(&p, 10 * CGN_SEC, 4000) == 12 * CGN_SEC);
	pulse_gap(&p, CGN_SEC);
	assert_true(pulse_limit(&p, 10 * CGN_SEC, 0) == 10 * CGN_SEC);
	pulse_gap(&p, 6 * CGN_SEC);
	pulse_gap(&p, 2 * CGN_SEC);
	assert_true(pulse_limit(&p, 10 * CGN_SEC, 0) == 24 * CGN_SEC);
	for (int i = 0; i < 300; i++)
		pulse_fade(&p);
	assert_true(pulse_limit(&p, 10 * CGN_SEC, 0) == 10 * CGN_SEC);
	assert_true(pulse_limit(&p, CGN_SEC, UINT64_MAX) > CGN_SEC); /* No overflow. */
}

static void a_stall_holds_until_it_speaks(void **state)
{
	(void)state;
	struct pulse p = {0};
	pulse_beat(&p, T0);
	assert_false(pulse_stopped(&p, T0 - 1));
	pulse_stop(&p, T0 + CGN_SEC);
	assert_true(pulse_stopped(&p, T0));
	assert_false(pulse_stopped(&p, T0 + CGN_SEC)); /* Bytes were sent or received since then. */
	pulse_beat(&p, T0 + CGN_SEC);
	assert_false(pulse_stopped(&p, T0));
	assert_true(pulse_heard(&p) == T0 + CGN_SEC);
	pulse_beat(&p, T0 + CGN_SEC + PULSE_GRAIN / 2);
	assert_true(pulse_heard(&p) == T0 + CGN_SEC);
	pulse_lose_agent(&p, T0 + CGN_SEC);
	assert_true(pulse_agent_lost(&p, T0) && !pulse_agent_lost(&p, T0 + CGN_SEC));
	assert_false(pulse_stopped(&p, 0)); /* Nothing is said of the engine. */
	pulse_stop(&p, T0);
	pulse_reset(&p); /* for the next node in the slot */
	assert_true(pulse_heard(&p) == 0 && !pulse_agent_lost(&p, 0) && !pulse_stopped(&p, 0));
}

static void an_engine_lives_as_long_as_a_witness_says_so(void **state)
{
	(void)state;
	const cgn_nsec base = 10 * CGN_SEC;
	struct pulse p = {0};
	struct pulse_witness w = {.mute = 0, .still = UINT64_MAX};
	assert_false(pulse_lives(&p, T0, base)); /* There is no witness. */
	pulse_told(&p, T0, &w);
	assert_true(pulse_lives(&p, T0 - 1, base)); /* Another thread's instant may be later. */
	assert_true(pulse_lives(&p, T0 + base - 1, base));
	assert_false(pulse_lives(&p, T0 + base, base));                 /* The witness is silent itself. */
	assert_true(pulse_lives(&p, T0 + PULSE_WITNESS - 1, CGN_MSEC)); /* Witnesses tell each second. */
	w.mute = base - CGN_MSEC;
	pulse_told(&p, T0, &w);
	assert_true(pulse_lives(&p, T0, base));
	w.mute = base;
	pulse_told(&p, T0, &w);
	assert_false(pulse_lives(&p, T0, base));
	w.mute = UINT64_MAX;
	pulse_told(&p, T0, &w);
	assert_false(pulse_lives(&p, T0, base));
	w.mute = 0;
	pulse_told(&p, T0, &w);
	assert_true(pulse_lives(&p, T0, base));
	pulse_reset(&p);
	assert_false(pulse_lives(&p, T0, base));
}

static void an_engine_works_that_works_for_others(void **state)
{
	(void)state;
	struct pulse p = {0};
	struct pulse_witness w = {.still = UINT64_MAX};
	pulse_told(&p, T0, &w);
	assert_false(pulse_works(&p, T0, CGN_SEC));
	w.still = CGN_SEC / 2;
	pulse_told(&p, T0, &w);
	assert_true(pulse_works(&p, T0, CGN_SEC));
	assert_false(pulse_works(&p, T0 + CGN_SEC / 2, CGN_SEC));
	w.still = T0 + 1; /* A lie */
	pulse_told(&p, T0, &w);
	assert_true(pulse_works(&p, T0, CGN_SEC));
	pulse_beat(&p, T0 + 2 * CGN_SEC);
	assert_true(pulse_works(&p, T0 + 2 * CGN_SEC, CGN_SEC));
	assert_false(pulse_works(&p, T0 + 2 * CGN_SEC, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(failures_in_a_row_open_it),
		cmocka_unit_test(one_probe_at_a_time_closes_or_reopens_it),
		cmocka_unit_test(a_probe_whose_verdict_got_lost_is_given_up),
		cmocka_unit_test(trouble_that_returns_soon_lasts_longer),
		cmocka_unit_test(a_hint_or_a_success_needs_no_waiting),
		cmocka_unit_test(a_breaker_is_open_for_five_minutes_at_most_and_never_shorter_than_asked),
		cmocka_unit_test(zero_failures_never_open_it_and_long_ones_are_kept),
		cmocka_unit_test(texts_say_why),
		cmocka_unit_test(changes_are_told_once),
		cmocka_unit_test(whatever_happens_it_stays_sound),
		cmocka_unit_test(words_of_retry_on),
		cmocka_unit_test(a_quiet_router_may_always_retry),
		cmocka_unit_test(an_outage_is_not_amplified),
		cmocka_unit_test(a_slow_engine_gets_more_patience),
		cmocka_unit_test(a_stall_holds_until_it_speaks),
		cmocka_unit_test(an_engine_lives_as_long_as_a_witness_says_so),
		cmocka_unit_test(an_engine_works_that_works_for_others),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
