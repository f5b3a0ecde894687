/* SPDX-License-Identifier: Apache-2.0 */
/* A fleet in one process and in virtual time. Simulated engines with tiers; their events are lost, doubled,
 * reordered and garbled on their way to an agent's source and holdings. Changes from agents are lost on their
 * way to two routers' indexes. Engines and agents die. All of it is production code except the sockets.
 * During the storm no index may place a block where it never was; after it, both indexes equal the engines'
 * contents, block for block and tier for tier. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "lab/enginemodel/enginemodel.h"
#include "policy/kv/kvindex/kvindex.h"
#include "policy/kv/kvsource/kvsource.h"
#include "sim/events/events.h"

#define NODES     7
#define ROUTERS   2
#define BLOCK     4
#define LOG       4096 /* Batches of one run of an engine. */
#define TURNS     1500
#define IN_FLIGHT 8

struct wire { /* Batches in flight, which may overtake each other. */
	uint64_t seq[IN_FLIGHT];
	unsigned n;
};

struct link { /* Changes in flight from an agent to a router. */
	uint16_t index_id;
	bool up;
	uint64_t *touched;
	size_t n, cap;
};

struct node {
	struct enginemodel *engine;
	struct enginemodel_job *job;
	struct sim_events events;
	struct cgn_buf log[LOG];
	uint64_t published; /* Batches published in this run. */
	struct wire wire;
	struct holdings *held;
	struct holdings *ever; /* Blocks that the node's engines ever held. */
	struct kvsource *source;
	cgn_nsec wake_at;
	struct link link[ROUTERS];
	unsigned number;
};

struct fleet {
	struct node node[NODES];
	struct kvindex *index[ROUTERS];
	cgn_nsec now;
	uint64_t rng;
	bool storm;
	struct kvsource_stats sums;
	unsigned engine_deaths, agent_deaths, links_lost, repairs, garbled;
};

static const char *const models[] = {"m", NULL};

static uint64_t draw_next(struct fleet *f, uint64_t n)
{
	return mix64(++f->rng) % n;
}

/* True once in |n| calls on average, during the storm. */
static bool mishap_due(struct fleet *f, uint64_t n)
{
	return f->storm && draw_next(f, n) == 0;
}

/* ---- an engine ---- */

static void engine_start(struct node *e)
{
	enum sim_dialect dialect = (enum sim_dialect)(e->number % SIM_DIALECT_COUNT);
	bool below = dialect != SIM_DIALECT_SGLANG_OLD; /* This dialect cannot express tiers. */
	sim_events_init(&e->events,
		&(struct sim_events_cfg){.dialect = dialect,
			.hash_bytes = e->number % 2 == 1,
			.groups = dialect == SIM_DIALECT_VLLM ? 2 : 1,
			.block_tokens = BLOCK,
			.models = models});
	struct enginemodel_cfg cfg = {
		.decode = CGN_MSEC,
		.max_batch = 4,
		.step_tokens = 64,
		.max_queue = 10,
		.kv_blocks = 24,
		.block_tokens = BLOCK,
		.lower_blocks = {0, below ? 20 : 0, below ? 30 : 0},
		.notes = sim_dialect_describes(dialect) ? ENGINEMODEL_NOTE_FULL : ENGINEMODEL_NOTE_DIGEST,
		.listener = sim_events_listener(&e->events),
	};
	assert_true(cgn_ok(enginemodel_new(&cfg, &e->engine)));
	e->published = 0;
	e->wire.n = 0;
}

static void engine_stop(struct node *e)
{
	enginemodel_free(&e->engine);
	sim_events_fini(&e->events);
	for (uint64_t i = 0; i < e->published; i++)
		cgn_buf_fini(&e->log[i]);
}

static void publish_batch(struct node *e)
{
	if (!sim_events_any(&e->events))
		return;
	assert_true(e->published < LOG);
	struct cgn_buf *b = &e->log[e->published++];
	sim_events_take(&e->events, 1.5, false, b);
	assert_false(b->bad);
	assert_true(e->wire.n < IN_FLIGHT);
	e->wire.seq[e->wire.n++] = e->published - 1;
}

