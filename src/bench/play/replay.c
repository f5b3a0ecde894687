/* SPDX-License-Identifier: Apache-2.0 */
/* play, the room: plays traces against simulated nodes and caches. */
/* bench replay: plays a trace in virtual time against simulated nodes, with the router's routing code, once
 * for each policy. */
#include <inttypes.h>
#include <stdlib.h>

#include "bench/common/report.h"
#include "bench/play/clusters.h"
#include "bench/play/play.h"
#include "bench/play/plot.h"
#include "io/os/disk/disk.h"
#include "lab/enginemodel/profile.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/routing/document.h"

#define MAX_CONFIG ((size_t)1 << 20)
#define MAX_CACHES 16

struct bench {
	struct play *play;
	struct replay_tenant *tenants; /* Owned. */
	uint64_t caches[MAX_CACHES];
	struct trace_found found[MAX_CACHES], ideal;
	size_t n_caches;
	struct ctl_clusters clusters;
};

/* ---- report ---- */

static double tokens_per_s(const struct replay_result *r)
{
	return r->ended > 0 ? (double)play_answer_tokens(r) * 1e9 / (double)r->ended : 0;
}

static double moved_bytes(const struct bench *b, const struct replay_result *r)
{
	return (double)r->moved_tokens * b->play->rules.disagg.token_bytes;
}

static void put_pools(const struct bench *b, const struct play_case *c, struct json_out *o)
{
	const struct replay_result *r = &c->result;
	json_key_u64(o, "prefill_nodes", c->cfg.prefill_nodes);
	json_key_u64(o, "decode_nodes",
		c->cfg.prefill_nodes > 0 ? b->play->cfg.nodes - c->cfg.prefill_nodes : 0);
	json_key_u64(o, "split", r->split);
	json_key_f64(o, "split_ratio", report_share(r->split, r->requests));
	json_key_u64(o, "prefill_continued", r->continued);
	json_key_u64(o, "kv_tokens_moved", r->moved_tokens);
	json_key_f64(o, "kv_bytes_moved", moved_bytes(b, r));
	json_key_f64(o, "answer_tokens_per_s", tokens_per_s(r));
}

static void put_classes(const struct replay_quotes *q, struct json_out *o)
{
	json_key_open(o, "by_tenant", '[');
	for (uint32_t i = 0; i < q->n_classes; i++) {
		json_open(o, '{');
		json_key_u64(o, "quotes", q->classes[i].all);
		json_key_f64(o, "covered", (double)q->classes[i].inside / (double)q->classes[i].all);
		json_close(o, '}');
	}
	json_close(o, ']');
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
		json_key_f64(o, "width_share_p90", samples_ms(&q->width_share, 0.9));
		put_classes(q, o);
		json_close(o, '}');
	}
	json_close(o, '}');
}

/* Write the measured difference of each policy of router.shadow to the one that most requests follow. */
static void put_arms(const struct replay_cfg *cfg, const struct replay_result *r, struct json_out *o)
{
	json_key_open(o, "shadows", '[');
	for (size_t i = 0; i < cfg->arms.n; i++) {
		json_open(o, '{');
		json_key_z(o, "policy", route_policy_text(cfg->arms.shadows[i]));
		for (unsigned f = 0; f < ARMS_FIGURES; f++) {
			const struct arms_estimate *e = &r->arms[i][f];
			json_key_open(o, arms_figure_text((enum arms_figure)f), '{');
			json_key_u64(o, "n_live", e->n_live);
			json_key_u64(o, "n_shadow", e->n_shadow);
			json_key_f64(o, "live", e->live);
			json_key_f64(o, "shadow", e->shadow);
			json_key_f64(o, "low", e->low);
			json_key_f64(o, "high", e->high);
			json_key_z(o, "verdict", arms_verdict_text(e->verdict));
			json_close(o, '}');
		}
		json_close(o, '}');
	}
	json_close(o, ']');
}

