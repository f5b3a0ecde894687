/* SPDX-License-Identifier: Apache-2.0 */
/* body: reads the model, the prompt and the wishes of a body. */
#include "base/codec/codec.h"
#include "base/form/form.h"
#include "base/json/json.h"
#include "router/answer/answer/ollama.h"
#include "router/answer/answer/resume.h"
#include "router/answer/plan/legs.h"
#include "router/answer/plan/queue.h"
#include "router/answer/selection/selection.h"
#include "router/request/account/sessions.h"
#include "router/request/cascade/cascade.h"
#include "router/request/isolate/isolate.h"
#include "router/request/permit/permit.h"
#include "router/request/streamusage/streamusage.h"
#include "router/shared/peers/peers.h"

#define BAD_REQUEST "invalid_request_error"
#define MODEL_MAX   4096 /* bytes; no model has a longer name */
#define UNTOLD_FOR  (30 * CGN_SEC)

static const struct gw_refusal no_memory = {503, "server_error", "no_memory", .reason = "memory",
	.retry_after = 1};

static enum gw_step model_missing(struct gw_req *r)
{
	return gw_plan_fail(r,
		&(struct gw_refusal){400, BAD_REQUEST, "missing_model", .param = "model",
			.reason = "invalid"},
		"model is missing, or is not a string (router.default_model may name one for such requests)");
}

static enum gw_step model_unknown(struct gw_req *r, struct cgn_str asked)
{
	return gw_plan_fail(r,
		&(struct gw_refusal){404, BAD_REQUEST, "model_not_found", .param = "model",
			.reason = "model"},
		"the model `%.*s` does not exist here", (int)(asked.n < 200 ? asked.n : 200), asked.p);
}

static bool is_in_time(const struct gw_req *r)
{
	return cgn_since(cgn_loop_now(r->w->loop), r->client.started) < r->w->rules->queue.node_wait;
}

bool gw_body_awaits(const struct gw_req *r)
{
	const struct cluster_view *v = r->w->view;
	return r->prompt.awaited.p != NULL && !v->settled && !v->away && is_in_time(r) &&
		view_model_find(v, r->prompt.awaited) == NULL;
}

/* Say why a model that is not known may exist nevertheless. */
static const char *unsettled_why(const struct cluster_view *v)
{
	if (!v->heard)
		return v->away ? ", and the membership was not heard: its source does not answer"
			       : ", and the membership was not heard yet";
	return v->away ? ", and the membership may have changed: its source does not answer" : "";
}

/* A router that has just started, or cannot reach the source of the membership, does not know all nodes: the model |comes| may
 * exist, |asked| or the default in its place. Clients repeat a 503, and no 404. */
static enum gw_step model_await(struct gw_req *r, struct cgn_str asked, struct cgn_str comes)
{
	const struct cluster_view *v = r->w->view;
	if (!v->away && is_in_time(r)) { /* While the source does not answer, nothing will come. */
		r->prompt.awaited = comes;
		return STEP_AGAIN;
	}
	return gw_plan_fail(r,
		&(struct gw_refusal){503, "server_error", "no_node", .reason = "no_node", .retry_after = 2},
		"no node is known to serve `%.*s` yet: %zu nodes are known, %zu of them have not told their models%s",
		(int)(asked.n < 200 ? asked.n : 200), asked.p, v->n_nodes, v->n_untold, unsettled_why(v));
}

/* Find the model of that name or alias among those that rules, nodes or peers know. Empty: there is none. */
static struct cgn_str model_find(struct gw_req *r, struct cgn_str name, const struct gw_model **row)
{
	*row = gw_rules_model(r->w->rules, name);
	if (*row != NULL)
		return cgn_str_eq((*row)->name, name) ? name : cgn_arena_str(&r->arena, (*row)->name);
	bool known = view_model_find(r->w->view, name) != NULL || gw_peers_know(r->w->shared->peers, name);
	return known ? name : (struct cgn_str){NULL, 0};
}

/* Return true if the default model may serve although a node has not told its models: it may never come up. One request
 * waits for it, and others do not for a while. */
static bool untold_is_given_up(struct gw_req *r)
{
	const struct cluster_view *v = r->w->view;
	cgn_nsec now = cgn_loop_now(r->w->loop);
	if (!v->heard || v->away || v->n_nodes == v->n_untold)
		return false;
	if (!is_in_time(r))
		r->w->untold_until = now + UNTOLD_FOR;
	return now < r->w->untold_until;
}

/* Let the default model serve a request for one that does not exist, or that the caller may not know of (|hidden|): what
 * nodes have yet to tell changes nothing for the latter. False: there is no default, or it is not known (yet). */
