/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json/json.h"
#include "policy/node/proto/document.h"
#include "policy/route/explain/explain.h"

#define BLOCKS 32
#include "chooser_world.h"

static void cand_fill(struct explain_cand *c, const char *node, uint32_t held)
{
	*c = (struct explain_cand){.node = cgn_str_of(node)};
	c->v[EXPLAIN_HELD].u = held;
	c->v[EXPLAIN_SCORE].f = 0.5F;
	c->v[EXPLAIN_QUEUE_MS].f = 2;
	c->v[EXPLAIN_PREFILL].f = 3.5F;
}

static struct explain_decision decision_of(uint64_t request, const char *id, uint64_t at_ms)
{
	struct explain_decision d = {.request = request,
		.id = cgn_str_of(id),
		.model = CGN_STR("m"),
		.policy = "weighted",
		.at_ms = at_ms,
		.took_ns = 1500,
		.attempt = 1,
		.chain = 0xabc,
		.blocks = 10,
		.common = 2,
		.block_tokens = 16,
		.prompt_tokens = 163,
		.margin = 0.25F,
		.n_all = 2,
		.n = 2};
	cand_fill(&d.cands[0], "a", 8);
	cand_fill(&d.cands[1], "b", 2);
	return d;
}

static struct explain_end end_of(uint64_t request, const char *id, uint64_t at_ms)
{
	return (struct explain_end){.request = request,
		.id = cgn_str_of(id),
		.model = CGN_STR("m"),
		.node = CGN_STR("a"),
		.outcome = "ok",
		.at_ms = at_ms,
		.status = 200,
		.tries = 1,
		.has_cached = true,
		.has_prompt = true,
		.cached_predicted = 128,
		.cached = 112,
		.prompt_tokens = 163,
		.answer_tokens = 41,
		.ttft_us = 7000,
		.first_us = 6000,
		.total_us = 9000};
}

static struct explain_ring *ring_new(size_t bytes)
{
	struct explain_ring *r = NULL;
	assert_true(cgn_ok(explain_ring_new(bytes, 1, &r, NULL)));
	return r;
}

/* Return the requests of |found| as the admin port writes them; the text is in |out|. */
static struct json_val requests_of(const struct cgn_buf *found, size_t n, size_t most, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	struct json_val doc, list;
	struct pb_tree t;
	struct cgn_err err;
	Cognitora__V1__ExplainResponse rs = COGNITORA__V1__EXPLAIN_RESPONSE__INIT;
	pb_tree_init(&t, (size_t)16 << 20);
	explain_fill(found, n, most, false, &t, &rs);
	assert_false(t.bad);
	cgn_buf_fini(out);
	proto_document_put(PROTO_DOCUMENT_EXPLAIN, &rs, &j);
	pb_tree_fini(&t);
	if (!cgn_ok(json_parse(cgn_buf_view(out), &doc, NULL, &err)))
		fail_msg("%s: %s", err.msg, cgn_buf_z(out));
	assert_true(json_get(doc, "requests", &list));
	return list;
}

/* Ask one ring about |id|. */
static struct json_val ring_ask(const struct explain_ring *r, const char *id, struct cgn_buf *out)
{
	struct cgn_buf found = {.n = 0};
	if (id != NULL)
		explain_ring_find(r, cgn_str_of(id), EXPLAIN_REQUESTS, &found);
	else
		explain_ring_last(r, (struct cgn_str){NULL, 0}, 3, &found);
	struct json_val v = requests_of(&found, 1, EXPLAIN_REQUESTS, out);
	cgn_buf_fini(&found);
	return v;
}

static size_t count_elements(struct json_val v)
{
	struct json_iter it = json_iter_of(v);
	struct json_val e;
	size_t n = 0;
	while (json_next_elem(&it, &e))
		n++;
	return n;
}

static struct json_val element_at(struct json_val v, size_t i)
{
	struct json_iter it = json_iter_of(v);
	struct json_val e = {.type = JSON_NULL};
	do
		assert_true(json_next_elem(&it, &e));
	while (i-- > 0);
	return e;
}