static void put_case(struct bench *b, struct play_case *c, struct json_out *o)
{
	struct replay_result *r = &c->result;
	double ideal = trace_found_ratio(b->ideal);
	json_open(o, '{');
	json_key_z(o, "policy", c->name);
	json_key_f64(o, "hit_ratio", replay_hit_ratio(r));
	json_key_f64(o, "ideal_hit_ratio", ideal);
	json_key_f64(o, "of_ideal", ideal > 0 ? replay_hit_ratio(r) / ideal : 1);
	play_samples(o, "ttft_ms", &r->ttft);
	play_samples(o, "itl_ms", &r->itl);
	play_samples(o, "request_itl_ms", &r->per_token);
	json_key_f64(o, "imbalance", r->imbalance);
	json_key_f64(o, "imbalance_busy", r->imbalance_busy);
	json_key_f64(o, "imbalance_requests", r->imbalance_requests);
	json_key_u64(o, "requests", r->requests);
	json_key_u64(o, "done", r->done);
	json_key_u64(o, "refused", play_refused(r));
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
	if (b->play->cfg.prefill_nodes > 0)
		put_pools(b, c, o);
	if (b->play->cfg.quotes)
		put_quotes(r, o);
	if (b->play->cfg.arms.share > 0)
		put_arms(&b->play->cfg, r, o);
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
	json_key_f64(o, "delay_ms", (double)c->delay / 1e6);
	json_key_open(o, "engine", '{');
	json_key_f64(o, "prefill_tokens_per_s", c->prefill_tokens_per_s);
	json_key_f64(o, "decode_ms", (double)c->decode / 1e6);
	json_key_f64(o, "batch_effect", c->batch_effect);
	json_key_f64(o, "kv_read_ns", c->terms.context_ns);
	json_key_f64(o, "attention_ns", c->terms.pair_ns);
	json_key_bool(o, "overlap", c->terms.overlaps);
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
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "replay");
	json_key_z(o, "trace", b->play->name);
	json_key_u64(o, "requests", b->play->trace.n);
	json_key_u64(o, "block_tokens", b->play->trace.block_tokens);
	json_key_u64(o, "prompt_blocks", b->play->trace.n_ids);
	json_key_u64(o, "distinct_blocks", b->ideal.distinct);
	json_key_u64(o, "nodes", b->play->cfg.nodes);
	json_key_u64(o, "blocks", b->play->cfg.blocks);
	json_key_f64(o, "speed", b->play->cfg.speed);
	json_key_u64(o, "seed", b->play->cfg.seed);
	put_engine(&b->play->cfg, o);
	json_key_f64(o, "ideal_hit_ratio", trace_found_ratio(b->ideal));
	put_caches(b, o);
	json_key_open(o, "results", '[');
	for (size_t i = 0; i < b->play->n_cases; i++)
		put_case(b, &b->play->cases[i], o);
	return report_end(&doc, err);
}

static void say_head(const struct bench *b)
{
	char blocks[32];
	(void)snprintf(blocks, sizeof blocks, b->play->cfg.blocks > 0 ? "%u" : "unlimited",
		b->play->cfg.blocks);
	(void)printf(
		"%zu requests, %zu blocks of %u tokens (%zu distinct) in %.0f s; %u nodes of %s blocks; ideal hit ratio %.2f %%\n",
		b->play->trace.n, b->play->trace.n_ids, b->play->trace.block_tokens, b->ideal.distinct,
		play_seconds(b->play), b->play->cfg.nodes, blocks, 100 * trace_found_ratio(b->ideal));
	for (size_t i = 0; i < b->n_caches; i++)
		(void)printf("one cache of %" PRIu64 " blocks, least recently used out: %.2f %%\n",
			b->caches[i], 100 * trace_found_ratio(b->found[i]));
}

static void say_arms(const struct play_case *c)
{
	for (size_t i = 0; c->cfg.arms.share > 0 && i < c->cfg.arms.n; i++)
		for (unsigned f = 0; f < ARMS_FAILED; f++) {
			const struct arms_estimate *e = &c->result.arms[i][f];
			(void)printf(
				"%s, beside %s: %s %.4g, %.4g of %s: %+.4g (%+.4g to %+.4g), %s; %" PRIu64
				" and %" PRIu64 " requests\n",
				route_policy_text(c->cfg.arms.shadows[i]), c->name,
				arms_figure_text((enum arms_figure)f), e->shadow, e->live, c->name,
				e->shadow - e->live, e->low, e->high, arms_verdict_text(e->verdict),
				e->n_shadow, e->n_live);
		}
}

