/* SPDX-License-Identifier: Apache-2.0 */
/* A replay loses no request, equal inputs give equal results, and the measured values follow from the
 * choices. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/replay/replay.h"

static const struct route_rules rules = {.weights = {0.55, 0.25, 0.10, 0.10},
	.tiers = {{1, 0.8F, 0.5F, 0.3F}},
	.max_inflight = 256,
	.policy = ROUTE_WEIGHTED,
	.session_bound = 1.25};
static const struct route_rules in_turn = {.weights = {0.55, 0.25, 0.10, 0.10},
	.tiers = {{1, 0.8F, 0.5F, 0.3F}},
	.max_inflight = 256,
	.policy = ROUTE_ROUND_ROBIN,
	.session_bound = 1.25};

static uint64_t draw_below(uint64_t *s, uint64_t n)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s % n;
}

/* Generate conversations of |turns| turns, interleaved at random: all share block 0, each turn has a block or
 * two more than the one before. */
static struct trace make_conversations(size_t n, size_t turns, cgn_nsec gap)
{
	struct trace t = {.block_tokens = 512};
	uint64_t s = 88172645463325252U, next = 1, (*ids)[200] = calloc(n, sizeof *ids);
	size_t *len = calloc(n, sizeof *len);
	assert_true(ids != NULL && len != NULL);
	for (size_t i = 0; i < n * turns; i++) {
		size_t c = draw_below(&s, n),
		       more = len[c] == 0 ? 3 + draw_below(&s, 8) : 1 + draw_below(&s, 2);
		struct trace_request r = {.at = i * gap, .output = 1 + (uint32_t)draw_below(&s, 200)};
		if (len[c] > 0)
			len[c]--; /* The last block was not full. */
		else
			ids[c][len[c]++] = 0;
		for (size_t k = 0; k < more && len[c] < CGN_COUNT(ids[0]); k++)
			ids[c][len[c]++] = next++;
		r.input = (uint32_t)(512 * (len[c] - 1) + 1 + draw_below(&s, 512));
		assert_true(cgn_ok(trace_add(&t, &r, ids[c], len[c])));
	}
	free(ids);
	free(len);
	return t;
}

static struct replay_result run_replay(const struct trace *t, const struct replay_cfg *cfg)
{
	struct replay_result r;
	struct cgn_err err = {0};
	if (!cgn_ok(replay_run(t, cfg, &r, &err)))
		fail_msg("%s", err.msg);
	return r;
}

static double ideal_ratio(const struct trace *t)
{
	struct trace_found f;
	assert_true(cgn_ok(trace_one_cache(t, 0, &f, NULL)));
	return trace_found_ratio(f);
}

static uint64_t answer_tokens(const struct trace *t)
{
	uint64_t n = 0;
	for (size_t i = 0; i < t->n; i++)
		n += t->requests[i].output;
	return n;
}

static void nothing_is_lost(void **state)
{
	(void)state;
	struct trace t = make_conversations(40, 10, 50 * CGN_MSEC);
	for (unsigned mode = 0; mode < 8; mode++) {
		struct replay_cfg cfg = replay_defaults;
		struct replay_node all = {0};
		cfg.rules = mode & 1 ? &in_turn : &rules;
		cfg.blocks = mode & 2 ? 100 : 0;
		cfg.publishes = !(mode & 4);
		struct replay_result r = run_replay(&t, &cfg);
		assert_int_equal(r.requests, t.n);
		assert_int_equal(r.done + r.refused_full + r.refused_too_large, t.n);
		assert_int_equal(r.done, t.n);
		assert_int_equal(samples_count(&r.ttft), t.n);
		assert_int_equal(samples_count(&r.itl), answer_tokens(&t) - t.n);
		assert_int_equal(r.prompt_blocks, t.n_ids);
		for (uint32_t i = 0; i < r.n_nodes; i++) {
			all.requests += r.nodes[i].requests;
			all.answer_tokens += r.nodes[i].answer_tokens;
			all.cached_tokens += r.nodes[i].cached_tokens;
			assert_true(r.nodes[i].busy <= r.ended);
		}
		assert_int_equal(all.requests, t.n);
		assert_int_equal(all.answer_tokens, answer_tokens(&t));
		assert_int_equal(all.cached_tokens, r.cached_blocks * 512);
		assert_true(cfg.blocks > 0 || r.evicted_blocks == 0);
		assert_true(replay_hit_ratio(&r) <= ideal_ratio(&t));
		assert_true(r.imbalance >= 1 && r.imbalance <= r.n_nodes);
		replay_result_fini(&r);
	}
	trace_fini(&t);
}

