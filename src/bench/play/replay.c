/* SPDX-License-Identifier: Apache-2.0 */
/* play, the room: plays traces against simulated nodes and caches. */
/* bench replay: plays a trace in virtual time against simulated nodes, with the router's routing code, once
 * for each policy. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/common/traces.h"
#include "bench/play/clusters.h"
#include "bench/play/plot.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/line/progress.h"
#include "lab/replay/replay.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/routing/document.h"

#define MAX_CONFIG ((size_t)1 << 20)
#define MAX_CASES  16
#define MAX_CACHES 16

struct one {
	char policy[32];
	uint32_t prefill_nodes; /* 0: all nodes have both roles. */
	struct route_rules rules;
	struct replay_result result;
	double wall_s;
};

struct bench {
	const char *name; /* Name of the trace. */
	struct trace trace;
	struct replay_cfg cfg;
	struct replay_tenant *tenants; /* Owned. */
	struct route_rules rules;      /* All rules but the policy. */
	struct one cases[MAX_CASES];
	size_t n_cases;
	uint64_t caches[MAX_CACHES];
	struct trace_found found[MAX_CACHES], ideal;
	size_t n_caches;
	struct ctl_clusters clusters;
	const char *showing; /* Policy shown in the progress bar. */
};

static void show_progress(void *user, double part)
{
	const struct bench *b = user;
	ctl_progress("%s %3.0f %% %s", ctl_bar(part).text, part * 100, b->showing);
}

static CGN_RC run_one(struct bench *b, struct one *o, struct cgn_err *err)
{
	struct replay_cfg cfg = b->cfg;
	cgn_nsec began = cgn_clock_now();
	b->showing = o->policy;
	cfg.rules = &o->rules;
	cfg.prefill_nodes = o->prefill_nodes;
	cfg.progress = ctl_progress_shown() ? show_progress : NULL;
	cfg.user = b;
	CGN_TRY(replay_run(&b->trace, &cfg, &o->result, err));
	o->wall_s = (double)cgn_since(cgn_clock_now(), began) / 1e9;
	return CGN_OK;
}

/* ---- report ---- */

static void put_ms(struct json_out *o, const char *key, struct samples *s)
{
	json_key(o, key);
	samples_json(s, o);
}

static double tokens_per_s(const struct replay_result *r)
{
	uint64_t tokens = 0;
	for (uint32_t i = 0; i < r->n_nodes; i++)
		tokens += r->nodes[i].answer_tokens;
	return r->ended > 0 ? (double)tokens * 1e9 / (double)r->ended : 0;
}

static double moved_bytes(const struct bench *b, const struct replay_result *r)
{
	return (double)r->moved_tokens * b->rules.disagg.token_bytes;
}

static double split_share(const struct replay_result *r)
{
	return r->requests > 0 ? (double)r->split / (double)r->requests : 0;
}

static void put_pools(const struct bench *b, const struct one *c, struct json_out *o)
{
	const struct replay_result *r = &c->result;
	json_key_u64(o, "prefill_nodes", c->prefill_nodes);
	json_key_u64(o, "decode_nodes", c->prefill_nodes > 0 ? b->cfg.nodes - c->prefill_nodes : 0);
	json_key_u64(o, "split", r->split);
	json_key_f64(o, "split_ratio", split_share(r));
	json_key_u64(o, "prefill_continued", r->continued);
	json_key_u64(o, "kv_tokens_moved", r->moved_tokens);
	json_key_f64(o, "kv_bytes_moved", moved_bytes(b, r));
	json_key_f64(o, "answer_tokens_per_s", tokens_per_s(r));
}

static void put_quotes(struct replay_result *r, struct json_out *o)
{
	json_key_open(o, "quotes", '{');
	for (unsigned f = 0; f < QUOTE_FIGURES; f++) {
		struct replay_quotes *q = &r->quotes[f];
		uint64_t n = q->sides[QUOTE_INSIDE] + q->sides[QUOTE_BELOW] + q->sides[QUOTE_ABOVE];
		if (n == 0)
			continue;
		json_key_open(o, quote_figure_label((enum quote_figure)f), '{');
		json_key_u64(o, "quotes", n);
		json_key_f64(o, "covered", (double)q->sides[QUOTE_INSIDE] / (double)n);
		json_key_u64(o, "below", q->sides[QUOTE_BELOW]);
		json_key_u64(o, "above", q->sides[QUOTE_ABOVE]);
		json_key_f64(o, "width_share_p50", samples_ms(&q->width_share, 0.5));
		json_close(o, '}');
	}
	json_close(o, '}');
}

