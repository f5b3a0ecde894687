/* SPDX-License-Identifier: Apache-2.0 */
/* bench energy: plays a trace in virtual time on nodes with the power of a published GPU, once as round robin, once as kv,
 * and once for each lever that spares energy. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/report.h"
#include "bench/play/play.h"

#define WINDOW (300 * CGN_SEC) /* For parking: a load is remembered for so long. */
#define KWH    3.6e6

static struct play_case *case_add(struct play *p, const char *name, enum route_policy policy,
	enum route_energy_mode mode, bool parks)
{
	struct play_case *c = play_case_add(p, cgn_str_of(name));
	c->rules.policy = policy;
	c->rules.energy.mode = mode;
	c->cfg.parks = parks;
	c->cfg.prefill_nodes = 0;
	c->cfg.n_fleet = 0;
	return c;
}

/* Let the case have prefill and decode nodes. */
static void case_part(const struct play *p, struct play_case *c)
{
	c->rules.disagg.enabled = true;
	c->cfg.prefill_nodes = p->cfg.prefill_nodes;
}

/* Keep the cases whose name begins with |prefix|. */
static CGN_RC cases_keep(struct play *b, const char *prefix, struct cgn_err *err)
{
	size_t n = 0;
	for (size_t i = 0; i < b->n_cases; i++)
		if (strncmp(b->cases[i].name, prefix, strlen(prefix)) == 0)
			b->cases[n++] = b->cases[i];
	b->n_cases = n;
	for (size_t i = 0; i < n; i++)
		b->cases[i].cfg.rules = &b->cases[i].rules;
	return n > 0 ? CGN_OK : CGN_FAIL(err, INVALID, "--only %.60s: no policy begins so", prefix);
}

static void cases_make(struct play *b)
{
	case_add(b, "round_robin", ROUTE_ROUND_ROBIN, ROUTE_ENERGY_OFF, false);
	case_add(b, "kv", ROUTE_KV, ROUTE_ENERGY_OFF, false);
	case_add(b, "kv + energy", ROUTE_KV, ROUTE_ENERGY_ON, false);
	case_add(b, "kv + energy + park", ROUTE_KV, ROUTE_ENERGY_ON, true);
	if (b->cfg.prefill_nodes > 0) {
		case_part(b, case_add(b, "roles: kv", ROUTE_KV, ROUTE_ENERGY_OFF, false));
		case_part(b, case_add(b, "roles: kv + energy", ROUTE_KV, ROUTE_ENERGY_ON, false));
		case_part(b, case_add(b, "roles: kv + energy + park", ROUTE_KV, ROUTE_ENERGY_ON, true));
	}
	if (b->cfg.n_fleet > 0) {
		struct play_case *c =
			case_add(b, "fleet of each hour: kv", ROUTE_KV, ROUTE_ENERGY_OFF, false);
		c->cfg.n_fleet = b->cfg.n_fleet;
		c->rules.energy =
			(struct route_energy){.mode = ROUTE_ENERGY_ON}; /* Parked nodes get no requests. */
		if (b->cfg.fleet[0].prompts > 0)
			case_part(b, c);
	}
}

/* ---- report ---- */

static double tokens_per_joule(const struct replay_result *r)
{
	return r->energy.joules > 0 ? (double)play_answer_tokens(r) / r->energy.joules : 0;
}

/* Return the share of all requests, refused ones too, whose first token came within the objective. */
static double good_share(struct play_case *c)
{
	return ctl_share_within(&c->result.ttft, (double)c->rules.energy.ttft_ms, c->result.requests);
}

static void put_hours(struct replay_result *r, struct json_out *o)
{
	json_key_open(o, "hours", '[');
	for (size_t h = 0; h < r->n_hours; h++) {
		json_open(o, '{');
		json_key_f64(o, "joules", r->hours[h].joules);
		play_samples(o, "ttft_ms", &r->hours[h].ttft);
		json_close(o, '}');
	}
	json_close(o, ']');
}

