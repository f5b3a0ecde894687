/* SPDX-License-Identifier: Apache-2.0 */
/* set_policy: Control.SetPolicy: reads, changes and stores the policy document. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/control/control/policy.h"
#include "router/control/service/service_priv.h"

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

/* Log the change once it is known whether it was stored. */
static void put_log(const struct router_call *k, const struct cgn_err *err)
{
	const char *where = state_policy_where(k->r->members.state);
	router_order_note(k, "policy.set", k->document, err);
	if (err->code == CGN_FINE)
		cgn_log(INFO, "router.set_policy", F_STR("document", k->document), F_STR("where", where),
			F_STR("by", k->by), F_STR("from", k->from));
	else
		cgn_log(ERROR, "router.set_policy_failed", F_STR("document", k->document),
			F_STR("where", where), F_STR("by", k->by), F_STR("from", k->from),
			F_STR("why", err->msg), F_STR("then", "the policy stays as it was"));
}

static void put_done(void *user, const struct cgn_err *err);

static CGN_RC document_put(struct router_call *k, struct cgn_err *err)
{
	struct route_document d;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	CGN_TRY(document_change(k->r, k->policy, &d, err));
	if (d.has_policy || d.has_weights)
		route_document_write(&d, &text);
	free(k->document);
	k->document = cgn_str_dupz(cgn_buf_view(&text));
	cgn_rc rc = state_policy_put(k->r->members.state, cgn_buf_view(&text), put_done, k, err);
	k->pending = cgn_ok(rc); /* put_done never runs inline. */
	if (!cgn_ok(rc))
		put_log(k, err);
	return rc;
}

/* A change that met another one is made again, from the other one's document. */
static void put_done(void *user, const struct cgn_err *err)
{
	struct router_call *k = user;
	struct cgn_err again;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	k->pending = false;
	if (err->code == CGN_CONFLICT && ++k->tries < ROUTER_CALL_TRIES) {
		if (cgn_ok(document_put(k, &again)))
			return;
		err = &again;
	} else {
		put_log(k, err);
	}
	if (err->code == CGN_FINE)
		status_send(k);
	else
		router_call_finish(k, err->code, err->msg);
	router_call_release(k);
}

void router_set_policy(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	cgn_rc rc = pb_unpack(&cognitora__v1__set_policy_request__descriptor, message, &k->policy, &err);
	bool changes =
		cgn_ok(rc) && (k->policy->reset || k->policy->policy[0] != '\0' || k->policy->n_weights > 0);
	if (cgn_ok(rc) && !changes)
		status_send(k);
	if (changes)
		rc = router_call_may(k, ACTION_POLICY_SET, k->policy->policy, &err);
	if (cgn_ok(rc) && changes)
		rc = document_put(k, &err);
	if (!cgn_ok(rc))
		router_call_finish(k, rc.code, err.msg);
}
