/* SPDX-License-Identifier: Apache-2.0 */
/* answer: what the gateway says by itself: errors in OpenAI's shape, the list of models, health. */
#include <stdarg.h>

#include "base/codec/codec.h"
#include "base/json/json.h"
#include "router/request/gateway.h"

void gw_error_json(struct cgn_buf *out, const struct gw_refusal *how, const char *message)
{
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key(&j, "error");
	json_open(&j, '{');
	json_key_z(&j, "message", message);
	json_key_z(&j, "type", how->type);
	json_key(&j, "param");
	if (how->param != NULL)
		json_put_z(&j, how->param);
	else
		json_put_null(&j);
	json_key_z(&j, "code", how->code);
	json_close(&j, '}');
	json_close(&j, '}');
}

static enum gw_step reply(struct gw_req *r, int status, const struct http_field *fields, size_t n,
	struct cgn_str body)
{
	r->status = status;
	r->head_sent = true;
	r->bytes_out = body.n;
	r->first_byte = r->last_byte = cgn_loop_now(r->w->loop);
	gw_goto(r, GW_ANSWER);
	http_exchange_reply(r->x, status, fields, n, body);
	gw_body_drop(r);
	return STEP_AGAIN;
}

static size_t common_fields(const struct gw_req *r, struct http_field *f)
{
	f[0] = (struct http_field){CGN_STR("content-type"), CGN_STR("application/json")};
	f[1] = (struct http_field){CGN_STR("x-request-id"), r->id};
	return r->id.n > 0 ? 2 : 1;
}

enum gw_step gw_refuse(struct gw_req *r, const struct gw_refusal *how, const char *fmt, ...)
{
	char message[600], seconds[16];
	struct http_field f[6 + GW_LIMIT_FIELDS];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	if (r->head_sent) { /* the client has half an answer: nobody goes on with it */
		struct cgn_err why = {.code = CGN_UNAVAILABLE};
		(void)cgn_str_copyz(why.msg, sizeof why.msg, cgn_str_of(message));
		gw_resume_failed(r, how->code);
		return gw_cut(r, &why);
	}
	gw_error_json(&b, how, message);
	size_t n = common_fields(r, f);
	(void)snprintf(seconds, sizeof seconds, "%u", how->retry_after);
	if (how->retry_after > 0)
		f[n++] = (struct http_field){CGN_STR("retry-after"), cgn_str_of(seconds)};
	if (how->status == 401)
		f[n++] = (struct http_field){CGN_STR("www-authenticate"),
			CGN_STR("Bearer realm=\"cognitora\"")};
	if (how->allow != NULL)
		f[n++] = (struct http_field){CGN_STR("allow"), cgn_str_of(how->allow)};
	n += gw_limit_fields(r, f + n);
	if (r->explain_text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-explain"), r->explain_text};
	if (how->reason != NULL)
		gw_count_rejected(r, how->reason);
	r->outcome = how->code;
	return reply(r, how->status, f, n, b.bad ? CGN_STR("{}") : cgn_buf_view(&b));
}

static enum gw_step reply_json(struct gw_req *r, int status, const struct cgn_buf *b)
{
	struct http_field f[2];
	size_t n = common_fields(r, f);
	r->outcome = "ok";
	if (b->bad)
		return gw_refuse(r, &(struct gw_refusal){503, "server_error", "no_memory", .retry_after = 1},
			"out of memory");
	return reply(r, status, f, n, cgn_buf_view(b));
}

static void model_json(const struct gw_req *r, struct json_out *j, struct cgn_str id)
{
	json_open(j, '{');
	json_key_str(j, "id", id);
	json_key_z(j, "object", "model");
	json_key_u64(j, "created", r->w->shared->started_unix);
	json_key_z(j, "owned_by", "cognitora");
	json_close(j, '}');
}

static bool is_served(const struct gw_req *r, struct cgn_str name)
{
	const struct view_model *m = view_model_find(r->w->view, name);
	return m != NULL && m->n_ready > 0;
}

/* Names that a request may use now: models with a ready node, and aliases of such. */
static enum gw_step list_models(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	json_open(&j, '{');
	json_key_z(&j, "object", "list");
	json_key(&j, "data");
	json_open(&j, '[');
	for (size_t i = 0; i < r->w->view->n_models; i++)
		if (r->w->view->models[i].n_ready > 0)
			model_json(r, &j, r->w->view->models[i].name);
	for (size_t i = 0; i < r->w->rules->n_models; i++) {
		const struct gw_model *m = &r->w->rules->models[i];
		for (size_t a = 0; is_served(r, m->name) && a < m->n_aliases; a++)
			if (!is_served(r, m->aliases[a]))
				model_json(r, &j, m->aliases[a]);
	}
	json_close(&j, ']');
	json_close(&j, '}');
	return reply_json(r, 200, &b);
}

static struct cgn_str unescape(struct gw_req *r, struct cgn_str s)
{
	char *to = cgn_arena_get(&r->arena, s.n + 1);
	return to != NULL ? (struct cgn_str){to, percent_get(to, s)} : (struct cgn_str){NULL, 0};
}

static enum gw_step one_model(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	struct cgn_str rest = r->path, path = cgn_str_split(&rest, '?');
	size_t lead = strlen("/v1/models/");
	struct cgn_str id = unescape(r, (struct cgn_str){path.p + lead, path.n - lead});
	const struct gw_model *row = gw_rules_model(r->w->rules, id);
	if (id.p == NULL || !(is_served(r, id) || (row != NULL && is_served(r, row->name))))
		return gw_refuse(r,
			&(struct gw_refusal){404, "invalid_request_error", "model_not_found",
				.param = "model"},
			"the model `%.*s` does not exist here", (int)(id.n < 200 ? id.n : 200), id.p);
	model_json(r, &j, id);
	return reply_json(r, 200, &b);
}

static enum gw_step ready(struct gw_req *r)
{
	bool draining = atomic_load_explicit(&r->w->shared->draining, memory_order_relaxed), any = false;
	for (size_t i = 0; i < r->w->view->n_models && !any; i++)
		any = r->w->view->models[i].n_ready > 0;
	if (draining || !any)
		return gw_refuse(r, &(struct gw_refusal){503, "server_error", "not_ready", .retry_after = 1},
			"%s", draining ? "the router is draining" : "no node is ready");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"status\":\"ready\"}");
	return reply_json(r, 200, &b);
}

static enum gw_step text(struct gw_req *r, const char *json)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_putz(&b, json);
	return reply_json(r, 200, &b);
}

enum gw_step gw_local(struct gw_req *r)
{
	switch (r->route->kind) {
	case GW_MODELS:
		return list_models(r);
	case GW_MODEL:
		return one_model(r);
	case GW_READYZ:
		return ready(r);
	case GW_HEALTHZ:
		return text(r, "{\"status\":\"ok\"}");
	case GW_VERSION:
		return text(r, "{\"version\":\"" CGN_VERSION "\"}");
	case GW_RELAY:
		break;
	}
	CGN_MUST(r->route->kind != GW_RELAY);
	return STEP_END;
}
