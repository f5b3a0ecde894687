/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts judge their nodes and count there, in a worker whose loop the test does not run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log/log.h"
#include "gateway_world.h"
#include "router/request/attempt/direct.h"
#include "router/request/attempt/verdict.h"
#include "router/shared/worker/link.h"

#define LONG_AGO (60 * CGN_SEC)

struct world {
	struct cluster *cluster;
	struct gw_shared shared;
	struct gw_worker *worker;
	struct node_stats *stats; /* Stats of the only node. */
	cgn_nsec now;
	struct gw_attempt attempt; /* sent long ago, and not answered */
};

static void world_open(struct world *w)
{
	struct cluster_view *view = NULL;
	struct gw_worker_cfg cfg = {.http = {.listen = {.addr = "127.0.0.1:0"}}, .prompt_cache = 1 << 20};
	struct gw_rules *rules = gateway_rules("[router.breaker]\nfailures = 1\n", NULL);
	log_setup("test", LOG_ERROR, LOG_HUMAN);
	*w = (struct world){.cluster = cluster_new()};
	w->cluster->heard = true;
	gateway_join(w->cluster,
		&(struct gateway_node){.id = "n",
			.addr = "127.0.0.1:1",
			.kind = "openai_compat",
			.model = "m"});
	gateway_shared_open(&w->shared, w->cluster);
	assert_true(cgn_ok(cluster_view_new(w->cluster, NULL, NULL, &view, NULL)));
	cfg.shared = &w->shared;
	assert_true(cgn_ok(gw_worker_new(&cfg, view, rules, &w->worker, NULL)));
	cluster_view_unref(&view);
	gw_rules_unref(&rules);
	w->stats = &w->shared.choice.stats[0];
	w->now = cgn_loop_now(w->worker->loop);
	w->worker->counted_at = w->now;
	w->attempt = (struct gw_attempt){.w = w->worker, .sent_at = w->now - LONG_AGO};
	w->attempt.call.node_id = "n";
	w->attempt.ticket.node = view_node_at(w->worker->view, 0)->node_id_hash;
}

static void world_close(struct world *w)
{
	gw_worker_free(&w->worker);
	gateway_shared_close(&w->shared);
	cluster_free(&w->cluster);
}

static enum breaker_state breaker_is(const struct world *w)
{
	return breaker_state(atomic_load(&w->stats->breaker), w->now);
}

static enum breaker_gate gate_is(const struct world *w)
{
	return breaker_gate(atomic_load(&w->stats->breaker), w->now);
}

/* Everything is silent for as long as the router stood still. */
static void a_router_that_was_away_blames_no_node(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	w.worker->counted_at = w.now - LONG_AGO;
	assert_false(gw_attempt_node_dead(&w.attempt, w.now));
	w.worker->counted_at = w.worker->away_until =
		w.now; /* The timer ran, and the sockets have not been read yet. */
	assert_false(gw_attempt_node_dead(&w.attempt, w.now));
	assert_null(gw_attempt_silence(&w.attempt, w.now));
	assert_int_equal(breaker_is(&w), BREAKER_CLOSED);
	w.worker->away_until = 0;
	assert_true(gw_attempt_node_dead(&w.attempt, w.now));
	assert_int_equal(breaker_is(&w), BREAKER_OPEN);
	world_close(&w);
}

static void a_late_engine_that_works_for_others_is_not_blamed(void **state)
{
	static const enum breaker_failure how[] = {BREAKER_TIMEOUT, BREAKER_STALL};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(how); i++) {
		struct world w;
		world_open(&w);
		const struct gw_attempt late = w.attempt;
		pulse_beat(&w.stats->pulse, w.now);
		gw_verdict_late(&w.attempt, how[i]);
		assert_int_equal(breaker_is(&w), BREAKER_CLOSED);
		w.attempt = late;
		pulse_reset(&w.stats->pulse);
		gw_verdict_late(&w.attempt, how[i]);
		assert_int_equal(breaker_is(&w), BREAKER_OPEN);
		world_close(&w);
	}
}