static bool default_resolve(struct gw_req *r, bool hidden, const struct gw_model **row)
{
	struct cgn_str name = gw_permit_default(r);
	if (name.n == 0 || (!hidden && !r->w->view->settled && !untold_is_given_up(r)))
		return false;
	name = cgn_arena_str(&r->arena, name); /* Rules may be reloaded before the request ends. */
	r->prompt.model = name.p != NULL ? model_find(r, name, row) : name;
	return r->prompt.model.n > 0;
}

/* Replace an alias by the model's name; refuse a model that neither nodes nor rules know. The answer names the model as the
 * client did, whichever it is. */
static enum gw_step model_resolve(struct gw_req *r, struct cgn_str asked, const struct gw_model **row)
{
	bool may = gw_permit_model(r, asked);
	r->prompt.asked = asked;
	r->prompt.model = (struct cgn_str){NULL, 0};
	*row = NULL;
	if (may)
		r->prompt.model = model_find(r, asked, row);
	if (r->prompt.model.n > 0 || default_resolve(r, !may, row))
		return STEP_AGAIN;
	*row = NULL;
	struct cgn_str comes = may ? asked : cgn_arena_str(&r->arena, gw_permit_default(r));
	if (!r->w->view->settled && comes.n > 0)
		return model_await(r, asked, comes);
	if (!may)
		(void)gw_permit_model_noted(r, asked);
	return model_unknown(r, asked);
}

static enum gw_step body_refuse(struct gw_req *r, const struct body_fault *f)
{
	return gw_plan_fail(r,
		&(struct gw_refusal){400, BAD_REQUEST, f->code, .param = f->param, .reason = "invalid"}, "%s",
		f->text);
}

/* Read the model's name; false: the request is refused, or waits for the model. */
static bool model_read(struct gw_req *r, const struct gw_model **row)
{
	const struct json_val model = r->prompt.facts.model;
	char text[MODEL_MAX];
	struct cgn_buf name = cgn_buf_over(text, sizeof text);
	if (model.raw.p == NULL || model.type != JSON_STRING) {
		(void)model_missing(r);
		return false;
	}
	json_str_to(model, &name);
	if (name.bad) {
		(void)model_unknown(r, cgn_buf_view(&name));
		return false;
	}
	struct cgn_str asked = cgn_arena_str(&r->arena, cgn_buf_view(&name)); /* outlives the body */
	if (asked.p == NULL) {
		(void)gw_plan_fail(r, &no_memory, "out of memory");
		return false;
	}
	r->prompt.name_at = (size_t)(model.raw.p - r->body.bytes.p);
	r->prompt.name_n = model.raw.n;
	(void)model_resolve(r, asked, row);
	return r->state == GW_ROUTE && r->prompt.awaited.p == NULL;
}

/* Begin the plan with room for as many attempts as the rules allow. False: out of memory, and refused. */
static bool plan_open(struct gw_req *r)
{
	unsigned cap = PLAN_LEGS(r->w->rules->retry.attempts);
	struct plan_leg *legs = cgn_arena_get(&r->arena, cap * sizeof *legs);
	if (legs == NULL)
		(void)gw_plan_fail(r, &no_memory, "out of memory");
	else
		plan_begin(&r->plan.legs, legs, cap, r->prompt.model);
	return legs != NULL;
}

/* ---- forms ---- */

static struct cgn_str content_type(const struct gw_req *r)
{
	for (size_t i = 0; i < r->client.n_headers; i++)
		if (cgn_str_is(r->client.headers[i].name, "content-type"))
			return r->client.headers[i].value;
	return (struct cgn_str){NULL, 0};
}

static enum gw_step form_invalid(struct gw_req *r, const char *why)
{
	return gw_plan_fail(r,
		&(struct gw_refusal){400, BAD_REQUEST, "invalid_form", .param = "model", .reason = "invalid"},
		"%s", why);
}

/* Put the default model's name into a form without one. False: there is no default, or the form does not begin with a part. */
static bool form_put_model(struct gw_req *r, struct cgn_str boundary, const struct form_field *model)
{
	struct cgn_buf own = {0};
	struct cgn_str name = gw_permit_default(r), body = cgn_buf_view(&r->body.bytes);
	bool begins = body.n > boundary.n + 2 && memcmp(body.p, "--", 2) == 0 &&
		memcmp(body.p + 2, boundary.p, boundary.n) == 0;
	if (name.n == 0 || (model->times == 0 && !begins))
		return false;
	size_t at = model->times > 0 ? (size_t)(model->value.p - body.p) : 0;
	cgn_buf_add(&own, body.p, at);
	if (model->times == 0)
		cgn_buf_fmt(&own, "--%.*s\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n%.*s\r\n",
			CGN_STR_ARG(boundary), CGN_STR_ARG(name));
	else
		cgn_buf_str(&own, name);
	cgn_buf_add(&own, body.p + at, body.n - at);
	bool put = !own.bad;
	if (put)
		gw_body_replace(r, &own);
	cgn_buf_fini(&own);
	return put;
}

