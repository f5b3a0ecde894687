/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/route/cluster/view.h"

/* A node with one engine, built by hand. */
struct toy_node {
	Cognitora__V1__Node node;
	Cognitora__V1__Engine engine, *engines[1];
	char id[32], address[32], model[32], *models[1];
};

static Cognitora__V1__Node *toy_node_of(struct toy_node *t, const char *id, const char *model, bool ready)
{
	cognitora__v1__node__init(&t->node);
	cognitora__v1__engine__init(&t->engine);
	snprintf(t->id, sizeof t->id, "%s", id);
	snprintf(t->address, sizeof t->address, "%s:7080", id);
	snprintf(t->model, sizeof t->model, "%s", model);
	t->models[0] = t->model;
	t->engine.name = t->engine.kind = (char *)(uintptr_t)"sim";
	t->engine.models = t->models;
	t->engine.n_models = 1;
	t->engine.ready = ready;
	t->engine.slots = 8;
	t->engine.kv_blocks_total = 1000;
	t->engine.kv_block_tokens = 16;
	t->engines[0] = &t->engine;
	t->node.id = t->id;
	t->node.address = t->address;
	t->node.engines = t->engines;
	t->node.n_engines = 1;
	t->node.version = (char *)(uintptr_t)"0.1.0";
	t->node.started_unix_ms = 1000;
	return &t->node;
}

static struct cluster *cluster_of(void)
{
	struct cluster *c = cluster_new();
	return c;
}

static struct cluster_orders node_seen(struct cluster *c, const char *id, const char *model)
{
	struct toy_node t;
	struct cluster_orders o;
	assert_true(cgn_ok(cluster_node_seen(c, toy_node_of(&t, id, model, false), false, &o, NULL)));
	return o;
}

static struct cluster_orders node_event(struct cluster *c, const char *id, uint64_t seq,
	const Cognitora__V1__Node *node, const Cognitora__V1__Load *load)
{
	Cognitora__V1__WatchEvent ev;
	cognitora__v1__watch_event__init(&ev);
	ev.seq = seq;
	ev.node = (Cognitora__V1__Node *)(uintptr_t)node;
	ev.load = (Cognitora__V1__Load *)(uintptr_t)load;
	struct cluster_orders o;
	cluster_watch_event(c, cluster_find(c, id), &ev, seq, &o);
	return o;
}

static struct cluster_orders node_snapshot(struct cluster *c, const char *id, const char *model, bool ready)
{
	struct toy_node t;
	Cognitora__V1__Load load;
	cognitora__v1__load__init(&load);
	load.power_headroom = 1;
	return node_event(c, id, 1, toy_node_of(&t, id, model, ready), &load);
}

static void cluster_audit(const struct cluster *c)
{
	for (size_t s = 0; s < NODE_STATE_COUNT; s++) {
		uint32_t n = 0;
		for (struct cgn_link *l = c->by_state[s].next; l != &c->by_state[s]; l = l->next, n++)
			assert_int_equal(CGN_CONTAINER(l, struct cluster_node, by_state)->state, s);
		assert_int_equal(n, c->count[s]);
	}
}

static void a_node_joins_gets_ready_and_leaves(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct cluster_orders o = node_seen(c, "n1", "m");
	assert_int_equal(o.watch, WATCH_OPEN);
	assert_true(o.publish);
	struct cluster_node *n = cluster_find(c, "n1");
	assert_int_equal(n->state, NODE_JOINING);
	o = node_snapshot(c, "n1", "m", false);
	assert_int_equal(n->state, NODE_JOINING); /* The engine is still loading. */
	struct toy_node t;
	o = node_event(c, "n1", 2, toy_node_of(&t, "n1", "m", true), NULL);
	assert_int_equal(n->state, NODE_READY);
	assert_true(o.publish);
	assert_int_equal(cluster_node_width(n), 8);
	assert_int_equal(cluster_node_kv_tokens(n), 16000);
	cluster_audit(c);
	o = (struct cluster_orders){0};
	assert_true(cluster_node_gone(c, "n1", &o));
	assert_true(o.publish && o.forget);
	assert_int_equal(o.watch, WATCH_CLOSE);
	assert_null(cluster_find(c, "n1"));
	assert_false(cluster_node_gone(c, "n1", &o));
	cluster_audit(c);
	cluster_free(&c);
	cluster_free(&c);
}

/* The orders of a change are about its node alone, and there are none where nothing changed. */
static void orders_name_the_node_that_changed(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_seen(c, "n2", "m");
	struct cluster_node *n = cluster_find(c, "n2");
	assert_int_not_equal(n->slot, cluster_find(c, "n1")->slot);
	node_snapshot(c, "n1", "m", true);
	node_snapshot(c, "n2", "m", true);
	struct cluster_orders o,
		garbage = {.watch = WATCH_CLOSE,
			.publish = true,
			.forget = true,
			.recovered = true,
			.slot = 77,
			.had_index_id = true};
	struct toy_node t;
	o = garbage;
	assert_true(cgn_ok(cluster_node_seen(c, toy_node_of(&t, "n2", "m", true), false, &o, NULL)));
	assert_int_equal(o.slot, n->slot);
	assert_false(o.publish || o.forget || o.recovered || o.had_index_id || o.watch == WATCH_CLOSE);
	o = garbage;
	assert_true(cluster_cordon(c, "n2", true, &o));
	assert_int_equal(o.slot, n->slot);
	assert_true(o.publish);
	assert_false(o.forget || o.recovered || o.had_index_id || o.watch == WATCH_CLOSE);
	o = garbage;
	assert_true(cluster_cordon(c, "n2", false, &o));
	assert_int_equal(n->state, NODE_READY);
	assert_false(o.forget || o.had_index_id || o.watch == WATCH_CLOSE);
	o = garbage;
	cluster_drain_begin(c, n, &o);
	assert_int_equal(o.slot, n->slot);
	assert_false(o.forget || o.had_index_id || o.watch == WATCH_CLOSE);
	o = garbage;
	cluster_drain_end(c, n, &o);
	assert_int_equal(o.slot, n->slot);
	assert_false(o.forget || o.had_index_id || o.watch == WATCH_CLOSE);
	assert_false(cluster_cordon(c, "n3", true, &o));
	cluster_free(&c);
}