static void put_case(struct bench *b, struct one *c, struct json_out *o)
{
	struct replay_result *r = &c->result;
	double ideal = trace_found_ratio(b->ideal);
	json_open(o, '{');
	json_key_z(o, "policy", c->policy);
	json_key_f64(o, "hit_ratio", replay_hit_ratio(r));
	json_key_f64(o, "ideal_hit_ratio", ideal);
	json_key_f64(o, "of_ideal", ideal > 0 ? replay_hit_ratio(r) / ideal : 1);
	put_ms(o, "ttft_ms", &r->ttft);
	put_ms(o, "itl_ms", &r->itl);
	put_ms(o, "request_itl_ms", &r->per_token);
	json_key_f64(o, "imbalance", r->imbalance);
	json_key_f64(o, "imbalance_busy", r->imbalance_busy);
	json_key_f64(o, "imbalance_requests", r->imbalance_requests);
	json_key_u64(o, "requests", r->requests);
	json_key_u64(o, "done", r->done);
	json_key_u64(o, "refused", r->refused_full + r->refused_too_large + r->refused_late);
	json_key_u64(o, "refused_too_large", r->refused_too_large);
	if (r->refused_late > 0)
		json_key_u64(o, "refused_unmeetable", r->refused_late);
	json_key_u64(o, "waited", r->waited);
	json_key_u64(o, "prompt_blocks", r->prompt_blocks);
	json_key_u64(o, "cached_blocks", r->cached_blocks);
	json_key_u64(o, "expected_blocks", r->expected_blocks);
	json_key_u64(o, "evicted_blocks", r->evicted_blocks);
	json_key_u64(o, "preempted", r->preempted);
	json_key_f64(o, "virtual_seconds", (double)r->ended / 1e9);
	if (b->cfg.prefill_nodes > 0)
		put_pools(b, c, o);
	if (b->cfg.quotes)
		put_quotes(r, o);
	json_close(o, '}');
}

static void put_caches(const struct bench *b, struct json_out *o)
{
	json_key_open(o, "one_cache", '[');
	for (size_t i = 0; i < b->n_caches; i++) {
		json_open(o, '{');
		json_key_u64(o, "blocks", b->caches[i]);
		json_key_f64(o, "hit_ratio", trace_found_ratio(b->found[i]));
		json_close(o, '}');
	}
	json_close(o, ']');
}

static void put_engine(const struct replay_cfg *c, struct json_out *o)
{
	json_key_bool(o, "events", c->publishes);
	json_key_f64(o, "events_delay_ms", (double)c->report_delay / 1e6);
	json_key_open(o, "engine", '{');
	json_key_f64(o, "prefill_tokens_per_s", c->prefill_tokens_per_s);
	json_key_f64(o, "decode_ms", (double)c->decode / 1e6);
	json_key_f64(o, "batch_effect", c->batch_effect);
	json_key_u64(o, "max_batch", c->max_batch);
	json_key_u64(o, "step_tokens", c->step_tokens);
	json_close(o, '}');
	if (c->prefill_nodes == 0)
		return;
	json_key_open(o, "network", '{');
	json_key_f64(o, "bytes_per_s", c->bandwidth);
	json_key_f64(o, "handoff_ms", (double)c->handoff / 1e6);
	json_close(o, '}');
}