static void equal_inputs_give_equal_results(void **state)
{
	(void)state;
	struct trace t = make_conversations(30, 10, 40 * CGN_MSEC);
	for (enum route_policy p = 0; p < ROUTE_POLICIES; p++) {
		struct route_rules with = rules;
		struct replay_cfg cfg = replay_defaults;
		with.policy = p;
		cfg.rules = &with;
		cfg.blocks = 120;
		struct replay_result a = run_replay(&t, &cfg), b = run_replay(&t, &cfg);
		assert_int_equal(a.ttft.ns.n, b.ttft.ns.n);
		assert_memory_equal(a.ttft.ns.p, b.ttft.ns.p, a.ttft.ns.n);
		assert_memory_equal(a.itl.ns.p, b.itl.ns.p, a.itl.ns.n);
		assert_memory_equal(a.nodes, b.nodes, a.n_nodes * sizeof *a.nodes);
		assert_true(a.cached_blocks == b.cached_blocks && a.ended == b.ended);
		replay_result_fini(&a);
		replay_result_fini(&b);
	}
	trace_fini(&t);
}

/* Nights and years between requests cost no time and change nothing: cached blocks are still found. */
static void long_pauses_are_left_out(void **state)
{
	(void)state;
	static const char text[] =
		"{\"timestamp\":0,\"input_length\":2048,\"output_length\":9,\"hash_ids\":[1,2,3,4]}\n"
		"{\"timestamp\":3600000,\"input_length\":2048,\"output_length\":9,\"hash_ids\":[1,2,3,5]}\n"
		"{\"timestamp\":900000000000,\"input_length\":2048,\"output_length\":9,\"hash_ids\":[1,2,3,6]}\n";
	struct trace t;
	struct cgn_err err;
	struct replay_cfg cfg = replay_defaults;
	assert_true(cgn_ok(trace_parse(cgn_str_of(text), "t", 512, 0, &t, &err)));
	cfg.rules = &rules;
	struct replay_result r = run_replay(&t, &cfg);
	assert_int_equal(r.done, 3);
	assert_int_equal(r.cached_blocks, 6);
	assert_int_equal(r.expected_blocks, 6);
	assert_true(r.ended >= 900000000 * CGN_SEC && r.ended < 900000001 * CGN_SEC);
	replay_result_fini(&r);
	trace_fini(&t);
}

/* The product's promise, at a size that a test can afford. */
static void prefixes_are_found_and_load_is_even(void **state)
{
	(void)state;
	struct trace t = make_conversations(300, 12, 60 * CGN_MSEC);
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &rules;
	struct replay_result kv = run_replay(&t, &cfg);
	cfg.rules = &in_turn;
	struct replay_result turn = run_replay(&t, &cfg);
	assert_true(replay_hit_ratio(&kv) > 0.97 * ideal_ratio(&t));
	assert_true(replay_hit_ratio(&kv) > 1.5 * replay_hit_ratio(&turn));
	assert_true(kv.imbalance < 1.25);
	assert_true(samples_ms(&kv.ttft, 0.5) < samples_ms(&turn.ttft, 0.5));
	assert_true(samples_mean_ms(&kv.itl) < 1.03 * samples_mean_ms(&turn.itl));
	/* The predictions are right: no block is evicted, and reports take milliseconds. */
	assert_true(kv.cached_blocks <= kv.expected_blocks + kv.expected_blocks / 50);
	assert_true(kv.expected_blocks <= kv.cached_blocks + kv.cached_blocks / 50);
	replay_result_fini(&kv);
	replay_result_fini(&turn);
	trace_fini(&t);
}