static struct json_val member_of(struct json_val v, const char *key)
{
	struct json_val m;
	if (!json_get(v, key, &m))
		fail_msg("no %s in %.*s", key, CGN_STR_ARG(v.raw));
	return m;
}

static void a_request_is_told_with_what_was_predicted_and_what_came(void **state)
{
	(void)state;
	struct explain_ring *r = ring_new(EXPLAIN_LEAST);
	struct cgn_buf out = {.n = 0};
	struct explain_decision d = decision_of(1, "r1", 1000);
	struct explain_end e = end_of(1, "r1", 1010);
	d.unit = EXPLAIN_MS;
	d.n_shadows = 1;
	d.shadows[0] = (struct explain_shadow){"predicted", CGN_STR("b"), false, -1.5F, 2};
	explain_ring_decide(r, &d);
	struct json_val one = element_at(ring_ask(r, "r1", &out), 0);
	assert_true(json_get_bool(one, "in_flight", false));
	explain_ring_end(r, &e);
	one = element_at(ring_ask(r, "r1", &out), 0);
	assert_false(json_get_bool(one, "in_flight", true));
	assert_int_equal(json_get_u64(member_of(one, "cached_tokens"), "predicted", 0), 128);
	assert_int_equal(json_get_u64(member_of(one, "cached_tokens"), "actual", 0), 112);
	assert_float_equal(json_get_f64(member_of(one, "ttft_ms"), "node_predicted", 0), 5.5, 1e-6);
	assert_float_equal(json_get_f64(member_of(one, "ttft_ms"), "node_actual", 0), 6, 1e-6);
	struct json_val end = member_of(one, "end");
	assert_int_equal(json_get_u64(end, "status", 0), 200);
	assert_true(cgn_str_is(member_of(end, "outcome").raw, "\"ok\""));
	assert_true(cgn_str_is(member_of(end, "node").raw, "\"a\""));
	assert_int_equal(json_get_u64(end, "tries", 0), 1);
	assert_int_equal(json_get_u64(end, "prompt_tokens", 0), 163);
	assert_int_equal(json_get_u64(end, "completion_tokens", 0), 41);
	assert_float_equal(json_get_f64(end, "total_ms", 0), 9, 1e-6);
	struct json_val t = element_at(member_of(one, "tries"), 0);
	assert_float_equal(json_get_f64(t, "margin", 0), 0.25, 1e-6);
	assert_true(cgn_str_is(member_of(t, "unit").raw, "\"ms\""));
	assert_true(cgn_str_is(member_of(t, "over").raw, "\"b\""));
	assert_true(cgn_str_is(member_of(t, "at").raw, "\"1970-01-01T00:00:01.000Z\""));
	assert_true(cgn_str_is(member_of(t, "chain").raw, "\"0000000000000abc\""));
	assert_int_equal(json_get_u64(t, "common_blocks", 0), 2);
	assert_int_equal(json_get_u64(t, "prompt_tokens", 0), 163);
	struct json_val c = element_at(member_of(t, "candidates"), 0);
	assert_true(cgn_str_is(member_of(c, "why").raw, "\"won\""));
	assert_int_equal(json_get_u64(c, "held_blocks", 0), 8);
	assert_int_equal(json_get_u64(member_of(c, "held_by_tier"), "ram", 9), 0);
	assert_float_equal(json_get_f64(member_of(c, "predicted_ms"), "prefill", 0), 3.5, 1e-6);
	struct json_val s = element_at(member_of(t, "shadows"), 0);
	assert_float_equal(json_get_f64(s, "believed_ms", 0), -1.5, 1e-6);
	assert_int_equal(count_elements(ring_ask(r, "r2", &out)), 0);
	cgn_buf_fini(&out);
	explain_ring_free(&r);
}

