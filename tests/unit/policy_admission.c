/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: a place is given to one request only, and each request that waits gets one verdict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS 4
#include "chooser_world.h"
#include "policy/route/admission/admission.h"

#define NODES 2

struct house {
	struct world w;
	struct admission *a;
	struct cluster *empty; /* A cluster without nodes, and its view. */
	struct cluster_view *no_nodes;
	unsigned verdicts;
	int depth;
};

static void on_verdict(void *user, struct admission_ticket *t)
{
	struct house *h = user;
	assert_int_not_equal(t->verdict, ADMISSION_WAITS);
	h->verdicts++;
}

static void on_change(void *user, const char *model, int by, cgn_nsec wait)
{
	struct house *h = user;
	(void)wait;
	assert_string_equal(model, "m");
	h->depth += by;
	assert_true(h->depth >= 0);
}

/* A request of the tenant "hog" may go while more than two places are free. */
static bool tenant_may(void *user, struct cgn_str model, struct cgn_str tenant, uint64_t free)
{
	(void)user;
	assert_true(cgn_str_is(model, "m"));
	return !cgn_str_is(tenant, "hog") || free > 2;
}

static const struct admission_ops ops = {.on_verdict = on_verdict, .may = tenant_may, .on_change = on_change};

static void house_open(struct house *h, uint32_t max_queue)
{
	const struct admission_rules rules = {.max_queue = max_queue,
		.max_inflight = 1,
		.node_wait = 5 * CGN_SEC};
	*h = (struct house){.verdicts = 0};
	world_of(&h->w, NODES, 8, ROUTE_ROUND_ROBIN);
	h->empty = cluster_new();
	assert_true(cgn_ok(cluster_view_new(h->empty, NULL, NULL, &h->no_nodes, NULL)));
	h->a = admission_new(&rules, h->w.cluster->stats, &ops, h, 1);
	admission_view_set(h->a, h->w.view, 1);
}

static void house_close(struct house *h)
{
	while (admission_pull(h->a) != NULL)
		continue;
	admission_free(&h->a);
	cluster_view_unref(&h->no_nodes);
	cluster_free(&h->empty);
	world_fini(&h->w);
}

static struct admission_ticket ticket_at(cgn_nsec now)
{
	return (struct admission_ticket){.model = CGN_STR("m"),
		.item = {.tenant = CGN_STR("t"),
			.priority = QUEUE_NORMAL,
			.new_tokens = 10,
			.answer_tokens = 10,
			.arrived = now}};
}

static void a_tenant_with_its_share_is_passed_by_others(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket hog = ticket_at(1), other = ticket_at(2);
	hog.item.tenant = CGN_STR("hog");
	admission_enter(h.a, &hog, 1);
	assert_int_equal(hog.verdict, ADMISSION_WAITS);
	admission_enter(h.a, &other, 2);
	assert_int_equal(other.verdict, ADMISSION_ADMITTED);
	hog.bounced = false;
	assert_true(admission_leave(h.a, &hog, 3));
	/* A request that a node failed has its place already. */
	hog.n_excluded = 1;
	hog.excluded[0] = other.slot;
	admission_enter(h.a, &hog, 4);
	assert_int_equal(hog.verdict, ADMISSION_ADMITTED);
	/* At the drain those that may not go are refused too. */
	struct admission_ticket last = ticket_at(5);
	last.item.tenant = CGN_STR("hog");
	admission_enter(h.a, &last, 5);
	admission_drain(h.a, 6);
	admission_poll(h.a, 7);
	assert_int_equal(last.verdict, ADMISSION_DRAINING);
	house_close(&h);
}

