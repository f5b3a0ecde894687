/* SPDX-License-Identifier: Apache-2.0 */
/* bench autoscale: plays a trace in virtual time with all nodes, and with the autoscaler: once removing any replica, once the
 * one whose cache is worth least, and once so with block stores that keep what ended engines had. Several days are played
 * with all nodes, and with the autoscaler that forgets yesterday and the one that learns the time of the day. */
#include <inttypes.h>
#include <stdlib.h>

#include "bench/common/traces.h"
#include "joint/ctl/line/progress.h"

struct scale_case {
	const char *name;
	bool scales, stores, season;
	enum replay_victim victim;
	struct replay_result result;
};

struct scale_bench {
	const char *name; /* Name of the trace. */
	struct trace trace;
	struct replay_cfg cfg;
	struct route_rules rules;
	struct scale_case cases[4];
	size_t n_cases;
	uint32_t days;
	const char *showing;
};

static void show_progress(void *user, double part)
{
	const struct scale_bench *b = user;
	ctl_progress("%s %3.0f %% %s", ctl_bar(part).text, part * 100, b->showing);
}

static CGN_RC case_run(struct scale_bench *b, struct scale_case *c, struct cgn_err *err)
{
	struct replay_cfg cfg = b->cfg;
	b->showing = c->name;
	cfg.rules = &b->rules;
	cfg.scales = c->scales;
	cfg.victim = c->victim;
	cfg.stores = c->stores;
	cfg.season = c->season;
	cfg.progress = ctl_progress_shown() ? show_progress : NULL;
	cfg.user = b;
	return replay_run(&b->trace, &cfg, &c->result, err);
}

static void case_add(struct scale_bench *b, const struct scale_case *c)
{
	b->cases[b->n_cases++] = *c;
}

/* ---- report ---- */

static double ratio_of(uint64_t part, uint64_t whole)
{
	return whole > 0 ? (double)part / (double)whole : 0;
}

/* Return the hit ratio after removals as a share of the one before. */
static double kept_share(const struct replay_removals *m)
{
	double before = ratio_of(m->cached_before, m->prompt_before);
	return before > 0 ? ratio_of(m->cached_after, m->prompt_after) / before : 1;
}

static double node_hours(const struct replay_result *r)
{
	return r->energy.awake_s / 3600;
}

static double hours_saved(const struct scale_bench *b, const struct replay_result *r)
{
	double all = node_hours(&b->cases[0].result);
	return all > 0 ? 1 - node_hours(r) / all : 0;
}

static uint64_t refused_count(const struct replay_result *r)
{
	return r->refused_full + r->refused_too_large + r->refused_late;
}

static void case_put(struct scale_bench *b, struct scale_case *c, struct json_out *o)
{
	struct replay_result *r = &c->result;
	json_open(o, '{');
	json_key_z(o, "replicas", c->name);
	json_key_f64(o, "node_hours", node_hours(r));
	json_key_f64(o, "node_hours_saved", hours_saved(b, r));
	json_key_f64(o, "joules", r->energy.joules);
	json_key_u64(o, "removed", r->energy.parked);
	json_key_u64(o, "added", r->energy.woken);
	json_key_f64(o, "hit_ratio", replay_hit_ratio(r));
	json_key_f64(o, "hit_ratio_before_removals",
		ratio_of(r->removals.cached_before, r->removals.prompt_before));
	json_key_f64(o, "hit_ratio_after_removals",
		ratio_of(r->removals.cached_after, r->removals.prompt_after));
	json_key_f64(o, "hits_kept", kept_share(&r->removals));
	json_key_u64(o, "fetched_blocks", r->fetched_blocks);
	json_key(o, "ttft_ms");
	samples_json(&r->ttft, o);
	json_key(o, "itl_ms");
	samples_json(&r->itl, o);
	json_key_f64(o, "within_ttft", ctl_share_within(&r->ttft, (double)b->cfg.scale.ttft * 1e-6));
	json_key_f64(o, "within_itl", ctl_share_within(&r->itl, (double)b->cfg.scale.itl * 1e-6));
	json_key_u64(o, "done", r->done);
	json_key_u64(o, "refused", refused_count(r));
	json_key_u64(o, "waited", r->waited);
	json_close(o, '}');
}