static void a_lost_watch_takes_it_down_until_the_next_snapshot(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	struct cluster_node *n = cluster_find(c, "n1");
	struct cluster_orders o;
	cluster_watch_lost(c, n, &o);
	assert_int_equal(n->state, NODE_JOINING); /* The engine was never up. */
	assert_false(o.publish);
	node_snapshot(c, "n1", "m", true);
	cluster_watch_lost(c, n, &o);
	assert_int_equal(n->state, NODE_DOWN);
	assert_true(o.publish);
	o = node_event(c, "n1", 2, NULL, NULL); /* Without a snapshot, events are refused. */
	assert_int_equal(o.watch, WATCH_AGAIN);
	assert_int_equal(n->state, NODE_DOWN);
	o = node_snapshot(c, "n1", "m", true);
	assert_int_equal(n->state, NODE_READY);
	cluster_audit(c);
	cluster_free(&c);
}

static void a_gap_in_the_numbers_asks_for_a_new_watch(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_snapshot(c, "n1", "m", true);
	struct toy_node t;
	struct cluster_orders o = node_event(c, "n1", 2, NULL, NULL);
	assert_int_equal(o.watch, WATCH_KEEP);
	o = node_event(c, "n1", 4, toy_node_of(&t, "n1", "m", false), NULL);
	assert_int_equal(o.watch, WATCH_AGAIN);
	assert_int_equal(cluster_find(c, "n1")->state, NODE_READY); /* No part of the event was applied. */
	o = node_event(c, "n1", 2, NULL, NULL);                     /* A repeated event is a gap too. */
	assert_int_equal(o.watch, WATCH_AGAIN);
	o = node_snapshot(c, "n1", "m", true); /* The numbers start again. */
	assert_int_equal(o.watch, WATCH_KEEP);
	o = node_event(c, "n1", 2, NULL, NULL);
	assert_int_equal(o.watch, WATCH_KEEP);
	cluster_free(&c);
}

static void an_unsound_report_is_not_taken(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_snapshot(c, "n1", "m", true);
	struct toy_node t;
	Cognitora__V1__Node *bad = toy_node_of(&t, "n1", "m", false);
	bad->id = (char *)(uintptr_t)"no/such/id";
	struct cluster_orders o = node_event(c, "n1", 2, bad, NULL);
	assert_int_equal(o.watch, WATCH_AGAIN);
	assert_int_equal(cluster_find(c, "n1")->state, NODE_READY);
	cluster_free(&c);
}

static void cordon_and_drain_are_honoured_in_any_order(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct toy_node t;
	struct cluster_orders o;
	assert_false(cluster_cordon(c, "n1", true, &o));
	/* Cordoned before the node joined. */
	assert_true(cgn_ok(cluster_node_seen(c, toy_node_of(&t, "n1", "m", true), true, &o, NULL)));
	struct cluster_node *n = cluster_find(c, "n1");
	node_snapshot(c, "n1", "m", true);
	assert_int_equal(n->state, NODE_CORDONED);
	assert_true(cluster_cordon(c, "n1", false, &o));
	assert_true(o.publish);
	assert_int_equal(n->state, NODE_READY);
	cluster_drain_begin(c, n, &o);
	assert_int_equal(n->state, NODE_DRAINING);
	cluster_cordon(c, "n1", true, &o);
	assert_int_equal(n->state, NODE_DRAINING);
	cluster_drain_end(c, n, &o);
	assert_int_equal(n->state, NODE_CORDONED);
	cluster_cordon(c, "n1", false, &o);
	Cognitora__V1__Node *info = toy_node_of(&t, "n1", "m", true);
	info->draining = true;
	node_event(c, "n1", 2, info, NULL);
	assert_int_equal(n->state, NODE_DRAINING);
	cluster_audit(c);
	cluster_free(&c);
}

static void a_static_node_is_known_by_both_names_and_keeps_its_listed_address(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct toy_node t;
	struct cluster_orders o;
	Cognitora__V1__Node *placeholder = toy_node_of(&t, "10.0.0.1:7080", "", false);
	placeholder->address = placeholder->id;
	placeholder->n_engines = 0;
	assert_true(cgn_ok(cluster_node_seen(c, placeholder, false, &o, NULL)));
	Cognitora__V1__WatchEvent ev;
	cognitora__v1__watch_event__init(&ev);
	ev.seq = 1;
	struct toy_node real;
	ev.node = toy_node_of(&real, "gpu-7", "m", true);
	struct cluster_node *n = cluster_find(c, "10.0.0.1:7080");
	cluster_watch_event(c, n, &ev, 1, &o);
	assert_ptr_equal(cluster_find(c, "gpu-7"), n);
	assert_ptr_equal(cluster_find(c, "10.0.0.1:7080"), n);
	assert_string_equal(n->address, "10.0.0.1:7080");
	assert_int_equal(n->state, NODE_READY);
	assert_true(cgn_ok(cluster_node_seen(c, placeholder, false, &o, NULL)));
	assert_int_equal(o.watch, WATCH_KEEP);
	assert_string_equal(n->info->id, "gpu-7");
	assert_true(cluster_node_gone(c, "10.0.0.1:7080", &o));
	cluster_free(&c);
}