static void a_place_is_given_once(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t[4];
	for (size_t i = 0; i < CGN_COUNT(t); i++) {
		t[i] = ticket_at(1);
		admission_enter(h.a, &t[i], 1);
	}
	assert_int_equal(t[0].verdict, ADMISSION_ADMITTED);
	assert_int_equal(t[1].verdict, ADMISSION_ADMITTED);
	assert_int_not_equal(t[0].slot, t[1].slot);
	assert_int_equal(t[2].verdict, ADMISSION_WAITS);
	assert_int_equal(h.depth, 2);
	assert_int_equal(admission_depth(h.a, CGN_STR("m")), 2);
	/* The place was not booked, so the next request gets it. */
	admission_settle(h.a, t[1].slot, 2);
	assert_int_equal(t[2].verdict, ADMISSION_ADMITTED);
	assert_int_equal(t[2].slot, t[1].slot);
	/* A booked place is free only when its load is gone. */
	atomic_store(&h.w.cluster->stats[t[0].slot].inflight, 1);
	admission_settle(h.a, t[0].slot, 3);
	assert_int_equal(t[3].verdict, ADMISSION_WAITS);
	atomic_store(&h.w.cluster->stats[t[0].slot].inflight, 0);
	admission_serve(h.a, 4);
	assert_int_equal(t[3].verdict, ADMISSION_ADMITTED);
	assert_int_equal(h.verdicts, 4);
	assert_int_equal(admission_waiting(h.a), 0);
	house_close(&h);
}

/* A full queue gives the place of a tenant that has much to one that has little; the displaced request is
 * answered at once. */
static void a_request_that_is_pulled_waits_no_more(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t[4];
	for (size_t i = 0; i < CGN_COUNT(t); i++) {
		t[i] = ticket_at(1);
		admission_enter(h.a, &t[i], 1);
	}
	assert_ptr_equal(admission_pull(h.a), &t[2]);
	assert_int_equal(admission_waiting(h.a), 1);
	assert_ptr_equal(admission_pull(h.a), &t[3]);
	assert_null(admission_pull(h.a));
	assert_int_equal(admission_waiting(h.a), 0);
	assert_int_equal(h.depth, 0);
	house_close(&h);
}

static void a_displaced_request_is_answered(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 3);
	struct admission_ticket t[6];
	for (size_t i = 0; i < CGN_COUNT(t); i++)
		t[i] = ticket_at(1);
	t[5].item.tenant = CGN_STR("u");
	for (size_t i = 0; i < 5; i++) /* Two are admitted, three wait. */
		admission_enter(h.a, &t[i], 1);
	assert_int_equal(h.depth, 3);
	admission_enter(h.a, &t[5], 1);
	assert_int_equal(t[5].verdict, ADMISSION_WAITS);
	assert_int_equal(t[4].verdict, ADMISSION_FULL);
	assert_true(t[4].retry_after > 0);
	assert_int_equal(t[3].verdict, ADMISSION_WAITS);
	assert_int_equal(h.depth, 3);
	assert_int_equal(h.verdicts, 3);
	house_close(&h);
}

static void a_bounced_request_goes_first_a_moment_later(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t[3];
	for (size_t i = 0; i < CGN_COUNT(t); i++) {
		t[i] = ticket_at(1);
		admission_enter(h.a, &t[i], 1);
	}
	t[0].bounced = true;
	t[0].verdict = ADMISSION_WAITS;
	admission_enter(h.a, &t[0], 2);
	assert_int_equal(t[0].verdict, ADMISSION_WAITS);
	assert_int_equal(t[2].verdict, ADMISSION_WAITS);
	admission_poll(h.a, 2 + ADMISSION_POLL_INTERVAL);
	assert_int_equal(t[0].verdict, ADMISSION_ADMITTED);
	assert_int_equal(t[2].verdict, ADMISSION_WAITS);
	/* A request that a node failed waits for another node, before all others. */
	t[0].excluded[t[0].n_excluded++] = t[0].slot;
	t[0].verdict = ADMISSION_WAITS;
	admission_settle(h.a, t[0].slot, 3 + ADMISSION_POLL_INTERVAL);
	assert_int_equal(t[2].verdict, ADMISSION_ADMITTED);
	admission_enter(h.a, &t[0], 3 + ADMISSION_POLL_INTERVAL);
	assert_int_equal(t[0].verdict, ADMISSION_WAITS);
	admission_settle(h.a, t[1].slot, 4 + ADMISSION_POLL_INTERVAL);
	assert_int_equal(t[0].verdict, ADMISSION_ADMITTED);
	assert_int_equal(t[0].slot, t[1].slot);
	house_close(&h);
}