static void remember_block(void *user, uint64_t digest)
{
	struct node *e = user;
	if (holdings_tiers(e->ever, digest) == 0)
		assert_true(cgn_ok(holdings_add(e->ever, digest, BLOCK_GPU)));
}

/* Serve a prompt that shares its beginning with others, and its answer. */
static void engine_serve(struct fleet *f, struct node *e)
{
	uint64_t lineage = draw_next(f, 9);
	uint32_t prompt = (uint32_t)(BLOCK * (1 + draw_next(f, 6))), own = (uint32_t)draw_next(f, 3 * BLOCK);
	/* The events of this dialect do not include salts. */
	bool salted = lineage % 3 == 0 && e->number % SIM_DIALECT_COUNT != SIM_DIALECT_SGLANG_OLD;
	struct sim_chain c;
	sim_chain_init(&c,
		&(struct sim_chain_cfg){.model = CGN_STR("m"),
			.salt = salted ? CGN_STR("pepper") : CGN_STR(""),
			.block_tokens = BLOCK,
			.max_tokens = 4096,
			.keep = true});
	for (uint32_t i = 0; i < prompt; i++)
		sim_chain_add(&c, (uint32_t)(mix64(lineage * 4096 + i) & 0xffffff));
	for (uint32_t i = 0; i < own + 1; i++)
		sim_chain_add(&c, (uint32_t)(draw_next(f, 1 << 20)));
	const struct enginemodel_job_spec spec = {prompt + own, 1, c.hashes, c.n, NULL, &c.contents};
	assert_true(cgn_ok(enginemodel_submit(e->engine, &spec, &e->job)));
	sim_chain_fini(&c);
	struct enginemodel_orders o;
	for (enginemodel_step(e->engine, f->now, &o); o.wake_at != 0; enginemodel_step(e->engine, f->now, &o))
		f->now = o.wake_at;
	enginemodel_memory_digests(enginemodel_memory_of(e->engine), ENGINEMODEL_TIER_GPU, remember_block, e);
	publish_batch(e);
}

/* ---- an agent ---- */

static void on_changed(void *user, uint64_t digest)
{
	struct node *e = user;
	for (unsigned r = 0; r < ROUTERS; r++) {
		struct link *l = &e->link[r];
		if (!l->up)
			continue;
		if (l->n == l->cap) {
			l->cap = l->cap > 0 ? 2 * l->cap : 64;
			l->touched = realloc(l->touched, l->cap * sizeof *l->touched);
			assert_non_null(l->touched);
		}
		l->touched[l->n++] = digest;
	}
}

static void tell_router(struct fleet *f, struct node *e, enum kvsource_input_type type, uint64_t seq,
	struct cgn_str payload);

static void replay_batches(struct fleet *f, struct node *e, uint64_t from)
{
	for (uint64_t i = from; i < e->published; i++) {
		if (mishap_due(f, 200)) {
			tell_router(f, e, KVSOURCE_IN_REPLAY_FAILED, 0, (struct cgn_str){0});
			return;
		}
		tell_router(f, e, KVSOURCE_IN_REPLAYED, i, cgn_buf_view(&e->log[i]));
	}
	tell_router(f, e, KVSOURCE_IN_REPLAY_END, 0, (struct cgn_str){0});
}

static void tell_router(struct fleet *f, struct node *e, enum kvsource_input_type type, uint64_t seq,
	struct cgn_str payload)
{
	struct kvsource_input in = {.type = type, .seq = seq, .payload = payload, .why = "on purpose"};
	struct kvsource_orders o;
	kvsource_step(e->source, &in, f->now, &o);
	e->wake_at = o.wake_at;
	f->garbled += o.unparsable;
	if (o.replay)
		replay_batches(f, e, o.replay_from);
}

