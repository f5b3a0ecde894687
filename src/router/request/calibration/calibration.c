/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/crypto/crypto.h"
#include "base/log/log.h"
#include "base/mix/mix.h"
#include "policy/answer/cascade/compare.h"
#include "router/metrics.h"
#include "router/request/calibration/calibration_priv.h"
#include "router/request/request/cascade.h"
#include "router/shared/worker/worker.h"

#define CALIBRATIONS_TAG 0x64ca11b0U

void calibrations_lock(struct gw_calibrations *c)
{
	CGN_LIVE(c, CALIBRATIONS_TAG);
	(void)pthread_mutex_lock(&c->lock);
}

void calibrations_unlock(struct gw_calibrations *c)
{
	(void)pthread_mutex_unlock(&c->lock);
}

static uint64_t judge_hash(const char *model, double similarity)
{
	uint64_t h = mix_fnv1a(MIX_FNV1A, model, model != NULL ? strlen(model) : 0);
	return model != NULL ? mix64(h ^ (uint64_t)llround(similarity * 1e6)) : h;
}

struct gw_calibrations *gw_calibrations_open(struct telemetry *t, const char *judge_model,
	double judge_similarity)
{
	uint64_t secret[4];
	struct gw_calibrations *c = CGN_NEW(struct gw_calibrations);
	c->tag = CALIBRATIONS_TAG;
	c->telemetry = t;
	c->judge = judge_hash(judge_model, judge_similarity);
	cgn_random(secret, sizeof secret);
	(void)snprintf(c->pass, sizeof c->pass, "%016llx%016llx%016llx%016llx.",
		(unsigned long long)secret[0], (unsigned long long)secret[1], (unsigned long long)secret[2],
		(unsigned long long)secret[3]);
	(void)pthread_mutex_init(&c->lock, NULL);
	cgn_list_init(&c->waiting);
	return c;
}

void gw_calibrations_close(struct gw_calibrations **take)
{
	struct gw_calibrations *c = CGN_TAKE_LIVE(take, CALIBRATIONS_TAG);
	if (c == NULL)
		return;
	CGN_MUST(c->loop == NULL);
	for (struct calibration_sample *s; (s = calibration_take(c)) != NULL;)
		calibration_sample_free(&s);
	calibrations_kept_close(c);
	calibrations_drop(c);
	(void)pthread_mutex_destroy(&c->lock);
	c->tag = 0;
	free(c);
}

/* ---- pairs of models; the lock is held ---- */

void calibrations_drop(struct gw_calibrations *c)
{
	while (c->n_pairs > 0)
		free(c->pairs[--c->n_pairs]);
}

static struct calibration_known *pair_find(struct gw_calibrations *c, struct cgn_str small,
	struct cgn_str large)
{
	for (size_t i = 0; i < c->n_pairs; i++)
		if (cgn_str_is(small, c->pairs[i]->small) && cgn_str_is(large, c->pairs[i]->large))
			return c->pairs[i];
	return NULL;
}

static struct calibration_known *pair_of(struct gw_calibrations *c, const struct calibration_sample *s)
{
	struct calibration_known *p = pair_find(c, cgn_str_of(s->small), cgn_str_of(s->large));
	if (p != NULL || c->n_pairs == CALIBRATION_MODELS)
		return p;
	p = CGN_NEW(struct calibration_known);
	(void)cgn_str_copyz(p->small, sizeof p->small, cgn_str_of(s->small));
	(void)cgn_str_copyz(p->large, sizeof p->large, cgn_str_of(s->large));
	p->basis = c->basis;
	c->pairs[c->n_pairs++] = p;
	return p;
}

const char *calibration_state_text(enum calibration_state s)
{
	static const char *const texts[] = {"learns", "holds", "drifted"};
	return texts[s];
}

/* |why| is for a drift. */
static void state_log(const struct calibration_known *p, const char *why)
{
	const struct calibration *k = &p->calibration;
	if (k->state == CALIBRATION_DRIFTED)
		cgn_log(WARN, "cascade.drifted", F_STR("small", p->small), F_STR("large", p->large),
			F_STR("why", why),
			F_STR("then",
				"the larger model is asked at once until enough answers were compared again"),
			F_U64("enough", CALIBRATION_LEAST));
	else
		cgn_log(INFO, "cascade.calibrated", F_STR("small", p->small), F_STR("large", p->large),
			F_U64("compared", k->n), F_F64("error_least", (double)k->curve.error[0]),
			F_F64("error_most", (double)k->curve.error[k->curve.n - 1]));
}