static void tries_and_requests_of_one_id_are_all_told_newest_first(void **state)
{
	(void)state;
	struct explain_ring *r = ring_new(EXPLAIN_LEAST);
	struct cgn_buf out = {.n = 0};
	struct explain_decision first = decision_of(1, "same", 1000), again = first,
				second = decision_of(2, "same", 1001);
	struct explain_end e1 = end_of(1, "same", 1003), e2 = end_of(2, "same", 1004);
	again.attempt = 2;
	again.cands[1].why = EXPLAIN_TRIED;
	explain_ring_decide(r, &first);
	explain_ring_decide(r, &second);
	explain_ring_decide(r, &again);
	explain_ring_end(r, &e1);
	explain_ring_end(r, &e2);
	struct json_val all = ring_ask(r, "same", &out);
	assert_int_equal(count_elements(all), 2);
	assert_int_equal(count_elements(member_of(element_at(all, 0), "tries")), 1); /* Ended last. */
	struct json_val tries = member_of(element_at(all, 1), "tries");
	assert_int_equal(count_elements(tries), 2);
	assert_int_equal(json_get_u64(element_at(tries, 0), "try", 0), 1);
	assert_int_equal(json_get_u64(element_at(tries, 1), "try", 0), 2);
	struct json_val unused;
	/* A node that was tried already has no "over". */
	assert_false(json_get(element_at(tries, 1), "over", &unused));
	cgn_buf_fini(&out);
	explain_ring_free(&r);
}

static void two_rings_are_told_as_one(void **state)
{
	(void)state;
	struct explain_ring *r[2] = {ring_new(EXPLAIN_LEAST), ring_new(EXPLAIN_LEAST)};
	struct cgn_buf found[2] = {{.n = 0}, {.n = 0}}, out = {.n = 0};
	for (uint64_t i = 0; i < 2; i++) { /* Equal numbers: each worker counts its own requests. */
		struct explain_decision d = decision_of(1, "x", 1000 + i);
		explain_ring_decide(r[i], &d);
		explain_ring_find(r[i], CGN_STR("x"), EXPLAIN_REQUESTS, &found[i]);
	}
	assert_int_equal(explain_count(found, 2), 2);
	struct json_val v = requests_of(found, 2, EXPLAIN_REQUESTS, &out);
	assert_int_equal(count_elements(v), 2);
	assert_true(cgn_str_is(member_of(element_at(v, 0), "at").raw, "\"1970-01-01T00:00:01.001Z\""));
	assert_int_equal(count_elements(requests_of(found, 2, 1, &out)), 1);
	for (size_t i = 0; i < 2; i++) {
		cgn_buf_fini(&found[i]);
		explain_ring_free(&r[i]);
	}
	cgn_buf_fini(&out);
}

/* Entries of all lengths fill the ring many times: every entry that is reported is whole, the newest are
 * there and the oldest are not. */
static void a_full_ring_forgets_the_oldest(void **state)
{
	(void)state;
	struct explain_ring *r = ring_new(EXPLAIN_LEAST + 1000);
	struct cgn_buf out = {.n = 0};
	struct explain_reach reach;
	char id[32], name[EXPLAIN_CANDS][16];
	explain_ring_reach(r, &reach);
	assert_int_equal(reach.oldest_ms, 0);
	for (uint64_t i = 1; i <= 20000; i++) {
		(void)snprintf(id, sizeof id, "id-%llu", (unsigned long long)i);
		struct explain_decision d = decision_of(i, id, i);
		d.n = i % (EXPLAIN_CANDS + 1);
		d.n_all = 100;
		for (size_t k = 0; k < d.n; k++) {
			(void)snprintf(name[k], sizeof name[k], "n%zu", k);
			cand_fill(&d.cands[k], name[k], (uint32_t)(i * k));
		}
		explain_ring_decide(r, &d);
		struct explain_end e = end_of(i, id, i);
		explain_ring_end(r, &e);
		if (i % 500 != 0)
			continue;
		struct json_val one = element_at(ring_ask(r, id, &out), 0);
		struct json_val t = element_at(member_of(one, "tries"), 0);
		assert_int_equal(count_elements(member_of(t, "candidates")), d.n);
		assert_int_equal(json_get_u64(t, "candidates_not_kept", 0), 100 - d.n);
		assert_int_equal(count_elements(ring_ask(r, NULL, &out)), 3);
	}
	explain_ring_reach(r, &reach);
	assert_int_equal(reach.decisions, 20000);
	assert_true(reach.bytes <= EXPLAIN_LEAST + 1000);
	assert_true(reach.entries > 50 && reach.entries < 1000);
	assert_true(reach.oldest_ms > 19000 && reach.oldest_ms < 20000);
	/* Each request has two entries; of the oldest one only the end may be left. */
	assert_in_range(reach.entries, 2 * (20000 - reach.oldest_ms) + 1, 2 * (20000 - reach.oldest_ms) + 2);
	assert_int_equal(count_elements(ring_ask(r, "id-1", &out)), 0);
	(void)snprintf(id, sizeof id, "id-%llu", (unsigned long long)reach.oldest_ms + 1);
	assert_int_equal(count_elements(ring_ask(r, id, &out)), 1);
	cgn_buf_fini(&out);
	explain_ring_free(&r);
}