static CGN_RC report_json(struct bench *b, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	json_open(&o, '{');
	json_key_z(&o, "bench", "replay");
	json_key_z(&o, "trace", b->name);
	json_key_u64(&o, "requests", b->trace.n);
	json_key_u64(&o, "block_tokens", b->trace.block_tokens);
	json_key_u64(&o, "prompt_blocks", b->trace.n_ids);
	json_key_u64(&o, "distinct_blocks", b->ideal.distinct);
	json_key_u64(&o, "nodes", b->cfg.nodes);
	json_key_u64(&o, "blocks", b->cfg.blocks);
	json_key_f64(&o, "speed", b->cfg.speed);
	json_key_u64(&o, "seed", b->cfg.seed);
	put_engine(&b->cfg, &o);
	json_key_f64(&o, "ideal_hit_ratio", trace_found_ratio(b->ideal));
	put_caches(b, &o);
	json_key_open(&o, "results", '[');
	for (size_t i = 0; i < b->n_cases; i++)
		put_case(b, &b->cases[i], &o);
	json_close(&o, ']');
	json_close(&o, '}');
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

static void say_head(const struct bench *b)
{
	char blocks[32];
	(void)snprintf(blocks, sizeof blocks, b->cfg.blocks > 0 ? "%u" : "unlimited", b->cfg.blocks);
	(void)printf(
		"%zu requests, %zu blocks of %u tokens (%zu distinct) in %.0f s; %u nodes of %s blocks; ideal hit ratio %.2f %%\n",
		b->trace.n, b->trace.n_ids, b->trace.block_tokens, b->ideal.distinct,
		(double)b->trace.requests[b->trace.n - 1].at / 1e9 / b->cfg.speed, b->cfg.nodes, blocks,
		100 * trace_found_ratio(b->ideal));
	for (size_t i = 0; i < b->n_caches; i++)
		(void)printf("one cache of %" PRIu64 " blocks, least recently used out: %.2f %%\n",
			b->caches[i], 100 * trace_found_ratio(b->found[i]));
}

static CGN_RC report_table(struct bench *b, struct cgn_err *err)
{
	static const char *const headers[] = {"POLICY", "HITS", "OF IDEAL", "TTFT P50", "P90", "P99",
		"ITL MEAN", "P50", "P99", "IMBALANCE", "REQUESTS", "DONE", "REFUSED", "WALL"};
	struct ctl_table t = {0};
	double ideal = trace_found_ratio(b->ideal);
	say_head(b);
	for (size_t i = 0; i < CGN_COUNT(headers); i++)
		ctl_table_column(&t, headers[i], i > 0);
	for (size_t i = 0; i < b->n_cases; i++) {
		struct replay_result *r = &b->cases[i].result;
		ctl_table_cell(&t, "%s", b->cases[i].policy);
		ctl_table_cell(&t, "%.2f %%", 100 * replay_hit_ratio(r));
		ctl_table_cell(&t, "%.1f %%", ideal > 0 ? 100 * replay_hit_ratio(r) / ideal : 100);
		ctl_table_cell(&t, "%.1f ms", samples_ms(&r->ttft, 0.5));
		ctl_table_cell(&t, "%.1f", samples_ms(&r->ttft, 0.9));
		ctl_table_cell(&t, "%.1f", samples_ms(&r->ttft, 0.99));
		ctl_table_cell(&t, "%.2f ms", samples_mean_ms(&r->itl));
		ctl_table_cell(&t, "%.2f", samples_ms(&r->itl, 0.5));
		ctl_table_cell(&t, "%.2f", samples_ms(&r->itl, 0.99));
		ctl_table_cell(&t, "%.3f", r->imbalance);
		ctl_table_cell(&t, "%.3f", r->imbalance_requests);
		ctl_table_cell(&t, "%" PRIu64, r->done);
		ctl_table_cell(&t, "%" PRIu64, r->refused_full + r->refused_too_large + r->refused_late);
		ctl_table_cell(&t, "%.1f s", b->cases[i].wall_s);
	}
	return ctl_table_print(&t, false, err);
}

static void row_pools(struct bench *b, struct one *c, struct ctl_table *t)
{
	struct replay_result *r = &c->result;
	if (c->prefill_nodes > 0)
		ctl_table_cell(t, "%uP + %uD", c->prefill_nodes, b->cfg.nodes - c->prefill_nodes);
	else
		ctl_table_cell(t, "%u both", b->cfg.nodes);
	ctl_table_cell(t, "%s", c->policy);
	ctl_table_cell(t, "%.1f ms", samples_ms(&r->ttft, 0.5));
	ctl_table_cell(t, "%.1f", samples_ms(&r->ttft, 0.99));
	ctl_table_cell(t, "%.2f ms", samples_ms(&r->per_token, 0.5));
	ctl_table_cell(t, "%.2f", samples_ms(&r->per_token, 0.99));
	ctl_table_cell(t, "%.2f ms", samples_ms(&r->itl, 0.99));
	ctl_table_cell(t, "%.0f", tokens_per_s(r));
	ctl_table_cell(t, "%.1f GiB", moved_bytes(b, r) / (1U << 30));
	ctl_table_cell(t, "%.1f %%", 100 * split_share(r));
	ctl_table_cell(t, "%" PRIu64, r->continued);
	ctl_table_cell(t, "%" PRIu64, r->done);
	ctl_table_cell(t, "%" PRIu64, r->refused_full + r->refused_too_large + r->refused_late);
}

static CGN_RC report_pools(struct bench *b, struct cgn_err *err)
{
	static const char *const headers[] = {"NODES", "POLICY", "TTFT P50", "P99", "PER TOKEN P50", "P99",
		"ITL P99", "TOKENS/S", "KV MOVED", "SPLIT", "CONTINUED", "DONE", "REFUSED"};
	struct ctl_table t = {0};
	say_head(b);
	for (size_t i = 0; i < CGN_COUNT(headers); i++)
		ctl_table_column(&t, headers[i], i > 1);
	for (size_t i = 0; i < b->n_cases; i++)
		row_pools(b, &b->cases[i], &t);
	return ctl_table_print(&t, false, err);
}

static CGN_RC draw_plot(struct bench *b, const char *path, struct cgn_err *err)
{
	struct plot_case cases[MAX_CASES];
	struct cgn_buf out = {0};
	char title[256], blocks[32];
	(void)snprintf(blocks, sizeof blocks, b->cfg.blocks > 0 ? "%u" : "unlimited", b->cfg.blocks);
	(void)snprintf(title, sizeof title, "%.120s: %zu requests on %u nodes of %s blocks, speed %g",
		b->name, b->trace.n, b->cfg.nodes, blocks, b->cfg.speed);
	for (size_t i = 0; i < b->n_cases; i++) {
		struct one *c = &b->cases[i];
		cases[i] = (struct plot_case){c->policy, &c->result.ttft, replay_hit_ratio(&c->result),
			c->result.imbalance};
	}
	plot_svg(title, cases, b->n_cases, trace_found_ratio(b->ideal), &out);
	return ctl_write(path, &out, err);
}

/* ---- set-up ---- */

static CGN_RC case_add(struct bench *b, struct cgn_str policy, uint32_t prefill_nodes, struct cgn_err *err)
{
	struct one *o = &b->cases[b->n_cases];
	if (b->n_cases == MAX_CASES)
		return CGN_FAIL(err, INVALID, "--policy: more than %d runs", MAX_CASES);
	o->rules = b->rules;
	o->rules.disagg.enabled = prefill_nodes > 0;
	o->prefill_nodes = prefill_nodes;
	CGN_TRY(route_document_policy(policy, &o->rules.policy, err));
	(void)cgn_str_copyz(o->policy, sizeof o->policy, policy);
	b->n_cases++;
	return CGN_OK;
}

static CGN_RC read_policies(const char *list, struct bench *b, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(list);
	while (rest.p != NULL) {
		struct cgn_str word = cgn_str_trim(cgn_str_split(&rest, ','));
		if (b->cfg.prefill_nodes > 0)
			CGN_TRY(case_add(b, word, b->cfg.prefill_nodes, err));
		CGN_TRY(case_add(b, word, 0, err));
	}
	return CGN_OK;
}

/* Read the two pools, which replace --nodes. */
static CGN_RC read_pools(const struct ctl_args *a, struct replay_cfg *c, struct cgn_err *err)
{
	uint32_t decode = 0;
	double gib = 0;
	CGN_TRY(ctl_flag_u32(a, "--prefill", 0, REPLAY_MAX_NODES - 1, &c->prefill_nodes, err));
	CGN_TRY(ctl_flag_u32(a, "--decode", 0, REPLAY_MAX_NODES - 1, &decode, err));
	if ((c->prefill_nodes > 0) != (decode > 0) || c->prefill_nodes + decode > REPLAY_MAX_NODES)
		return CGN_FAIL(err, INVALID,
			"--prefill %u and --decode %u: give both, at least 1 each and at most %d together",
			c->prefill_nodes, decode, REPLAY_MAX_NODES);
	if (decode > 0)
		c->nodes = c->prefill_nodes + decode;
	if (ctl_flag(a, "--bandwidth") == NULL)
		return CGN_OK;
	CGN_TRY(ctl_flag_f64(a, "--bandwidth", 1e-6, 1e6, &gib, err));
	c->bandwidth = gib * (1U << 30);
	return CGN_OK;
}

/* Read the weights of the configured tenants. */
static CGN_RC read_tenants(const struct config *cfg, struct bench *b, struct cgn_err *err)
{
	b->tenants = calloc(cfg->n_tenants + 1, sizeof *b->tenants);
	if (b->tenants == NULL)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	for (size_t i = 0; i < cfg->n_tenants; i++)
		b->tenants[i] = (struct replay_tenant){trace_name(cgn_str_of(cfg->tenants[i].name)),
			cfg->tenants[i].weight};
	b->cfg.tenants = b->tenants;
	b->cfg.n_tenants = cfg->n_tenants;
	return CGN_OK;
}

/* Read the settings for choosing and waiting from the router's configuration. */
static CGN_RC read_rules(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const char *file = ctl_flag(a, "--config"), *sets[CTL_MAX_FLAGS];
	struct config *cfg = NULL;
	size_t n = 0;
	while (n < CGN_COUNT(sets) && (sets[n] = ctl_flag_nth(a, "--set", n)) != NULL)
		n++;
	if (file != NULL)
		CGN_TRY(disk_read_file(file, MAX_CONFIG, &text, err));
	CGN_TRY(settings_load(file != NULL ? file : "defaults", cgn_buf_view(&text), NULL, sets, n, &cfg,
		err));
	chooser_rules_fill(cfg, &b->rules);
	b->cfg.ttft_slo = cfg->router.admission.ttft_slo;
	b->cfg.bandwidth = (double)cfg->router.disagg.kv_bandwidth;
	cgn_rc rc = read_tenants(cfg, b, err);
	if (cgn_ok(rc))
		rc = ctl_clusters_read(a, cfg, &b->clusters, err);
	config_free(&cfg);
	return rc;
}

static CGN_RC read_queue(const char *text, enum queue_policy *out, struct cgn_err *err)
{
	if (queue_policy_find(cgn_str_of(text), out) && *out != QUEUE_SESSIONS) /* Traces name no sessions. */
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "--queue is %s, not fcfs, wspt or deadline", text);
}