static void a_moved_node_is_watched_again_and_a_restarted_one_forgotten(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_snapshot(c, "n1", "m", true);
	struct toy_node t;
	struct cluster_orders o;
	Cognitora__V1__Node *info = toy_node_of(&t, "n1", "m", true);
	info->address = (char *)(uintptr_t)"elsewhere:7080";
	assert_true(cgn_ok(cluster_node_seen(c, info, false, &o, NULL)));
	assert_int_equal(o.watch, WATCH_AGAIN);
	assert_int_equal(cluster_find(c, "n1")->state, NODE_DOWN);
	assert_string_equal(cluster_find(c, "n1")->address, "elsewhere:7080");
	info->started_unix_ms = 2000;
	o = node_event(c, "n1", 1, info, NULL);
	assert_true(o.forget);
	assert_int_equal(cluster_find(c, "n1")->state, NODE_READY);
	cluster_free(&c);
}

static void load_of_others_is_what_is_not_ours(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_seen(c, "n1", "m");
	node_snapshot(c, "n1", "m", true);
	struct node_stats *stats = &c->stats[cluster_find(c, "n1")->slot];
	atomic_store(&stats->inflight, 5);
	Cognitora__V1__Load load;
	cognitora__v1__load__init(&load);
	load.running = 7;
	load.waiting = 2;
	load.inflight = 6;
	load.kv_usage = 0.5F;
	load.power_headroom = 0.25F;
	node_event(c, "n1", 2, NULL, &load);
	assert_int_equal(cluster_find(c, "n1")->load.running, 7);
	assert_int_equal(cluster_find(c, "n1")->load.waiting, 2);
	assert_int_equal(atomic_load(&stats->others), 4);
	assert_int_equal(atomic_load(&stats->others_decoding), 0); /* The engine does not tell. */
	assert_float_equal(node_stats_spare(stats).kv_usage, 0.5F, 1e-4F);
	assert_float_equal(node_stats_spare(stats).power_headroom, 0.25F, 1e-4F);
	load.running = load.waiting = 0; /* An engine that reports nothing: the agent's own count. */
	node_event(c, "n1", 3, NULL, &load);
	assert_int_equal(atomic_load(&stats->others), 1);
	load.inflight = 0;
	load.kv_usage = NAN;
	load.power_headroom = -INFINITY;
	node_event(c, "n1", 4, NULL, &load);
	assert_int_equal(atomic_load(&stats->others), 0);
	assert_float_equal(node_stats_spare(stats).kv_usage, 0, 0);
	load.kv_usage = INFINITY;
	load.running = load.waiting = UINT32_MAX;
	node_event(c, "n1", 5, NULL, &load);
	assert_float_equal(node_stats_spare(stats).kv_usage, 1, 0);
	assert_int_equal(atomic_load(&stats->others), 1000000);
	cluster_free(&c);
}

static void signs_of_life_reach_the_pulse(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	Cognitora__V1__Load load;
	cognitora__v1__load__init(&load);
	struct node_stats *stats = &c->stats[cluster_find(c, "n1")->slot];
	const cgn_nsec base = 10 * CGN_SEC;
	node_snapshot(c, "n1", "m", true);
	assert_true(pulse_lives(&stats->pulse, 10,
		base)); /* An agent of an earlier version vouches by its beats. */
	load.mute_ms = 12000;
	assert_false(node_event(c, "n1", 2, NULL, &load).stalled);
	assert_false(pulse_lives(&stats->pulse, 10, base));
	load.stalled = true;
	assert_true(node_event(c, "n1", 3, NULL, &load).stalled);
	assert_false(node_event(c, "n1", 4, NULL, &load).stalled); /* Told once. */
	load.stalled = false;
	load.mute_ms = 0;
	assert_false(node_event(c, "n1", 5, NULL, &load).stalled);
	assert_true(pulse_lives(&stats->pulse, 10, base));
	load.stalled = true;
	assert_true(node_event(c, "n1", 6, NULL, &load).stalled);
	cluster_free(&c);
}

static void an_agent_that_counts_by_router_is_taken_at_its_word(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_snapshot(c, "n1", "m", true);
	struct node_stats *stats = &c->stats[cluster_find(c, "n1")->slot];
	/* Five of the requests are still on their way to the agent; they must not change the result. */
	atomic_store(&stats->inflight, 9);
	Cognitora__V1__Load load;
	cognitora__v1__load__init(&load);
	load.shared = true;
	load.inflight = 10;
	load.yours = 4;
	load.queued_tokens = 7000;
	load.yours_queued_tokens = 1000;
	load.decoding = 3;
	load.yours_decoding = 2;
	load.running = 10;
	load.waiting = 2;
	load.foreign = 2;
	node_event(c, "n1", 2, NULL, &load);
	assert_int_equal(atomic_load(&stats->others), 8);
	assert_true(atomic_load(&stats->others_tokens) == 6000);
	assert_int_equal(atomic_load(&stats->others_decoding), 1);
	load.yours = 11; /* An impossible number is tolerated. */
	load.yours_queued_tokens = load.queued_tokens + 1;
	load.foreign = 0;
	node_event(c, "n1", 3, NULL, &load);
	assert_int_equal(atomic_load(&stats->others), 0);
	assert_true(atomic_load(&stats->others_tokens) == 0);
	load.inflight = load.foreign = load.decoding = UINT32_MAX;
	load.queued_tokens = UINT64_MAX;
	load.yours = 0;
	node_event(c, "n1", 4, NULL, &load);
	assert_int_equal(atomic_load(&stats->others), 1000000);
	assert_true(atomic_load(&stats->others_tokens) == 1000000000);
	assert_int_equal(atomic_load(&stats->others_decoding), 1000000);
	cluster_free(&c);
}