static void a_full_queue_refuses(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 1);
	struct admission_ticket t[4];
	for (size_t i = 0; i < CGN_COUNT(t); i++) {
		t[i] = ticket_at(1);
		admission_enter(h.a, &t[i], 1);
	}
	assert_int_equal(t[2].verdict, ADMISSION_WAITS);
	assert_int_equal(t[3].verdict, ADMISSION_FULL);
	assert_true(t[3].retry_after >= 1);
	assert_true(admission_leave(h.a, &t[2], 2));
	assert_false(admission_leave(h.a, &t[2], 2));
	assert_int_equal(h.depth, 0);
	house_close(&h);
}

static void what_cannot_be_admitted_is_refused(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	admission_view_set(h.a, h.no_nodes, 10);
	struct admission_ticket a = ticket_at(11), b, late;
	admission_enter(h.a, &a, 11);
	assert_int_equal(a.verdict, ADMISSION_WAITS); /* A node may be back soon. */
	admission_poll(h.a, 9 + 5 * CGN_SEC);
	assert_int_equal(a.verdict, ADMISSION_WAITS);
	admission_poll(h.a, 10 + 5 * CGN_SEC);
	assert_int_equal(a.verdict, ADMISSION_NO_NODE);
	b = ticket_at(11 + 5 * CGN_SEC);
	admission_enter(h.a, &b, 11 + 5 * CGN_SEC);
	assert_int_equal(b.verdict, ADMISSION_NO_NODE);

	cgn_nsec now = 20 * CGN_SEC;
	admission_view_set(h.a, h.w.view, now);
	for (size_t i = 0; i < NODES; i++)
		atomic_store(&h.w.cluster->stats[i].inflight, 1);
	late = ticket_at(now);
	late.item.deadline = now + CGN_SEC;
	late.item.need = 2 * CGN_SEC;
	late.item.firm = late.measured = true;
	admission_enter(h.a, &late, now);
	assert_int_equal(late.verdict, ADMISSION_UNMEETABLE);
	assert_int_equal(late.retry_after, 0); /* Not even an idle node meets the deadline. */
	assert_int_equal(admission_depth(h.a, CGN_STR("m")), 0);

	a = ticket_at(now);
	admission_enter(h.a, &a, now);
	admission_drain(h.a, now + CGN_SEC);
	admission_poll(h.a, now + CGN_SEC - 1);
	assert_int_equal(a.verdict, ADMISSION_WAITS);
	admission_poll(h.a, now + CGN_SEC);
	assert_int_equal(a.verdict, ADMISSION_DRAINING);
	assert_int_equal(h.depth, 0);
	house_close(&h);
}