void calibration_report(struct gw_calibrations *c, const struct calibration_known *k)
{
	double ece = calibration_ece(&k->calibration);
	if (ece >= 0)
		metric_set(METRIC_OF(c->telemetry, CASCADE_ECE, k->small, k->large), ece);
	metric_set(METRIC_OF(c->telemetry, CASCADE_DRIFTED, k->small, k->large),
		k->calibration.state == CALIBRATION_DRIFTED ? 1 : 0);
}

void calibration_learn(struct gw_calibrations *c, const struct calibration_sample *s, double doubt,
	bool wrong)
{
	calibrations_lock(c);
	struct calibration_known *p = pair_of(c, s);
	if (p != NULL) {
		p->same += !wrong;
		p->different += wrong;
		if (calibration_add(&p->calibration, doubt, wrong))
			state_log(p, "the small model was wrong far more or less often than was learned");
		calibration_report(c, p);
		c->changed = true;
	}
	calibrations_unlock(c);
}

enum calibration_trust gw_calibrations_get(struct gw_calibrations *c, struct cgn_str small,
	struct cgn_str large, struct calibration_curve *out)
{
	enum calibration_trust trust = CALIBRATION_UNPROVEN;
	out->n = 0;
	if (c == NULL)
		return trust;
	calibrations_lock(c);
	const struct calibration_known *p = pair_find(c, small, large);
	if (p != NULL) {
		trust = calibration_trust_of(&p->calibration, c->max_error);
		*out = p->calibration.curve;
	}
	calibrations_unlock(c);
	return trust;
}

void gw_calibrations_saw(struct gw_calibrations *c, struct cgn_str small, struct cgn_str large, double doubt,
	bool passed)
{
	if (c == NULL)
		return;
	calibrations_lock(c);
	struct calibration_known *p = pair_find(c, small, large);
	if (p != NULL && calibration_saw(&p->calibration, doubt, passed)) {
		state_log(p, "the small model's answers are far more or less sure than they were");
		calibration_report(c, p);
		c->changed = true;
	}
	calibrations_unlock(c);
}

/* Return the state of |k| as /cascades shows it. */
static const char *trust_text(const struct gw_calibrations *c, const struct calibration *k)
{
	static const char *const texts[] = {"holds", "learns", "drifted", "unseen"};
	return texts[calibration_trust_of(k, c->max_error)];
}

static void curve_fill(const struct calibration_curve *curve, struct pb_tree *t,
	Cognitora__V1__CascadePair *to)
{
	to->errors = curve->n > 0 ? PB_NEW(t, cascade_errors) : NULL;
	if (to->errors != NULL) {
		to->errors->error_least = (double)curve->error[0];
		to->errors->error_most = (double)curve->error[curve->n - 1];
	}
	for (uint32_t i = 0; i < curve->n; i++) {
		Cognitora__V1__CascadeStep *step = PB_ADD(t, to, curve, cascade_step);
		step->doubt_upto = (double)curve->upto[i];
		step->error = (double)curve->error[i];
	}
}

static void pair_fill(const struct gw_calibrations *c, const struct calibration_known *p, struct pb_tree *t,
	Cognitora__V1__CascadePair *to)
{
	const struct calibration *k = &p->calibration;
	double ece = calibration_ece(k);
	to->small = pb_tree_text(t, cgn_str_of(p->small));
	to->large = pb_tree_text(t, cgn_str_of(p->large));
	to->state = pb_text(trust_text(c, k));
	to->compared = p->same + p->different;
	to->different = p->different;
	to->ece = ece >= 0 ? ece : (double)NAN;
	curve_fill(&k->curve, t, to);
}

void gw_calibrations_fill(struct gw_calibrations *c, struct pb_tree *t, Cognitora__V1__CascadesResponse *to)
{
	to->calibrates = c != NULL;
	if (c == NULL)
		return;
	calibrations_lock(c);
	for (size_t i = 0; i < c->n_pairs; i++)
		pair_fill(c, c->pairs[i], t, PB_ADD(t, to, pairs, cascade_pair));
	calibrations_unlock(c);
}

/* ---- samples ---- */

void calibration_sample_free(struct calibration_sample **take)
{
	struct calibration_sample *s = CGN_TAKE(take);
	if (s == NULL)
		return;
	cgn_buf_fini(&s->bodies[0]);
	cgn_buf_fini(&s->bodies[1]);
	free(s);
}