static struct cluster_orders load_event(struct cluster *c, uint64_t seq, uint32_t beat_ms, uint32_t inflight)
{
	Cognitora__V1__WatchEvent ev;
	Cognitora__V1__Load load;
	struct cluster_orders o;
	cognitora__v1__watch_event__init(&ev);
	cognitora__v1__load__init(&load);
	load.shared = true;
	load.inflight = inflight;
	ev.seq = seq;
	ev.load = &load;
	ev.beat_ms = beat_ms;
	cluster_watch_event(c, cluster_find(c, "n1"), &ev, seq * CGN_SEC, &o);
	return o;
}

static enum cluster_watch_order quiet_for(struct cluster *c, unsigned ms)
{
	struct cluster_orders o;
	cluster_watch_quiet(c, cluster_find(c, "n1"), ms * CGN_MSEC, &o);
	return o.watch;
}

static void an_agent_that_breaks_its_promise_is_watched_again(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_snapshot(c, "n1", "m", true);
	struct cluster_node *n = cluster_find(c, "n1");
	struct node_stats *stats = &c->stats[n->slot];
	for (int i = 0; i < 10; i++)
		assert_int_equal(quiet_for(c, 1000), WATCH_KEEP); /* The node promised no interval. */
	load_event(c, 2, 1000, 5);
	assert_true(n->load_at == 2 * CGN_SEC);
	for (unsigned i = 1; i < CLUSTER_QUIET_BEATS; i++)
		assert_int_equal(quiet_for(c, 1000), WATCH_KEEP);
	load_event(c, 3, 1000, 5); /* Late, but an event. */
	for (unsigned i = 1; i < CLUSTER_QUIET_BEATS; i++)
		assert_int_equal(quiet_for(c, 1000), WATCH_KEEP);
	assert_int_equal(atomic_load(&stats->others), 5);
	node_event(c, "n1", 4, NULL, NULL); /* An event without a load does not count as a heartbeat. */
	assert_int_equal(quiet_for(c, 1000), WATCH_AGAIN);
	assert_int_equal(atomic_load(&stats->others), 0);
	struct cluster_orders o;
	cluster_watch_lost(c, n, &o);
	assert_true(o.publish);
	assert_int_equal(n->state, NODE_DOWN);
	/* The node has no watch, so there is none to end. */
	assert_int_equal(quiet_for(c, 60000), WATCH_KEEP);
	node_snapshot(c, "n1", "m", true);
	assert_int_equal(n->state, NODE_READY);
	assert_int_equal(quiet_for(c, 1000), WATCH_KEEP);
	cluster_free(&c);
}

static void slots_are_not_reused_while_requests_run_there(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct cluster_orders o = node_seen(c, "n1", "m");
	uint16_t first = o.slot;
	atomic_store(&c->stats[first].inflight, 1);
	cluster_node_gone(c, "n1", &o);
	o = node_seen(c, "n2", "m");
	assert_int_not_equal(o.slot, first);
	atomic_store(&c->stats[first].inflight, 0);
	o = node_seen(c, "n3", "m");
	assert_int_equal(o.slot, first);
	cluster_free(&c);
}

static void there_is_an_end_to_slots(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct cluster_orders o;
	struct toy_node t;
	struct cgn_err err;
	char id[16];
	for (int i = 0; i < ROUTE_MAX_NODES; i++)
		atomic_store(&c->stats[i].inflight, i >= 3);
	for (int i = 0; i < 3; i++) {
		snprintf(id, sizeof id, "n%d", i);
		node_seen(c, id, "m");
	}
	cgn_rc rc = cluster_node_seen(c, toy_node_of(&t, "more", "m", true), false, &o, &err);
	assert_int_equal(rc.code, CGN_OVERLOADED);
	assert_non_null(strstr(err.msg, "4096"));
	cluster_free(&c);
}

/* ---- view ---- */

static struct cluster_view *view_of(const struct cluster *c)
{
	struct cluster_view *v = NULL;
	assert_true(cgn_ok(cluster_view_new(c, NULL, NULL, &v, NULL)));
	return v;
}

static struct cgn_str name_of(const void *arg, struct cgn_str served)
{
	assert_string_equal(arg, "names");
	return cgn_str_is(served, "org/\"llama\"") || cgn_str_is(served, "alias") ? CGN_STR("llama") : served;
}

static void a_view_groups_the_names_of_one_model(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct cluster_view *v = NULL;
	node_seen(c, "n1", "llama");
	node_seen(c, "n2", "org/\"llama\"");
	node_seen(c, "n3", "qwen");
	node_snapshot(c, "n1", "llama", true);
	node_snapshot(c, "n2", "org/\"llama\"", true);
	node_snapshot(c, "n3", "qwen", true);
	assert_true(cgn_ok(cluster_view_new(c, name_of, "names", &v, NULL)));
	cluster_free(&c);
	assert_int_equal(v->n_models, 2);
	assert_null(view_model_find(v, CGN_STR("org/\"llama\"")));
	const struct view_model *m = view_model_find(v, CGN_STR("llama"));
	assert_int_equal(m->n_ready, 2);
	assert_true(cgn_str_is(view_served_name(m, m->ready[0]->slot)->text, "llama"));
	assert_true(cgn_str_is(view_served_name(m, m->ready[0]->slot)->json, "\"llama\""));
	assert_true(cgn_str_is(view_served_name(m, m->ready[1]->slot)->text, "org/\"llama\""));
	assert_true(cgn_str_is(view_served_name(m, m->ready[1]->slot)->json, "\"org/\\\"llama\\\"\""));
	cluster_view_unref(&v);
}

