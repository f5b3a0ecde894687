/* SPDX-License-Identifier: Apache-2.0 */
/* before: the state in which a request waits for the external check of requests. */
#include "router/request/hooks/hooks_priv.h"

bool gw_hook_is_due(const struct gw_req *r)
{
	return r->w->rules->hooks.url[GW_HOOK_BEFORE] != NULL && !r->answer.head_sent &&
		!r->client.quotes && /* a quote sends nothing to an engine */
		!r->identity.own && (r->hook == NULL || !r->hook->before_done);
}

static enum hook_body body_form(const struct gw_req *r)
{
	if (!r->w->rules->hooks.send_body || r->body.bytes.n == 0)
		return HOOK_NO_BODY;
	enum gw_route_kind kind = r->client.route->kind;
	return r->prompt.form || kind == GW_STORED || kind == GW_ABOUT ? HOOK_BYTES : HOOK_CHECKED;
}

static void before_ask(struct gw_req *r)
{
	const struct gw_hook_rules *rules = &r->w->rules->hooks;
	const char *roles[IDENTITY_MAX_ROLES];
	struct hook_question q = {.hook = gw_hook_text(GW_HOOK_BEFORE), .form = body_form(r)};
	r->hook->before_asked = true;
	if (q.form != HOOK_NO_BODY && r->body.bytes.n > rules->max_body) {
		gw_ask_fail(r, GW_HOOK_BEFORE, "too_large", "the body is larger than hooks.max_body");
		return;
	}
	q.body = q.form == HOOK_CHECKED ? r->prompt.facts.json.raw : cgn_buf_view(&r->body.bytes);
	gw_ask_fill(r, &q, roles);
	gw_ask_start(r, GW_HOOK_BEFORE, r->w->hooks[GW_HOOK_BEFORE], rules->timeout, rules->max_body, &q);
}

static enum gw_step before_pass(struct gw_req *r)
{
	r->hook->before_done = true;
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}

static const char *refusal_type(int status)
{
	return status == 403 ? "permission_error" : "invalid_request_error";
}

static enum gw_step before_refuse(struct gw_req *r, const struct hook_verdict *v)
{
	gw_ask_audit(r, GW_HOOK_BEFORE, v->code);
	return gw_refuse(r,
		&(struct gw_refusal){v->status, refusal_type(v->status), v->code, .reason = "hook",
			.by = GW_BY_HOOK, .retry_after = v->status == 429, .noted = true},
		"%s", v->message);
}

static enum gw_step before_fail(struct gw_req *r)
{
	const struct gw_hook_rules *rules = &r->w->rules->hooks;
	if (rules->pass)
		return before_pass(r);
	gw_ask_audit(r, GW_HOOK_BEFORE, "hook_failed");
	if (rules->send_body && r->body.bytes.n > rules->max_body)
		return gw_refuse(r,
			&(struct gw_refusal){413, "invalid_request_error", "request_too_large",
				.reason = "hook", .by = GW_BY_HOOK},
			"the body is larger than the %llu bytes that are checked (hooks.max_body)",
			(unsigned long long)rules->max_body);
	return gw_refuse(r,
		&(struct gw_refusal){503, "server_error", "hook_unavailable", .reason = "hook",
			.by = GW_BY_HOOK, .retry_after = 1},
		"the check of requests gives no decision at the moment");
}

enum gw_step gw_hook(struct gw_req *r)
{
	struct gw_hooking *h = gw_hooking_of(r);
	if (!h->before_asked)
		before_ask(r);
	if (!h->ask.answered)
		return gw_park(r, WAIT_HOOK, 0); /* webask has a timeout */
	h->ask.answered = false;
	switch (h->ask.verdict.decision) {
	case HOOK_ALLOWED:
		return before_pass(r);
	case HOOK_REFUSED:
		return before_refuse(r, &h->ask.verdict);
	case HOOK_FAILED:
		break;
	}
	return before_fail(r);
}