/* The next request may try the node at once. */
static void a_probe_that_says_nothing_is_given_up(void **state)
{
	static const enum breaker_event steps[] = {BREAKER_TRIP, BREAKER_HINT, BREAKER_CLAIM};
	struct world w;
	(void)state;
	world_open(&w);
	for (size_t i = 0; i < CGN_COUNT(steps); i++) {
		const struct breaker_input in = {.event = steps[i],
			.reason = BREAKER_FOR_FAILURES,
			.now = w.now};
		(void)breaker_apply(&w.stats->breaker, &w.worker->rules->breaker, &in);
	}
	assert_int_equal(gate_is(&w), BREAKER_SHUT);
	w.attempt.gate = BREAKER_PROBE;
	gw_verdict_none(&w.attempt);
	assert_int_equal(gate_is(&w), BREAKER_PROBE);
	world_close(&w);
}

static void the_next_node_in_the_slot_is_not_blamed(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	const uint64_t node = w.attempt.ticket.node;
	w.attempt.ticket.node = node + 1; /* the hash of a node that has left */
	gw_verdict_stalled(&w.attempt);
	gw_verdict_witnessed(w.worker, 0, node + 1, "n");
	assert_int_equal(breaker_is(&w), BREAKER_CLOSED);
	gw_verdict_witnessed(w.worker, 0, node, "n");
	assert_int_equal(breaker_is(&w), BREAKER_OPEN);
	world_close(&w);
}

/* A router tells the others of the prompt tokens that wait at an engine. */
static void a_prompt_counts_until_its_answer_begins(void **state)
{
	struct world w;
	struct gw_link link = {.direct = 1};
	const struct proto_generate sent = {0};
	(void)state;
	world_open(&w);
	w.attempt.leaves = true;
	w.attempt.direct.counted = true;
	w.attempt.direct.tokens = 100;
	w.attempt.call.link = &link;
	w.stats->direct = 1;
	w.stats->direct_tokens = 100;
	gw_direct_gather(&w.attempt);
	gw_direct_body(NULL, &w.attempt, (const uint8_t *)"a", 1);
	assert_int_equal(w.stats->direct_tokens, 0);
	assert_int_equal(w.stats->direct_decoding, 1);
	w.attempt.direct.sent = &sent;
	gw_direct_end(&w.attempt);
	assert_int_equal(w.stats->direct + w.stats->direct_tokens + w.stats->direct_decoding + link.direct,
		0);
	world_close(&w);
}

/* The agent may be asked when the view, and the names in it, have been replaced. */
static void a_request_keeps_the_names_that_it_is_sent_with(void **state)
{
	struct world w;
	struct cgn_arena arena, head;
	char model[] = "m", engine[] = "e";
	const struct proto_generate g = {.request_id = CGN_STR("1"),
		.method = CGN_STR("POST"),
		.path = CGN_STR("/v1/chat/completions"),
		.facts = {.model = cgn_str_of(model), .engine = cgn_str_of(engine)},
		.body = CGN_STR("{}")};
	(void)state;
	world_open(&w);
	w.shared.workers = 1;
	cgn_arena_init(&arena, 1 << 16);
	cgn_arena_init(&head, 1 << 16);
	struct view_node node = *view_node_at(w.worker->view, 0);
	node.direct = (struct view_direct){.address = "127.0.0.1:1",
		.host = "",
		.connections = 64,
		.kind = engine_ops_named(CGN_STR("openai_compat"))};
	const struct gw_attempt_cfg cfg = {.w = w.worker, .head = &head, .arena = &arena};
	gw_attempt_start(&w.attempt, &cfg, &node, &g);
	assert_true(w.attempt.by_engine);
	memset(model, '-', sizeof model - 1);
	memset(engine, '-', sizeof engine - 1);
	assert_true(cgn_str_is(w.attempt.direct.sent->facts.model, "m"));
	assert_true(cgn_str_is(w.attempt.direct.sent->facts.engine, "e"));
	(void)gw_attempt_end(&w.attempt);
	cgn_arena_fini(&head);
	cgn_arena_fini(&arena);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_router_that_was_away_blames_no_node),
		cmocka_unit_test(a_late_engine_that_works_for_others_is_not_blamed),
		cmocka_unit_test(a_probe_that_says_nothing_is_given_up),
		cmocka_unit_test(the_next_node_in_the_slot_is_not_blamed),
		cmocka_unit_test(a_prompt_counts_until_its_answer_begins),
		cmocka_unit_test(a_request_keeps_the_names_that_it_is_sent_with),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