/* Return the name under which n1 serves llama, when its engines serve it as |first| and |second|. */
static struct cgn_str name_of_two(const char *first, const char *second, bool first_ready, char out[32])
{
	struct cluster *c = cluster_of();
	struct cluster_view *v = NULL;
	struct toy_node t, other;
	node_seen(c, "n1", first);
	Cognitora__V1__Node *node = toy_node_of(&t, "n1", first, first_ready);
	(void)toy_node_of(&other, "n1", second, true);
	Cognitora__V1__Engine *both[] = {&t.engine, &other.engine};
	node->engines = both;
	node->n_engines = 2;
	node_event(c, "n1", 1, node, NULL);
	assert_true(cgn_ok(cluster_view_new(c, name_of, "names", &v, NULL)));
	assert_int_equal(v->n_models, 1);
	const struct view_model *m = view_model_find(v, CGN_STR("llama"));
	assert_int_equal(m->n_ready, 1);
	assert_true(cgn_str_copyz(out, 32, view_served_name(m, m->ready[0]->slot)->text));
	cluster_view_unref(&v);
	cluster_free(&c);
	return cgn_str_of(out);
}

/* A node is one candidate, and is asked under the name of an engine that is ready. The order in which the engines
 * are told does not change the name. */
static void two_engines_of_one_model_are_one_candidate(void **state)
{
	(void)state;
	char out[32];
	assert_true(cgn_str_is(name_of_two("alias", "llama", true, out), "alias"));
	assert_true(cgn_str_is(name_of_two("llama", "alias", true, out), "alias"));
	assert_true(cgn_str_is(name_of_two("alias", "llama", false, out), "llama"));
	assert_true(cgn_str_is(name_of_two("llama", "alias", false, out), "alias"));
}

static void a_view_lists_models_and_who_is_ready(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "llama");
	node_seen(c, "n2", "llama");
	node_seen(c, "n3", "qwen");
	node_seen(c, "n4", "mute");
	node_snapshot(c, "n1", "llama", true);
	node_snapshot(c, "n2", "llama", true);
	node_snapshot(c, "n3", "qwen", true);
	struct cluster_orders o;
	cluster_cordon(c, "n2", true, &o);
	struct cluster_view *v = view_of(c);
	assert_int_equal(v->n_nodes, 4);
	assert_int_equal(v->n_models, 3);
	const struct view_model *m = view_model_find(v, CGN_STR("llama"));
	assert_int_equal(m->n_ready, 1);
	assert_string_equal(m->ready[0]->id, "n1");
	assert_int_equal(m->ready[0]->width, 8);
	assert_int_equal(view_model_find(v, CGN_STR("qwen"))->n_ready, 1);
	assert_int_equal(view_model_find(v, CGN_STR("mute"))->n_ready, 0);
	assert_null(view_model_find(v, CGN_STR("llam")));
	assert_null(view_model_find(v, CGN_STR("")));
	assert_null(view_model_find(v, CGN_STR("zzz")));
	assert_int_equal(view_node_find(v, CGN_STR("n2"))->state, NODE_CORDONED);
	assert_null(view_node_find(v, CGN_STR("n9")));
	assert_string_equal(view_node_at(v, m->ready[0]->slot)->id, "n1");
	assert_null(view_node_at(v, 4000));
	struct cluster_view *second = v;
	cluster_view_ref(second);
	cluster_free(&c); /* A view lives without its cluster. */
	cluster_view_unref(&v);
	assert_string_equal(view_node_find(second, CGN_STR("n3"))->address, "n3:7080");
	cluster_view_unref(&second);
	cluster_view_unref(&second);
}

/* Engines with equal fingerprints may be a pair; a node whose engine says nothing uses its store, if it has one. */
static void candidates_carry_the_hand_off(void **state)
{
	(void)state;
	static const char *const terms[] = {"build=1 block=16", "build=1 block=16", "build=1 block=32", NULL,
		NULL};
	static const char *const ids[] = {"n0", "n1", "n2", "n3", "n4"};
	struct cluster *c = cluster_of();
	struct cluster_view *v = NULL;
	struct route_cand cands[5];
	for (size_t i = 0; i < 5; i++) {
		struct toy_node t;
		Cognitora__V1__Handoff h = COGNITORA__V1__HANDOFF__INIT;
		Cognitora__V1__KvStore kv = COGNITORA__V1__KV_STORE__INIT;
		node_seen(c, ids[i], "llama");
		Cognitora__V1__Node *node = toy_node_of(&t, ids[i], "llama", true);
		h.kind = (char *)(uintptr_t)"nixl";
		h.terms = (char *)(uintptr_t)terms[i];
		h.host = (char *)(uintptr_t)"10.0.0.1";
		h.port = 5600;
		t.engine.handoff = terms[i] != NULL ? &h : NULL;
		kv.quic_address = (char *)(uintptr_t)"10.0.0.1:7091";
		node->kv = i != 4 ? &kv : NULL;
		node_event(c, ids[i], 1, node, NULL);
	}
	assert_true(cgn_ok(cluster_view_new(c, NULL, NULL, &v, NULL)));
	const struct view_model *m = view_model_find(v, CGN_STR("llama"));
	assert_int_equal(view_candidates(m, c->stats, &(struct view_ask){.now = 1}, cands), 5);
	assert_true(cands[0].handoff != 0 && cands[0].handoff == cands[1].handoff);
	assert_true(cands[0].handoff != cands[2].handoff && cands[3].handoff != cands[0].handoff);
	assert_true(cands[3].handoff != 0 && cands[4].handoff == 0);
	const struct handoff_end *end = view_handoff(m, cands[2].slot);
	assert_int_equal(end->kind, HANDOFF_NIXL);
	assert_true(
		cgn_str_is(end->host, "10.0.0.1") && end->port == 5600 && cgn_str_is(end->terms, terms[2]));
	assert_int_equal(view_handoff(m, cands[3].slot)->kind, HANDOFF_STORE);
	assert_null(view_handoff(m, cands[4].slot));
	assert_null(view_handoff(m, 999));
	cluster_view_unref(&v);
	cluster_free(&c);
}