/* The end of a request whose decision was overwritten is still reported. */
static void a_slow_request_keeps_its_end(void **state)
{
	(void)state;
	struct explain_ring *r = ring_new(EXPLAIN_LEAST);
	struct cgn_buf out = {.n = 0};
	struct explain_decision d = decision_of(1, "slow", 1);
	struct explain_end e = end_of(1, "slow", 9000);
	explain_ring_decide(r, &d);
	for (uint64_t i = 2; i < 2000; i++) {
		struct explain_decision other = decision_of(i, "other", i);
		explain_ring_decide(r, &other);
	}
	assert_int_equal(count_elements(ring_ask(r, "slow", &out)), 0);
	explain_ring_end(r, &e);
	struct json_val one = element_at(ring_ask(r, "slow", &out), 0);
	assert_int_equal(count_elements(member_of(one, "tries")), 0);
	assert_int_equal(json_get_u64(member_of(one, "cached_tokens"), "actual", 0), 112);
	assert_int_equal(count_elements(ring_ask(r, "other", &out)), EXPLAIN_REQUESTS);
	cgn_buf_fini(&out);
	explain_ring_free(&r);
}

static struct explain_decision longest_decision(char *text)
{
	struct explain_decision d = decision_of(1, "", 1);
	memset(text, 'x', 200);
	text[200] = '\0';
	d.id = d.model = cgn_str_of(text);
	d.n = EXPLAIN_CANDS;
	d.n_all = 4096;
	d.n_shadows = EXPLAIN_SHADOWS;
	for (size_t i = 0; i < EXPLAIN_CANDS; i++) {
		d.cands[i].node = cgn_str_of(text);
		for (size_t k = 0; k < EXPLAIN_FIELDS; k++)
			d.cands[i].v[k].f = -1.2345678e-20F;
	}
	for (size_t i = 0; i < EXPLAIN_SHADOWS; i++)
		d.shadows[i] = (struct explain_shadow){"session", cgn_str_of(text), false, -1.2345678e-20F,
			UINT32_MAX};
	return d;
}

static void the_longest_fits_and_names_are_cut(void **state)
{
	(void)state;
	char text[201], id[EXPLAIN_TEXT + 1];
	struct explain_ring *r = ring_new(EXPLAIN_LEAST);
	struct cgn_buf out = {.n = 0};
	struct explain_decision d = longest_decision(text);
	for (int i = 0; i < 100; i++)
		explain_ring_decide(r, &d);
	(void)cgn_str_copyz(id, sizeof id, cgn_str_of(text));
	struct json_val one = element_at(ring_ask(r, text, &out), 0);
	assert_int_equal(member_of(one, "id").raw.n, EXPLAIN_TEXT + 2);
	assert_int_equal(count_elements(ring_ask(r, id, &out)), 1);
	cgn_buf_fini(&out);
	explain_ring_free(&r);
}