static void put_case(struct play *b, struct play_case *c, struct json_out *o)
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
	json_key_u64(o, "answer_tokens", play_answer_tokens(r));
	json_key_f64(o, "hit_ratio", replay_hit_ratio(r));
	play_samples(o, "ttft_ms", &r->ttft);
	play_samples(o, "itl_ms", &r->itl);
	json_key_f64(o, "within_ttft", good_share(c));
	json_key_u64(o, "done", r->done);
	json_key_u64(o, "refused", play_refused(r));
	json_key_u64(o, "waited", r->waited);
	json_key_f64(o, "virtual_seconds", (double)r->ended / 1e9);
	put_hours(r, o);
	json_close(o, '}');
}

static CGN_RC report_json(struct play *b, struct cgn_err *err)
{
	struct report_doc doc;
	const struct route_energy *e = &b->rules.energy;
	struct json_out *o = report_begin(&doc, "energy");
	json_key_z(o, "trace", b->name);
	json_key_z(o, "gpu", b->cfg.gpu->name);
	json_key_u64(o, "requests", b->trace.n);
	json_key_u64(o, "nodes", b->cfg.nodes);
	json_key_u64(o, "blocks", b->cfg.blocks);
	json_key_f64(o, "speed", b->cfg.speed);
	json_key_u64(o, "seed", b->cfg.seed);
	json_key_f64(o, "ms_per_joule", e->ms_per_joule);
	json_key_f64(o, "ttft_objective_ms", (double)e->ttft_ms);
	json_key_f64(o, "itl_objective_ms", (double)e->itl_ms);
	json_key_f64(o, "budget_watts", e->budget_w);
	json_key_open(o, "results", '[');
	for (size_t i = 0; i < b->n_cases; i++)
		put_case(b, &b->cases[i], o);
	return report_end(&doc, err);
}

static void row_put(struct play *b, struct play_case *c, struct ctl_table *t)
{
	struct replay_result *r = &c->result;
	const struct replay_energy *e = &r->energy;
	CTL_CELL(t, "POLICY", "%s", c->name);
	CTL_CELL(t, "TOKENS/J", "%.3f", tokens_per_joule(r));
	CTL_CELL(t, "TIMES", "%.2f", tokens_per_joule(r) / tokens_per_joule(&b->cases[0].result));
	CTL_CELL(t, "ENERGY", "%.2f kWh", e->joules / KWH);
	CTL_CELL(t, "IDLE", "%.1f %%", 100 * e->idle_j / e->joules);
	CTL_CELL(t, "MOST", "%.0f W", e->most_w);
	report_put_time(t, "TTFT P50", 0, " ms", samples_ms(&r->ttft, 0.5));
	report_put_time(t, "P99", 0, "", samples_ms(&r->ttft, 0.99));
	report_put_time(t, "ITL P50", 1, " ms", samples_ms(&r->itl, 0.5));
	report_put_time(t, "P99", 1, "", samples_ms(&r->itl, 0.99));
	CTL_CELL(t, "IN TIME", "%.2f %%", 100 * good_share(c));
	CTL_CELL(t, "HITS", "%.1f %%", 100 * replay_hit_ratio(r));
	CTL_CELL(t, "AWAKE", "%.1f", e->awake_s / ((double)r->ended / 1e9));
	CTL_CELL(t, "ERROR", "%.1f %%", 100 * e->error);
	CTL_CELL(t, "DONE", "%" PRIu64, r->done);
	CTL_CELL(t, "REFUSED", "%" PRIu64, play_refused(r));
}

static CGN_RC report_table(struct play *b, struct cgn_err *err)
{
	struct ctl_table t = {0};
	(void)printf("%zu requests in %.0f s; %u nodes of one %s, %u blocks each\n", b->trace.n,
		play_seconds(b), b->cfg.nodes, b->cfg.gpu->name, b->cfg.blocks);
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

static CGN_RC read_queue(const char *text, enum queue_policy *out, struct cgn_err *err)
{
	if (queue_policy_find(cgn_str_of(text), out) && *out != QUEUE_SESSIONS) /* Traces name no sessions. */
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "--queue is %s, not fcfs, wspt or deadline", text);
}

