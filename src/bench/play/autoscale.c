/* SPDX-License-Identifier: Apache-2.0 */
/* bench autoscale: plays a trace in virtual time with all nodes, and with the autoscaler: once removing any replica, once the
 * one whose cache is worth least, and once so with block stores that keep what ended engines had. Several days are played
 * with all nodes, and with the autoscaler that forgets yesterday and the one that learns the time of the day. */
#include <inttypes.h>
#include <stdlib.h>

#include "bench/common/report.h"
#include "bench/play/play.h"

/* ---- report ---- */

/* Return the hit ratio after removals as a share of the one before. */
static double kept_share(const struct replay_removals *m)
{
	double before = report_share(m->cached_before, m->prompt_before);
	return before > 0 ? report_share(m->cached_after, m->prompt_after) / before : 1;
}

static double node_hours(const struct replay_result *r)
{
	return r->energy.awake_s / 3600;
}

static double hours_saved(const struct play *b, const struct replay_result *r)
{
	double all = node_hours(&b->cases[0].result);
	return all > 0 ? 1 - node_hours(r) / all : 0;
}

static void case_put(struct play *b, struct play_case *c, struct json_out *o)
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
		report_share(r->removals.cached_before, r->removals.prompt_before));
	json_key_f64(o, "hit_ratio_after_removals",
		report_share(r->removals.cached_after, r->removals.prompt_after));
	json_key_f64(o, "hits_kept", kept_share(&r->removals));
	json_key_u64(o, "fetched_blocks", r->fetched_blocks);
	play_samples(o, "ttft_ms", &r->ttft);
	play_samples(o, "itl_ms", &r->itl);
	json_key_f64(o, "within_ttft",
		ctl_share_within(&r->ttft, (double)b->cfg.scale.ttft * 1e-6, r->requests));
	json_key_f64(o, "within_itl", ctl_share_within(&r->itl, (double)b->cfg.scale.itl * 1e-6, 0));
	json_key_u64(o, "done", r->done);
	json_key_u64(o, "refused", play_refused(r));
	json_key_u64(o, "waited", r->waited);
	json_close(o, '}');
}

static CGN_RC report_json(struct play *b, struct cgn_err *err)
{
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "autoscale");
	json_key_z(o, "trace", b->name);
	json_key_u64(o, "requests", b->trace.n);
	json_key_u64(o, "days", b->days);
	json_key_u64(o, "nodes", b->cfg.nodes);
	json_key_u64(o, "blocks", b->cfg.blocks);
	json_key_u64(o, "seed", b->cfg.seed);
	json_key_f64(o, "target_load", b->cfg.scale.target);
	json_key_f64(o, "down_window_s", (double)b->cfg.scale.down_window / 1e9);
	json_key_f64(o, "wake_s", (double)b->cfg.wake / 1e9);
	json_key_f64(o, "virtual_seconds", (double)b->cases[0].result.ended / 1e9);
	json_key_open(o, "results", '[');
	for (size_t i = 0; i < b->n_cases; i++)
		case_put(b, &b->cases[i], o);
	return report_end(&doc, err);
}

static void case_row(struct play *b, struct play_case *c, struct ctl_table *t)
{
	struct replay_result *r = &c->result;
	CTL_CELL(t, "REPLICAS", "%s", c->name);
	CTL_CELL(t, "NODE HOURS", "%.1f", node_hours(r));
	CTL_CELL(t, "SAVED", "%.1f %%", 100 * hours_saved(b, r));
	CTL_CELL(t, "REMOVED", "%" PRIu64, r->energy.parked);
	CTL_CELL(t, "ADDED", "%" PRIu64, r->energy.woken);
	CTL_CELL(t, "HITS", "%.2f %%", 100 * replay_hit_ratio(r));
	CTL_CELL(t, "KEPT", c->cfg.scales ? "%.2f %%" : "-", 100 * kept_share(&r->removals));
	report_put_time(t, "TTFT P50", 0, " ms", samples_ms(&r->ttft, 0.5));
	report_put_time(t, "P90", 0, "", samples_ms(&r->ttft, 0.9));
	report_put_time(t, "P99", 0, "", samples_ms(&r->ttft, 0.99));
	report_put_time(t, "ITL P99", 1, " ms", samples_ms(&r->itl, 0.99));
	CTL_CELL(t, "IN TIME", "%.2f %%",
		100 * ctl_share_within(&r->ttft, (double)b->cfg.scale.ttft * 1e-6, r->requests));
	CTL_CELL(t, "DONE", "%" PRIu64, r->done);
	CTL_CELL(t, "REFUSED", "%" PRIu64, play_refused(r));
}

static CGN_RC report_table(struct play *b, struct cgn_err *err)
{
	struct ctl_table t = {0};
	(void)printf("%zu requests in %.0f s; %u nodes of %u blocks each\n", b->trace.n, play_seconds(b),
		b->cfg.nodes, b->cfg.blocks);
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

static CGN_RC flags_read(const struct ctl_args *a, struct play *b, struct cgn_err *err)
{
	CGN_TRY(play_flags_of_power(a, b, err));
	CGN_TRY(scale_flags(a, &b->cfg.scale, err));
	b->cfg.scale.most = b->cfg.nodes;
	/* Energy decides nothing but that engines which are not there get no requests. */
	b->rules.policy = ROUTE_KV;
	b->rules.counts_saved = true;
	b->rules.energy = (struct route_energy){.mode = ROUTE_ENERGY_ON};
	return CGN_OK;
}

static void case_add(struct play *b, const char *name, enum replay_victim victim, bool stores, bool season)
{
	struct play_case *c = play_case_add(b, cgn_str_of(name));
	c->cfg.scales = true;
	c->cfg.victim = victim;
	c->cfg.stores = stores;
	c->cfg.season = season;
}

static void cases_make(struct play *b)
{
	(void)play_case_add(b, CGN_STR("all"));
	if (b->days == 1)
		case_add(b, "autoscaled, any goes", REPLAY_ANY, false, false);
	case_add(b, "autoscaled, least worth goes", REPLAY_LEAST_WORTH, false, false);
	if (b->days == 1)
		case_add(b, "the same, with stores", REPLAY_LEAST_WORTH, true, false);
	else
		case_add(b, "the same, by time of day", REPLAY_LEAST_WORTH, false, true);
}

CGN_RC ctl_bench_autoscale(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(play_free) struct play *b = CGN_NEW(struct play);
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
	CGN_TRY(play_run(b, err));
	return (a->json ? report_json : report_table)(b, err);
}