struct calibration_sample *calibration_take(struct gw_calibrations *c)
{
	struct calibration_sample *s = NULL;
	calibrations_lock(c);
	if (c->n_waiting > 0) {
		s = CGN_CONTAINER(c->waiting.next, struct calibration_sample, link);
		cgn_list_drop(&s->link);
		c->n_waiting--;
	}
	calibrations_unlock(c);
	return s;
}

void calibration_wake(struct gw_calibrations *c, struct cgn_loop *l, struct cgn_post *post,
	void (*fn)(struct cgn_loop *, struct cgn_post *))
{
	calibrations_lock(c);
	c->loop = l;
	c->post = post;
	c->fn = fn;
	calibrations_unlock(c);
}

void calibration_woken(struct gw_calibrations *c)
{
	calibrations_lock(c);
	c->posted = false;
	calibrations_unlock(c);
}

/* Take the sample over. False: too many wait already, or no thread asks. */
static bool sample_push(struct gw_calibrations *c, struct calibration_sample *s)
{
	calibrations_lock(c);
	bool room = c->loop != NULL && c->n_waiting < CALIBRATION_WAITING;
	if (room) {
		cgn_list_push(&c->waiting, &s->link);
		c->n_waiting++;
		if (!c->posted)
			cgn_loop_post(c->loop, c->post, c->fn);
		c->posted = true;
	}
	calibrations_unlock(c);
	return room;
}

void calibration_count(struct gw_calibrations *c, const char *outcome)
{
	metric_add(METRIC_OF(c->telemetry, CASCADE_DOUBLES, outcome), 1);
}

const char *calibration_pass(const struct gw_calibrations *c)
{
	return c->pass;
}

bool gw_calibration_is_own(const struct gw_calibrations *c, struct cgn_str token, struct cgn_str *tenant)
{
	size_t n = c != NULL ? strlen(c->pass) : 0;
	if (n == 0 || token.n <= n || !crypto_equal(token.p, c->pass, n))
		return false;
	*tenant = (struct cgn_str){token.p + n, token.n - n};
	return true;
}

/* ---- requests ---- */

/* Return the share of prompts that are to be asked again of the pair. */
static double share_of(struct gw_calibrations *c, struct cgn_str small, struct cgn_str large)
{
	static const struct calibration nothing;
	calibrations_lock(c);
	const struct calibration_known *p = pair_find(c, small, large);
	double share = calibration_share_of(p != NULL ? &p->calibration : &nothing, c->share, c->max_error);
	calibrations_unlock(c);
	return share;
}

/* A chain of several small models is calibrated one model at a time, each against the last of the chain. */
void gw_calibration_draw(struct gw_req *r)
{
	struct gw_calibrations *c = r->w->shared->calibrations;
	struct gw_cascade *g = r->plan.cascade;
	if (c == NULL)
		return;
	unsigned last = g->chain.n - 1;
	g->doubled_step = (unsigned)(gw_random(r->w) * last);
	g->doubled =
		gw_random(r->w) < last * share_of(c, g->chain.models[g->doubled_step], g->chain.models[last]);
}

static struct calibration_sample *sample_of(struct gw_req *r)
{
	const struct gw_cascade *g = r->plan.cascade;
	struct cgn_str small = g->chain.models[g->doubled_step], large = g->chain.models[g->chain.n - 1];
	struct calibration_sample *s = CGN_NEW(struct calibration_sample);
	cgn_list_init(&s->link);
	s->api = prompt_api_of(r->client.target);
	s->tokens = r->w->rules->cascade.tokens;
	s->bodies[0].limit = s->bodies[1].limit = CALIBRATION_BODY_MAX;
	bool fits = cgn_str_copyz(s->tenant, sizeof s->tenant, r->identity.tenant) &&
		cgn_str_copyz(s->small, sizeof s->small, small) &&
		cgn_str_copyz(s->large, sizeof s->large, large);
	cascade_double_body(s->api, r->prompt.facts.json, small, true, &s->bodies[0]);
	cascade_double_body(s->api, r->prompt.facts.json, large, false, &s->bodies[1]);
	if (!fits || s->bodies[0].bad || s->bodies[1].bad)
		calibration_sample_free(&s);
	return s;
}

void gw_calibration_offer(struct gw_req *r)
{
	struct gw_calibrations *c = r->w->shared->calibrations;
	if (r->plan.cascade == NULL || !r->plan.cascade->doubled || r->attempt.status != 200)
		return;
	r->plan.cascade->doubled = false;
	struct calibration_sample *s = sample_of(r);
	if (s != NULL && sample_push(c, s))
		return;
	calibration_count(c, "dropped");
	calibration_sample_free(&s);
}
