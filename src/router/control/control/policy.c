/* SPDX-License-Identifier: Apache-2.0 */
/* policy: the routing policy and weights in use, from the configuration or from the policy document that
 * operators write while routers run. The document beats the configuration. An invalid document is refused and
 * the last valid one stays. */
#include "router/control/control/policy.h"

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "policy/route/routing/document.h"
#include "router/control/control/router.h"
#include "router/shared/arms/arms.h"

#define CONFIGURATION "configuration"

static const char *policy_origin(const struct router *r, bool documented)
{
	return documented ? state_policy_where(r->members.state) : CONFIGURATION;
}

static void policy_log(const struct router *r)
{
	const struct route_rules *rules = &r->published.rules->route;
	cgn_log(INFO, "router.policy", F_STR("policy", route_policy_text(rules->policy)),
		F_STR("policy_from", policy_origin(r, r->policy.document.has_policy)),
		F_F64("kv", rules->weights.kv), F_F64("load", rules->weights.load),
		F_F64("power", rules->weights.power), F_F64("capacity", rules->weights.capacity),
		F_STR("weights_from", policy_origin(r, r->policy.document.has_weights)));
}

void router_policy_update(struct router *r, struct cgn_str text, const char *where)
{
	struct route_document was = r->policy.document, d = {.has_policy = false};
	struct cgn_err err = {.code = CGN_FINE};
	cgn_rc rc = text.n > 0 ? route_document_read(text, &d, &err) : CGN_OK;
	(void)cgn_str_copyz(r->policy.trouble, sizeof r->policy.trouble,
		cgn_str_of(cgn_ok(rc) ? "" : err.msg));
	if (!cgn_ok(rc)) {
		cgn_log(ERROR, "router.policy_refused", F_STR("where", where), F_STR("why", err.msg),
			F_STR("then", "the last policy stays"));
		return;
	}
	r->policy.document = d;
	rc = router_rules_load(r, &err);
	if (cgn_ok(rc)) {
		policy_log(r);
		return;
	}
	r->policy.document = was; /* The workers still use it. */
	(void)cgn_str_copyz(r->policy.trouble, sizeof r->policy.trouble, cgn_str_of(err.msg));
	cgn_log(ERROR, "router.policy_refused", F_STR("where", where), F_STR("why", err.msg),
		F_STR("then", "the last policy stays"));
}

void router_policy_fill(struct router *r, Cognitora__V1__PolicyStatus *to)
{
	const struct route_rules *rules = &r->published.rules->route;
	cognitora__v1__policy_status__init(to);
	to->policy = pb_text(route_policy_text(rules->policy));
	to->policy_from = pb_text(policy_origin(r, r->policy.document.has_policy));
	to->weights_from = pb_text(policy_origin(r, r->policy.document.has_weights));
	to->where = pb_text(state_policy_where(r->members.state));
	to->trouble = r->policy.trouble;
	to->kv = rules->weights.kv;
	to->load = rules->weights.load;
	to->power = rules->weights.power;
	to->capacity = rules->weights.capacity;
}

static void figure_fill(const struct arms_estimate *e, enum arms_figure f, Cognitora__V1__ShadowFigure *to)
{
	to->figure = pb_text(arms_figure_text(f));
	to->unit = pb_text(arms_figure_unit(f));
	to->n_live = e->n_live;
	to->n_shadow = e->n_shadow;
	to->live = e->live;
	to->shadow = e->shadow;
	to->low = e->low;
	to->high = e->high;
	to->verdict = pb_text(arms_verdict_text(e->verdict));
}

static void shadow_fill(struct telemetry *t, enum route_policy policy, Cognitora__V1__ShadowStatus *to)
{
	const char *name = route_policy_text(policy);
	to->policy = pb_text(name);
	to->agreed = metric_count(METRIC_OF(t, SHADOW_DECISIONS, name, "yes"));
	to->differed = metric_count(METRIC_OF(t, SHADOW_DECISIONS, name, "no"));
	to->cheaper_ms = (double)metric_sum(METRIC_OF(t, SHADOW_BELIEVED, name, "shadow")) / 1e6;
	to->dearer_ms = (double)metric_sum(METRIC_OF(t, SHADOW_BELIEVED, name, "chosen")) / 1e6;
	to->cached_tokens = metric_count(METRIC_OF(t, SHADOW_CACHED_TOKENS, name, "shadow"));
	to->chosen_cached_tokens = metric_count(METRIC_OF(t, SHADOW_CACHED_TOKENS, name, "chosen"));
}

void router_shadows_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *rs)
{
	const struct arms_rules *arms = &r->published.rules->shadow.arms;
	for (size_t i = 0; i < arms->n; i++) {
		struct arms_estimate e[ARMS_FIGURES];
		Cognitora__V1__ShadowStatus *to = PB_ADD(t, rs, shadows, shadow_status);
		shadow_fill(r->shared.telemetry, arms->shadows[i], to);
		to->share = arms->share / (double)arms->n;
		if (!(arms->share > 0))
			continue;
		gw_arms_estimate(r->shared.arms, i, e);
		for (unsigned f = 0; f < ARMS_FIGURES; f++)
			figure_fill(&e[f], (enum arms_figure)f, PB_ADD(t, to, figures, shadow_figure));
	}
}

/* Show the difference of a figure, and the ends of its interval, as a share of the live policy's mean. */
static void difference_show(struct telemetry *t, const char *policy, enum arms_figure f,
	const struct arms_estimate *e)
{
	const char *figure = arms_figure_text(f);
	metric_set(METRIC_OF(t, SHADOW_MEASURED, policy, figure, "low"), e->low / e->live);
	metric_set(METRIC_OF(t, SHADOW_MEASURED, policy, figure, "middle"), (e->shadow - e->live) / e->live);
	metric_set(METRIC_OF(t, SHADOW_MEASURED, policy, figure, "high"), e->high / e->live);
	metric_set(METRIC_OF(t, SHADOW_MEASURED_REQUESTS, policy, figure), (double)e->n_shadow);
}

void router_shadows_note(const struct router *r)
{
	const struct arms_rules *arms = &r->published.rules->shadow.arms;
	for (size_t i = 0; arms->share > 0 && i < arms->n; i++) {
		struct arms_estimate e[ARMS_FIGURES];
		gw_arms_estimate(r->shared.arms, i, e);
		for (unsigned f = 0; f < ARMS_FIGURES; f++)
			difference_show(r->shared.telemetry, route_policy_text(arms->shadows[i]),
				(enum arms_figure)f, &e[f]);
	}
}

void router_shadows_follow(struct router *r, struct gw_rules *rules)
{
	struct arms_rules *arms = &rules->shadow.arms;
	arms->live = rules->route.policy;
	for (size_t i = 0; i < ROUTE_POLICIES; i++) {
		const char *name = route_policy_text((enum route_policy)i);
		metric_forget(r->shared.telemetry, METRIC_SHADOW_MEASURED, "policy", name);
		metric_forget(r->shared.telemetry, METRIC_SHADOW_MEASURED_REQUESTS, "policy", name);
	}
	arms->variant = mix_fnv1a(MIX_FNV1A, &rules->route.weights, sizeof rules->route.weights);
	gw_arms_set(r->shared.arms, arms);
}