/* Intervals hold for nine of ten requests, those that wait included, and do not change the decisions. */
static void quotes_hold(void **state)
{
	(void)state;
	struct trace t = make_conversations(3000, 12, 60 * CGN_MSEC);
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &rules;
	cfg.gpu = gpu_find("h100");
	struct replay_result plain = run_replay(&t, &cfg);
	cfg.quotes = true;
	struct replay_result quoted = run_replay(&t, &cfg);
	assert_int_equal(plain.cached_blocks, quoted.cached_blocks);
	assert_true(plain.ended == quoted.ended);
	static const enum quote_figure figures[] = {QUOTE_TTFT, QUOTE_FINISH, QUOTE_JOULES};
	for (size_t i = 0; i < CGN_COUNT(figures); i++) {
		struct replay_quotes *q = &quoted.quotes[figures[i]];
		double n = (double)(q->sides[QUOTE_INSIDE] + q->sides[QUOTE_BELOW] + q->sides[QUOTE_ABOVE]);
		assert_true(n > 2900);
		assert_true((double)q->sides[QUOTE_INSIDE] > 0.87 * n);
		assert_true((double)q->sides[QUOTE_INSIDE] < 0.93 * n);
		assert_true(samples_ms(&q->width_share, 0.5) < 8);
		assert_int_equal(samples_count(&plain.quotes[figures[i]].width_share), 0);
	}
	assert_int_equal(samples_count(&quoted.quotes[QUOTE_COST].width_share),
		0); /* A replay has no prices. */
	replay_result_fini(&plain);
	replay_result_fini(&quoted);
	trace_fini(&t);
}

/* With a single request on a single node, its time follows from the engine's speed. */
static void times_are_the_engines(void **state)
{
	(void)state;
	struct trace t = {.block_tokens = 512};
	const uint64_t ids[] = {1, 2, 3, 4};
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &rules;
	cfg.nodes = 1;
	assert_true(cgn_ok(
		trace_add(&t, &(struct trace_request){.at = CGN_SEC, .input = 2000, .output = 3}, ids, 4)));
	assert_true(cgn_ok(trace_add(&t,
		&(struct trace_request){.at = 5 * CGN_SEC, .input = 2000, .output = 1}, ids, 4)));
	struct replay_result r = run_replay(&t, &cfg);
	assert_int_equal(r.cached_blocks, 3);
	/* 2000 tokens at 20,000 a second. */
	assert_true(samples_ms(&r.ttft, 1) > 99.999 && samples_ms(&r.ttft, 1) < 100.001);
	assert_true(samples_ms(&r.ttft, 0.5) > 23.199 && samples_ms(&r.ttft, 0.5) < 23.201); /* 464 tokens. */
	assert_int_equal(samples_count(&r.itl), 2);
	assert_true(samples_ms(&r.itl, 1) > 11.999 && samples_ms(&r.itl, 1) < 12.001);
	assert_true(r.ended < 6 * CGN_SEC);
	replay_result_fini(&r);
	cfg.speed = 2; /* Requests arrive sooner; the engine is no faster. */
	r = run_replay(&t, &cfg);
	assert_true(r.ended > 2500 * CGN_MSEC && r.ended < 2600 * CGN_MSEC);
	assert_true(samples_ms(&r.ttft, 1) > 99.999 && samples_ms(&r.ttft, 1) < 100.001);
	replay_result_fini(&r);
	trace_fini(&t);
}

static void what_never_fits_is_refused(void **state)
{
	(void)state;
	struct trace t = {.block_tokens = 512};
	const uint64_t ids[] = {1, 2, 3, 4, 5};
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &rules;
	cfg.nodes = 2;
	cfg.blocks = 4;
	assert_true(cgn_ok(trace_add(&t, &(struct trace_request){.input = 2560, .output = 1}, ids, 5)));
	assert_true(cgn_ok(trace_add(&t, &(struct trace_request){.input = 600, .output = 5}, ids, 2)));
	struct replay_result r = run_replay(&t, &cfg);
	assert_int_equal(r.refused_too_large, 1);
	assert_int_equal(r.done, 1);
	replay_result_fini(&r);
	trace_fini(&t);
}

