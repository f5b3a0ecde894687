/* SPDX-License-Identifier: Apache-2.0 */
/* site: browsers. A page of another site may make a browser send requests here, which count as its user's; where no
 * keys are asked for, such requests are refused. Pages that may ask get the fields of CORS (Fetch, 3.2), without which
 * a browser keeps the answer from them. */
#include "policy/who/identity/identity.h"
#include "router/answer/answer/reply.h"
#include "router/answer/client/client_priv.h"

#define METHODS      "GET, HEAD, POST, PUT, PATCH, DELETE"
#define PREFLIGHT_S  "600"
#define ASKED_FIELDS "access-control-request-headers"

/* The names of the fields that the page wants to send: the browser compares them with the answer. */
static bool preflight_fields(struct gw_req *r, const struct http_head *h, struct http_field *f, size_t *n)
{
	struct cgn_str wants = http_head_get(h, ASKED_FIELDS);
	f[(*n)++] = (struct http_field){CGN_STR("access-control-allow-methods"), CGN_STR(METHODS)};
	f[(*n)++] = (struct http_field){CGN_STR("access-control-max-age"), CGN_STR(PREFLIGHT_S)};
	if (cgn_str_is(http_head_get(h, "access-control-request-private-network"), "true"))
		f[(*n)++] =
			(struct http_field){CGN_STR("access-control-allow-private-network"), CGN_STR("true")};
	if (wants.n == 0)
		return true;
	f[*n] = (struct http_field){CGN_STR("access-control-allow-headers"), cgn_arena_str(&r->arena, wants)};
	return f[(*n)++].value.p != NULL;
}

static bool cors_answer(struct gw_req *r, const struct http_head *h, struct cgn_str origin)
{
	struct http_field f[HTTP_ANSWER_MORE] = {{CGN_STR("access-control-allow-origin"),
							 cgn_arena_str(&r->arena, origin)},
		{CGN_STR("access-control-expose-headers"), CGN_STR("*")},
		{CGN_STR("vary"), CGN_STR("origin")}};
	size_t n = 3;
	if (f[0].value.p == NULL || (r->client.preflight && !preflight_fields(r, h, f, &n)))
		return false;
	http_exchange_more(r->client.x, f, n);
	return true;
}

bool gw_site_take(struct gw_req *r, const struct http_head *h)
{
	const struct gw_rules *rules = r->w->rules;
	const struct site_request q = {.method = h->method,
		.host = h->authority,
		.origin = http_head_get(h, "origin"),
		.fetch_site = http_head_get(h, "sec-fetch-site"),
		.fetch_mode = http_head_get(h, "sec-fetch-mode"),
		.local = identity_is_local(r->client.peer),
		.credential = cgn_str_is(r->client.peer, "unix")};
	if (r->client.from.peer != NULL) /* A peer showed its certificate. */
		return true;
	if (!rules->auth.asks)
		r->client.site = site_judge(&rules->site, &q);
	r->client.preflight = cgn_str_is(h->method, "OPTIONS") && q.origin.n > 0 &&
		http_head_get(h, "access-control-request-method").n > 0;
	if (r->client.site != SITE_FINE || !site_may_read(&rules->site, q.origin))
		return true;
	return cors_answer(r, h, q.origin);
}

static enum gw_step preflight_reply(struct gw_req *r)
{
	static const struct gw_route_row row = {"OPTIONS", "*", GW_VERSION, ROUTE_OPEN, false};
	const struct cgn_buf none = {.n = 0};
	r->client.route = &row;
	return gw_reply_typed(r, 204, "text/plain", &none);
}

enum gw_step gw_site_check(struct gw_req *r)
{
	static const struct gw_refusal how = {403, "permission_error", "another_site", .reason = "site",
		.noted = true};
	if (r->client.site == SITE_OTHER_NAME)
		return gw_refuse(r, &how,
			"the request was sent to a name that is not known as one of this machine (field Host), and no API keys are asked for: use its address or localhost, or add the name to security.allowed_hosts");
	if (r->client.site == SITE_OTHER_PAGE)
		return gw_refuse(r, &how,
			"a page of another site may not send this, as no API keys are asked for (fields Origin and Sec-Fetch-Site): add its origin to security.allowed_origins");
	return r->client.preflight ? preflight_reply(r) : STEP_AGAIN;
}
