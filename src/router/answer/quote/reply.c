/* SPDX-License-Identifier: Apache-2.0 */
/* reply: the route /v1/quote, and a quote as JSON. */
#include <stdlib.h>

#include "quote_priv.h"
#include "router/answer/answer/reply.h"

/* ---- the route ---- */

enum gw_step gw_quote_route(struct gw_req *r)
{
	if (r->state != GW_AUTH || r->client.route->kind != GW_QUOTE)
		return STEP_AGAIN;
	const struct gw_route_row *row = gw_route_meant(r->client.path, "/v1/chat/completions");
	if (row == NULL)
		return gw_refuse(r,
			&(struct gw_refusal){400, "invalid_request_error", "invalid_parameter",
				.param = "for", .reason = "invalid"},
			"for is the path of a request that engines answer with tokens, such as /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages or /v1/embeddings, not %.*s",
			CGN_STR_ARG(http_query_get(r->client.path, "for")));
	r->client.quotes = true;
	r->client.route = row;
	r->client.target = cgn_str_of(row->path);
	return STEP_AGAIN;
}

/* ---- JSON ---- */

static const char *const states[] = {[GW_QUOTE_READY] = "ready",
	[GW_QUOTE_QUEUED] = "queued",
	[GW_QUOTE_FULL] = "full",
	[GW_QUOTE_NO_NODE] = "no_node"};

/* Four digits: no interval is more exact. */
static void number_put(struct json_out *j, const char *key, double v)
{
	char text[32];
	(void)snprintf(text, sizeof text, "%.4g", v);
	json_key_f64(j, key, strtod(text, NULL));
}

static void range_put(struct json_out *j, const struct quote_range *v, double scale)
{
	number_put(j, "low", v->low * scale);
	number_put(j, "expected", v->expected * scale);
	number_put(j, "high", v->high * scale);
}

static void figure_put(struct json_out *j, const struct gw_quoted *q, enum quote_figure f)
{
	if (q->state == GW_QUOTE_NO_NODE || !q->quote.known[f]) {
		json_key(j, quote_figure_member(f));
		json_put_null(j);
		return;
	}
	json_key_open(j, quote_figure_member(f), '{');
	range_put(j, &q->quote.v[f], quote_figure_scale(f));
	json_key_u64(j, "samples", q->quote.samples[f]);
	json_close(j, '}');
}

static void tokens_put(struct json_out *j, const struct gw_req *r, const struct gw_quoted *q)
{
	json_key_u64(j, "prompt_tokens", r->prompt.tokens > 0 ? r->prompt.tokens : r->plan.prompt_tokens);
	json_key_u64(j, "cached_tokens", q->cached);
	json_key_open(j, "completion_tokens", '{');
	range_put(j, &q->quote.answer, 1);
	json_close(j, '}');
}

void gw_quote_json(const struct gw_req *r, struct json_out *j)
{
	const struct gw_quoted *q = r->plan.quoted;
	json_open(j, '{');
	json_key_z(j, "object", "quote");
	json_key_str(j, "model", r->prompt.model);
	json_key_z(j, "state", states[q->state]);
	if (q->node != NULL)
		json_key_z(j, "node", q->node);
	if (q->state == GW_QUOTE_QUEUED || q->state == GW_QUOTE_FULL)
		json_key_u64(j, "queue_position", q->waiting + UINT64_C(1));
	json_key_f64(j, "coverage", q->coverage);
	for (unsigned f = 0; f < QUOTE_FIGURES; f++)
		figure_put(j, q, (enum quote_figure)f);
	if (q->quote.known[QUOTE_COST])
		json_key_z(j, "currency", r->w->rules->price.currency);
	if (q->state != GW_QUOTE_NO_NODE)
		tokens_put(j, r, q);
	json_close(j, '}');
}

enum gw_step gw_quote_reply(struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, bool waits)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	if (!gw_quotes_are_made(r))
		return gw_refuse(r, &(struct gw_refusal){501, "not_supported_error", "not_supported"},
			"this router makes no quotes (router.quote.enabled = false)");
	gw_quote_note(r, ask, p, waits);
	if (r->plan.quoted == NULL)
		return gw_refuse_no_memory(r, "memory");
	gw_quote_json(r, &j);
	return gw_reply_json(r, 200, &b);
}