static void requests_wait_where_nodes_are_full(void **state)
{
	(void)state;
	struct trace t = make_conversations(20, 5, CGN_MSEC);
	struct route_rules few = rules;
	struct replay_cfg cfg = replay_defaults;
	few.max_inflight = 1;
	cfg.rules = &few;
	cfg.nodes = 2;
	struct replay_result r = run_replay(&t, &cfg);
	assert_int_equal(r.done, t.n);
	assert_true(r.waited > t.n / 2);
	replay_result_fini(&r);
	cfg.max_waiting = 10;
	r = run_replay(&t, &cfg);
	assert_true(r.refused_full > 0);
	assert_int_equal(r.done + r.refused_full, t.n);
	replay_result_fini(&r);
	trace_fini(&t);
}

/* Late reports cost hits: the router assumes for a short time that a node holds the blocks of a prompt that
 * it sent there. */
static void news_takes_its_time(void **state)
{
	(void)state;
	struct trace t = make_conversations(40, 10, 50 * CGN_MSEC);
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &rules;
	struct replay_result soon = run_replay(&t, &cfg);
	cfg.report_delay = 3600 * CGN_SEC;
	struct replay_result never = run_replay(&t, &cfg);
	assert_true(never.expected_blocks > 0);
	assert_true(never.expected_blocks < soon.expected_blocks);
	assert_true(replay_hit_ratio(&never) < replay_hit_ratio(&soon));
	replay_result_fini(&soon);
	replay_result_fini(&never);
	trace_fini(&t);
}

static void many_nodes_and_bad_bounds(void **state)
{
	(void)state;
	struct trace t = make_conversations(50, 6, CGN_MSEC);
	struct replay_cfg cfg = replay_defaults;
	struct replay_result r;
	struct cgn_err err = {0};
	cfg.rules = &rules;
	cfg.nodes = 500;
	cfg.blocks = 300;
	r = run_replay(&t, &cfg);
	assert_int_equal(r.done, t.n);
	replay_result_fini(&r);
	cfg.nodes = 0;
	assert_int_equal(replay_run(&t, &cfg, &r, &err).code, CGN_INVALID);
	cfg.nodes = REPLAY_MAX_NODES + 1;
	assert_int_equal(replay_run(&t, &cfg, &r, &err).code, CGN_INVALID);
	cfg.nodes = 1;
	cfg.speed = 0;
	assert_int_equal(replay_run(&t, &cfg, &r, &err).code, CGN_INVALID);
	cfg.speed = 1e-12; /* Beyond the end of time. */
	assert_int_equal(replay_run(&t, &cfg, &r, &err).code, CGN_INVALID);
	cfg.speed = 1;
	cfg.step_tokens = 1;
	assert_int_equal(replay_run(&t, &cfg, &r, &err).code, CGN_INVALID);
	trace_fini(&t);
}

/* Make a trace for a node that runs one request at a time: requests of 1 s of prefill each wait from the
 * start, then the short requests |late| arrive. */
static struct trace crowd_trace(const struct trace_request *late, size_t n)
{
	struct trace t = {.block_tokens = 512};
	for (uint64_t i = 0; i < 20 + n; i++) {
		struct trace_request r = {.input = 20480, .output = 2, .tenant = 1};
		uint64_t ids[40];
		if (i >= 20) {
			r = *late;
			r.input = 512;
			r.output = 2;
		}
		r.at = i * CGN_MSEC;
		for (size_t k = 0; k < CGN_COUNT(ids); k++)
			ids[k] = i * CGN_COUNT(ids) + k;
		assert_true(cgn_ok(trace_add(&t, &r, ids, r.input / 512)));
	}
	return t;
}

static struct replay_result run_crowd(const struct trace_request *late, enum queue_policy queue,
	const struct replay_tenant *tenants, size_t n_tenants)
{
	struct route_rules one_each = rules;
	struct trace t = crowd_trace(late, 5);
	struct replay_cfg cfg = replay_defaults;
	one_each.max_inflight = 1;
	cfg.rules = &one_each;
	cfg.nodes = 1;
	cfg.queue = queue;
	cfg.tenants = tenants;
	cfg.n_tenants = n_tenants;
	struct replay_result r = run_replay(&t, &cfg);
	assert_int_equal(r.waited, 24);
	assert_int_equal(r.done + r.refused_late, t.n);
	trace_fini(&t);
	return r;
}