static CGN_RC read_flags(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	b->cfg = replay_defaults;
	CGN_TRY(ctl_flag_u32(a, "--nodes", 1, REPLAY_MAX_NODES, &b->cfg.nodes, err));
	CGN_TRY(ctl_flag_u32(a, "--blocks", 0, 1U << 26, &b->cfg.blocks, err));
	CGN_TRY(ctl_flag_u32(a, "--seed", 0, UINT32_MAX, &b->cfg.seed, err));
	CGN_TRY(ctl_flag_f64(a, "--speed", 1e-6, 1e6, &b->cfg.speed, err));
	CGN_TRY(ctl_flag_duration(a, "--events-delay", &b->cfg.report_delay, err));
	b->cfg.publishes = !ctl_switch(a, "--no-events");
	b->cfg.quotes = ctl_switch(a, "--quotes");
	b->cfg.gpu = b->cfg.quotes ? gpu_find("h100") : NULL;
	CGN_TRY(read_queue(ctl_flag(a, "--queue"), &b->cfg.queue, err));
	CGN_TRY(ctl_engine_flags(a, &b->cfg, err));
	CGN_TRY(read_rules(a, b, err));
	CGN_TRY(read_pools(a, &b->cfg, err));
	CGN_TRY(ctl_flag_u64s(a, "--caches", 1, UINT64_MAX, b->caches, MAX_CACHES, &b->n_caches, err));
	return read_policies(ctl_flag(a, "--policy"), b, err);
}