static void agent_start(struct node *e)
{
	struct cgn_err err;
	bool sglang = e->number % SIM_DIALECT_COUNT >= SIM_DIALECT_SGLANG;
	e->held = holdings_new(100000, on_changed, e);
	const struct kvsource_cfg cfg = {.model = "m",
		.lora_is_model = !sglang,
		.block_tokens = BLOCK,
		.can_replay = true};
	assert_true(cgn_ok(kvsource_new(&cfg, e->held, &e->source, &err)));
	e->wake_at = 0;
}

static void agent_stop(struct fleet *f, struct node *e)
{
	struct kvsource_stats s = kvsource_stats(e->source);
	f->sums.gaps += s.gaps;
	f->sums.duplicates += s.duplicates;
	f->sums.restarts += s.restarts;
	f->sums.replay_failures += s.replay_failures;
	f->sums.errors += s.errors;
	kvsource_free(&e->source);
	assert_int_equal(holdings_count(e->held), 0);
	holdings_free(&e->held);
}

static void connect_router(struct fleet *f, struct node *e)
{
	tell_router(f, e, KVSOURCE_IN_CONNECTED, 0, (struct cgn_str){0});
}

/* Deliver all or some of the batches in flight, in any order. */
static void deliver_batches(struct fleet *f, struct node *e)
{
	static const char garbage[] = "\x93\xcb rubbish";
	while (e->wire.n > 0 && !(e->wire.n < IN_FLIGHT && mishap_due(f, 3))) {
		unsigned i = mishap_due(f, 4) ? (unsigned)draw_next(f, e->wire.n) : 0;
		uint64_t seq = e->wire.seq[i];
		memmove(&e->wire.seq[i], &e->wire.seq[i + 1], (--e->wire.n - i) * sizeof e->wire.seq[0]);
		if (mishap_due(f, 12))
			continue;
		bool bad = mishap_due(f, 300);
		struct cgn_str payload =
			bad ? (struct cgn_str){garbage, sizeof garbage - 1} : cgn_buf_view(&e->log[seq]);
		for (unsigned times = mishap_due(f, 10) ? 2 : 1; times > 0; times--)
			tell_router(f, e, KVSOURCE_IN_LIVE, seq, payload);
	}
	if (e->wake_at != 0 && f->now >= e->wake_at)
		tell_router(f, e, KVSOURCE_IN_TICK, 0, (struct cgn_str){0});
}

/* ---- a router ---- */

struct teller {
	struct kvindex *index;
	uint16_t index_id;
};

static void tell_block(void *user, uint64_t digest, unsigned tiers)
{
	const struct teller *t = user;
	uint8_t mask = (uint8_t)tiers;
	kvindex_set(t->index, t->index_id, &digest, &mask, 1);
}

/* Begin a watch: an empty lane, then a snapshot. */
static void begin_watch(struct fleet *f, struct node *e, unsigned router)
{
	struct cgn_err err;
	struct link *l = &e->link[router];
	struct teller t = {.index = f->index[router]};
	if (l->up)
		kvindex_node_remove(t.index, l->index_id);
	while (kvindex_tick(t.index, 1000))
		continue;
	assert_true(cgn_ok(kvindex_node_add(t.index, &l->index_id, &err)));
	t.index_id = l->index_id;
	l->up = true;
	l->n = 0;
	holdings_each(e->held, BLOCK_RANGES, tell_block, &t);
}

static void flush_changes(struct fleet *f, struct node *e, unsigned router)
{
	struct link *l = &e->link[router];
	struct teller t = {f->index[router], l->index_id};
	if (mishap_due(f, 60)) { /* The router sees a gap in the numbers. */
		f->links_lost++;
		begin_watch(f, e, router);
		return;
	}
	for (size_t i = 0; i < l->n; i++)
		if (!mishap_due(f, 150)) /* A change lost by a fault of ours: only the sums can reveal it. */
			tell_block(&t, l->touched[i], holdings_tiers(e->held, l->touched[i]));
	l->n = 0;
}