static double mean_ttft(enum queue_policy queue)
{
	struct replay_result r = run_crowd(&(struct trace_request){.tenant = 1}, queue, NULL, 0);
	double mean = samples_mean_ms(&r.ttft);
	assert_int_equal(r.done, 25);
	replay_result_fini(&r);
	return mean;
}

static uint64_t crowd_refused(const struct trace_request *late, enum queue_policy queue)
{
	const struct replay_tenant tenants[] = {{1, 1}, {2, 4}};
	struct replay_result r = run_crowd(late, queue, tenants, CGN_COUNT(tenants));
	uint64_t n = r.refused_late;
	replay_result_fini(&r);
	return n;
}

static void the_queue_policy_is_played(void **state)
{
	(void)state;
	/* Short requests pass those of 1 s each: wspt counts 2 ms a token. */
	assert_true(mean_ttft(QUEUE_WSPT) < 0.9 * mean_ttft(QUEUE_FCFS));
	/* The deadline passes while others of the tenant still wait. */
	const struct trace_request due = {.tenant = 1, .deadline_ms = 5000};
	assert_int_equal(crowd_refused(&due, QUEUE_FCFS), 5);
	assert_int_equal(crowd_refused(&due, QUEUE_DEADLINE), 0);
}

static void priorities_and_tenants_are_played(void **state)
{
	(void)state;
	assert_int_equal(crowd_refused(&(struct trace_request){.tenant = 1, .deadline_ms = 5000}, QUEUE_FCFS),
		5);
	assert_int_equal(crowd_refused(&(struct trace_request){.tenant = 2, .deadline_ms = 5000}, QUEUE_FCFS),
		0);
	assert_int_equal(crowd_refused(&(struct trace_request){.tenant = 1,
					       .deadline_ms = 5000,
					       .has_priority = true,
					       .priority = 9},
				 QUEUE_FCFS),
		0);
	assert_int_equal(crowd_refused(&(struct trace_request){.tenant = 2,
					       .deadline_ms = 5000,
					       .has_priority = true,
					       .priority = 0},
				 QUEUE_FCFS),
		5);
}

/* Generate long prompts that no cache has, one each |gap|. */
static struct trace make_documents(size_t n, cgn_nsec gap)
{
	struct trace t = {.block_tokens = 512};
	uint64_t s = 1234567, next = 1, ids[40];
	for (size_t i = 0; i < n; i++) {
		size_t blocks = 8 + draw_below(&s, 24);
		for (size_t k = 0; k < blocks; k++)
			ids[k] = next++;
		struct trace_request r = {.at = i * gap,
			.input = (uint32_t)(512 * blocks),
			.output = 100 + (uint32_t)draw_below(&s, 200)};
		assert_true(cgn_ok(trace_add(&t, &r, ids, blocks)));
	}
	return t;
}

static const struct route_rules disagg = {.weights = {0.55, 0.25, 0.10, 0.10},
	.tiers = {{1, 0.8F, 0.5F, 0.3F}},
	.max_inflight = 256,
	.policy = ROUTE_PREDICTED,
	.session_bound = 1.25,
	.disagg = {true, 0, 131072, {1, 0.0122F, false}}};

static void long_prompts_do_not_stall_the_streams_of_decode_nodes(void **state)
{
	(void)state;
	struct trace t = make_documents(500, 700 * CGN_MSEC);
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &disagg;
	cfg.nodes = 2;
	struct replay_result both = run_replay(&t, &cfg);
	cfg.prefill_nodes = 1;
	struct replay_result pools = run_replay(&t, &cfg), again = run_replay(&t, &cfg);
	assert_int_equal(pools.done, t.n);
	assert_int_equal(samples_count(&pools.ttft), t.n);
	assert_int_equal(samples_count(&pools.itl), answer_tokens(&t) - t.n);
	assert_true(pools.split > t.n / 2 && pools.split < t.n);
	assert_true(pools.moved_tokens > 4096 * pools.split);
	assert_int_equal(both.split + both.continued + both.moved_tokens, 0);
	assert_true(samples_ms(&pools.per_token, 0.99) < 0.7 * samples_ms(&both.per_token, 0.99));
	assert_true(samples_ms(&pools.per_token, 0.5) < samples_ms(&both.per_token, 0.5));
	assert_int_equal(pools.ended, again.ended);
	assert_int_equal(pools.moved_tokens, again.moved_tokens);
	/* The prefill node gives no answer, and no prompt is computed twice. */
	assert_int_equal(pools.nodes[0].answer_tokens, 0);
	assert_int_equal(pools.nodes[1].answer_tokens, answer_tokens(&t));
	assert_int_equal(pools.nodes[0].prompt_tokens + pools.nodes[1].prompt_tokens, t.n_ids * 512);
	replay_result_fini(&both);
	replay_result_fini(&pools);
	replay_result_fini(&again);
	trace_fini(&t);
}

