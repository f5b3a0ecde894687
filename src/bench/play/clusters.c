/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/play/clusters.h"

#include <inttypes.h>
#include <stdlib.h>

#include "bench/common/report.h"
#include "bench/play/play.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/line/progress.h"

enum { ROW_LOCAL, ROW_FEDERATION, ROW_ONE, ROWS };
static const char *const row_names[ROWS] = {"local only", "federation", "one cluster"};

struct rows {
	const char *name; /* The trace's. */
	const struct trace *trace;
	struct ctl_clusters *c;
	struct federation_result v[ROWS];
	double wall_s[ROWS];
};

/* ---- flags ---- */

static bool cut_time(struct cgn_str text, cgn_nsec *out)
{
	return text.n > 0 && config_duration(text, out);
}

/* Read A-B@FROM-TO, clusters as letters. */
static bool cut_parse(const char *text, struct federation_cut *out)
{
	struct cgn_str rest = cgn_str_of(text), pair = cgn_str_split(&rest, '@'),
		       from = cgn_str_split(&rest, '-');
	if (pair.n != 3 || pair.p[1] != '-' || pair.p[0] < 'A' || pair.p[2] < 'A' || rest.p == NULL)
		return false;
	out->a = (uint32_t)(pair.p[0] - 'A');
	out->b = (uint32_t)(pair.p[2] - 'A');
	return cut_time(from, &out->from) && cut_time(rest, &out->to);
}

static CGN_RC cuts_read(const struct ctl_args *a, struct ctl_clusters *out, struct cgn_err *err)
{
	const char *text;
	out->cfg.cuts = out->cuts;
	while ((text = ctl_flag_nth(a, "--cut", out->cfg.n_cuts)) != NULL) {
		if (out->cfg.n_cuts == FEDERATION_CUTS)
			return CGN_FAIL(err, INVALID, "--cut: more than %d", FEDERATION_CUTS);
		struct federation_cut *cut = &out->cuts[out->cfg.n_cuts++];
		if (!cut_parse(text, cut) || cut->a >= out->cfg.clusters || cut->b >= out->cfg.clusters ||
			cut->a == cut->b || cut->from >= cut->to)
			return CGN_FAIL(err, INVALID,
				"--cut is %s: give A-B@FROM-TO with two of the clusters A to %c and times such as 600s-660s",
				text, (char)('A' + out->cfg.clusters - 1));
	}
	return CGN_OK;
}

CGN_RC ctl_clusters_read(const struct ctl_args *a, const struct config *cfg, struct ctl_clusters *out,
	struct cgn_err *err)
{
	double percent = 0;
	out->cfg = (struct federation_cfg){.way_ms = out->way_ms,
		.forwards = true,
		.interval = cfg->router.federation.summary_interval,
		.rules = {cfg->router.federation.margin, cfg->router.federation.rework,
			cfg->router.federation.affinity, cfg->router.federation.price_weight,
			cfg->router.federation.energy_weight},
		.max_hops = cfg->router.federation.max_hops,
		.resumes = cfg->router.resume};
	CGN_TRY(ctl_flag_u32(a, "--clusters", 1, FEDERATION_CLUSTERS, &out->cfg.clusters, err));
	CGN_TRY(ctl_flag_u64s(a, "--wan-ms", 0, 60000, out->way_ms, CGN_COUNT(out->way_ms), &out->cfg.n_ways,
		err));
	CGN_TRY(ctl_flag_f64(a, "--wan-loss", 0, 49, &percent, err));
	CGN_TRY(ctl_flag_f64(a, "--day-swing", 0, 0.95, &out->swing, err));
	CGN_TRY(ctl_flag_u32(a, "--peer-max-concurrent", 1, 65536, &out->cfg.max_concurrent, err));
	CGN_TRY(ctl_flag_duration(a, "--peer-expected-ttft", &out->cfg.expected_ttft, err));
	CGN_TRY(ctl_flag_duration(a, "--peer-first-byte-timeout", &out->cfg.first_byte_timeout, err));
	out->cfg.loss = percent / 100;
	return cuts_read(a, out, err);
}