/* Read the fields that routing needs; engines get the form as it is, but for the model's name. */
static void form_parse(struct gw_req *r, struct cgn_str boundary)
{
	struct form_field f[] = {{.name = "model"}, {.name = "stream"}};
	const struct gw_model *row = NULL;
	struct cgn_err err;
	if (!cgn_ok(form_find(cgn_buf_view(&r->body.bytes), boundary, f, CGN_COUNT(f), &err)))
		(void)form_invalid(r, err.msg);
	else if (f[0].times > 1)
		(void)form_invalid(r, "the form has several fields named model");
	else if (f[0].value.n == 0 && form_put_model(r, boundary, &f[0])) {
		form_parse(r, boundary);
		return;
	} else if (f[0].times == 0 || f[0].value.n == 0)
		(void)model_missing(r);
	else if (f[0].value.n >= MODEL_MAX)
		(void)model_unknown(r, f[0].value);
	if (r->state != GW_ROUTE)
		return;
	struct cgn_str asked = cgn_arena_str(&r->arena, f[0].value); /* outlives the body */
	if (asked.p == NULL) {
		(void)gw_plan_fail(r, &no_memory, "out of memory");
		return;
	}
	r->prompt.form = true;
	r->prompt.name_at = (size_t)(f[0].value.p - r->body.bytes.p);
	r->prompt.name_n = f[0].value.n;
	r->prompt.stream = cgn_str_is(f[1].value, "true");
	(void)model_resolve(r, asked, &row);
	if (r->state == GW_ROUTE && r->prompt.awaited.p == NULL && (r->plan.legs.n > 0 || plan_open(r)))
		r->prompt.parsed = true;
}

/* ---- JSON ---- */

/* Any thread. */
static void facts_run(struct gw_req *r)
{
	struct gw_prompt *p = &r->prompt;
	if (cgn_ok(body_read(cgn_buf_view(&r->body.bytes), &p->facts, &p->fault)) && p->resume &&
		!body_lacks_model(&p->facts)) /* Such a body is refused, or read again with a model. */
		gw_resume_open(r, p->facts.json);
}

/* ---- stored answers ---- */

/* May the caller use the model under its own name or an alias? */
static bool home_permitted(const struct gw_req *r, struct cgn_str model)
{
	const struct gw_model *row = gw_rules_model(r->w->rules, model);
	for (size_t i = 0; row != NULL && i < row->n_aliases; i++)
		if (gw_permit_model(r, row->aliases[i]))
			return true;
	return gw_permit_model(r, model);
}

static bool all_permitted(const struct gw_req *r)
{
	const struct cluster_view *v = r->w->view;
	size_t i = 0;
	while (i < v->n_models && home_permitted(r, v->models[i].name))
		i++;
	return i == v->n_models;
}

/* An answer that engines stored. |model| NULL: not known here. |hidden|: the caller may not use its model, or it is not
 * known and may be of a model that the caller may not use. */
struct stored_answer {
	struct answerhome home;
	const struct view_model *model;
	bool hidden;
};

/* Find the answer |id|. The request names no model, or may name another one than the answer's, so each model is tried. */
static struct stored_answer stored_find(struct gw_req *r, struct cgn_str id)
{
	const struct cluster_view *v = r->w->view;
	const struct cgn_str own = gw_isolation_id(r, id);
	for (size_t i = 0; i < v->n_models; i++) {
		const struct view_model *m = &v->models[i];
		struct answerhome home =
			answerhome_get(r->w->shared->tails, (struct answerhome_of){own, m->name});
		if (home.known)
			return (struct stored_answer){home, m,
				!home_permitted(r, m->name) && !gw_permit_model_noted(r, m->name)};
	}
	return (struct stored_answer){.model = NULL, .hidden = !all_permitted(r)};
}

/* Find the node that stored the answer which the body names in previous_response_id. False: the answer may be another
 * tenant's, or its model is none of the caller's, and the request is refused. */