static void a_slow_network_splits_less(void **state)
{
	(void)state;
	struct trace t = make_documents(300, 700 * CGN_MSEC);
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &disagg;
	cfg.nodes = 2;
	cfg.prefill_nodes = 1;
	struct replay_result fast = run_replay(&t, &cfg);
	cfg.bandwidth = 1e8; /* 13 s for 10,000 tokens; the router expects 0.1 s. */
	struct replay_result slow = run_replay(&t, &cfg);
	assert_int_equal(slow.done, t.n);
	assert_true(slow.split > 0 && slow.split < fast.split / 3);
	replay_result_fini(&fast);
	replay_result_fini(&slow);
	struct cgn_err err = {0};
	cfg.prefill_nodes = 2; /* No node would decode. */
	assert_int_equal(replay_run(&t, &cfg, &slow, &err).code, CGN_INVALID);
	trace_fini(&t);
}

static void decode_nodes_without_room_lose_nothing(void **state)
{
	(void)state;
	struct trace t = make_documents(300, 300 * CGN_MSEC);
	struct route_rules narrow = disagg;
	struct replay_cfg cfg = replay_defaults;
	narrow.max_inflight = 3;
	cfg.rules = &narrow;
	cfg.nodes = 4;
	cfg.prefill_nodes = 3;
	for (int memory = 0; memory < 2; memory++) {
		cfg.blocks = memory ? 40 : 0;
		struct replay_result r = run_replay(&t, &cfg);
		assert_int_equal(r.done + r.refused_full + r.refused_too_large, t.n);
		assert_true(r.done > 0 && (memory || r.continued > 0));
		replay_result_fini(&r);
	}
	trace_fini(&t);
}

/* ---- energy ---- */

static struct replay_result run_energy(const struct trace *t, const struct route_rules *with, bool parks)
{
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = with;
	cfg.gpu = gpu_find("h100");
	cfg.parks = parks;
	cfg.park = (struct energy_park_cfg){.spare = 1, .least = 1, .window = 60 * CGN_SEC};
	cfg.wake = 20 * CGN_SEC;
	return run_replay(t, &cfg);
}

static struct route_rules sparing_rules(double budget)
{
	struct route_rules with = rules;
	with.policy = ROUTE_KV;
	with.energy = (struct route_energy){ROUTE_ENERGY_ON, 16, 2000, 50, budget};
	return with;
}

static void joules_add_up_and_levers_spare_them(void **state)
{
	(void)state;
	struct trace t = make_conversations(100, 20, 400 * CGN_MSEC);
	struct route_rules kv = rules, energy = sparing_rules(0);
	kv.policy = ROUTE_KV;
	struct replay_result turns = run_energy(&t, &in_turn, false), plain = run_energy(&t, &kv, false),
			     spared = run_energy(&t, &energy, false), parked = run_energy(&t, &energy, true);
	struct replay_result *all[] = {&turns, &plain, &spared, &parked};
	for (size_t i = 0; i < CGN_COUNT(all); i++) {
		const struct replay_energy *e = &all[i]->energy;
		double busy = e->joules - e->idle_j;
		assert_int_equal(all[i]->done, t.n);
		/* The shares of the requests are the counter, but for the time when nothing ran. */
		assert_true(e->requests_j > 0.95 * busy && e->requests_j < 1.05 * busy);
		assert_true(e->error > 0 && e->error < 0.1);
		assert_true(e->most_w > e->joules / ((double)all[i]->ended * 1e-9) && e->most_w <= 8 * 680);
	}
	assert_true(plain.energy.joules < turns.energy.joules);
	assert_true(spared.energy.joules < 0.95 * plain.energy.joules);
	assert_true(parked.energy.joules < 0.9 * spared.energy.joules);
	assert_true(parked.energy.parked > 0 && parked.energy.awake_s < spared.energy.awake_s);
	/* The objective holds for as many requests as in turns. */
	assert_true(samples_ms(&spared.ttft, 0.99) <= 1.05 * samples_ms(&turns.ttft, 0.99));
	for (size_t i = 0; i < CGN_COUNT(all); i++)
		replay_result_fini(all[i]);
	trace_fini(&t);
}