static void a_header_is_one_short_line(void **state)
{
	(void)state;
	char text[201];
	struct cgn_buf out = {.n = 0};
	struct explain_decision d = longest_decision(text);
	struct json_val v;
	explain_brief(&d, &out);
	assert_true(out.n <= EXPLAIN_BRIEF);
	for (size_t i = 0; i < out.n; i++)
		assert_true(out.p[i] > ' ' && out.p[i] <= '~');
	assert_true(cgn_ok(json_parse(cgn_buf_view(&out), &v, NULL, NULL)));
	size_t n = count_elements(member_of(v, "candidates"));
	assert_true(n >= 4 && n < EXPLAIN_CANDS);
	assert_int_equal(json_get_u64(v, "candidates_left_out", 0), 4096 - n);
	d = decision_of(1, "r", 1);
	out.n = 0;
	explain_brief(&d, &out);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&out), &v, NULL, NULL)));
	assert_int_equal(count_elements(member_of(v, "candidates")), 2);
	assert_null(strstr(cgn_buf_z(&out), "candidates_left_out")); /* Both are there. */
	assert_float_equal(json_get_f64(element_at(member_of(v, "candidates"), 0), "ttft_ms", 0), 5.5, 1e-6);
	cgn_buf_fini(&out);
}

static void too_small_a_ring_is_refused(void **state)
{
	(void)state;
	struct explain_ring *r = NULL;
	struct cgn_err err;
	assert_int_equal(explain_ring_new(1000, 1, &r, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "1000"));
	explain_ring_free(&r);
}

/* The size of an answer is bounded by its buffer. */
static void an_answer_is_bounded(void **state)
{
	(void)state;
	struct explain_ring *r = ring_new((size_t)1 << 20);
	struct cgn_buf found = {.limit = 2000}, out = {.n = 0};
	for (uint64_t i = 1; i < 200; i++) {
		struct explain_decision d = decision_of(i, "x", i);
		explain_ring_decide(r, &d);
	}
	explain_ring_find(r, CGN_STR("x"), EXPLAIN_REQUESTS, &found);
	assert_true(found.n > 0 && found.n <= 2000);
	assert_true(count_elements(requests_of(&found, 1, EXPLAIN_REQUESTS, &out)) > 0);
	found.bad = false;
	cgn_buf_fini(&found);
	cgn_buf_fini(&out);
	explain_ring_free(&r);
}

/* ---- scores of the chooser ---- */

#define NODES 24

static double terms_of(const struct explain_cand *c)
{
	double sum = 0;
	for (size_t i = EXPLAIN_KV; i <= EXPLAIN_CAPACITY; i++)
		sum += (double)c->v[i].f;
	return sum;
}

static void the_winner_is_first_then_the_best_and_the_full_last(void **state)
{
	(void)state;
	struct world w;
	struct explain_decision d;
	world_of(&w, 4, 8, ROUTE_WEIGHTED);
	struct chooser_ask ask = ask_of(&w);
	w.shared.stats[0].inflight = 1;
	w.shared.stats[1].inflight = 8; /* Busy to its limit, and holds every block. */
	w.shared.stats[3].inflight = 2;
	route_record_add(w.shared.record, w.chain, BLOCKS, 1);
	for (uint16_t i = 0; i < 4; i++)
		route_record_add(w.shared.record, w.chain, i == 3 ? 3 : 5, i); /* All hold what n3 holds. */
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	static const char *const order[] = {"n2", "n0", "n3", "n1"};
	assert_int_equal(d.n, 4);
	assert_int_equal(d.n_all, 4);
	for (size_t i = 0; i < 4; i++)
		assert_true(cgn_str_is(d.cands[i].node, order[i]));
	assert_int_equal(d.cands[0].why, EXPLAIN_ELIGIBLE);
	assert_int_equal(d.cands[3].why, EXPLAIN_FULL);
	assert_int_equal(d.cands[3].v[EXPLAIN_HELD].u, BLOCKS);
	assert_int_equal(d.common, 3);
	assert_float_equal(d.cands[2].v[EXPLAIN_KV].f, 0, 1e-6); /* A part that all hold favours none. */
	assert_true(d.cands[0].v[EXPLAIN_KV].f > 0);
	assert_int_equal(d.unit, EXPLAIN_SCORE_UNIT);
	assert_int_equal(d.attempt, 1);
	assert_true(d.chain == w.chain[BLOCKS - 1]);
	for (size_t i = 0; i < 4; i++)
		assert_float_equal(terms_of(&d.cands[i]), d.cands[i].v[EXPLAIN_SCORE].f, 1e-5);
	assert_float_equal(d.margin, d.cands[0].v[EXPLAIN_SCORE].f - d.cands[1].v[EXPLAIN_SCORE].f, 1e-5);
	assert_true(d.margin > 0);
	world_fini(&w);
}

