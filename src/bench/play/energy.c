/* SPDX-License-Identifier: Apache-2.0 */
/* bench energy: plays a trace in virtual time on nodes with the power of a published GPU, once as round robin, once as kv,
 * and once for each lever that spares energy. */
#include <inttypes.h>
#include <stdlib.h>

#include "bench/common/traces.h"
#include "joint/ctl/line/progress.h"
#include "lab/replay/replay.h"

#define WINDOW (300 * CGN_SEC) /* For parking: a load is remembered for so long. */
#define KWH    3.6e6

struct one {
	const char *name;
	struct route_rules rules;
	bool parks;
	struct replay_result result;
	double good; /* Share of requests whose first token came within the objective. */
};

struct bench {
	const char *name; /* Name of the trace. */
	struct trace trace;
	struct replay_cfg cfg;
	struct route_rules rules;
	struct one cases[4];
	size_t n_cases;
	const char *showing;
};

/* ---- the runs ---- */

static void show_progress(void *user, double part)
{
	const struct bench *b = user;
	ctl_progress("%s %3.0f %% %s", ctl_bar(part).text, part * 100, b->showing);
}

static CGN_RC run_one(struct bench *b, struct one *o, struct cgn_err *err)
{
	struct replay_cfg cfg = b->cfg;
	b->showing = o->name;
	cfg.rules = &o->rules;
	cfg.parks = o->parks;
	cfg.progress = ctl_progress_shown() ? show_progress : NULL;
	cfg.user = b;
	CGN_TRY(replay_run(&b->trace, &cfg, &o->result, err));
	o->good = ctl_share_within(&o->result.ttft, (double)b->rules.energy.ttft_ms);
	return CGN_OK;
}

static void case_add(struct bench *b, const char *name, enum route_policy policy, enum route_energy_mode mode,
	bool parks)
{
	struct one *o = &b->cases[b->n_cases++];
	*o = (struct one){.name = name, .rules = b->rules, .parks = parks};
	o->rules.policy = policy;
	o->rules.energy.mode = mode;
}

/* ---- report ---- */

static uint64_t answer_tokens(const struct replay_result *r)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < r->n_nodes; i++)
		n += r->nodes[i].answer_tokens;
	return n;
}

static double tokens_per_joule(const struct replay_result *r)
{
	return r->energy.joules > 0 ? (double)answer_tokens(r) / r->energy.joules : 0;
}

static uint64_t refused_count(const struct replay_result *r)
{
	return r->refused_full + r->refused_too_large + r->refused_late;
}

static void put_case(struct bench *b, struct one *c, struct json_out *o)
{
	struct replay_result *r = &c->result, *first = &b->cases[0].result;
	const struct replay_energy *e = &r->energy;
	json_open(o, '{');
	json_key_z(o, "policy", c->name);
	json_key_f64(o, "tokens_per_joule", tokens_per_joule(r));
	json_key_f64(o, "times_round_robin", tokens_per_joule(r) / tokens_per_joule(first));
	json_key_f64(o, "joules", e->joules);
	json_key_f64(o, "joules_less", 1 - e->joules / first->energy.joules);
	json_key_f64(o, "idle_joules", e->idle_j);
	json_key_f64(o, "requests_joules", e->requests_j);
	json_key_f64(o, "most_watts", e->most_w);
	json_key_f64(o, "curve_error", e->error);
	json_key_f64(o, "awake_node_seconds", e->awake_s);
	json_key_f64(o, "busy_node_seconds", e->busy_s);
	json_key_u64(o, "parked", e->parked);
	json_key_u64(o, "woken", e->woken);
	json_key_u64(o, "answer_tokens", answer_tokens(r));
	json_key_f64(o, "hit_ratio", replay_hit_ratio(r));
	json_key(o, "ttft_ms");
	samples_json(&r->ttft, o);
	json_key(o, "itl_ms");
	samples_json(&r->itl, o);
	json_key_f64(o, "within_ttft", c->good);
	json_key_u64(o, "done", r->done);
	json_key_u64(o, "refused", refused_count(r));
	json_key_u64(o, "waited", r->waited);
	json_key_f64(o, "virtual_seconds", (double)r->ended / 1e9);
	json_close(o, '}');
}