/* ---- running ---- */

static CGN_RC row_one_cluster(const struct federation_trace *t, const struct replay_cfg *replay,
	uint32_t clusters, struct federation_result *out, struct cgn_err *err)
{
	struct replay_cfg all = *replay;
	struct replay_result r;
	all.nodes *= clusters;
	CGN_TRY(replay_run(&t->all, &all, &r, err));
	*out = (struct federation_result){.requests = r.requests,
		.done = r.done,
		.refused = play_refused(&r),
		.waited = r.waited,
		.prompt_blocks = r.prompt_blocks,
		.cached_blocks = r.cached_blocks,
		.evicted_blocks = r.evicted_blocks,
		.ended = r.ended,
		.ttft = r.ttft,
		.itl = r.itl};
	r.ttft = r.itl = (struct samples){0};
	replay_result_fini(&r);
	return CGN_OK;
}

static CGN_RC row_run(struct rows *rows, unsigned i, const struct federation_trace *t,
	const struct replay_cfg *replay, struct cgn_err *err)
{
	struct federation_cfg cfg = rows->c->cfg;
	const cgn_nsec began = cgn_clock_now();
	cfg.replay = replay;
	cfg.forwards = i == ROW_FEDERATION;
	CGN_TRY(i == ROW_ONE ? row_one_cluster(t, replay, cfg.clusters, &rows->v[i], err)
			     : federation_run(t, &cfg, &rows->v[i], err));
	rows->wall_s[i] = report_seconds_since(began);
	report_say_lost(row_names[i], "to the first token", &rows->v[i].ttft);
	report_say_lost(row_names[i], "between tokens", &rows->v[i].itl);
	return CGN_OK;
}

/* ---- report ---- */

static double hits_of_one(const struct rows *rows, unsigned i)
{
	double one = report_share(rows->v[ROW_ONE].cached_blocks, rows->v[ROW_ONE].prompt_blocks);
	return one > 0 ? report_share(rows->v[i].cached_blocks, rows->v[i].prompt_blocks) / one : 1;
}

static double ttft_of_one(struct rows *rows, unsigned i, double quantile)
{
	double one = samples_ms(&rows->v[ROW_ONE].ttft, quantile);
	return one == 0 ? 1 : samples_ms(&rows->v[i].ttft, quantile) / one;
}

static double bytes_per_s(const struct federation_result *r)
{
	return r->ended > 0 ? (double)r->summary_bytes * 1e9 / (double)r->ended : 0;
}

static void put_counts(const struct federation_cfg *cfg, const uint64_t *v, const char *key,
	struct json_out *o)
{
	json_key_open(o, key, '[');
	for (uint32_t i = 0; i < cfg->clusters; i++)
		json_put_u64(o, v[i]);
	json_close(o, ']');
}

static void put_cuts(const struct federation_cfg *cfg, const struct federation_result *r, struct json_out *o)
{
	json_key_open(o, "cuts", '[');
	for (size_t i = 0; i < cfg->n_cuts; i++) {
		json_open(o, '{');
		json_key_u64(o, "from_cluster", cfg->cuts[i].a);
		json_key_u64(o, "to_cluster", cfg->cuts[i].b);
		json_key_f64(o, "begin_s", (double)cfg->cuts[i].from / 1e9);
		json_key_f64(o, "end_s", (double)cfg->cuts[i].to / 1e9);
		json_key_f64(o, "left_for_ms", (double)r->cuts[i].left_for_ns / 1e6);
		json_key_u64(o, "most_before", r->cuts[i].most_before);
		json_key_u64(o, "most_after", r->cuts[i].most_after);
		json_close(o, '}');
	}
	json_close(o, ']');
}