static bool home_find(struct gw_req *r)
{
	const struct json_val previous = r->prompt.facts.previous;
	char text[ANSWERHOME_ID_MAX];
	struct cgn_buf id = cgn_buf_over(text, sizeof text);
	struct stored_answer found = {.model = NULL};
	if (previous.raw.p == NULL || previous.type != JSON_STRING ||
		!cgn_str_is(r->client.target, "/v1/responses"))
		return true;
	json_str_to(previous, &id);
	if (!id.bad)
		found = stored_find(r, cgn_buf_view(&id));
	if (!found.hidden)
		r->plan.home = found.home;
	if (!found.hidden && (found.home.known || r->prompt.salt.n == 0))
		return true;
	(void)gw_plan_fail(r,
		&(struct gw_refusal){404, BAD_REQUEST, "previous_response_not_found",
			.param = "previous_response_id", .reason = "invalid"},
		"no response `%.*s` is known here", (int)(id.n < 200 ? id.n : 200), id.p);
	return false;
}

static struct cgn_str stored_id(const struct gw_req *r)
{
	struct cgn_str path = r->client.path, rest = cgn_str_split(&path, '?');
	const size_t before = sizeof "/v1/responses/" - 1;
	rest = (struct cgn_str){rest.p + before, rest.n - before};
	return cgn_str_split(&rest, '/');
}

static bool home_is_ready(const struct view_model *m, const struct answerhome *h)
{
	for (size_t k = 0; k < m->n_ready; k++)
		if (answerhome_is(h, m->ready[k]->slot, m->ready[k]->node_id_hash))
			return true;
	return false;
}

static void stored_parse(struct gw_req *r)
{
	struct cgn_str id = stored_id(r);
	const struct stored_answer found = stored_find(r, id);
	if (found.model == NULL || found.hidden || !home_is_ready(found.model, &found.home)) {
		(void)gw_plan_fail(r,
			&(struct gw_refusal){404, BAD_REQUEST, "not_found", .reason = "invalid"},
			"no response `%.*s` is known here, or the node that stored it is not ready",
			(int)(id.n < 200 ? id.n : 200), id.p);
		return;
	}
	r->plan.home = found.home;
	r->prompt.asked = r->prompt.model = cgn_arena_str(&r->arena, found.model->name);
	if (r->prompt.model.p == NULL)
		(void)gw_plan_fail(r, &no_memory, "out of memory");
	else if (r->plan.legs.n > 0 || plan_open(r))
		r->prompt.parsed = true;
}

/* ---- requests without a body ---- */

/* The query names the model. */
static void about_parse(struct gw_req *r)
{
	const struct gw_model *row = NULL;
	struct cgn_str value = http_query_get(r->client.path, "model");
	if (value.n == 0)
		value = gw_permit_default(r);
	char *asked = cgn_arena_get(&r->arena, value.n + 1);
	if (asked == NULL) {
		(void)gw_plan_fail(r, &no_memory, "out of memory");
		return;
	}
	if (value.n == 0) {
		(void)gw_plan_fail(r,
			&(struct gw_refusal){400, BAD_REQUEST, "missing_model", .param = "model",
				.reason = "invalid"},
			"the query needs model=NAME, because the request has no body that names a model");
		return;
	}
	(void)model_resolve(r, (struct cgn_str){asked, percent_get(asked, value)}, &row);
	if (r->state == GW_ROUTE && r->prompt.awaited.p == NULL && (r->plan.legs.n > 0 || plan_open(r)))
		r->prompt.parsed = true;
}

/* ---- JSON, once it is read ---- */

/* False: the request is refused, because an engine of its model would let tenants measure each other's prompts. */
static bool isolation_check(struct gw_req *r)
{
	if (!gw_isolation_leaks(r, view_model_find(r->w->view, r->prompt.model)))
		return true;
	(void)gw_plan_fail(r,
		&(struct gw_refusal){503, "server_error", "not_isolated", .param = "model",
			.reason = "not_isolated"},
		"an engine that serves `%.*s` cannot keep the prompts of tenants apart at %.*s (security.isolation_strict)",
		(int)(r->prompt.asked.n < 200 ? r->prompt.asked.n : 200), r->prompt.asked.p,
		CGN_STR_ARG(r->client.target));
	return false;
}

/* Is the request itself to be answered by an engine through this router? */
static bool is_sent(const struct gw_req *r)
{
	return !r->client.quotes && r->selecting == NULL;
}

static void facts_then(struct gw_req *r);

