/* SPDX-License-Identifier: Apache-2.0 */
/* auth: the states before the plan: find the route, check the key and the head, and receive the body. */
#include "base/crypto/crypto.h"
#include "policy/answer/passing/passing.h"
#include "router/answer/answer/reply.h"
#include "router/answer/client/client_priv.h"
#include "router/answer/client/gateway.h"
#include "router/answer/plan/queue.h"
#include "router/answer/quote/quote.h"
#include "router/answer/selection/selection.h"
#include "router/request/limit/shares.h"
#include "router/request/permit/permit.h"
#include "router/shared/peers/peers.h"

#define BAD_REQUEST "invalid_request_error"
#define ALLOW_MAX   64 /* as many as the methods of a path in routes.def have */

/* HEAD is answered wherever GET is. */
static bool method_matches(struct cgn_str method, const char *of_route)
{
	return cgn_str_is(method, of_route) || (cgn_str_is(method, "HEAD") && strcmp(of_route, "GET") == 0);
}

static bool is_off(const struct gw_req *r, enum gw_route_kind kind)
{
	if (kind == GW_SELECT || kind == GW_SELECTED)
		return r->w->shared->reservations == NULL;
	if (kind == GW_SUMMARY)
		return r->client.from.peer == NULL || r->client.from.peer->summaries == NULL;
	return kind == GW_BATCH && r->w->shared->files == NULL;
}

/* Is the row a route of this router's clients, by the settings? */
static bool is_served(const struct config *cfg, enum gw_route_kind kind)
{
	if (kind == GW_SELECT || kind == GW_SELECTED)
		return cfg->router.selection.enabled;
	return kind == GW_BATCH ? cfg->batch.enabled : kind != GW_SUMMARY;
}

static const struct gw_route_row *row_before(const struct config *cfg, const struct passing_route *extra)
{
	struct cgn_str path = gw_alias_resolve(cgn_str_of(extra->path));
	for (size_t i = 0; i < gw_routes.n; i++)
		if (is_served(cfg, gw_routes.v[i].kind) &&
			strcmp(extra->method, gw_routes.v[i].method) == 0 &&
			passing_pattern_covers(gw_routes.v[i].path, path))
			return &gw_routes.v[i];
	return NULL;
}

cgn_rc gw_extra_routes_check(const struct config *cfg, struct cgn_err *err)
{
	const struct config_list *texts = &cfg->router.extra_routes;
	for (size_t i = 0; i < texts->n; i++) {
		struct passing_route extra;
		CGN_TRY(passing_route_read(texts->v[i], &extra, err));
		const struct gw_route_row *own = row_before(cfg, &extra);
		if (own != NULL)
			return CGN_FAIL(err, INVALID,
				"router.extra_routes: \"%.100s\" would have no effect, because the gateway has the route %s %s itself: remove it",
				texts->v[i], own->method, own->path);
	}
	return CGN_OK;
}

static bool list_has_word(struct cgn_str list, const char *word)
{
	while (list.p != NULL)
		if (cgn_str_is(cgn_str_trim(cgn_str_split(&list, ',')), word))
			return true;
	return false;
}