static struct replay_cfg roles_cfg(const struct route_rules *with)
{
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = with;
	cfg.gpu = gpu_find("h100");
	cfg.prefill_nodes = 6;
	cfg.bandwidth = 1e10;
	cfg.park = (struct energy_park_cfg){.spare = 1, .least = 1, .window = 60 * CGN_SEC};
	cfg.wake = 20 * CGN_SEC;
	return cfg;
}

static double hours_joules(const struct replay_result *r)
{
	double sum = 0;
	for (size_t h = 0; h < r->n_hours; h++)
		sum += r->hours[h].joules;
	return sum;
}

/* Nodes of the two roles are parked each by its own load, and a lower clock of decode nodes spares joules. */
static void roles_are_parked_apart(void **state)
{
	(void)state;
	struct trace t = make_conversations(100, 20, 400 * CGN_MSEC);
	struct route_rules with = sparing_rules(0);
	with.disagg.enabled = true;
	with.disagg.token_bytes = 131072;
	struct replay_cfg cfg = roles_cfg(&with);
	struct replay_result r[3];
	for (int i = 0; i < 3; i++) {
		cfg.parks = i > 0;
		cfg.decode_clock = i == 2 ? 0.6 : 0;
		r[i] = run_replay(&t, &cfg);
		assert_int_equal(r[i].done, t.n);
		assert_true(r[i].split > 0);
		assert_true(fabs(hours_joules(&r[i]) - r[i].energy.joules) < 1e-6 * r[i].energy.joules);
	}
	assert_true(r[1].energy.parked > 0 && r[1].energy.joules < 0.9 * r[0].energy.joules);
	assert_true(r[2].energy.joules < r[1].energy.joules);
	assert_true(samples_ms(&r[2].itl, 0.5) > samples_ms(&r[1].itl, 0.5));
	for (int i = 0; i < 3; i++)
		replay_result_fini(&r[i]);
	trace_fini(&t);
}

static void a_fleet_is_awake_as_listed(void **state)
{
	(void)state;
	struct trace t = make_conversations(100, 20, 400 * CGN_MSEC);
	struct route_rules with = sparing_rules(0);
	with.policy = ROUTE_ROUND_ROBIN;
	struct replay_cfg cfg = roles_cfg(&with);
	const struct replay_fleet fleet = {.answers = 3};
	cfg.prefill_nodes = 0;
	cfg.fleet = &fleet;
	cfg.n_fleet = 1;
	struct replay_result r = run_replay(&t, &cfg);
	uint64_t asked = 0;
	assert_int_equal(r.done, t.n);
	assert_int_equal(r.energy.parked, 5);
	assert_int_equal(r.energy.woken, 0);
	for (uint32_t i = 0; i < 8; i++)
		asked += r.nodes[i].requests > 10;
	assert_int_equal(asked, 3);
	replay_result_fini(&r);
	trace_fini(&t);
}

static void budget_is_kept_and_nothing_is_lost(void **state)
{
	(void)state;
	struct trace t = make_conversations(100, 10, 25 * CGN_MSEC);
	struct route_rules free_rules = sparing_rules(0), tight = sparing_rules(2200);
	struct replay_result a = run_energy(&t, &free_rules, false), b = run_energy(&t, &tight, false),
			     c = run_energy(&t, &tight, true);
	assert_true(a.energy.most_w > 3000);
	assert_true(b.energy.most_w <= 2200);
	assert_int_equal(b.done, t.n);
	assert_true(b.waited > 0);
	/* Requests that wait for power wake no node that would only idle. */
	assert_true(c.energy.most_w <= 2200);
	assert_int_equal(c.done, t.n);
	assert_true(c.energy.awake_s < 0.8 * b.energy.awake_s);
	replay_result_fini(&a);
	replay_result_fini(&b);
	replay_result_fini(&c);
	trace_fini(&t);
}