/* Read the body again with the default model's name. False: it names a model, or there is no default. */
static bool default_put(struct gw_req *r)
{
	struct cgn_buf own = {0};
	struct cgn_str name = gw_permit_default(r);
	if (name.n == 0 || !body_lacks_model(&r->prompt.facts))
		return false;
	body_put_model(cgn_buf_view(&r->body.bytes), &r->prompt.facts, name, &own);
	if (own.bad) {
		cgn_buf_fini(&own);
		(void)gw_plan_fail(r, &no_memory, "out of memory");
		return true;
	}
	gw_body_replace(r, &own);
	gw_body_work(r, facts_run, facts_then);
	return true;
}

/* Drop the client's names for the request (request_id, rid) from the body, and refuse a body that names objects which an
 * engine shares between callers. Returns true if the body is refused. Requests that need no key are left alone: without
 * tenants no object belongs to another caller. */
static bool names_refuse(struct gw_req *r)
{
	struct body_facts *facts = &r->prompt.facts;
	if (!gw_identity_has_tenant(&r->identity))
		return false;
	body_drop_names(r->body.bytes.p, facts);
	if (facts->shared == NULL)
		return false;
	(void)gw_plan_fail(r,
		&(struct gw_refusal){400, BAD_REQUEST, "reserved_key", .param = facts->shared,
			.reason = "invalid"},
		"the body has the key \"%s\": it names what an engine keeps for all tenants, so leave it out",
		facts->shared);
	return true;
}

static void facts_then(struct gw_req *r)
{
	const struct gw_model *row = NULL;
	if (r->prompt.fault.code != NULL) {
		(void)body_refuse(r, &r->prompt.fault);
		return;
	}
	if (default_put(r) || names_refuse(r))
		return;
	if (!gw_isolate(r)) {
		(void)gw_plan_fail(r, &no_memory, "out of memory");
		return;
	}
	if (!model_read(r, &row) || !isolation_check(r))
		return;
	if (!gw_streamusage_check(r, &r->prompt.fault)) {
		(void)body_refuse(r, &r->prompt.fault);
		return;
	}
	if (!gw_streamusage_plan(r)) {
		(void)gw_plan_fail(r, &no_memory, "out of memory");
		return;
	}
	r->prompt.stream = r->prompt.facts.stream;
	r->prompt.several = r->prompt.facts.several;
	r->prompt.answer_limit = r->prompt.facts.answer_limit;
	r->prompt.tools = r->prompt.facts.tools;
	gw_queue_hint(r);
	gw_session_begin(r);
	/* A quote and a selection are of the model that the body names. */
	if (r->plan.legs.n == 0 && (!plan_open(r) || (is_sent(r) && !gw_cascade_open(r))))
		return;
	if (!home_find(r))
		return;
	r->prompt.parsed = true;
	r->prompt.uncut = r->client.route->kind != GW_MEDIA;
}

/* ---- Ollama's bodies ---- */

static void ollama_then(struct gw_req *r)
{
	if (gw_ollama_take(r))
		gw_body_parse(r);
}

static void ollama_facts_then(struct gw_req *r)
{
	if (r->prompt.fault.code != NULL)
		(void)body_refuse(r, &r->prompt.fault);
	else if (gw_ollama_begin(r))
		gw_body_work(r, gw_ollama_run, ollama_then);
}

static bool is_ollamas(const struct gw_req *r)
{
	enum gw_route_kind kind = r->client.route->kind;
	return (kind == GW_OLLAMA || kind == GW_OLLAMA_SHOW) && r->answer.ollama == NULL;
}

void gw_body_parse(struct gw_req *r)
{
	struct cgn_str boundary = {NULL, 0};
	if (!gw_body_decode(r, gw_body_parse) || !gw_select_read(r, gw_body_parse))
		return;
	if (r->client.route->kind == GW_STORED) {
		stored_parse(r);
		return;
	}
	if (r->client.route->kind == GW_ABOUT) {
		about_parse(r);
		return;
	}
	if (r->client.route->kind == GW_MEDIA || r->client.route->kind == GW_NATIVE)
		boundary = form_boundary(content_type(r));
	if (boundary.p != NULL)
		form_parse(r, boundary);
	else if (is_ollamas(r))
		gw_body_work(r, facts_run, ollama_facts_then);
	else if (gw_resume_asked(r, &r->prompt.resume))
		gw_body_work(r, facts_run, facts_then);
}

void gw_body_go_on(struct gw_req *r)
{
	r->prompt.awaited = (struct cgn_str){NULL, 0};
	if (r->client.route->kind == GW_ABOUT)
		about_parse(r);
	else if (r->prompt.form)
		form_parse(r, form_boundary(content_type(r)));
	else
		facts_then(r);
}
