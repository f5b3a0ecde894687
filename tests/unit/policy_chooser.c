/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "policy/chooser/chooser.h"

#define NODES 3
#define BLOCKS 64

struct world {
	struct cluster *cluster;
	struct chooser_shared shared;
	struct chooser *chooser;
	struct cluster_view *view;
	struct route_rules rules;
	uint64_t chain[BLOCKS];
};

static struct cluster_node *join(struct cluster *c, const char *id)
{
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT, *engines[] = {&e};
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	struct cluster_orders o;
	char model[] = "m", address[] = "127.0.0.1:7080", kind[] = "sim", name[32];
	char *models[] = {model};
	(void)snprintf(name, sizeof name, "%s", id);
	e.name = e.kind = kind;
	e.models = models;
	e.n_models = 1;
	e.ready = true;
	e.slots = 8;
	n.id = name;
	n.address = address;
	n.engines = engines;
	n.n_engines = 1;
	assert_true(cgn_ok(cluster_node_seen(c, &n, false, &o, NULL)));
	struct cluster_node *node = cluster_find(c, id);
	assert_non_null(node);
	ev.seq = 1;
	ev.node = &n;
	cluster_watch_event(c, node, &ev, 0, &o);
	return node;
}

static void world_init(struct world *w)
{
	const struct kvindex_cfg index = {.max_bytes = 8 << 20, .max_readers = 1, .seed = 1};
	*w = (struct world){.rules = {.weights = {0.55, 0.25, 0.1, 0.1}, .tiers = {{1, 0.8F, 0.5F, 0.3F}}, .max_inflight = 8}};
	assert_true(cgn_ok(cluster_new(&w->cluster, NULL)));
	for (int i = 0; i < NODES; i++) {
		char id[8];
		(void)snprintf(id, sizeof id, "n%d", i);
		(void)join(w->cluster, id);
	}
	w->shared.cells = w->cluster->cells;
	assert_true(cgn_ok(kvindex_new(&index, &w->shared.index, NULL)));
	assert_true(cgn_ok(route_record_new(1 << 20, &w->shared.record, NULL)));
	assert_true(cgn_ok(chooser_new(&w->shared, 0, &w->chooser, NULL)));
	assert_true(cgn_ok(cluster_view_new(w->cluster, &w->view, NULL)));
	for (uint64_t i = 0; i < BLOCKS; i++)
		w->chain[i] = kv_print(i + 1, 1);
}

static void world_fini(struct world *w)
{
	cluster_view_unref(&w->view);
	chooser_free(&w->chooser);
	route_record_free(&w->shared.record);
	kvindex_free(&w->shared.index);
	cluster_free(&w->cluster);
}

static struct choose_ask ask_of(const struct world *w)
{
	return (struct choose_ask){.rules = &w->rules,
		.model = view_model_find(w->view, CGN_STR("m")),
		.chain = w->chain,
		.blocks = BLOCKS,
		.block_tokens = 16,
		.pin = CHOOSER_NO_PIN};
}

static void what_is_booked_is_seen_and_given_back(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct choose_ask ask = ask_of(&w);
	struct choose_ticket a = {0}, b = {0};
	struct choose_pick p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	assert_int_equal(p.n, NODES);
	chooser_book(w.chooser, &ask, &p, &a);
	struct cluster_cell *cell = &w.shared.cells[a.slot];
	assert_int_equal(cell->inflight, 1);
	assert_int_equal(cell->queued_tokens, BLOCKS * 16);
	assert_int_equal(a.ahead_tokens, 0);

	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.cands[p.index].slot, a.slot); /* it was sent there: it is held there */
	assert_int_equal(p.cands[p.index].held, BLOCKS);
	chooser_book(w.chooser, &ask, &p, &b);
	assert_int_equal(b.new_tokens, 0);
	assert_int_equal(b.ahead_tokens, BLOCKS * 16);

	chooser_begun(w.chooser, &a, 0);
	chooser_begun(w.chooser, &a, 0);
	assert_int_equal(cell->queued_tokens, 0);
	assert_int_equal(cell->decoding, 1);
	chooser_release(w.chooser, &a, 0);
	chooser_release(w.chooser, &a, 0);
	chooser_release(w.chooser, &b, 0);
	assert_int_equal(cell->inflight, 0);
	assert_int_equal(cell->decoding, 0);
	assert_int_equal(cell->queued_tokens, 0);
	world_fini(&w);
}

static void a_pin_has_one_candidate_or_none(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct choose_ask ask = ask_of(&w);
	ask.pin = view_node_find(w.view, CGN_STR("n1"))->slot;
	struct choose_pick p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	assert_int_equal(p.n, 1);
	const uint16_t excluded[] = {(uint16_t)ask.pin};
	ask.excluded = excluded;
	ask.n_excluded = 1;
	assert_int_equal(chooser_pick(w.chooser, &ask).verdict, ROUTE_NONE);
	ask.model = NULL;
	assert_int_equal(chooser_pick(w.chooser, &ask).verdict, ROUTE_NONE);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_booked_is_seen_and_given_back),
		cmocka_unit_test(a_pin_has_one_candidate_or_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