static void costs_are_shown_as_costs(void **state)
{
	(void)state;
	struct world w;
	struct explain_decision d;
	world_of(&w, 3, 8, ROUTE_PREDICTED);
	struct chooser_ask ask = ask_of(&w);
	w.shared.stats[0].queued_tokens = 80000;
	w.shared.stats[2].queued_tokens = 40000;
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(d.unit, EXPLAIN_MS);
	assert_true(cgn_str_is(d.cands[0].node, "n1") && cgn_str_is(d.cands[2].node, "n0"));
	assert_true(d.cands[0].v[EXPLAIN_SCORE].f > 0 &&
		d.cands[0].v[EXPLAIN_SCORE].f < d.cands[1].v[EXPLAIN_SCORE].f);
	assert_float_equal(d.margin, d.cands[1].v[EXPLAIN_SCORE].f - d.cands[0].v[EXPLAIN_SCORE].f, 1e-3);
	assert_float_equal(explain_ttft_ms(&d.cands[0]), d.cands[0].v[EXPLAIN_PREFILL].f, 1e-3);
	assert_int_equal(d.cands[2].v[EXPLAIN_QUEUED].u, 80000);
	world_fini(&w);
}

static void held_blocks_are_shown_by_tier(void **state)
{
	(void)state;
	struct world w;
	struct explain_decision d;
	struct route_cand cands[2];
	world_of(&w, 2, 8, ROUTE_WEIGHTED);
	struct chooser_ask ask = ask_of(&w);
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	memcpy(cands, p.cands, sizeof cands);
	for (size_t i = 0; i < 2; i++) {
		for (unsigned t = 0; t < BLOCK_TIERS; t++)
			cands[i].by_tier[t] = t + 1;
		cands[i].others = 3;
		cands[i].decoding = 2;
	}
	p.cands = cands;
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(d.cands[0].v[EXPLAIN_OTHERS].u, 3);
	assert_int_equal(d.cands[0].v[EXPLAIN_DECODING].u, 2);
	assert_int_equal(d.cands[0].v[EXPLAIN_GPU].u, BLOCK_GPU + 1);
	assert_int_equal(d.cands[0].v[EXPLAIN_RAM].u, BLOCK_RAM + 1);
	assert_int_equal(d.cands[0].v[EXPLAIN_SSD].u, BLOCK_SSD + 1);
	assert_int_equal(d.cands[0].v[EXPLAIN_REMOTE].u, BLOCK_REMOTE + 1);
	world_fini(&w);
}

