/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/play/play.h"

#include <stdlib.h>

#include "bench/common/report.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/line/progress.h"

CGN_RC play_flags(const struct ctl_args *a, struct play *p, struct cgn_err *err)
{
	p->cfg = replay_defaults;
	CGN_TRY(ctl_flag_u32(a, "--nodes", 1, REPLAY_MAX_NODES, &p->cfg.nodes, err));
	CGN_TRY(ctl_flag_u32(a, "--blocks", 0, 1U << 26, &p->cfg.blocks, err));
	CGN_TRY(ctl_flag_u32(a, "--seed", 0, UINT32_MAX, &p->cfg.seed, err));
	CGN_TRY(ctl_flag_f64(a, "--speed", 1e-6, 1e6, &p->cfg.speed, err));
	return ctl_engine_flags(a, &p->cfg, err);
}

CGN_RC play_flags_of_power(const struct ctl_args *a, struct play *p, struct cgn_err *err)
{
	const char *gpu = ctl_flag(a, "--gpu");
	CGN_TRY(play_flags(a, p, err));
	CGN_TRY(ctl_rules_of(&p->rules, err));
	p->cfg.gpu = gpu_find(gpu);
	if (p->cfg.gpu == NULL)
		return CGN_FAIL(err, INVALID, "--gpu is %.60s, not h100 or h200", gpu);
	if (ctl_flag(a, "--profile") == NULL) /* A profile has the step of its own GPU. */
		p->cfg.decode = (cgn_nsec)((double)p->cfg.decode * p->cfg.gpu->decode_share);
	return ctl_flag_duration(a, "--wake", &p->cfg.wake, err);
}

struct play_case *play_case_add(struct play *p, struct cgn_str name)
{
	CGN_MUST(p->n_cases < PLAY_CASES);
	struct play_case *c = &p->cases[p->n_cases++];
	*c = (struct play_case){.rules = p->rules, .cfg = p->cfg};
	c->cfg.rules = &c->rules;
	(void)cgn_str_copyz(c->name, sizeof c->name, name);
	return c;
}

static void progress_show(void *user, double part)
{
	const struct play *p = user;
	ctl_progress("%s %3.0f %% %s", ctl_bar(part).text, part * 100, p->showing);
}

void play_show(struct play *p, const char *name, struct replay_cfg *cfg)
{
	p->showing = name;
	cfg->progress = ctl_progress_shown() ? progress_show : NULL;
	cfg->user = p;
}

static void lost_say(const struct play_case *c)
{
	report_say_lost(c->name, "to the first token", &c->result.ttft);
	report_say_lost(c->name, "between tokens", &c->result.itl);
	report_say_lost(c->name, "per token", &c->result.per_token);
}

CGN_RC play_run(struct play *p, struct cgn_err *err)
{
	for (struct play_case *c = p->cases; c < p->cases + p->n_cases; c++) {
		cgn_nsec began = cgn_clock_now();
		play_show(p, c->name, &c->cfg);
		CGN_TRY(replay_run(&p->trace, &c->cfg, &c->result, err));
		c->wall_s = report_seconds_since(began);
	}
	ctl_progress_end();
	for (size_t i = 0; i < p->n_cases; i++)
		lost_say(&p->cases[i]);
	return CGN_OK;
}

void play_free(struct play **take)
{
	struct play *p = *take;
	*take = NULL;
	for (size_t i = 0; i < p->n_cases; i++)
		replay_result_fini(&p->cases[i].result);
	trace_fini(&p->trace);
	free(p);
}

/* ---- for reports ---- */

double play_seconds(const struct play *p)
{
	return (double)p->trace.requests[p->trace.n - 1].at / 1e9 / p->cfg.speed;
}

uint64_t play_refused(const struct replay_result *r)
{
	return r->refused_full + r->refused_too_large + r->refused_late + r->refused_power;
}

uint64_t play_answer_tokens(const struct replay_result *r)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < r->n_nodes; i++)
		n += r->nodes[i].answer_tokens;
	return n;
}

void play_samples(struct json_out *o, const char *key, struct samples *s)
{
	json_key(o, key);
	samples_json(s, o);
}
