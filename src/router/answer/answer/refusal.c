/* SPDX-License-Identifier: Apache-2.0 */
/* refusal: tells the client why its request is refused. */
#include "router/answer/answer/keepalive.h"
#include "router/answer/answer/relay.h"
#include "router/answer/answer/reply_priv.h"
#include "router/request/hooks/hooks.h"
#include "router/request/limit/limit.h"
#include "router/request/permit/permit.h"

/* Note a caller who lacks the right for the request. */
static void refusal_note(const struct gw_req *r)
{
	const struct gw_refusal *how = &r->answer.refusal;
	if (!how->noted && (how->status == 401 || how->status == 403))
		gw_permit_note(r, "gateway.request", how->code);
}

/* The client has the head of an event stream already. */
static void refusal_tell(struct gw_req *r)
{
	const struct cgn_buf *body = &r->answer.refusal_text;
	refusal_note(r);
	r->answer.refused = false;
	r->answer.first_byte = r->answer.last_byte = cgn_loop_now(r->w->loop);
	gw_keepalive_refuse(r, &r->answer.refusal, body->bad ? CGN_STR("{}") : cgn_buf_view(body));
}

static void refusal_send(struct gw_req *r)
{
	const struct gw_refusal *how = &r->answer.refusal;
	const struct cgn_buf *body = &r->answer.refusal_text;
	struct http_field f[9 + GW_LIMIT_FIELDS];
	char seconds[16];
	size_t n = gw_reply_fields(r, f);
	(void)snprintf(seconds, sizeof seconds, "%u", how->retry_after);
	f[n++] = (struct http_field){CGN_STR("x-cgn-refused-by"),
		cgn_str_of(how->by != NULL ? how->by : GW_BY_ROUTER)};
	if (how->retry_after > 0)
		f[n++] = (struct http_field){CGN_STR("retry-after"), cgn_str_of(seconds)};
	if (r->client.if_available && how->status == 503)
		f[n++] = GW_PREFERENCE_APPLIED;
	if (how->status == 401)
		f[n++] = (struct http_field){CGN_STR("www-authenticate"),
			CGN_STR("Bearer realm=\"cognitora\"")};
	if (how->allow != NULL)
		f[n++] = (struct http_field){CGN_STR("allow"), cgn_str_of(how->allow)};
	if (how->accept_encoding != NULL)
		f[n++] = (struct http_field){CGN_STR("accept-encoding"), cgn_str_of(how->accept_encoding)};
	n += gw_limit_fields(r, f + n);
	refusal_note(r);
	if (r->plan.quoted != NULL && r->plan.quoted->text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-quote"), r->plan.quoted->text};
	if (r->plan.explain_text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-explain"), r->plan.explain_text};
	r->answer.refused = false;
	gw_reply_send(r, how->status, f, n, body->bad ? CGN_STR("{}") : cgn_buf_view(body));
}

enum gw_step gw_answer(struct gw_req *r)
{
	if (r->answer.refused && r->answer.early)
		refusal_tell(r);
	else if (r->answer.refused)
		refusal_send(r);
	if (gw_hold_is_on(r)) {
		gw_goto(r, GW_CHECK);
		return STEP_AGAIN;
	}
	return gw_park(r, WAIT_CLIENT, 0);
}
