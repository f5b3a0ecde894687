/* SPDX-License-Identifier: Apache-2.0 */
/* policy: the routing policy and weights in use, from the configuration or from the policy document that
 * operators write while routers run. The document beats the configuration. An invalid document is refused and
 * the last valid one stays. */
#include "base/log/log.h"
#include "policy/routing/document.h"
#include "router/service/service_priv.h"

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
	to->policy = (char *)(uintptr_t)route_policy_text(rules->policy);
	to->policy_from = (char *)(uintptr_t)policy_origin(r, r->policy.document.has_policy);
	to->weights_from = (char *)(uintptr_t)policy_origin(r, r->policy.document.has_weights);
	to->where = (char *)(uintptr_t)state_policy_where(r->members.state);
	to->trouble = r->policy.trouble;
	to->kv = rules->weights.kv;
	to->load = rules->weights.load;
	to->power = rules->weights.power;
	to->capacity = rules->weights.capacity;
}

static void shadow_fill(struct telemetry *t, enum route_policy policy, Cognitora__V1__ShadowStatus *to)
{
	const char *name = route_policy_text(policy);
	cognitora__v1__shadow_status__init(to);
	to->policy = (char *)(uintptr_t)name;
	to->agreed = metric_count(METRIC_OF(t, SHADOW_DECISIONS, name, "yes"));
	to->differed = metric_count(METRIC_OF(t, SHADOW_DECISIONS, name, "no"));
	to->cheaper_ms = (double)metric_sum(METRIC_OF(t, SHADOW_REGRET, name, "shadow")) / 1e6;
	to->dearer_ms = (double)metric_sum(METRIC_OF(t, SHADOW_REGRET, name, "chosen")) / 1e6;
	to->cached_tokens = metric_count(METRIC_OF(t, SHADOW_CACHED_TOKENS, name, "shadow"));
	to->chosen_cached_tokens = metric_count(METRIC_OF(t, SHADOW_CACHED_TOKENS, name, "chosen"));
}

void router_shadows_fill(const struct router *r, Cognitora__V1__ShadowStatus rows[EXPLAIN_SHADOWS],
	Cognitora__V1__ShadowStatus **list, size_t *n)
{
	for (*n = 0; *n < r->published.rules->n_shadows; ++*n) {
		shadow_fill(r->shared.telemetry, r->published.rules->shadows[*n], &rows[*n]);
		list[*n] = &rows[*n];
	}
}

/* ---- SetPolicy ---- */

static double *weight_named(struct route_weights *w, const char *name)
{
	return strcmp(name, "kv") == 0          ? &w->kv
		: strcmp(name, "load") == 0     ? &w->load
		: strcmp(name, "power") == 0    ? &w->power
		: strcmp(name, "capacity") == 0 ? &w->capacity
						: NULL;
}

/* Apply the named weights; the others keep their current value. */
static CGN_RC weights_change(const struct router *r, const Cognitora__V1__SetPolicyRequest *rq,
	struct route_document *d, struct cgn_err *err)
{
	struct route_weights w = r->published.rules->route.weights;
	for (size_t i = 0; i < rq->n_weights; i++) {
		double *to = weight_named(&w, rq->weights[i]->name);
		if (to == NULL)
			return CGN_FAIL(err, INVALID,
				"there is no weight \"%.64s\"; they are kv, load, power and capacity",
				rq->weights[i]->name);
		*to = rq->weights[i]->value;
	}
	d->has_weights = true;
	d->weights = w;
	return route_weights_check(&w, err);
}

static CGN_RC document_change(const struct router *r, const Cognitora__V1__SetPolicyRequest *rq,
	struct route_document *d, struct cgn_err *err)
{
	*d = rq->reset ? (struct route_document){.has_policy = false} : r->policy.document;
	if (rq->reset && (rq->policy[0] != '\0' || rq->n_weights > 0))
		return CGN_FAIL(err, INVALID,
			"a reset goes with neither a policy nor weights: it gives both back to the configuration");
	if (rq->policy[0] != '\0') {
		CGN_TRY(route_document_policy(cgn_str_of(rq->policy), &d->policy, err));
		d->has_policy = true;
	}
	return rq->n_weights > 0 ? weights_change(r, rq, d, err) : CGN_OK;
}

static void status_send(struct router_call *k)
{
	Cognitora__V1__PolicyStatus rs;
	router_policy_fill(k->r, &rs);
	router_call_send(k, &rs);
	router_call_finish(k, CGN_FINE, "");
}

static void put_done(void *user, const struct cgn_err *err)
{
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	k->pending = false;
	if (err->code == CGN_FINE)
		status_send(k);
	else
		router_call_finish(k, err->code, err->msg);
	router_call_release(k);
}

static CGN_RC document_put(struct router_call *k, const Cognitora__V1__SetPolicyRequest *rq,
	struct cgn_err *err)
{
	struct route_document d;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	CGN_TRY(document_change(k->r, rq, &d, err));
	if (d.has_policy || d.has_weights)
		route_document_write(&d, &text);
	if (text.bad)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	cgn_log(INFO, "router.set_policy", F_STRN("document", cgn_buf_view(&text)),
		F_STR("where", state_policy_where(k->r->members.state)), F_STRN("by", grpc_peer_name(k->c)),
		F_STRN("from", grpc_peer(k->c)));
	CGN_TRY(state_policy_put(k->r->members.state, cgn_buf_view(&text), put_done, k, err));
	k->pending = true; /* put_done never runs inline. */
	return CGN_OK;
}

void router_set_policy(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__SetPolicyRequest *rq = NULL;
	cgn_rc rc = pb_unpack(&cognitora__v1__set_policy_request__descriptor, message, &rq, &err);
	bool changes = cgn_ok(rc) && (rq->reset || rq->policy[0] != '\0' || rq->n_weights > 0);
	if (cgn_ok(rc) && !changes)
		status_send(k);
	if (changes)
		rc = document_put(k, rq, &err);
	if (!cgn_ok(rc))
		router_call_finish(k, rc.code, err.msg);
}