static CGN_RC report_table(struct bench *b, struct cgn_err *err)
{
	struct ctl_table t = {0};
	double ideal = trace_found_ratio(b->ideal);
	say_head(b);
	for (size_t i = 0; i < b->play->n_cases; i++) {
		struct replay_result *r = &b->play->cases[i].result;
		CTL_CELL(&t, "POLICY", "%s", b->play->cases[i].name);
		CTL_CELL(&t, "HITS", "%.2f %%", 100 * replay_hit_ratio(r));
		CTL_CELL(&t, "OF IDEAL", "%.1f %%", ideal > 0 ? 100 * replay_hit_ratio(r) / ideal : 100);
		report_put_time(&t, "TTFT P50", 1, " ms", samples_ms(&r->ttft, 0.5));
		report_put_time(&t, "P90", 1, "", samples_ms(&r->ttft, 0.9));
		report_put_time(&t, "P99", 1, "", samples_ms(&r->ttft, 0.99));
		report_put_time(&t, "ITL MEAN", 2, " ms", samples_mean_ms(&r->itl));
		report_put_time(&t, "P50", 2, "", samples_ms(&r->itl, 0.5));
		report_put_time(&t, "P99", 2, "", samples_ms(&r->itl, 0.99));
		CTL_CELL(&t, "IMBALANCE", "%.3f", r->imbalance);
		CTL_CELL(&t, "REQUESTS", "%.3f", r->imbalance_requests);
		CTL_CELL(&t, "DONE", "%" PRIu64, r->done);
		CTL_CELL(&t, "REFUSED", "%" PRIu64, play_refused(r));
		CTL_CELL(&t, "WALL", "%.1f s", b->play->cases[i].wall_s);
	}
	CGN_TRY(ctl_table_print(&t, false, err));
	for (size_t i = 0; i < b->play->n_cases; i++)
		say_arms(&b->play->cases[i]);
	return CGN_OK;
}

static void row_pools(struct bench *b, struct play_case *c, struct ctl_table *t)
{
	struct replay_result *r = &c->result;
	char nodes[32];
	(void)snprintf(nodes, sizeof nodes, c->cfg.prefill_nodes > 0 ? "%uP + %uD" : "%u both",
		c->cfg.prefill_nodes > 0 ? c->cfg.prefill_nodes : b->play->cfg.nodes,
		b->play->cfg.nodes - c->cfg.prefill_nodes);
	CTL_CELL(t, "NODES", "%s", nodes);
	CTL_CELL(t, "POLICY", "%s", c->name);
	report_put_time(t, "TTFT P50", 1, " ms", samples_ms(&r->ttft, 0.5));
	report_put_time(t, "P99", 1, "", samples_ms(&r->ttft, 0.99));
	report_put_time(t, "PER TOKEN P50", 2, " ms", samples_ms(&r->per_token, 0.5));
	report_put_time(t, "P99", 2, "", samples_ms(&r->per_token, 0.99));
	report_put_time(t, "ITL P99", 2, " ms", samples_ms(&r->itl, 0.99));
	CTL_CELL(t, "TOKENS/S", "%.0f", tokens_per_s(r));
	CTL_CELL(t, "KV MOVED", "%.1f GiB", moved_bytes(b, r) / (1U << 30));
	CTL_CELL(t, "SPLIT", "%.1f %%", 100 * report_share(r->split, r->requests));
	CTL_CELL(t, "CONTINUED", "%" PRIu64, r->continued);
	CTL_CELL(t, "DONE", "%" PRIu64, r->done);
	CTL_CELL(t, "REFUSED", "%" PRIu64, play_refused(r));
}

static CGN_RC report_pools(struct bench *b, struct cgn_err *err)
{
	struct ctl_table t = {0};
	say_head(b);
	for (size_t i = 0; i < b->play->n_cases; i++)
		row_pools(b, &b->play->cases[i], &t);
	return ctl_table_print(&t, false, err);
}

static CGN_RC draw_plot(struct bench *b, const char *path, struct cgn_err *err)
{
	struct plot_case cases[PLAY_CASES];
	struct cgn_buf out = {0};
	char title[256], blocks[32];
	(void)snprintf(blocks, sizeof blocks, b->play->cfg.blocks > 0 ? "%u" : "unlimited",
		b->play->cfg.blocks);
	(void)snprintf(title, sizeof title, "%.120s: %zu requests on %u nodes of %s blocks, speed %g",
		b->play->name, b->play->trace.n, b->play->cfg.nodes, blocks, b->play->cfg.speed);
	for (size_t i = 0; i < b->play->n_cases; i++) {
		struct play_case *c = &b->play->cases[i];
		cases[i] = (struct plot_case){c->name, &c->result.ttft, replay_hit_ratio(&c->result),
			c->result.imbalance};
	}
	plot_svg(title, cases, b->play->n_cases, trace_found_ratio(b->ideal), &out);
	return ctl_write(path, &out, err);
}

/* ---- set-up ---- */

static CGN_RC case_add(struct play *p, struct cgn_str policy, uint32_t prefill_nodes, struct cgn_err *err)
{
	if (p->n_cases == PLAY_CASES)
		return CGN_FAIL(err, INVALID, "--policy: more than %d runs", PLAY_CASES);
	struct play_case *c = play_case_add(p, policy);
	c->rules.disagg.enabled = prefill_nodes > 0;
	c->cfg.prefill_nodes = prefill_nodes;
	return route_document_policy(policy, &c->rules.policy, err);
}