static void of_many_the_best_are_kept_and_the_rest_is_counted(void **state)
{
	(void)state;
	struct world w;
	struct explain_decision d;
	const uint16_t tried[] = {5, 6};
	world_of(&w, NODES, 8, ROUTE_WEIGHTED);
	struct chooser_ask ask = ask_of(&w);
	for (unsigned i = 0; i < NODES; i++)
		w.shared.stats[i].inflight = (i * 7) % NODES % 8;
	ask.excluded = tried;
	ask.n_excluded = 2;
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(d.attempt, 3);
	assert_int_equal(d.n, EXPLAIN_CANDS);
	assert_int_equal(d.n_all, NODES);
	size_t scored = EXPLAIN_CANDS - 2;
	for (size_t i = 1; i + 1 < scored; i++)
		assert_true(d.cands[i].v[EXPLAIN_SCORE].f >= d.cands[i + 1].v[EXPLAIN_SCORE].f);
	for (size_t i = scored; i < EXPLAIN_CANDS; i++) {
		assert_int_equal(d.cands[i].why, EXPLAIN_TRIED);
		assert_true(cgn_str_is(d.cands[i].node, i == scored ? "n5" : "n6"));
	}
	ask.n_excluded = 0; /* All places are for scored candidates now. */
	p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(d.n, EXPLAIN_CANDS);
	for (size_t i = 1; i + 1 < EXPLAIN_CANDS; i++)
		assert_true(d.cands[i].v[EXPLAIN_SCORE].f >= d.cands[i + 1].v[EXPLAIN_SCORE].f);
	assert_true(d.cands[0].v[EXPLAIN_SCORE].f >= d.cands[1].v[EXPLAIN_SCORE].f);
	world_fini(&w);
}

static void those_that_are_not_offered_are_told_with_the_reason(void **state)
{
	(void)state;
	struct world w;
	struct explain_decision d;
	world_of(&w, 5, 8, ROUTE_WEIGHTED);
	const struct breaker_rules rules = {1, 10 * CGN_SEC};
	const struct breaker_input trip = {.event = BREAKER_TRIP, .reason = BREAKER_FOR_SILENT, .now = 1};
	(void)breaker_apply(&w.shared.stats[1].breaker, &rules, &trip);
	w.view->nodes[3].role = COGNITORA__V1__ROLE__ROLE_PREFILL;
	struct chooser_ask ask = ask_of(&w);
	ask.now = 2;
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(p.n, 3);
	assert_int_equal(d.n, 5);
	assert_int_equal(d.n_all, 5);
	assert_true(cgn_str_is(d.cands[3].node, "n1") && cgn_str_is(d.cands[4].node, "n3"));
	assert_int_equal(d.cands[3].why, EXPLAIN_BREAKER);
	assert_int_equal(d.cands[4].why, EXPLAIN_ROLE);
	ask.pin = 2;
	p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(d.n, 1); /* The pin excludes the other candidates. */
	world_fini(&w);
}

static void no_node_and_all_full_are_reported(void **state)
{
	(void)state;
	struct world w;
	struct explain_decision d;
	size_t index;
	struct explain_shadow s;
	world_of(&w, 2, 8, ROUTE_WEIGHTED);
	struct chooser_ask ask = ask_of(&w);
	w.shared.stats[0].inflight = w.shared.stats[1].inflight = 8;
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(d.verdict, ROUTE_FULL);
	assert_int_equal(d.n, 2);
	assert_int_equal(d.cands[0].why, EXPLAIN_FULL);
	explain_shadow(&p, ROUTE_RANDOM, w.view, &s, &index);
	assert_true(s.node.n == 0 && !s.agrees);
	ask.model = NULL;
	p = chooser_pick(w.chooser, &ask);
	explain_pick(&ask, &p, w.view, &d);
	assert_int_equal(d.verdict, ROUTE_NONE);
	assert_int_equal(d.n, 0);
	world_fini(&w);
}