static void an_empty_cluster_has_an_empty_view(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct cluster_view *v = view_of(c);
	assert_int_equal(v->n_nodes + v->n_models, 0);
	assert_null(view_model_find(v, CGN_STR("m")));
	cluster_view_unref(&v);
	cluster_free(&c);
}

static void candidates_carry_the_cells_and_skip_the_excluded(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	const char *ids[] = {"n1", "n2", "n3"};
	for (int i = 0; i < 3; i++) {
		node_seen(c, ids[i], "m");
		node_snapshot(c, ids[i], "m", true);
	}
	uint16_t two = cluster_find(c, "n2")->slot, three = cluster_find(c, "n3")->slot;
	atomic_store(&c->stats[three].inflight, 7);
	atomic_store(&c->stats[three].others, 2);
	atomic_store(&c->stats[three].kv_and_power, 0x4000U << 16);
	struct cluster_view *v = view_of(c);
	struct route_cand cand[3];
	const struct view_model *m = view_model_find(v, CGN_STR("m"));
	assert_int_equal(view_candidates(m, c->stats, &(struct view_ask){0}, cand), 3);
	assert_true(cand[0].slot < cand[1].slot && cand[1].slot < cand[2].slot);
	assert_int_equal(view_candidates(m, c->stats, &(struct view_ask){&two, 1, false, 0}, cand), 2);
	assert_int_equal(cand[1].slot, three);
	assert_int_equal(cand[1].inflight, 7);
	assert_int_equal(cand[1].others, 2);
	assert_true(cand[1].kv_usage > 0.24F && cand[1].kv_usage < 0.26F);
	assert_true(cand[0].power_headroom > 0.99F);
	cluster_view_unref(&v);
	cluster_free(&c);
}

static void open_breakers_leave_the_candidates_unless_all_are(void **state)
{
	(void)state;
	const struct breaker_rules rules = {1, 10 * CGN_SEC};
	const struct breaker_input fail = {.event = BREAKER_FAILED, .now = CGN_SEC},
				   stall = {.event = BREAKER_TRIP,
					   .reason = BREAKER_FOR_STALL,
					   .now = CGN_SEC},
				   claim = {.event = BREAKER_CLAIM, .now = 20 * CGN_SEC};
	struct cluster *c = cluster_of();
	const char *ids[] = {"n1", "n2", "n3"};
	struct node_stats *stats[3];
	uint16_t slots[3];
	for (int i = 0; i < 3; i++) {
		node_seen(c, ids[i], "m");
		node_snapshot(c, ids[i], "m", true);
		slots[i] = cluster_find(c, ids[i])->slot;
		stats[i] = &c->stats[slots[i]];
	}
	struct cluster_view *v = view_of(c);
	const struct view_model *m = view_model_find(v, CGN_STR("m"));
	struct route_cand cand[3];
	struct view_ask ask = {.now = 2 * CGN_SEC}, later = {.now = 20 * CGN_SEC},
			tried = {&slots[2], 1, false, 2 * CGN_SEC}, all = {.all = true, .now = 2 * CGN_SEC};
	(void)breaker_apply(&stats[0]->breaker, &rules, &stall);
	(void)breaker_apply(&stats[1]->breaker, &rules, &fail);
	assert_int_equal(view_candidates(m, c->stats, &ask, cand), 1);
	assert_int_equal(cand[0].slot, slots[2]);
	/* A breaker is closed, so the panic rule does not apply. */
	assert_int_equal(view_candidates(m, c->stats, &tried, cand), 0);
	assert_int_equal(view_candidates(m, c->stats, &all, cand), 3);
	assert_int_equal(view_candidates(m, c->stats, &later, cand), 3); /* Half-open. */
	(void)breaker_apply(&stats[0]->breaker, &rules, &claim);
	assert_int_equal(view_candidates(m, c->stats, &later, cand), 2); /* The probe is in flight. */
	(void)breaker_apply(&stats[2]->breaker, &rules, &fail);
	/* All nodes are excluded: the stalled one is the worst. */
	assert_int_equal(view_candidates(m, c->stats, &ask, cand), 2);
	assert_int_equal(cand[0].slot, slots[1]);
	assert_int_equal(cand[1].slot, slots[2]);
	assert_int_equal(view_candidates(m, c->stats, &tried, cand), 1);
	assert_int_equal(cand[0].slot, slots[1]);
	cluster_view_unref(&v);
	cluster_free(&c);
}