static void check_never_held(struct fleet *f, struct node *e, unsigned router)
{
	struct teller t = {f->index[router], e->link[router].index_id};
	const uint64_t *sums = holdings_sums(e->held);
	for (unsigned range = 0; range < BLOCK_RANGES; range++) {
		if (sums[range] == kvindex_sums(t.index, t.index_id)[range])
			continue;
		kvindex_clear(t.index, t.index_id, range);
		holdings_each(e->held, range, tell_block, &t);
		f->repairs++;
	}
	assert_memory_equal(sums, kvindex_sums(t.index, t.index_id), BLOCK_RANGES * sizeof *sums);
}

/* ---- life and death ---- */

static void engine_dies(struct fleet *f, struct node *e)
{
	f->engine_deaths++;
	engine_stop(e);
	engine_start(e);
	if (draw_next(f, 2) == 0)
		tell_router(f, e, KVSOURCE_IN_DISCONNECTED, 0, (struct cgn_str){0});
	connect_router(f, e);
}

static void agent_dies(struct fleet *f, struct node *e)
{
	f->agent_deaths++;
	agent_stop(f, e);
	agent_start(e);
	connect_router(f, e);
	for (unsigned r = 0; r < ROUTERS; r++)
		begin_watch(f, e, r);
}

static void run_turn(struct fleet *f)
{
	struct node *e = &f->node[draw_next(f, NODES)];
	f->now += draw_next(f, 2 * CGN_SEC);
	engine_serve(f, e);
	if (mishap_due(f, 150))
		engine_dies(f, e);
	if (mishap_due(f, 200))
		agent_dies(f, e);
	for (unsigned i = 0; i < NODES; i++) {
		deliver_batches(f, &f->node[i]);
		for (unsigned r = 0; r < ROUTERS; r++)
			if (!mishap_due(f, 2))
				flush_changes(f, &f->node[i], r);
	}
}

/* ---- the truth ---- */

struct truth {
	uint64_t digest[256];
	uint8_t tiers[256];
	size_t n;
	enum enginemodel_tier at;
};

static void note_block(void *user, uint64_t digest)
{
	struct truth *t = user;
	size_t i = 0;
	while (i < t->n && t->digest[i] != digest)
		i++;
	assert_true(i < CGN_COUNT(t->digest));
	if (i == t->n) {
		t->digest[t->n] = digest;
		t->tiers[t->n++] = 0;
	}
	t->tiers[i] |= (uint8_t)(1U << t->at); /* GPU, CPU, STORAGE are BLOCK_GPU, BLOCK_RAM, BLOCK_SSD. */
}

static void truth_of(const struct node *e, struct truth *t)
{
	t->n = 0;
	for (t->at = 0; t->at < ENGINEMODEL_TIER_COUNT; t->at++)
		enginemodel_memory_digests(enginemodel_memory_of(e->engine), t->at, note_block, t);
}

static void index_is_exact(struct fleet *f, struct node *e)
{
	static struct truth t;
	truth_of(e, &t);
	assert_int_equal(holdings_count(e->held), t.n);
	for (unsigned r = 0; r < ROUTERS; r++) {
		assert_int_equal(kvindex_count(f->index[r], e->link[r].index_id), t.n);
		for (size_t i = 0; i < t.n; i++) {
			unsigned is = kvindex_tiers(f->index[r], e->link[r].index_id, t.digest[i]);
			if (is != t.tiers[i])
				fail_msg(
					"node %u, router %u: block %zu lies in tiers %u, and in %u to the index",
					e->number, r, i, t.tiers[i], is);
		}
	}
}

static void was_there(void *user, uint64_t digest, unsigned tiers)
{
	const struct node *e = user;
	if (holdings_tiers(e->ever, digest) == 0)
		fail_msg("node %u never held a block that is indexed in tiers %u", e->number, tiers);
}

static void index_is_sane(struct fleet *f)
{
	for (unsigned i = 0; i < NODES; i++)
		for (unsigned r = 0; r < ROUTERS; r++)
			kvindex_each(f->index[r], f->node[i].link[r].index_id, BLOCK_RANGES, was_there,
				&f->node[i]);
}