/* Append the methods of a row of the path to the value of an Allow field. */
static void allow_add(char allow[ALLOW_MAX], const char *method)
{
	size_t n = strlen(allow);
	if (list_has_word(cgn_str_of(allow), method))
		return;
	(void)snprintf(allow + n, ALLOW_MAX - n, "%s%s%s", n > 0 ? ", " : "", method,
		strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

/* Clients that would rather have a WebSocket fall back to HTTP at once on 426. */
static enum gw_step websocket_refuse(struct gw_req *r, struct cgn_str path, const char *allow)
{
	return gw_refuse(r, &(struct gw_refusal){426, BAD_REQUEST, "websocket_not_supported"},
		"there is no WebSocket at %.*s: send HTTP requests, with the method %s",
		(int)(path.n < 200 ? path.n : 200), path.p, allow);
}

static enum gw_step method_refuse(struct gw_req *r, struct cgn_str path, const char *allow)
{
	const char *kept = cgn_arena_fmt(&r->arena, "%s", allow);
	if (kept == NULL)
		return gw_refuse_no_memory(r, "memory");
	if (r->client.wants_websocket && cgn_str_is(r->client.method, "GET"))
		return websocket_refuse(r, path, kept);
	return gw_refuse(r, &(struct gw_refusal){405, BAD_REQUEST, "method_not_allowed", .allow = kept},
		"%.*s is not allowed here: use %s", CGN_STR_ARG(r->client.method), kept);
}

static unsigned scope_bits(enum passing_scope scope)
{
	return scope == PASSING_ADMIN ? AUTH_ADMIN : scope == PASSING_EMBED ? AUTH_EMBED : AUTH_CHAT;
}

/* The rules may be replaced while the request lives. */
static const struct gw_route_row *row_make(struct gw_req *r, const struct passing_route *extra)
{
	struct gw_route_row *row = cgn_arena_get(&r->arena, sizeof *row);
	const char *path = cgn_arena_fmt(&r->arena, "%s", extra->path);
	bool bodyless = strcmp(extra->method, "GET") == 0 || strcmp(extra->method, "DELETE") == 0;
	if (row == NULL || path == NULL)
		return NULL;
	*row = (struct gw_route_row){extra->method, path, bodyless ? GW_ABOUT : GW_NATIVE,
		scope_bits(extra->scope), .once = !bodyless};
	return row;
}

/* Find the route in router.extra_routes. */
static const struct passing_route *extra_find(const struct gw_req *r, struct cgn_str path,
	char allow[ALLOW_MAX])
{
	const struct gw_rules *rules = r->w->rules;
	for (size_t i = 0; i < rules->pass.n_routes; i++) {
		if (!passing_path_matches(path, rules->pass.routes[i].path))
			continue;
		if (method_matches(r->client.method, rules->pass.routes[i].method))
			return &rules->pass.routes[i];
		allow_add(allow, rules->pass.routes[i].method);
	}
	return NULL;
}

/* The names of models may have slashes, which clients code; the router answers these requests itself. */
static bool slash_is_fine(const struct gw_req *r, struct cgn_str path)
{
	return method_matches(r->client.method, "GET") && cgn_str_starts(path, "/v1/models/");
}

/* Refuse a path that an engine, or a proxy before it, may take for another one than the router does. */
static enum gw_step path_check(struct gw_req *r)
{
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	char *room = cgn_arena_get(&r->arena, path.n + 1);
	if (room == NULL)
		return gw_refuse_no_memory(r, "memory");
	const char *why = passing_path_trick(path, slash_is_fine(r, path), room);
	if (why == NULL)
		return STEP_AGAIN;
	return gw_refuse(r, &(struct gw_refusal){400, BAD_REQUEST, "invalid_path", .reason = "invalid"},
		"the path of the request has %s, also where it is percent-coded: write the path without it",
		why);
}

static enum gw_step route_find(struct gw_req *r)
{
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	char allow[ALLOW_MAX] = "";
	for (size_t i = 0; i < gw_routes.n; i++) {
		if (is_off(r, gw_routes.v[i].kind) || !passing_path_matches(path, gw_routes.v[i].path))
			continue;
		if (method_matches(r->client.method, gw_routes.v[i].method)) {
			r->client.route = &gw_routes.v[i];
			return STEP_AGAIN;
		}
		allow_add(allow, gw_routes.v[i].method);
	}
	const struct passing_route *extra = extra_find(r, path, allow);
	if (extra != NULL) {
		r->client.route = row_make(r, extra);
		return r->client.route != NULL ? STEP_AGAIN : gw_refuse_no_memory(r, "memory");
	}
	if (allow[0] != '\0')
		return method_refuse(r, path, allow);
	return gw_refuse(r, &(struct gw_refusal){404, BAD_REQUEST, "not_found"},
		"there is no route %.*s %.*s", CGN_STR_ARG(r->client.method),
		(int)(path.n < 200 ? path.n : 200), path.p);
}

static void secret_wipe(struct cgn_str *secret)
{
	/* the arena belongs to the request, so writing is fine */
	if (secret->n > 0)
		crypto_wipe((void *)(uintptr_t)secret->p, secret->n);
	*secret = (struct cgn_str){NULL, 0};
}

static enum gw_step pin_check(struct gw_req *r)
{
	if (r->client.pin.n > 0 && (r->identity.scopes & AUTH_ADMIN) == 0)
		return gw_refuse(r,
			&(struct gw_refusal){403, "permission_error", "insufficient_scope", .reason = "auth",
				.by = GW_BY_KEY},
			"X-Cgn-Node needs a key with the scope admin");
	return STEP_AGAIN;
}

static enum gw_step retry_check(struct gw_req *r)
{
	struct cgn_str asked = r->client.retry_asked;
	r->client.retry_off = cgn_str_is(asked, "off");
	r->client.once = r->client.route->once || r->client.retry_off || cgn_str_is(asked, "unbegun");
	if (asked.n == 0 || r->client.once)
		return STEP_AGAIN;
	return gw_refuse(r,
		&(struct gw_refusal){400, BAD_REQUEST, "invalid_header", .param = "X-Cgn-Retry",
			.reason = "invalid"},
		"X-Cgn-Retry is off (the request is sent to one engine at most) or unbegun (to another one only if the first did not begin), not \"%.*s\"",
		(int)(asked.n < 40 ? asked.n : 40), asked.p);
}

static enum gw_step body_check(struct gw_req *r)
{
	if (r->body.coding == CODING_OTHER)
		return gw_refuse(r,
			&(struct gw_refusal){415, BAD_REQUEST, "unsupported_encoding",
				.accept_encoding = CODING_ACCEPTED},
			"the body has a Content-Encoding that is not known here, or several of them: send it plain, or with one of " CODING_ACCEPTED);
	if (r->client.route->kind == GW_BATCH)
		return STEP_AGAIN; /* files/ has a bound of its own. */
	if (r->body.length > 0 && (uint64_t)r->body.length > r->w->rules->max_body)
		return gw_refuse_body(r, CGN_TOO_LARGE);
	return STEP_AGAIN;
}

enum gw_step gw_auth(struct gw_req *r)
{
	static enum gw_step (*const checks[])(struct gw_req *) = {gw_permit_peer, gw_site_check, path_check,
		route_find, gw_quote_route, gw_select_route, gw_permit_key, pin_check, retry_check,
		gw_queue_check, body_check};
	if (r->body.bad != CGN_FINE)
		return gw_refuse(r, &(struct gw_refusal){431, BAD_REQUEST, "headers_too_large"},
			"the request's head is too large");
	for (size_t i = 0; i < CGN_COUNT(checks) && r->state == GW_AUTH; i++)
		if (checks[i](r) == STEP_PARK) /* a check that refuses goes on to GW_ANSWER */
			return STEP_PARK;
	secret_wipe(&r->identity.authorization);
	secret_wipe(&r->identity.api_key);
	if (r->state == GW_AUTH)
		(void)gw_head_bind(r);
	if (r->state != GW_AUTH)
		return STEP_AGAIN;
	if (r->client.route->kind == GW_BATCH) {
		gw_goto(r, GW_FILES);
		return STEP_AGAIN;
	}
	if (r->client.route->kind == GW_SELECTED) {
		enum gw_step next = gw_select_local(r);
		gw_queue_room(r->w);
		return next;
	}
	if (!gw_route_has_body(r->client.route->kind))
		return gw_reply_local(r);
	gw_goto(r, GW_BODY);
	return STEP_AGAIN;
}

enum gw_step gw_body(struct gw_req *r)
{
	const struct gw_quota_taker who = gw_share_taker(r, QUOTA_BODIES, 0);
	if (r->body.bad == CGN_OVERLOADED && r->body.told.share)
		return gw_share_refuse(r, &who.holder, &r->body.told, 1);
	if (r->body.bad != CGN_FINE)
		return gw_refuse_body(r, r->body.bad);
	if (!r->body.done)
		return gw_park(r, WAIT_BODY, 0); /* the listener has a timeout for the body */
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}