static void cells_learn_from_what_engines_count(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	node_seen(c, "n1", "m");
	node_snapshot(c, "n1", "m", true);
	struct node_stats *stats = &c->stats[cluster_find(c, "n1")->slot];
	assert_true(node_stats_trust(stats) > 0.999 && node_stats_answer_share(stats) > 0.999);
	assert_true(node_stats_block_tokens(stats) < 0.001); /* Unknown. */
	assert_true(node_stats_pace(stats) <= 0);
	node_stats_paced(stats, 0, 5);
	node_stats_paced(stats, 5, 0);
	assert_true(node_stats_pace(stats) <= 0);
	node_stats_paced(stats, 400, 100);
	assert_true(fabs(node_stats_pace(stats) - 4) < 0.001);
	for (int i = 0; i < 200; i++)
		node_stats_paced(stats, 200, 100);
	assert_true(fabs(node_stats_pace(stats) - 2) < 0.01);
	/* A prompt of 1000 tokens was taken for one of 4000. */
	node_stats_prefill(stats, 2000, 4000);
	node_stats_recount(stats, 4000, 1000);
	assert_true(fabs((double)node_stats_speed(stats).prefill_ms - 2) < 0.001);
	node_stats_recount(stats, 4000, 0);
	node_stats_recount(stats, 1e9, 1);
	assert_true(fabs((double)node_stats_speed(stats).prefill_ms - 2) < 0.001);
	node_stats_measure(stats, 640, 10);
	assert_true(node_stats_block_tokens(stats) > 63.9 && node_stats_block_tokens(stats) < 64.1);
	node_stats_measure(stats, 0, 10);
	node_stats_measure(stats, 50, 0.5); /* Less than a block is not measured. */
	assert_true(node_stats_block_tokens(stats) > 63.9 && node_stats_block_tokens(stats) < 64.1);
	for (int i = 0; i < 200; i++)
		node_stats_measure(stats, 320, 10);
	assert_true(node_stats_block_tokens(stats) > 31.9 && node_stats_block_tokens(stats) < 32.1);
	node_stats_measure(stats, UINT64_MAX, 1);
	assert_true(node_stats_block_tokens(stats) < 1e6);
	for (int i = 0; i < 200; i++) {
		node_stats_answer(stats, 100, 25);
		node_stats_answer(stats, 0, 25);
		node_stats_believe(stats, 1000, 0);
	}
	assert_true(node_stats_answer_share(stats) > 0.24 && node_stats_answer_share(stats) < 0.26);
	assert_true(node_stats_trust(stats) < 0.06 && node_stats_trust(stats) > 0.04);
	struct cluster_orders o;
	assert_true(cluster_node_gone(c, "n1", &o));
	node_seen(c, "n2", "m"); /* A new node in the slot starts without measurements. */
	assert_true(node_stats_trust(stats) > 0.999 && node_stats_block_tokens(stats) < 0.001);
	cluster_free(&c);
}

static void notes_tell_what_was_sent_a_moment_ago(void **state)
{
	(void)state;
	struct warm w = {0};
	const struct cgn_str a = CGN_STR("a"), b = CGN_STR("b");
	cgn_nsec now = 100 * CGN_SEC, load = 5 * CGN_SEC;
	assert_false(warm_look(&w, a, load, now).noted);
	warm_note(&w, a, now);
	struct warm_seen s = warm_look(&w, a, load, now + CGN_SEC);
	assert_true(s.noted && s.ago == CGN_SEC && s.others == 0);
	s = warm_look(&w, b, load, now + CGN_SEC);
	assert_true(!s.noted && s.others == 1 && s.later == 1);
	warm_note(&w, b, now + 2 * CGN_SEC);
	s = warm_look(&w, a, load, now + 3 * CGN_SEC);
	assert_true(
		s.noted && s.others == 1 && s.later == 1); /* The later one may have driven the other out. */
	s = warm_look(&w, b, load, now + 3 * CGN_SEC);
	assert_true(s.noted && s.others == 1 && s.later == 0);
	s = warm_look(&w, a, load, now + 2 * CGN_SEC + WARM_FRESH);
	assert_int_equal(s.later, 0); /* The engine has told since. */
	assert_false(warm_look(&w, a, load, now + 2 * load + WARM_SLACK).noted);
	/* The oldest note makes room; a clock that is behind, or wraps, makes no note old. */
	static const char *const more[] = {"c", "d", "e"};
	for (size_t i = 0; i < CGN_COUNT(more); i++)
		warm_note(&w, cgn_str_of(more[i]), now + 3 * CGN_SEC + i * CGN_MSEC);
	assert_false(warm_look(&w, a, load, now + 4 * CGN_SEC).noted);
	assert_true(warm_look(&w, b, load, now).noted);
	cgn_nsec wraps = ((cgn_nsec)UINT32_MAX - 500) * CGN_MSEC;
	warm_note(&w, a, wraps);
	assert_true(warm_look(&w, a, load, wraps + CGN_SEC).ago == CGN_SEC);
}

/* Two models that an engine loads itself. */
struct loader {
	Cognitora__V1__ModelFacts rows[2], *facts[2];
	char *models[2];
};

static Cognitora__V1__Node *loader_of(struct toy_node *t, struct loader *l, const char *id, const char *a,
	const char *b, uint32_t holds)
{
	const char *states[] = {a, b};
	Cognitora__V1__Node *n = toy_node_of(t, id, "a", true);
	for (unsigned i = 0; i < 2; i++) {
		cognitora__v1__model_facts__init(&l->rows[i]);
		l->rows[i].model = i;
		l->rows[i].state = (char *)(uintptr_t)states[i];
		l->rows[i].load_ms = 3000;
		l->facts[i] = &l->rows[i];
	}
	l->models[0] = (char *)(uintptr_t)"a";
	l->models[1] = (char *)(uintptr_t)"b";
	t->engine.models = l->models;
	t->engine.n_models = 2;
	t->engine.facts = l->facts;
	t->engine.n_facts = 2;
	t->engine.models_held = holds;
	return n;
}