static void put_federation(const struct federation_cfg *cfg, const struct federation_result *r,
	struct json_out *o)
{
	json_key_u64(o, "left", r->left);
	json_key_f64(o, "left_ratio", report_share(r->left, r->requests));
	json_key_open(o, "left_by", '{');
	for (unsigned s = 0; s < PEER_BID_SOURCES; s++)
		json_key_u64(o, peer_bid_text((enum peer_bid_source)s), r->left_by[s]);
	json_close(o, '}');
	put_counts(cfg, r->by_cluster, "requests_by_cluster", o);
	put_counts(cfg, r->left_from, "left_by_cluster", o);
	json_key_u64(o, "bounced", r->bounced);
	json_key_u64(o, "returned", r->returned);
	json_key_u64(o, "predicted", r->predicted);
	json_key_u64(o, "mispredicted", r->mispredicted);
	json_key_u64(o, "demotions", r->demotions);
	json_key_u64(o, "peer_tokens_predicted", r->held_predicted);
	json_key_u64(o, "peer_tokens_cached", r->held_found);
	json_key_u64(o, "peers_lost", r->lost);
	json_key_u64(o, "summaries", r->summaries);
	json_key_u64(o, "summaries_whole", r->whole);
	json_key_u64(o, "summaries_diverged", r->diverged);
	json_key_u64(o, "summary_bytes", r->summary_bytes);
	json_key_f64(o, "summary_bytes_per_s", bytes_per_s(r));
	json_key_f64(o, "summary_blocks", r->block_mean);
	json_key_f64(o, "kbit_per_s_per_million_blocks", federation_kbit_per_million(r, cfg));
	put_cuts(cfg, r, o);
}

static void put_row(struct rows *rows, unsigned i, struct json_out *o)
{
	struct federation_result *r = &rows->v[i];
	json_open(o, '{');
	json_key_z(o, "mode", row_names[i]);
	json_key_u64(o, "requests", r->requests);
	json_key_u64(o, "done", r->done);
	json_key_u64(o, "refused", r->refused);
	json_key_u64(o, "broken", r->broken);
	json_key_u64(o, "resumed", r->resumed);
	json_key_u64(o, "waited", r->waited);
	json_key_f64(o, "hit_ratio", report_share(r->cached_blocks, r->prompt_blocks));
	json_key_f64(o, "hits_of_one_cluster", hits_of_one(rows, i));
	json_key_u64(o, "evicted_blocks", r->evicted_blocks);
	play_samples(o, "ttft_ms", &r->ttft);
	json_key_f64(o, "ttft_p50_of_one_cluster", ttft_of_one(rows, i, 0.5));
	json_key_f64(o, "ttft_p90_of_one_cluster", ttft_of_one(rows, i, 0.9));
	play_samples(o, "itl_ms", &r->itl);
	if (i == ROW_FEDERATION)
		put_federation(&rows->c->cfg, r, o);
	json_close(o, '}');
}

static CGN_RC report_json(struct rows *rows, const struct replay_cfg *replay, struct cgn_err *err)
{
	struct report_doc doc;
	const struct federation_cfg *c = &rows->c->cfg;
	struct json_out *o = report_begin(&doc, "replay");
	json_key_z(o, "trace", rows->name);
	json_key_u64(o, "requests", rows->trace->n);
	json_key_u64(o, "clusters", c->clusters);
	json_key_u64(o, "nodes", replay->nodes);
	json_key_u64(o, "blocks", replay->blocks);
	json_key_f64(o, "speed", replay->speed);
	json_key_u64(o, "seed", replay->seed);
	json_key_f64(o, "day_swing", rows->c->swing);
	json_key_open(o, "wan_ms", '[');
	for (size_t i = 0; i < c->n_ways; i++)
		json_put_u64(o, c->way_ms[i]);
	json_close(o, ']');
	json_key_f64(o, "wan_loss", c->loss);
	json_key_f64(o, "margin_ms", (double)c->rules.margin / 1e6);
	json_key_f64(o, "rework", c->rules.rework);
	json_key_f64(o, "affinity", c->rules.affinity);
	json_key_f64(o, "summary_interval_ms", (double)c->interval / 1e6);
	json_key_u64(o, "max_hops", c->max_hops);
	json_key_u64(o, "peer_max_concurrent", c->max_concurrent);
	json_key_open(o, "results", '[');
	for (unsigned i = 0; i < ROWS; i++)
		put_row(rows, i, o);
	return report_end(&doc, err);
}