/* The costs of one node and of two are on record, and an impossible choice has none. */
static void a_split_is_told_with_its_costs(void **state)
{
	(void)state;
	struct world w;
	struct cgn_buf out = {0};
	struct explain_ring *r = ring_new(EXPLAIN_LEAST);
	struct explain_decision d = decision_of(1, "one", 5), plain = decision_of(2, "two", 6);
	world_of(&w, 3, 8, ROUTE_WEIGHTED);
	const struct chooser_split s = {.shape = CHOOSER_PAIR,
		.why = CHOOSER_BY_COST,
		.whole_ms = 900.5,
		.pair_ms = 400,
		.continues_ms = 1.0 / 0.0,
		.whole = 2,
		.prefill = 0,
		.decode = 1,
		.continues = CHOOSER_NO_SLOT,
		.moved_tokens = 4096,
		.transfer_ms = 41};
	explain_split(&s, w.view, &d.split);
	explain_ring_decide(r, &d);
	explain_ring_decide(r, &plain);
	struct json_val try = element_at(member_of(element_at(ring_ask(r, "one", &out), 0), "tries"), 0),
			split = member_of(try, "split"), pair = member_of(split, "pair");
	assert_true(cgn_str_is(member_of(split, "chosen").raw, "\"pair\""));
	assert_true(cgn_str_is(member_of(split, "by").raw, "\"cost\""));
	assert_true(cgn_str_is(member_of(pair, "prefill").raw, "\"n0\""));
	assert_true(cgn_str_is(member_of(pair, "decode").raw, "\"n1\""));
	assert_true(cgn_str_is(member_of(pair, "cost_ms").raw, "400"));
	assert_true(cgn_str_is(member_of(member_of(split, "whole"), "cost_ms").raw, "900.5"));
	assert_true(cgn_str_is(member_of(member_of(split, "continues"), "cost_ms").raw, "null"));
	assert_true(cgn_str_is(member_of(split, "moved_tokens").raw, "4096"));
	try = element_at(member_of(element_at(ring_ask(r, "two", &out), 0), "tries"), 0);
	assert_false(json_get(try, "split", &split));
	explain_ring_free(&r);
	cgn_buf_fini(&out);
	world_fini(&w);
}

static void a_shadow_chooses_from_the_same_and_changes_nothing(void **state)
{
	(void)state;
	struct world w;
	struct explain_shadow s;
	size_t index;
	world_of(&w, 3, 8, ROUTE_LEAST_LOADED);
	struct chooser_ask ask = ask_of(&w);
	w.shared.stats[0].inflight = 1;
	w.shared.stats[1].inflight = 2;
	w.shared.stats[2].inflight = 2;
	route_record_add(w.shared.record, w.chain, BLOCKS, 2);
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.cands[p.index].slot, 0);
	explain_shadow(&p, ROUTE_WEIGHTED, w.view, &s, &index);
	assert_true(cgn_str_is(s.node, "n2") && !s.agrees);
	assert_string_equal(s.policy, "weighted");
	assert_int_equal(s.held, BLOCKS);
	struct route_terms ours, its;
	route_terms(&p.ask, &p.cands[p.index], &ours);
	route_terms(&p.ask, &p.cands[index], &its);
	double cheaper = ours.queue_ms + ours.prefill_ms + ours.fetch_ms + ours.slowdown_ms - its.queue_ms -
		its.prefill_ms - its.fetch_ms - its.slowdown_ms;
	assert_float_equal(s.believed_ms, cheaper, 1e-3);
	assert_true(cheaper > 0);
	explain_shadow(&p, ROUTE_LEAST_LOADED, w.view, &s, &index);
	assert_true(s.agrees && s.believed_ms == 0);
	assert_int_equal(w.shared.stats[2].inflight, 2);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_is_told_with_what_was_predicted_and_what_came),
		cmocka_unit_test(tries_and_requests_of_one_id_are_all_told_newest_first),
		cmocka_unit_test(two_rings_are_told_as_one),
		cmocka_unit_test(a_full_ring_forgets_the_oldest),
		cmocka_unit_test(a_slow_request_keeps_its_end),
		cmocka_unit_test(the_longest_fits_and_names_are_cut),
		cmocka_unit_test(a_header_is_one_short_line),
		cmocka_unit_test(too_small_a_ring_is_refused),
		cmocka_unit_test(an_answer_is_bounded),
		cmocka_unit_test(the_winner_is_first_then_the_best_and_the_full_last),
		cmocka_unit_test(costs_are_shown_as_costs),
		cmocka_unit_test(held_blocks_are_shown_by_tier),
		cmocka_unit_test(of_many_the_best_are_kept_and_the_rest_is_counted),
		cmocka_unit_test(those_that_are_not_offered_are_told_with_the_reason),
		cmocka_unit_test(no_node_and_all_full_are_reported),
		cmocka_unit_test(a_split_is_told_with_its_costs),
		cmocka_unit_test(a_shadow_chooses_from_the_same_and_changes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