/* Each node ends one request every two seconds, so the fourth in the queue begins after about four seconds. */
static void the_queue_ahead_counts_against_a_deadline(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t[12], early, later;
	cgn_nsec now = CGN_SEC;
	for (size_t i = 0; i < CGN_COUNT(t); i++) {
		t[i] = ticket_at(now);
		admission_enter(h.a, &t[i], now);
	}
	for (size_t i = 0; i < 8; i++) {
		now += CGN_SEC;
		admission_settle(h.a, t[i].slot, now);
		assert_int_equal(t[i + 2].verdict, ADMISSION_ADMITTED);
	}
	assert_int_equal(admission_depth(h.a, CGN_STR("m")), 2);
	early = later = ticket_at(now);
	early.measured = later.measured = true;
	early.item.need = later.item.need = CGN_MSEC;
	early.item.deadline = now + CGN_SEC;
	later.item.deadline = now + 60 * CGN_SEC;
	admission_enter(h.a, &early, now);
	assert_int_equal(early.verdict, ADMISSION_UNMEETABLE);
	assert_in_range(early.retry_after, 2, 5);
	admission_enter(h.a, &later, now);
	assert_int_equal(later.verdict, ADMISSION_WAITS);
	/* The refused request is out of the queue: it is not admitted later. */
	assert_int_equal(admission_depth(h.a, CGN_STR("m")), 3);
	assert_int_equal(admission_waiting(h.a), 3);
	/* A request without a deadline waits, however long that takes. */
	struct admission_ticket patient = ticket_at(now);
	patient.measured = true;
	patient.ahead = 3600 * CGN_SEC;
	admission_enter(h.a, &patient, now);
	assert_int_equal(patient.verdict, ADMISSION_WAITS);
	house_close(&h);
}

static void wait_keep(void *user, const struct admission_status *s)
{
	*(cgn_nsec *)user = s->wait;
}

static cgn_nsec wait_told(const struct house *h, cgn_nsec now)
{
	cgn_nsec wait = 0;
	admission_each(h->a, now, wait_keep, &wait);
	return wait;
}

static size_t admitted_of(const struct admission_ticket *t, size_t n)
{
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		k += t[i].verdict == ADMISSION_ADMITTED;
	return k;
}

/* After a request came back, one follows, then two, then four, in windows of 20 ms: all of them would come back too. */
static void after_a_bounce_few_follow(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t[12];
	cgn_nsec now = CGN_SEC;
	for (size_t i = 0; i < CGN_COUNT(t); i++) {
		t[i] = ticket_at(now);
		admission_enter(h.a, &t[i], now);
	}
	assert_int_equal(admitted_of(t, CGN_COUNT(t)), 2);
	t[0].bounced = true;
	t[0].verdict = ADMISSION_WAITS;
	admission_enter(h.a, &t[0], now);
	const struct admission_rules wide = {.policy = QUEUE_FCFS, .max_queue = 16, .max_inflight = 16};
	admission_tune(h.a, &wide, now);
	const size_t then[] = {1 + 1, 2 + 2, 4 + 4}; /* The second of the first two has its place. */
	for (size_t i = 0; i < CGN_COUNT(then); i++) {
		now += 21 * CGN_MSEC;
		admission_serve(h.a, now);
		assert_int_equal(admitted_of(t, CGN_COUNT(t)), then[i]);
	}
	house_close(&h);
}

/* A request that comes back to the queue has not left it: the next one waits as long as before. */
static void a_bounce_makes_no_queue_fast(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t[8];
	cgn_nsec now = CGN_SEC;
	for (size_t i = 0; i < CGN_COUNT(t); i++) {
		t[i] = ticket_at(now);
		admission_enter(h.a, &t[i], now);
	}
	for (size_t i = 0; i < 4; i++) {
		now += CGN_SEC;
		admission_settle(h.a, t[i].slot, now);
		assert_int_equal(t[i + 2].verdict, ADMISSION_ADMITTED);
	}
	cgn_nsec before = wait_told(&h, now);
	assert_true(before >= 2 * CGN_SEC);
	for (size_t i = 0; i < 20; i++) {
		t[5].bounced = true;
		t[5].verdict = ADMISSION_WAITS;
		admission_enter(h.a, &t[5], now);
		now += ADMISSION_POLL_INTERVAL;
		admission_poll(h.a, now);
		assert_int_equal(t[5].verdict, ADMISSION_ADMITTED);
	}
	assert_true(wait_told(&h, now) >= before);
	house_close(&h);
}