static CGN_RC read_policies(const char *list, struct bench *b, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(list);
	while (rest.p != NULL) {
		struct cgn_str word = cgn_str_trim(cgn_str_split(&rest, ','));
		if (b->play->cfg.prefill_nodes > 0)
			CGN_TRY(case_add(b->play, word, b->play->cfg.prefill_nodes, err));
		CGN_TRY(case_add(b->play, word, 0, err));
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
static void read_tenants(const struct config *cfg, struct bench *b)
{
	b->tenants = CGN_NEW_ARRAY(struct replay_tenant, cfg->n_tenants + 1);
	for (size_t i = 0; i < cfg->n_tenants; i++)
		b->tenants[i] = (struct replay_tenant){trace_name(cgn_str_of(cfg->tenants[i].name)),
			cfg->tenants[i].weight};
	b->play->cfg.tenants = b->tenants;
	b->play->cfg.n_tenants = cfg->n_tenants;
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
	chooser_rules_fill(cfg, &b->play->rules);
	arms_rules_fill(cfg, &b->play->cfg.arms);
	b->play->cfg.ttft_slo = cfg->router.admission.ttft_slo;
	b->play->cfg.bandwidth = (double)cfg->router.disagg.kv_bandwidth;
	read_tenants(cfg, b);
	cgn_rc rc = ctl_clusters_read(a, cfg, &b->clusters, err);
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
	double delay_ms = 0;
	CGN_TRY(play_flags(a, b->play, err));
	CGN_TRY(ctl_flag_duration(a, "--events-delay", &b->play->cfg.report_delay, err));
	CGN_TRY(ctl_flag_f64(a, "--delay-ms", 0, 1e6, &delay_ms, err));
	b->play->cfg.delay = (cgn_nsec)(delay_ms * 1e6);
	b->play->cfg.publishes = !ctl_switch(a, "--no-events");
	b->play->cfg.quotes = ctl_switch(a, "--quotes");
	b->play->cfg.gpu = b->play->cfg.quotes ? gpu_find("h100") : NULL;
	CGN_TRY(read_queue(ctl_flag(a, "--queue"), &b->play->cfg.queue, err));
	CGN_TRY(read_rules(a, b, err));
	if (ctl_flag(a, "--profile") != NULL)
		b->play->rules.disagg.token_bytes =
			enginemodel_profile_find(cgn_str_of(ctl_flag(a, "--profile")))->kv_bytes;
	CGN_TRY(read_pools(a, &b->play->cfg, err));
	CGN_TRY(ctl_flag_u64s(a, "--caches", 1, UINT64_MAX, b->caches, MAX_CACHES, &b->n_caches, err));
	return read_policies(ctl_flag(a, "--policy"), b, err);
}

static CGN_RC read_trace(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_TRY(ctl_trace_of(a, &b->play->trace, &b->play->name, err));
	CGN_TRY(trace_one_cache(&b->play->trace, 0, &b->ideal, err));
	for (size_t i = 0; i < b->n_caches; i++)
		CGN_TRY(trace_one_cache(&b->play->trace, b->caches[i], &b->found[i], err));
	return CGN_OK;
}

/* Several clusters are played with the first of the policies. */
static CGN_RC run_clusters(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	struct replay_cfg cfg = b->play->cfg;
	if (cfg.nodes * b->clusters.cfg.clusters > REPLAY_MAX_NODES)
		return CGN_FAIL(err, INVALID, "--clusters %u of --nodes %u: at most %d nodes in all",
			b->clusters.cfg.clusters, cfg.nodes, REPLAY_MAX_NODES);
	cfg.rules = &b->play->cases[0].rules;
	play_show(b->play, b->play->cases[0].name, &cfg);
	return ctl_clusters_run(a, &b->play->trace, b->play->name, &cfg, &b->clusters, err);
}

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_TRY(read_flags(a, b, err));
	CGN_TRY(read_trace(a, b, err));
	if (b->clusters.cfg.clusters > 1)
		return run_clusters(a, b, err);
	CGN_TRY(play_run(b->play, err));
	if (ctl_flag(a, "--plot") != NULL)
		CGN_TRY(draw_plot(b, ctl_flag(a, "--plot"), err));
	return (a->json ? report_json : b->play->cfg.prefill_nodes > 0 ? report_pools : report_table)(b, err);
}

CGN_RC ctl_bench_replay(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(play_free) struct play *play = CGN_NEW(struct play);
	struct bench b = {.play = play};
	cgn_rc rc = run_bench(a, &b, err);
	free(b.tenants);
	return rc;
}