static CGN_RC read_trace(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_TRY(ctl_trace_of(a, &b->trace, &b->name, err));
	CGN_TRY(trace_one_cache(&b->trace, 0, &b->ideal, err));
	for (size_t i = 0; i < b->n_caches; i++)
		CGN_TRY(trace_one_cache(&b->trace, b->caches[i], &b->found[i], err));
	return CGN_OK;
}

/* Several clusters are played with the first of the policies. */
static CGN_RC run_clusters(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	struct replay_cfg cfg = b->cfg;
	if (cfg.nodes * b->clusters.cfg.clusters > REPLAY_MAX_NODES)
		return CGN_FAIL(err, INVALID, "--clusters %u of --nodes %u: at most %d nodes in all",
			b->clusters.cfg.clusters, cfg.nodes, REPLAY_MAX_NODES);
	b->showing = b->cases[0].policy;
	cfg.rules = &b->cases[0].rules;
	cfg.progress = ctl_progress_shown() ? show_progress : NULL;
	cfg.user = b;
	return ctl_clusters_run(a, &b->trace, b->name, &cfg, &b->clusters, err);
}

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_TRY(read_flags(a, b, err));
	CGN_TRY(read_trace(a, b, err));
	if (b->clusters.cfg.clusters > 1)
		return run_clusters(a, b, err);
	for (size_t i = 0; i < b->n_cases; i++)
		CGN_TRY(run_one(b, &b->cases[i], err));
	ctl_progress_end();
	if (ctl_flag(a, "--plot") != NULL)
		CGN_TRY(draw_plot(b, ctl_flag(a, "--plot"), err));
	return (a->json ? report_json : b->cfg.prefill_nodes > 0 ? report_pools : report_table)(b, err);
}

CGN_RC ctl_bench_replay(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench *b = CGN_NEW(struct bench);
	cgn_rc rc = run_bench(a, b, err);
	for (size_t i = 0; i < b->n_cases; i++)
		replay_result_fini(&b->cases[i].result);
	trace_fini(&b->trace);
	free(b->tenants);
	free(b);
	return rc;
}