/* Deliver everything in flight, reconnect every peer, and run all delayed work. */
static void calm_down(struct fleet *f)
{
	f->storm = false;
	for (unsigned i = 0; i < NODES; i++) {
		struct node *e = &f->node[i];
		deliver_batches(f, e);
		f->now += KVSOURCE_COOLDOWN + CGN_SEC;
		deliver_batches(f, e);
		tell_router(f, e, KVSOURCE_IN_DISCONNECTED, 0, (struct cgn_str){0});
		connect_router(f, e);
		/* The contents of garbled batches are known only after a restart of the engine. */
		if (kvsource_stats(e->source).errors > 0)
			engine_dies(f, e);
		engine_serve(f, e);
		deliver_batches(f, e);
		if (kvsource_state(e->source) != KVSOURCE_GOOD)
			fail_msg("node %u is %s: %s", e->number,
				kvsource_state_name(kvsource_state(e->source)), kvsource_why(e->source));
		for (unsigned r = 0; r < ROUTERS; r++) {
			flush_changes(f, e, r);
			check_never_held(f, e, r);
		}
	}
}

static void fleet_open(struct fleet *f, uint64_t seed)
{
	struct cgn_err err;
	*f = (struct fleet){.now = 1000 * CGN_SEC, .rng = seed << 32, .storm = true};
	for (unsigned r = 0; r < ROUTERS; r++) {
		const struct kvindex_cfg cfg = {.max_bytes = 64 << 20, .max_readers = 1, .seed = seed + r};
		assert_true(cgn_ok(kvindex_new(&cfg, &f->index[r], &err)));
	}
	for (unsigned i = 0; i < NODES; i++) {
		struct node *e = &f->node[i];
		e->number = i;
		e->ever = holdings_new(1 << 20, NULL, NULL);
		engine_start(e);
		agent_start(e);
		connect_router(f, e);
		for (unsigned r = 0; r < ROUTERS; r++)
			begin_watch(f, e, r);
	}
}

static void fleet_close(struct fleet *f)
{
	for (unsigned i = 0; i < NODES; i++) {
		agent_stop(f, &f->node[i]);
		engine_stop(&f->node[i]);
		holdings_free(&f->node[i].ever);
		for (unsigned r = 0; r < ROUTERS; r++)
			free(f->node[i].link[r].touched);
	}
	for (unsigned r = 0; r < ROUTERS; r++)
		kvindex_free(&f->index[r]);
}

static void ends_exact(void **state)
{
	static struct fleet f;
	struct kvsource_stats all = {0};
	unsigned deaths = 0, lost = 0, repairs = 0, garbled = 0;
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++) {
		fleet_open(&f, seed);
		for (unsigned lull = 0; lull < 3; lull++) {
			f.storm = true;
			for (unsigned i = 0; i < TURNS / 3; i++)
				run_turn(&f);
			index_is_sane(&f);
			calm_down(&f);
			for (unsigned i = 0; i < NODES; i++)
				index_is_exact(&f, &f.node[i]);
		}
		fleet_close(&f);
		all.gaps += f.sums.gaps;
		all.duplicates += f.sums.duplicates;
		all.restarts += f.sums.restarts;
		all.replay_failures += f.sums.replay_failures;
		deaths += f.engine_deaths + f.agent_deaths;
		lost += f.links_lost;
		repairs += f.repairs;
		garbled += f.garbled;
	}
	print_message(
		"gaps %lu, duplicates %lu, restarts %lu, failed replays %lu, deaths %u, watches lost %u, ranges repaired %u, garbled %u\n",
		(unsigned long)all.gaps, (unsigned long)all.duplicates, (unsigned long)all.restarts,
		(unsigned long)all.replay_failures, deaths, lost, repairs, garbled);
	/* Every kind of fault occurred. */
	assert_true(all.gaps > 0 && all.duplicates > 0 && all.restarts > 0 && all.replay_failures > 0 &&
		deaths > 0 && lost > 0 && repairs > 0 && garbled > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(ends_exact)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