static CGN_RC report_json(struct bench *b, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	const struct route_energy *e = &b->rules.energy;
	json_open(&o, '{');
	json_key_z(&o, "bench", "energy");
	json_key_z(&o, "trace", b->name);
	json_key_z(&o, "gpu", b->cfg.gpu->name);
	json_key_u64(&o, "requests", b->trace.n);
	json_key_u64(&o, "nodes", b->cfg.nodes);
	json_key_u64(&o, "blocks", b->cfg.blocks);
	json_key_f64(&o, "speed", b->cfg.speed);
	json_key_u64(&o, "seed", b->cfg.seed);
	json_key_f64(&o, "ms_per_joule", e->ms_per_joule);
	json_key_f64(&o, "ttft_objective_ms", (double)e->ttft_ms);
	json_key_f64(&o, "itl_objective_ms", (double)e->itl_ms);
	json_key_f64(&o, "budget_watts", e->budget_w);
	json_key_open(&o, "results", '[');
	for (size_t i = 0; i < b->n_cases; i++)
		put_case(b, &b->cases[i], &o);
	json_close(&o, ']');
	json_close(&o, '}');
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

static void row_put(struct bench *b, struct one *c, struct ctl_table *t)
{
	struct replay_result *r = &c->result;
	const struct replay_energy *e = &r->energy;
	ctl_table_cell(t, "%s", c->name);
	ctl_table_cell(t, "%.3f", tokens_per_joule(r));
	ctl_table_cell(t, "%.2f", tokens_per_joule(r) / tokens_per_joule(&b->cases[0].result));
	ctl_table_cell(t, "%.2f kWh", e->joules / KWH);
	ctl_table_cell(t, "%.1f %%", 100 * e->idle_j / e->joules);
	ctl_table_cell(t, "%.0f W", e->most_w);
	ctl_table_cell(t, "%.0f ms", samples_ms(&r->ttft, 0.5));
	ctl_table_cell(t, "%.0f", samples_ms(&r->ttft, 0.99));
	ctl_table_cell(t, "%.1f ms", samples_ms(&r->itl, 0.5));
	ctl_table_cell(t, "%.1f", samples_ms(&r->itl, 0.99));
	ctl_table_cell(t, "%.2f %%", 100 * c->good);
	ctl_table_cell(t, "%.1f %%", 100 * replay_hit_ratio(r));
	ctl_table_cell(t, "%.1f", e->awake_s / ((double)r->ended / 1e9));
	ctl_table_cell(t, "%.1f %%", 100 * e->error);
	ctl_table_cell(t, "%" PRIu64, r->done);
	ctl_table_cell(t, "%" PRIu64, refused_count(r));
}

static CGN_RC report_table(struct bench *b, struct cgn_err *err)
{
	static const char *const headers[] = {"POLICY", "TOKENS/J", "TIMES", "ENERGY", "IDLE", "MOST",
		"TTFT P50", "P99", "ITL P50", "P99", "IN TIME", "HITS", "AWAKE", "ERROR", "DONE", "REFUSED"};
	struct ctl_table t = {0};
	(void)printf("%zu requests in %.0f s; %u nodes of one %s, %u blocks each\n", b->trace.n,
		(double)b->trace.requests[b->trace.n - 1].at / 1e9 / b->cfg.speed, b->cfg.nodes,
		b->cfg.gpu->name, b->cfg.blocks);
	for (size_t i = 0; i < CGN_COUNT(headers); i++)
		ctl_table_column(&t, headers[i], i > 0);
	for (size_t i = 0; i < b->n_cases; i++)
		row_put(b, &b->cases[i], &t);
	return ctl_table_print(&t, false, err);
}

/* ---- set-up ---- */

static CGN_RC read_objectives(const struct ctl_args *a, struct route_energy *e, struct cgn_err *err)
{
	cgn_nsec ttft = 0, itl = 0;
	CGN_TRY(ctl_flag_f64(a, "--ms-per-joule", 0, 1e6, &e->ms_per_joule, err));
	CGN_TRY(ctl_flag_f64(a, "--budget", 0, 1e9, &e->budget_w, err));
	CGN_TRY(ctl_flag_duration(a, "--ttft", &ttft, err));
	CGN_TRY(ctl_flag_duration(a, "--itl", &itl, err));
	e->ttft_ms = (float)((double)ttft * 1e-6);
	e->itl_ms = (float)((double)itl * 1e-6);
	return CGN_OK;
}

static CGN_RC read_flags(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	b->cfg = replay_defaults;
	CGN_TRY(ctl_rules_of(&b->rules, err));
	CGN_TRY(ctl_flag_u32(a, "--nodes", 1, REPLAY_MAX_NODES, &b->cfg.nodes, err));
	CGN_TRY(ctl_flag_u32(a, "--blocks", 0, 1U << 26, &b->cfg.blocks, err));
	CGN_TRY(ctl_flag_u32(a, "--seed", 0, UINT32_MAX, &b->cfg.seed, err));
	CGN_TRY(ctl_flag_f64(a, "--speed", 1e-6, 1e6, &b->cfg.speed, err));
	CGN_TRY(ctl_engine_flags(a, &b->cfg, err));
	CGN_TRY(ctl_gpu_of(a, &b->cfg, err));
	CGN_TRY(read_objectives(a, &b->rules.energy, err));
	CGN_TRY(ctl_flag_duration(a, "--wake", &b->cfg.wake, err));
	CGN_TRY(ctl_flag_f64(a, "--spare", 0, 100, &b->cfg.park.spare, err));
	CGN_TRY(ctl_flag_u32(a, "--awake", 1, REPLAY_MAX_NODES, &b->cfg.park.least, err));
	b->cfg.park.window = WINDOW;
	case_add(b, "round_robin", ROUTE_ROUND_ROBIN, ROUTE_ENERGY_OFF, false);
	case_add(b, "kv", ROUTE_KV, ROUTE_ENERGY_OFF, false);
	case_add(b, "kv + energy", ROUTE_KV, ROUTE_ENERGY_ON, false);
	case_add(b, "kv + energy + park", ROUTE_KV, ROUTE_ENERGY_ON, true);
	return CGN_OK;
}

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_TRY(read_flags(a, b, err));
	CGN_TRY(ctl_trace_of(a, &b->trace, &b->name, err));
	if (ctl_switch(a, "--day"))
		ctl_trace_day(&b->trace);
	for (size_t i = 0; i < b->n_cases; i++)
		CGN_TRY(run_one(b, &b->cases[i], err));
	ctl_progress_end();
	return (a->json ? report_json : report_table)(b, err);
}

CGN_RC ctl_bench_energy(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench *b = CGN_NEW(struct bench);
	cgn_rc rc = run_bench(a, b, err);
	for (size_t i = 0; i < b->n_cases; i++)
		replay_result_fini(&b->cases[i].result);
	trace_fini(&b->trace);
	free(b);
	return rc;
}