static void candidates_carry_what_a_load_costs(void **state)
{
	(void)state;
	struct cluster *c = cluster_of();
	struct cluster_view *v = NULL;
	struct route_cand cand[2];
	struct toy_node t;
	struct loader l;
	cgn_nsec now = 100 * CGN_SEC;
	const struct view_ask ask = {.now = now};
	node_seen(c, "n1", "a");
	node_seen(c, "n2", "a");
	node_snapshot(c, "n1", "a", true);
	node_snapshot(c, "n2", "a", true);
	node_event(c, "n1", 2, loader_of(&t, &l, "n1", "ready", "loadable", 1), NULL);
	node_event(c, "n2", 2, loader_of(&t, &l, "n2", "loadable", "loadable", 1), NULL);
	assert_true(cgn_ok(cluster_view_new(c, NULL, NULL, &v, NULL)));
	const struct view_model *a = view_model_find(v, CGN_STR("a")), *b = view_model_find(v, CGN_STR("b"));
	struct warm *n1 = &c->stats[cluster_find(c, "n1")->slot].warm,
		    *n2 = &c->stats[cluster_find(c, "n2")->slot].warm;
	assert_int_equal(view_candidates(a, c->stats, &ask, cand), 2);
	assert_true(cand[0].on_demand && cand[0].load_ms == 0 && cand[0].evict_ms == 0);
	assert_true(cand[1].load_ms == 3000 && cand[1].evict_ms == 0);
	assert_int_equal(view_candidates(b, c->stats, &ask, cand), 2);
	assert_true(cand[0].load_ms == 3000 && cand[0].evict_ms == 6000);
	assert_true(cand[1].load_ms == 3000 && cand[1].evict_ms == 0);
	/* Before the engine tells, the request that was sent counts. */
	warm_note(n2, CGN_STR("b"), now - CGN_SEC);
	assert_int_equal(view_candidates(b, c->stats, &ask, cand), 2);
	assert_true(cand[1].load_ms == 2000 && cand[1].evict_ms == 0);
	assert_int_equal(view_candidates(a, c->stats, &ask, cand), 2);
	assert_true(cand[1].load_ms == 3000 && cand[1].evict_ms == 6000);
	warm_note(n1, CGN_STR("b"), now - CGN_SEC); /* The model that is loaded there has to leave. */
	assert_int_equal(view_candidates(a, c->stats, &ask, cand), 2);
	assert_true(cand[0].load_ms == 3000 && cand[0].evict_ms == 6000);
	cluster_view_unref(&v);
	/* The first node is known to load quickly, and the other one not to: its room is taken nevertheless. */
	warm_clear(n1);
	warm_clear(n2);
	Cognitora__V1__Node *quick = loader_of(&t, &l, "n1", "ready", "loadable", 1);
	l.rows[1].load_ms = 100;
	node_event(c, "n1", 3, quick, NULL);
	assert_true(cgn_ok(cluster_view_new(c, NULL, NULL, &v, NULL)));
	assert_int_equal(view_candidates(view_model_find(v, CGN_STR("b")), c->stats, &ask, cand), 2);
	assert_true(cand[0].load_ms == 100 && cand[0].evict_ms == 6000);
	assert_true(cand[1].load_ms == 3000 && cand[1].evict_ms == 0);
	cluster_view_unref(&v);
	cluster_free(&c);
}

static void the_card_with_the_least_context_wins(void **state)
{
	(void)state;
	static const struct {
		const char *id, *card;
		uint64_t context;
	} rows[] = {{"n1", "\"root\":\"1\"", 0}, {"n2", "\"root\":\"2\"", 4096},
		{"n3", "\"root\":\"3\"", 8192}, {"n0", "\"root\":\"0\"", 4096}};
	struct cluster *c = cluster_of();
	struct cluster_view *v = NULL;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct toy_node t;
		struct loader l;
		node_seen(c, rows[i].id, "a");
		node_snapshot(c, rows[i].id, "a", true);
		Cognitora__V1__Node *n = loader_of(&t, &l, rows[i].id, "", "", 0);
		l.rows[0].card = (char *)(uintptr_t)rows[i].card;
		l.rows[0].context = rows[i].context;
		l.rows[0].created = 7;
		node_event(c, rows[i].id, 2, n, NULL);
	}
	assert_true(cgn_ok(cluster_view_new(c, NULL, NULL, &v, NULL)));
	const struct view_model *a = view_model_find(v, CGN_STR("a")), *b = view_model_find(v, CGN_STR("b"));
	assert_true(
		cgn_str_is(a->card.members, "\"root\":\"0\"")); /* The first id decides between equal ones. */
	assert_int_equal(a->card.context, 4096);
	assert_int_equal(a->card.created, 7);
	assert_int_equal(b->card.members.n, 0);
	assert_null(a->swap[0]);
	cluster_view_unref(&v);
	cluster_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_node_joins_gets_ready_and_leaves),
		cmocka_unit_test(orders_name_the_node_that_changed),
		cmocka_unit_test(a_lost_watch_takes_it_down_until_the_next_snapshot),
		cmocka_unit_test(a_gap_in_the_numbers_asks_for_a_new_watch),
		cmocka_unit_test(an_unsound_report_is_not_taken),
		cmocka_unit_test(cordon_and_drain_are_honoured_in_any_order),
		cmocka_unit_test(a_static_node_is_known_by_both_names_and_keeps_its_listed_address),
		cmocka_unit_test(a_moved_node_is_watched_again_and_a_restarted_one_forgotten),
		cmocka_unit_test(load_of_others_is_what_is_not_ours),
		cmocka_unit_test(signs_of_life_reach_the_pulse),
		cmocka_unit_test(an_agent_that_counts_by_router_is_taken_at_its_word),
		cmocka_unit_test(an_agent_that_breaks_its_promise_is_watched_again),
		cmocka_unit_test(slots_are_not_reused_while_requests_run_there),
		cmocka_unit_test(there_is_an_end_to_slots),
		cmocka_unit_test(a_view_lists_models_and_who_is_ready),
		cmocka_unit_test(a_view_groups_the_names_of_one_model),
		cmocka_unit_test(two_engines_of_one_model_are_one_candidate),
		cmocka_unit_test(candidates_carry_the_hand_off),
		cmocka_unit_test(an_empty_cluster_has_an_empty_view),
		cmocka_unit_test(candidates_carry_the_cells_and_skip_the_excluded),
		cmocka_unit_test(open_breakers_leave_the_candidates_unless_all_are),
		cmocka_unit_test(cells_learn_from_what_engines_count),
		cmocka_unit_test(notes_tell_what_was_sent_a_moment_ago),
		cmocka_unit_test(candidates_carry_what_a_load_costs),
		cmocka_unit_test(the_card_with_the_least_context_wins),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