static CGN_RC read_roles(const struct ctl_args *a, struct play *b, struct cgn_err *err)
{
	double gib = 0;
	CGN_TRY(ctl_flag_u32(a, "--prefill", 0, b->cfg.nodes - 1, &b->cfg.prefill_nodes, err));
	CGN_TRY(ctl_flag_f64(a, "--decode-clock", 0.063, 1, &b->cfg.decode_clock, err));
	CGN_TRY(ctl_flag_f64(a, "--bandwidth", 1e-6, 1e6, &gib, err));
	CGN_TRY(read_queue(ctl_flag(a, "--queue"), &b->cfg.queue, err));
	b->cfg.stores = ctl_switch(a, "--stores");
	b->cfg.bandwidth = gib * (1U << 30);
	return CGN_OK;
}

/* Read an hour's nodes: N, or prefill nodes and others as P+N. */
static bool hour_read(struct cgn_str word, const struct play *b, struct replay_fleet *out)
{
	uint64_t prompts = 0, answers = 0;
	struct cgn_str rest = word, first = cgn_str_split(&rest, '+');
	if (rest.p != NULL && !cgn_str_u64(first, &prompts))
		return false;
	if (!cgn_str_u64(rest.p != NULL ? rest : first, &answers) || answers < 1 ||
		prompts > b->cfg.prefill_nodes ||
		answers > b->cfg.nodes - (rest.p != NULL ? b->cfg.prefill_nodes : 0))
		return false;
	*out = (struct replay_fleet){(uint32_t)prompts, (uint32_t)answers};
	return true;
}

static CGN_RC read_fleet(const struct ctl_args *a, struct play *b, struct cgn_err *err)
{
	const char *list = ctl_flag(a, "--fleet");
	struct cgn_str rest = list != NULL ? cgn_str_of(list) : (struct cgn_str){0};
	b->cfg.fleet = b->fleet;
	while (rest.p != NULL) {
		struct cgn_str word = cgn_str_trim(cgn_str_split(&rest, ','));
		if (b->cfg.n_fleet == CGN_COUNT(b->fleet) || !hour_read(word, b, &b->fleet[b->cfg.n_fleet]))
			return CGN_FAIL(err, INVALID,
				"--fleet takes up to %zu numbers of nodes, as 3 or, with --prefill, 2+1, not '%.60s'",
				CGN_COUNT(b->fleet), list);
		b->cfg.n_fleet++;
	}
	return CGN_OK;
}

static CGN_RC read_flags(const struct ctl_args *a, struct play *b, struct cgn_err *err)
{
	CGN_TRY(play_flags_of_power(a, b, err));
	CGN_TRY(read_objectives(a, &b->rules.energy, err));
	CGN_TRY(ctl_flag_f64(a, "--spare", 0, 100, &b->cfg.park.spare, err));
	CGN_TRY(ctl_flag_u32(a, "--awake", 1, REPLAY_MAX_NODES, &b->cfg.park.least, err));
	b->cfg.park.window = WINDOW;
	CGN_TRY(read_roles(a, b, err));
	return read_fleet(a, b, err);
}

CGN_RC ctl_bench_energy(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(play_free) struct play *b = CGN_NEW(struct play);
	CGN_TRY(read_flags(a, b, err));
	CGN_TRY(ctl_trace_of(a, &b->trace, &b->name, err));
	if (ctl_switch(a, "--day"))
		ctl_trace_day(&b->trace);
	cases_make(b);
	if (ctl_flag(a, "--only") != NULL)
		CGN_TRY(cases_keep(b, ctl_flag(a, "--only"), err));
	CGN_TRY(play_run(b, err));
	return (a->json ? report_json : report_table)(b, err);
}