static void queue_count(void *user, const struct admission_status *s)
{
	assert_string_equal(s->model, "m");
	*(unsigned *)user += 1;
}

static unsigned queues_kept(const struct house *h, cgn_nsec now)
{
	unsigned n = 0;
	admission_each(h->a, now, queue_count, &n);
	return n;
}

/* A queue that is empty is kept for a while, for its rate, and then forgotten. */
static void an_idle_queue_is_forgotten(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t = ticket_at(CGN_SEC);
	admission_enter(h.a, &t, CGN_SEC);
	admission_settle(h.a, t.slot, 2 * CGN_SEC);
	admission_poll(h.a, 3 * CGN_SEC);
	assert_int_equal(queues_kept(&h, 3 * CGN_SEC), 1);
	admission_poll(h.a, 3600 * CGN_SEC);
	assert_int_equal(queues_kept(&h, 3600 * CGN_SEC), 0);
	house_close(&h);
}

/* A request that one node failed goes to another one with room at once. */
static void a_failed_request_takes_free_room_at_once(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct admission_ticket t = ticket_at(1);
	admission_enter(h.a, &t, 1);
	uint16_t failed = t.slot;
	admission_settle(h.a, failed, 2);
	t.excluded[t.n_excluded++] = failed;
	t.verdict = ADMISSION_WAITS;
	admission_enter(h.a, &t, 3);
	assert_int_equal(t.verdict, ADMISSION_ADMITTED);
	assert_int_not_equal(t.slot, failed);
	house_close(&h);
}

/* The forecast is the best of all nodes: the second computes faster, but has a queue; the first has to fetch. */
static void the_forecast_is_that_of_the_best_node(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 16);
	struct route_cand cands[2] = {{.slot = 0,
					      .uncached_tokens = 100,
					      .fetch_ms = 50,
					      .speed = {.prefill_ms = 2}},
		{.slot = 1, .uncached_tokens = 200, .queued_tokens = 900, .speed = {.prefill_ms = 1}}};
	struct chooser_pick_result p = {.cands = cands, .n = 2};
	struct admission_forecast f = admission_forecast_of(&p, h.w.cluster->stats, 5000);
	assert_int_equal(f.now, 250 * CGN_MSEC);
	assert_int_equal(f.idle, 200 * CGN_MSEC);
	assert_int_equal(f.tokens, 100);
	assert_false(f.measured);
	p.n = 0; /* No node: all of the prompt has to be computed. */
	f = admission_forecast_of(&p, h.w.cluster->stats, 5000);
	assert_int_equal(f.now, 0);
	assert_int_equal(f.tokens, 5000);
	house_close(&h);
}