/* A busy time between two quiet ones: replicas go, come, and go again. */
static void replicas_follow_the_load(void **state)
{
	(void)state;
	struct trace t = make_conversations(200, 20, 400 * CGN_MSEC);
	struct route_rules with = sparing_rules(0);
	with.energy = (struct route_energy){.mode = ROUTE_ENERGY_ON};
	with.counts_saved = true;
	for (size_t i = 0; i < t.n; i++) { /* The middle third comes five times as fast. */
		cgn_nsec third = t.requests[t.n - 1].at / 3, at = t.requests[i].at;
		t.requests[i].at = at < third ? 2 * at
			: at < 2 * third      ? 2 * third + (at - third) / 5
					      : 2 * third + third / 5 + 2 * (at - 2 * third);
	}
	struct replay_cfg cfg = replay_defaults;
	cfg.rules = &with;
	cfg.gpu = gpu_find("h100");
	cfg.prefill_tokens_per_s = 2000;
	cfg.wake = 10 * CGN_SEC;
	cfg.scale = (struct autoscale_cfg){.least = 1,
		.most = cfg.nodes,
		.target = 0.7,
		.up_window = 2 * CGN_SEC,
		.down_window = 60 * CGN_SEC,
		.idle = 900 * CGN_SEC,
		.down_step = 1};
	struct replay_result all = run_replay(&t, &cfg);
	double kept[3];
	for (int k = 0; k < 3; k++) {
		cfg.scales = true;
		cfg.victim = k == 1 ? REPLAY_ANY : REPLAY_LEAST_WORTH;
		cfg.stores = k == 2;
		struct replay_result r = run_replay(&t, &cfg);
		assert_int_equal(r.done, t.n); /* Nothing is cut or refused. */
		assert_true(r.energy.parked > 0 && r.energy.woken > 0);
		assert_int_equal(r.removals.n, r.energy.parked);
		assert_true(r.energy.awake_s < 0.8 * all.energy.awake_s);
		assert_true(r.removals.prompt_before > 0 && r.removals.cached_after > 0);
		assert_true((r.fetched_blocks > 0) == cfg.stores);
		kept[k] = (double)r.removals.cached_after / (double)r.removals.prompt_after;
		replay_result_fini(&r);
	}
	assert_true(kept[2] > kept[0]); /* Prompts find in a store what ended engines had. */
	replay_result_fini(&all);
	cfg.gpu = NULL;
	struct replay_result none;
	assert_int_equal(replay_run(&t, &cfg, &none, NULL).code, CGN_INVALID);
	trace_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_lost),
		cmocka_unit_test(replicas_follow_the_load),
		cmocka_unit_test(equal_inputs_give_equal_results),
		cmocka_unit_test(long_pauses_are_left_out),
		cmocka_unit_test(prefixes_are_found_and_load_is_even),
		cmocka_unit_test(quotes_hold),
		cmocka_unit_test(times_are_the_engines),
		cmocka_unit_test(what_never_fits_is_refused),
		cmocka_unit_test(requests_wait_where_nodes_are_full),
		cmocka_unit_test(news_takes_its_time),
		cmocka_unit_test(many_nodes_and_bad_bounds),
		cmocka_unit_test(the_queue_policy_is_played),
		cmocka_unit_test(priorities_and_tenants_are_played),
		cmocka_unit_test(long_prompts_do_not_stall_the_streams_of_decode_nodes),
		cmocka_unit_test(a_slow_network_splits_less),
		cmocka_unit_test(decode_nodes_without_room_lose_nothing),
		cmocka_unit_test(joules_add_up_and_levers_spare_them),
		cmocka_unit_test(roles_are_parked_apart),
		cmocka_unit_test(a_fleet_is_awake_as_listed),
		cmocka_unit_test(budget_is_kept_and_nothing_is_lost),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