static CGN_RC report_json(struct scale_bench *b, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	json_open(&o, '{');
	json_key_z(&o, "bench", "autoscale");
	json_key_z(&o, "trace", b->name);
	json_key_u64(&o, "requests", b->trace.n);
	json_key_u64(&o, "days", b->days);
	json_key_u64(&o, "nodes", b->cfg.nodes);
	json_key_u64(&o, "blocks", b->cfg.blocks);
	json_key_u64(&o, "seed", b->cfg.seed);
	json_key_f64(&o, "target_load", b->cfg.scale.target);
	json_key_f64(&o, "down_window_s", (double)b->cfg.scale.down_window / 1e9);
	json_key_f64(&o, "wake_s", (double)b->cfg.wake / 1e9);
	json_key_f64(&o, "virtual_seconds", (double)b->cases[0].result.ended / 1e9);
	json_key_open(&o, "results", '[');
	for (size_t i = 0; i < b->n_cases; i++)
		case_put(b, &b->cases[i], &o);
	json_close(&o, ']');
	json_close(&o, '}');
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

static void case_row(struct scale_bench *b, struct scale_case *c, struct ctl_table *t)
{
	struct replay_result *r = &c->result;
	ctl_table_cell(t, "%s", c->name);
	ctl_table_cell(t, "%.1f", node_hours(r));
	ctl_table_cell(t, "%.1f %%", 100 * hours_saved(b, r));
	ctl_table_cell(t, "%" PRIu64, r->energy.parked);
	ctl_table_cell(t, "%" PRIu64, r->energy.woken);
	ctl_table_cell(t, "%.2f %%", 100 * replay_hit_ratio(r));
	ctl_table_cell(t, c->scales ? "%.2f %%" : "-", 100 * kept_share(&r->removals));
	ctl_table_cell(t, "%.0f ms", samples_ms(&r->ttft, 0.5));
	ctl_table_cell(t, "%.0f", samples_ms(&r->ttft, 0.9));
	ctl_table_cell(t, "%.0f", samples_ms(&r->ttft, 0.99));
	ctl_table_cell(t, "%.1f ms", samples_ms(&r->itl, 0.99));
	ctl_table_cell(t, "%.2f %%", 100 * ctl_share_within(&r->ttft, (double)b->cfg.scale.ttft * 1e-6));
	ctl_table_cell(t, "%" PRIu64, r->done);
	ctl_table_cell(t, "%" PRIu64, refused_count(r));
}

static CGN_RC report_table(struct scale_bench *b, struct cgn_err *err)
{
	static const char *const headers[] = {"REPLICAS", "NODE HOURS", "SAVED", "REMOVED", "ADDED", "HITS",
		"KEPT", "TTFT P50", "P90", "P99", "ITL P99", "IN TIME", "DONE", "REFUSED"};
	struct ctl_table t = {0};
	(void)printf("%zu requests in %.0f s; %u nodes of %u blocks each\n", b->trace.n,
		(double)b->trace.requests[b->trace.n - 1].at / 1e9 / b->cfg.speed, b->cfg.nodes,
		b->cfg.blocks);
	for (size_t i = 0; i < CGN_COUNT(headers); i++)
		ctl_table_column(&t, headers[i], i > 0);
	for (size_t i = 0; i < b->n_cases; i++)
		case_row(b, &b->cases[i], &t);
	return ctl_table_print(&t, false, err);
}

/* ---- set-up ---- */

static CGN_RC scale_flags(const struct ctl_args *a, struct autoscale_cfg *c, struct cgn_err *err)
{
	*c = (struct autoscale_cfg){.least = 1,
		.up_window = 15 * CGN_SEC,
		.idle = 900 * CGN_SEC,
		.down_step = 1};
	CGN_TRY(ctl_flag_f64(a, "--target-load", 0.05, 1, &c->target, err));
	CGN_TRY(ctl_flag_duration(a, "--ttft", &c->ttft, err));
	CGN_TRY(ctl_flag_duration(a, "--itl", &c->itl, err));
	CGN_TRY(ctl_flag_u32(a, "--min-replicas", 0, REPLAY_MAX_NODES, &c->least, err));
	return ctl_flag_duration(a, "--down-window", &c->down_window, err);
}

static CGN_RC flags_read(const struct ctl_args *a, struct scale_bench *b, struct cgn_err *err)
{
	b->cfg = replay_defaults;
	CGN_TRY(ctl_rules_of(&b->rules, err));
	CGN_TRY(ctl_flag_u32(a, "--nodes", 1, REPLAY_MAX_NODES, &b->cfg.nodes, err));
	CGN_TRY(ctl_flag_u32(a, "--blocks", 0, 1U << 26, &b->cfg.blocks, err));
	CGN_TRY(ctl_flag_u32(a, "--seed", 0, UINT32_MAX, &b->cfg.seed, err));
	CGN_TRY(ctl_flag_f64(a, "--speed", 1e-6, 1e6, &b->cfg.speed, err));
	CGN_TRY(ctl_engine_flags(a, &b->cfg, err));
	CGN_TRY(ctl_gpu_of(a, &b->cfg, err));
	CGN_TRY(ctl_flag_duration(a, "--wake", &b->cfg.wake, err));
	CGN_TRY(scale_flags(a, &b->cfg.scale, err));
	b->cfg.scale.most = b->cfg.nodes;
	/* Energy decides nothing but that engines which are not there get no requests. */
	b->rules.policy = ROUTE_KV;
	b->rules.counts_saved = true;
	b->rules.energy = (struct route_energy){.mode = ROUTE_ENERGY_ON};
	return CGN_OK;
}

static void cases_make(struct scale_bench *b)
{
	case_add(b, &(struct scale_case){.name = "all"});
	if (b->days == 1)
		case_add(b,
			&(struct scale_case){.name = "autoscaled, any goes",
				.scales = true,
				.victim = REPLAY_ANY});
	case_add(b, &(struct scale_case){.name = "autoscaled, least worth goes", .scales = true});
	if (b->days == 1)
		case_add(b,
			&(struct scale_case){.name = "the same, with stores",
				.scales = true,
				.stores = true});
	else
		case_add(b,
			&(struct scale_case){.name = "the same, by time of day",
				.scales = true,
				.season = true});
}

static CGN_RC bench_run(const struct ctl_args *a, struct scale_bench *b, struct cgn_err *err)
{
	CGN_TRY(flags_read(a, b, err));
	CGN_TRY(ctl_flag_u32(a, "--days", 1, 60, &b->days, err));
	if (b->days > 1 && !ctl_switch(a, "--day"))
		return CGN_FAIL(err, INVALID, "--days %u needs --day, which spreads the requests over one",
			b->days);
	cases_make(b);
	CGN_TRY(ctl_trace_of(a, &b->trace, &b->name, err));
	if (ctl_switch(a, "--day"))
		ctl_trace_day(&b->trace);
	CGN_TRY(ctl_trace_days(&b->trace, b->days, b->cfg.seed, err));
	for (size_t i = 0; i < b->n_cases; i++)
		CGN_TRY(case_run(b, &b->cases[i], err));
	ctl_progress_end();
	return (a->json ? report_json : report_table)(b, err);
}

CGN_RC ctl_bench_autoscale(const struct ctl_args *a, struct cgn_err *err)
{
	struct scale_bench *b = CGN_NEW(struct scale_bench);
	cgn_rc rc = bench_run(a, b, err);
	for (size_t i = 0; i < b->n_cases; i++)
		replay_result_fini(&b->cases[i].result);
	trace_fini(&b->trace);
	free(b);
	return rc;
}
