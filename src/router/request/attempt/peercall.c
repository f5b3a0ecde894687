/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/attempt/peercall.h"

#include "base/weburl/weburl.h"
#include "joint/web/webclient/webclient.h"
#include "router/request/attempt/direct.h"
#include "router/shared/peers/peers.h"

#define ANTHROPIC_VERSION "2023-06-01"

/* ---- the answer ---- */

static void on_head(struct http_call *call, void *user, const struct http_head *h)
{
	(void)call;
	gw_direct_head(user, h);
}

static bool peer_ask(struct gw_attempt *a, struct cgn_err *err);

static void on_fail(struct http_call *call, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	(void)call;
	struct gw_attempt *a = user;
	struct cgn_err said;
	a->call.http = NULL;
	/* The peer had closed the kept connection: nothing of the request was read. */
	if (a->call.lends && !a->head_seen && stage == HTTP_FAIL_STALE && !a->direct.retried) {
		a->direct.retried = true;
		if (peer_ask(a, &said))
			return;
	}
	enginecall_failed(a->call.node_id, stage, why, &said);
	gw_direct_over(a, &said);
}

static const struct http_call_ops peer_ops = {.on_head = on_head,
	.on_body = gw_direct_body,
	.on_end = gw_direct_done,
	.on_fail = on_fail};

/* ---- the request ---- */

static struct http_client *client_of(struct gw_worker *w, const struct gw_peer *p, struct cgn_err *err)
{
	struct weburl url;
	struct http_client **at = &w->peers[p->slot - ROUTE_MAX_NODES];
	const struct webclient_cfg cfg = {.url = p->url,
		.tls = p->tls,
		.max_conns = p->max_concurrent,
		.connect_timeout = gw_peer_is_cluster(p) && p->first_byte_timeout > CGN_SEC
			? CGN_SEC
			: p->first_byte_timeout,
		.idle_timeout = ENGINECALL_IDLE};
	if (*at == NULL && !cgn_ok(webclient_open(w->loop, &cfg, &url, at, err)))
		*at = NULL;
	return *at;
}

static bool is_shown(struct cgn_str name)
{
	static const char *const names[] = {"content-type", "accept", "openai-beta", "anthropic-version",
		"anthropic-beta"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(names[i])))
			return true;
	return false;
}

#define PEER_FIELDS (PROTO_MAX_HEADERS + 3)
static size_t fields_fill(const struct gw_peer *p, const struct proto_generate *g,
	struct http_field out[PEER_FIELDS])
{
	bool versioned = false, messages = cgn_str_starts(g->path, "/v1/messages");
	size_t n = 0;
	for (size_t i = 0; i < g->n_headers && n < PROTO_MAX_HEADERS; i++) {
		if (!gw_peer_is_cluster(p) && !is_shown(g->headers[i].name))
			continue;
		versioned = versioned || cgn_str_eq_nocase(g->headers[i].name, CGN_STR("anthropic-version"));
		out[n++] = (struct http_field){g->headers[i].name, g->headers[i].value};
	}
	if (messages && !versioned && !gw_peer_is_cluster(p))
		out[n++] = (struct http_field){CGN_STR("anthropic-version"), CGN_STR(ANTHROPIC_VERSION)};
	if (p->key != NULL && messages)
		out[n++] = (struct http_field){CGN_STR("x-api-key"), cgn_str_of(p->key)};
	else if (p->key != NULL)
		out[n++] = (struct http_field){CGN_STR("authorization"), cgn_str_of(p->bearer)};
	return n;
}

/* Start the call. False: |err| says why there is none. */
static bool peer_ask(struct gw_attempt *a, struct cgn_err *err)
{
	const struct proto_generate *g = a->direct.sent;
	struct http_client *client = client_of(a->w, a->peer, err);
	struct http_field fields[PEER_FIELDS];
	struct cgn_str body[PROTO_BODY_PIECES];
	struct iovec iov[PROTO_BODY_PIECES];
	struct weburl url;
	char method[16];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 65536};
	if (client == NULL || !cgn_ok(weburl_parse(a->peer->url, &url, err)))
		return false;
	weburl_path(&url, g->path, &path);
	size_t n = proto_generate_body(g, body);
	for (size_t i = 0; i < n; i++)
		iov[i] = (struct iovec){(void *)(uintptr_t)body[i].p, body[i].n};
	*err = (struct cgn_err){.code = CGN_NO_MEMORY, .msg = "no memory for a call to a peer"};
	const struct http_request rq = {.method = method,
		.path = cgn_buf_z(&path),
		.fields = fields,
		.n_fields = fields_fill(a->peer, g, fields),
		.body_len = (int64_t)cgn_iov_bytes(iov, n)};
	if (path.bad || !cgn_str_copyz(method, sizeof method, g->method) ||
		!cgn_ok(http_call_start(client, &rq, &peer_ops, a, &a->call.http, err))) {
		a->call.http = NULL;
		return false;
	}
	http_call_lend(a->call.http, iov, n);
	http_call_end(a->call.http);
	return true;
}

void gw_peercall_start(struct gw_attempt *a, const struct gw_attempt_cfg *cfg, struct gw_peer *peer,
	struct gw_peer_model *m, const struct proto_generate *g)
{
	struct proto_generate *sent = cgn_arena_get(cfg->arena, sizeof *sent);
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for a call to a peer"};
	gw_attempt_begin(a, cfg);
	a->call.slot = peer->slot;
	a->call.node_id = peer->node;
	a->peer = peer;
	a->peer_model = m;
	a->leaves = true;
	gw_direct_gather(a);
	atomic_fetch_add_explicit(&peer->open, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&m->open, 1, memory_order_relaxed);
	a->direct.sent = sent;
	if (sent != NULL && g != NULL)
		*sent = *g;
	if (sent != NULL && g != NULL && cgn_ok(enginecall_check(g, &err)) && peer_ask(a, &err))
		return;
	gw_call_on_close(&a->call, &err);
}

void gw_peercall_end(struct gw_attempt *a)
{
	if (!a->leaves)
		return;
	struct cgn_buf b = enginecall_gather_take(&a->direct.gather);
	cgn_buf_fini(&b);
	a->leaves = false;
	atomic_fetch_sub_explicit(&a->peer->open, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&a->peer_model->open, 1, memory_order_relaxed);
}