static void table_row(struct rows *rows, unsigned i, struct ctl_table *t)
{
	struct federation_result *r = &rows->v[i];
	CTL_CELL(t, "MODE", "%s", row_names[i]);
	CTL_CELL(t, "HITS", "%.2f %%", 100 * report_share(r->cached_blocks, r->prompt_blocks));
	CTL_CELL(t, "OF ONE", "%.1f %%", 100 * hits_of_one(rows, i));
	report_put_time(t, "TTFT P50", 1, " ms", samples_ms(&r->ttft, 0.5));
	report_put_time(t, "P90", 1, "", samples_ms(&r->ttft, 0.9));
	report_put_time(t, "OF ONE", 2, "", ttft_of_one(rows, i, 0.9));
	report_put_time(t, "P99", 1, "", samples_ms(&r->ttft, 0.99));
	CTL_CELL(t, "LEFT", "%.1f %%", 100 * report_share(r->left, r->requests));
	CTL_CELL(t, "CAME BACK", "%" PRIu64, r->bounced + r->returned);
	CTL_CELL(t, "WRONG", "%.1f %%", 100 * report_share(r->mispredicted, r->predicted));
	CTL_CELL(t, "SUMMARY B/S", "%.0f", bytes_per_s(r));
	CTL_CELL(t, "KBIT/S/MBLOCK", "%.0f", federation_kbit_per_million(r, &rows->c->cfg));
	CTL_CELL(t, "DONE", "%" PRIu64, r->done);
	CTL_CELL(t, "REFUSED", "%" PRIu64, r->refused + r->broken);
	CTL_CELL(t, "WALL", "%.1f s", rows->wall_s[i]);
}

static CGN_RC report_table(struct rows *rows, const struct replay_cfg *replay, struct cgn_err *err)
{
	const struct federation_cfg *c = &rows->c->cfg;
	struct ctl_table t = {0};
	(void)printf("%zu requests; %u clusters of %u nodes of %u blocks\n", rows->trace->n, c->clusters,
		replay->nodes, replay->blocks);
	for (size_t i = 0; i < c->n_cuts; i++) {
		const struct federation_cut_result *cut = &rows->v[ROW_FEDERATION].cuts[i];
		(void)printf("cut %c-%c: requests left for %.0f ms; in a second at most %" PRIu64
			     " before and %" PRIu64 " after; %" PRIu64 " came back, %" PRIu64
			     " answers continued\n",
			(char)('A' + c->cuts[i].a), (char)('A' + c->cuts[i].b),
			(double)cut->left_for_ns / 1e6, cut->most_before, cut->most_after,
			rows->v[ROW_FEDERATION].returned, rows->v[ROW_FEDERATION].resumed);
	}
	for (unsigned i = 0; i < ROWS; i++)
		table_row(rows, i, &t);
	return ctl_table_print(&t, false, err);
}

CGN_RC ctl_clusters_run(const struct ctl_args *a, const struct trace *t, const char *name,
	const struct replay_cfg *replay, struct ctl_clusters *c, struct cgn_err *err)
{
	struct rows rows = {.name = name, .trace = t, .c = c};
	struct federation_trace cut;
	CGN_TRY(federation_split(t, c->cfg.clusters, c->swing, &cut, err));
	cgn_rc rc = CGN_OK;
	for (unsigned i = 0; cgn_ok(rc) && i < ROWS; i++)
		rc = row_run(&rows, i, &cut, replay, err);
	ctl_progress_end();
	if (cgn_ok(rc))
		rc = (a->json ? report_json : report_table)(&rows, replay, err);
	for (unsigned i = 0; i < ROWS; i++)
		federation_result_fini(&rows.v[i]);
	federation_trace_fini(&cut);
	return rc;
}