static void who_has_to_wait(void **state)
{
	(void)state;
	static const struct view_model ready = {.n_ready = 1}, away = {.n_ready = 0};
	static const struct {
		struct admission_facts facts;
		bool waits;
	} rows[] = {
		{{.verdict = ROUTE_PICKED, .model = &ready}, false},
		{{.verdict = ROUTE_PICKED, .model = &ready, .others_wait = true}, true},
		{{.verdict = ROUTE_PICKED, .model = &ready, .others_wait = true, .waited = true}, false},
		{{.verdict = ROUTE_FULL, .model = &ready}, true},
		{{.verdict = ROUTE_FULL, .model = &ready, .tried = true}, true},
		{{.verdict = ROUTE_NONE, .model = &ready}, false}, /* No node is offered: an error now. */
		{{.verdict = ROUTE_NONE, .model = &away}, true},
		{{.verdict = ROUTE_NONE, .model = NULL}, true},
		/* A request that a node failed waits only if none could be reached. */
		{{.verdict = ROUTE_PICKED, .model = &ready, .tried = true, .others_wait = true}, false},
		{{.verdict = ROUTE_NONE, .model = &away, .tried = true}, false},
		{{.verdict = ROUTE_NONE, .model = &ready, .tried = true, .unreachable = true}, true},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (admission_must_wait(&rows[i].facts) != rows[i].waits)
			fail_msg("row %zu", i);
}

static void a_budget_is_missed_now_or_for_ever(void **state)
{
	(void)state;
	const struct admission_forecast f = {.now = 5 * CGN_SEC, .idle = 2 * CGN_SEC, .measured = true};
	struct admission_budget b = {.total = 4 * CGN_SEC};
	unsigned retry = 99;
	assert_true(admission_misses_budget(&f, &b, &retry));
	assert_int_equal(retry, 3);
	b.waited = true;
	assert_false(admission_misses_budget(&f, &b, &retry));
	b.firm = true;
	assert_true(admission_misses_budget(&f, &b, &retry));
	b = (struct admission_budget){.total = CGN_SEC}; /* A long prompt is served all the same. */
	assert_false(admission_misses_budget(&f, &b, &retry));
	b.firm = true;
	assert_true(admission_misses_budget(&f, &b, &retry));
	assert_int_equal(retry, 0);
	b = (struct admission_budget){.total = 5 * CGN_SEC};
	assert_false(admission_misses_budget(&f, &b, &retry));
	b.spent = 1;
	assert_true(admission_misses_budget(&f, &b, &retry));
	assert_int_equal(admission_retry_after(0), 1);
	assert_int_equal(admission_retry_after(CGN_SEC + 1), 2);
	assert_int_equal(admission_retry_after(UINT64_MAX / 2), ADMISSION_RETRY_MAX);
}

static void an_expected_node_is_waited_for(void **state)
{
	(void)state;
	struct house h;
	house_open(&h, 1);
	cgn_nsec now = 100 * CGN_SEC;
	admission_view_set(h.a, h.no_nodes, now);
	struct admission_ticket a = ticket_at(now), b = ticket_at(now);
	admission_expect(h.a, CGN_STR("m"), now + 40 * CGN_SEC, now + 3 * CGN_SEC);
	admission_enter(h.a, &a, now);
	admission_poll(h.a, now + 2 * CGN_SEC);
	assert_int_equal(a.verdict, ADMISSION_WAITS); /* The last node left long ago. */
	admission_enter(h.a, &b, now + 2 * CGN_SEC);
	assert_int_equal(b.verdict, ADMISSION_FULL);
	assert_int_equal(b.retry_after, 38);
	admission_expect(h.a, CGN_STR("m"), now + 40 * CGN_SEC, now + 60 * CGN_SEC);
	admission_poll(h.a, now + 50 * CGN_SEC);
	assert_int_equal(a.verdict, ADMISSION_WAITS); /* The node is late. */
	admission_poll(h.a, now + 60 * CGN_SEC);
	assert_int_equal(a.verdict, ADMISSION_NO_NODE);
	house_close(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_place_is_given_once),
		cmocka_unit_test(a_tenant_with_its_share_is_passed_by_others),
		cmocka_unit_test(a_request_that_is_pulled_waits_no_more),
		cmocka_unit_test(a_displaced_request_is_answered),
		cmocka_unit_test(a_bounced_request_goes_first_a_moment_later),
		cmocka_unit_test(a_full_queue_refuses),
		cmocka_unit_test(an_expected_node_is_waited_for),
		cmocka_unit_test(what_cannot_be_admitted_is_refused),
		cmocka_unit_test(the_queue_ahead_counts_against_a_deadline),
		cmocka_unit_test(after_a_bounce_few_follow),
		cmocka_unit_test(a_bounce_makes_no_queue_fast),
		cmocka_unit_test(an_idle_queue_is_forgotten),
		cmocka_unit_test(a_failed_request_takes_free_room_at_once),
		cmocka_unit_test(the_forecast_is_that_of_the_best_node),
		cmocka_unit_test(who_has_to_wait),
		cmocka_unit_test(a_budget_is_missed_now_or_for_ever),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
