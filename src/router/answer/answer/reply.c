/* SPDX-License-Identifier: Apache-2.0 */
/* reply: sends an answer that the router has whole. */
#include "router/answer/answer/reply_priv.h"

void gw_reply_send(struct gw_req *r, int status, const struct http_field *fields, size_t n,
	struct cgn_str body)
{
	r->answer.status = status;
	r->answer.head_sent = true;
	r->answer.bytes_out = body.n;
	r->answer.first_byte = r->answer.last_byte = cgn_loop_now(r->w->loop);
	http_exchange_reply(r->client.x, status, fields, n, body);
	gw_body_drop(r);
}

size_t gw_reply_fields(const struct gw_req *r, struct http_field *f)
{
	f[0] = (struct http_field){CGN_STR("content-type"), CGN_STR("application/json")};
	f[1] = (struct http_field){CGN_STR("x-request-id"), r->client.id};
	return r->client.id.n > 0 ? 2 : 1;
}

enum gw_step gw_reply_typed(struct gw_req *r, int status, const char *type, const struct cgn_buf *b)
{
	struct http_field f[2];
	size_t n = gw_reply_fields(r, f);
	f[0].value = cgn_str_of(type);
	r->answer.outcome = "ok";
	if (b->bad)
		return gw_refuse_no_memory(r, NULL);
	gw_goto(r, GW_ANSWER);
	gw_reply_send(r, status, f, n, cgn_buf_view(b));
	return STEP_AGAIN;
}

enum gw_step gw_reply_json(struct gw_req *r, int status, const struct cgn_buf *b)
{
	return gw_reply_typed(r, status, "application/json", b);
}
