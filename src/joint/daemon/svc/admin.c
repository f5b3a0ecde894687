/* SPDX-License-Identifier: Apache-2.0 */
/* svc: the admin port. A request is read completely, then answered by a route of the program or by the
 * frame. */
#include <stdlib.h>

#include "base/apierror/apierror.h"
#include "base/json/json.h"
#include "base/pb/pb_json.h"
#include "io/wire/http/server.h"
#include "joint/daemon/svc/svc_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define ADMIN_TAG       0xad314001U
#define ADMIN_REQ_TAG   0xad314e90U
#define ADMIN_MAX_HEAD  ((size_t)128 << 10) /* http has a smaller limit. */
#define ADMIN_MAX_CONNS 256
#define ADMIN_FIELDS    16 /* Most fields of an answer's head. */

struct svc_admin {
	uint32_t tag;
	struct cgn_loop *loop;
	struct svc_admin_cfg cfg;
	char addr[256]; /* Address of the port. */
	struct http_server *server;
};

struct svc_admin_call {
	uint32_t tag;
	struct svc_admin *admin;
	struct cgn_arena arena; /* Memory of the copied head. */
	struct http_head head;
	struct cgn_buf body;
	bool answered;
	struct login_caller caller;
	struct http_exchange *x; /* NULL once the exchange is closed. */
	bool later;              /* svc_admin_done makes the answer, or svc_admin_stream begins it. */
	void (*drained)(void *user);
	void (*gone)(void *user); /* For |later|; NULL: answered. */
	void *user;
};

static void reply_send(struct http_exchange *x, struct svc_admin_reply *r)
{
	if (r->body.bad) { /* Never show a part of a page that could not be built. */
		cgn_buf_fini(&r->body);
		svc_admin_error(r, 500, "no_memory", "no memory for the answer");
	}
	struct http_field fields[ADMIN_FIELDS] = {
		{CGN_STR("content-type"), cgn_str_of(r->content_type)},
		{CGN_STR("cache-control"), CGN_STR("no-store")},
		{CGN_STR("x-content-type-options"), CGN_STR("nosniff")},
		{CGN_STR("x-frame-options"), CGN_STR("DENY")},
	};
	size_t n = 4;
	char retry[16];
	if (r->retry_s > 0) {
		(void)snprintf(retry, sizeof retry, "%u", r->retry_s);
		fields[n++] = (struct http_field){CGN_STR("retry-after"), cgn_str_of(retry)};
	}
	if (r->allow != NULL)
		fields[n++] = (struct http_field){CGN_STR("allow"), cgn_str_of(r->allow)};
	CGN_MUST(n + r->n_fields <= CGN_COUNT(fields));
	for (size_t i = 0; i < r->n_fields; i++)
		fields[n++] = r->fields[i];
	http_exchange_reply(x, r->status, fields, n, cgn_buf_view(&r->body));
	cgn_buf_fini(&r->body);
}

/* Return error.code of an answer, or nothing. */
static struct cgn_str error_code(struct cgn_str body, struct cgn_arena *a)
{
	struct json_val answer, error;
	if (!cgn_ok(json_parse(body, &answer, NULL, NULL)) || !json_get(answer, "error", &error))
		return (struct cgn_str){0};
	return json_get_str(error, "code", a);
}

/* Note a request that changes something, and one that was refused. */
static void request_note(struct svc_admin_call *q, int status, struct cgn_str body)
{
	bool reads = cgn_str_is(q->head.method, "GET") || cgn_str_is(q->head.method, "HEAD");
	bool refused = status == 401 || status == 403;
	char object[512];
	struct cgn_str rest = q->head.path, path = cgn_str_split(&rest, '?');
	if (reads && !refused)
		return;
	(void)snprintf(object, sizeof object, "%.*s %.*s", CGN_STR_ARG(q->head.method), CGN_STR_ARG(path));
	audit_note(q->admin->cfg.audit,
		&(struct audit_event){.action = "admin.request",
			.decision = refused     ? AUDIT_REFUSED
				: status >= 400 ? AUDIT_FAILED
						: AUDIT_ALLOWED,
			.kind = cgn_str_of(identity_kind_text(q->caller.who.kind)),
			.name = q->caller.who.name,
			.tenant = q->caller.who.tenant,
			.from = http_exchange_peer(q->x),
			.object = cgn_str_of(object),
			.why = status >= 400 ? error_code(body, &q->arena) : (struct cgn_str){0}});
}

struct svc_admin_reply svc_admin_reply_new(void)
{
	return (struct svc_admin_reply){.status = 200, .content_type = "application/json"};
}

void svc_admin_error(struct svc_admin_reply *r, int status, const char *code, const char *message)
{
	r->status = status;
	r->content_type = "application/json";
	r->body.n = 0;
	apierror_put(&r->body,
		&(struct apierror){.message = message, .type = apierror_type(status), .code = code});
}

/* ---- routes of every program ---- */

static void answer_metrics(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r)
{
	r->content_type = "text/plain; version=0.0.4; charset=utf-8";
	telemetry_text(cfg->telemetry, &r->body);
}

static void answer_health(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r)
{
	(void)cfg;
	cgn_buf_putz(&r->body, "{\"status\":\"ok\"}");
}

static void answer_ready(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf why = {.limit = 4096};
	bool ready = cfg->ready(cfg->svc, &why);
	r->status = ready ? 200 : 503;
	struct json_out o = json_out_to(&r->body);
	json_open(&o, '{');
	json_key_bool(&o, "ready", ready);
	if (why.n > 0) {
		json_key_str(&o, "why", cgn_buf_view(&why));
	}
	json_close(&o, '}');
}

static void answer_config(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r)
{
	const struct config *boot, *loaded;
	cfg->configs(cfg->svc, &boot, &loaded);
	r->content_type = "application/toml";
	config_print_running(boot, loaded, &r->body);
}

static void answer_config_json(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r)
{
	const struct config *boot, *loaded;
	cfg->configs(cfg->svc, &boot, &loaded);
	config_json_running(boot, loaded, &r->body);
}

static void answer_version(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r)
{
	struct json_out o = json_out_to(&r->body);
	json_open(&o, '{');
	json_key_z(&o, "program", cfg->program->name);
	json_key_z(&o, "version", CGN_VERSION);
	json_close(&o, '}');
}

static void answer_index(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r);

static const struct {
	const char *path;
	void (*answer)(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r);
	enum identity_action action;
	bool open; /* Everybody may ask: load balancers and probes have no key. */
} own[] = {
	{"/", answer_index, ACTION_STATUS_READ, false},
	{"/metrics", answer_metrics, ACTION_METRICS_READ, false},
	{"/healthz", answer_health, ACTION_STATUS_READ, true},
	{"/readyz", answer_ready, ACTION_STATUS_READ, true},
	{"/config", answer_config, ACTION_CONFIG_READ, false},
	{"/config.json", answer_config_json, ACTION_CONFIG_READ, false},
	{"/version", answer_version, ACTION_STATUS_READ, true},
};

/* Name the program that answers here, and list the paths with their methods. */
static void answer_index(const struct svc_admin_cfg *cfg, struct svc_admin_reply *r)
{
	struct json_out o = json_out_to(&r->body);
	json_open(&o, '{');
	json_key_z(&o, "program", cfg->program->name);
	json_key_z(&o, "version", CGN_VERSION);
	json_key_z(&o, "what", "admin port");
	json_key_open(&o, "paths", '{');
	for (size_t i = 0; i < CGN_COUNT(own); i++)
		json_key_z(&o, own[i].path, "GET");
	svc_signin_paths(cfg, &o);
	for (size_t i = 0; i < cfg->program->n_routes; i++)
		json_key_z(&o, cfg->program->routes[i].path, cfg->program->routes[i].method);
	json_close(&o, '}');
	json_close(&o, '}');
}

static const char *allow_of(const char *method)
{
	return strcmp(method, "GET") == 0 ? "GET, HEAD" : method;
}

/* A '*' at the end stands for any rest, one before stands for one segment. */
static bool path_fits(struct cgn_str path, const char *pattern)
{
	const char *star = strchr(pattern, '*');
	if (star == NULL)
		return cgn_str_is(path, pattern);
	size_t lead = (size_t)(star - pattern), tail = strlen(star + 1);
	if (path.n < lead + tail || memcmp(path.p, pattern, lead) != 0 ||
		memcmp(path.p + path.n - tail, star + 1, tail) != 0)
		return false;
	return tail == 0 || memchr(path.p + lead, '/', path.n - lead - tail) == NULL;
}

/* Set the action that the request needs; false: none. A path that does not exist needs one too, so that strangers do not
 * learn which do. */
static bool action_find(const struct svc_admin_cfg *cfg, const struct http_head *h, enum identity_action *out)
{
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?');
	bool get = cgn_str_is(h->method, "GET") || cgn_str_is(h->method, "HEAD");
	*out = get ? ACTION_STATUS_READ : ACTION_ADMIN_CHANGE;
	for (size_t i = 0; i < cfg->program->n_routes; i++) {
		const struct svc_admin_route *route = &cfg->program->routes[i];
		if (path_fits(path, route->path) &&
			(cgn_str_is(h->method, route->method) ||
				(get && strcmp(route->method, "GET") == 0))) {
			*out = route->action;
			return true;
		}
	}
	for (size_t i = 0; i < CGN_COUNT(own); i++)
		if (cgn_str_is(path, own[i].path)) {
			*out = own[i].action;
			return !own[i].open;
		}
	return !svc_signin_path(path);
}

void svc_admin_message(struct svc_admin_reply *r, const struct pb_tree *t, const void *message,
	const char *select)
{
	struct json_out o = json_out_to(&r->body);
	if (t->bad)
		svc_admin_error(r, 503, "no_memory", "no memory for the document");
	else if (select != NULL)
		pb_json_select(&o, message, select);
	else
		pb_json_put(&o, message, PB_JSON_PLAIN);
}

static void document_answer(const struct svc_admin_route *route, void *state, struct cgn_str query,
	struct svc_admin_reply *r)
{
	if (query.n > 0) {
		svc_admin_error(r, 400, "bad_query", "this path takes no parameters");
		return;
	}
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	pb_tree_init(&t, SVC_DOCUMENT_LIMIT);
	void *message = pb_tree_new(&t, route->type);
	if (route->fill(state, &t, message, r))
		svc_admin_message(r, &t, message, route->select);
}

void svc_admin_answer(const struct svc_admin_cfg *cfg, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?');
	const char *allow = NULL; /* no path has routes of two methods */
	bool get = cgn_str_is(h->method, "GET") || cgn_str_is(h->method, "HEAD");
	for (size_t i = 0; i < cfg->program->n_routes; i++) {
		const struct svc_admin_route *route = &cfg->program->routes[i];
		if (!path_fits(path, route->path))
			continue;
		allow = allow_of(route->method);
		if (!cgn_str_is(h->method, route->method) && !(get && strcmp(route->method, "GET") == 0))
			continue;
		if (route->answer != NULL)
			route->answer(*cfg->state, h, body, r);
		else
			document_answer(route, *cfg->state, rest, r);
		return;
	}
	if (get && cgn_str_is(path, "/") && cfg->program->root != NULL && cfg->program->root(h, r))
		return;
	if (svc_signin_path(path)) {
		svc_signin_answer(cfg, h, r);
		return;
	}
	for (size_t i = 0; i < CGN_COUNT(own); i++) {
		if (!cgn_str_is(path, own[i].path))
			continue;
		allow = allow_of("GET");
		if (!get)
			continue;
		own[i].answer(cfg, r);
		return;
	}
	if (allow != NULL)
		svc_admin_error(r, 405, "method_not_allowed", "this path does not take that method");
	else
		svc_admin_error(r, 404, "not_found", "no such path; / lists all paths");
	r->allow = allow;
}

/* ---- the wire ---- */

static bool head_copy(struct svc_admin_call *q, const struct http_head *h)
{
	struct cgn_arena *a = &q->arena;
	struct http_field *fields = cgn_arena_get(a, (h->n_fields + 1) * sizeof *fields);
	if (fields == NULL)
		return false;
	q->head = *h;
	q->head.fields = fields;
	q->head.method = cgn_arena_str(a, h->method);
	q->head.path = cgn_arena_str(a, h->path);
	q->head.scheme = cgn_arena_str(a, h->scheme);
	q->head.authority = cgn_arena_str(a, h->authority);
	bool have = q->head.method.p != NULL && q->head.path.p != NULL;
	for (size_t i = 0; i < h->n_fields; i++) {
		fields[i].name = cgn_arena_str(a, h->fields[i].name);
		fields[i].value = cgn_arena_str(a, h->fields[i].value);
		have = have && fields[i].name.p != NULL && fields[i].value.p != NULL;
	}
	return have;
}

/* May the caller ask this? Otherwise answers. */
static bool caller_check(struct svc_admin_call *q)
{
	const struct svc_admin_cfg *cfg = &q->admin->cfg;
	const struct login_shown shown = {.from = http_exchange_peer(q->x),
		.common_name = http_exchange_peer_name(q->x),
		.uris = http_exchange_peer_uris(q->x),
		.authorization = http_head_get(&q->head, "authorization"),
		.session = http_head_cookie(&q->head, CGN_STR(SIGNIN_COOKIE))};
	enum identity_action action;
	struct svc_admin_reply r = svc_admin_reply_new();
	if (cfg->login == NULL || !action_find(cfg, &q->head, &action) ||
		(svc_admin_admit(cfg, &shown, cgn_loop_now(q->admin->loop), action, &q->caller, &r) &&
			svc_admin_site_fits(cfg, q->admin->addr, &q->head, &q->caller, shown.from, &r)))
		return true;
	if (r.status == 401)
		svc_signin_offer(cfg, q, &q->head, &r);
	q->answered = true;
	reply_send(q->x, &r);
	return false;
}

static void request_refuse(struct http_exchange *x, struct svc_admin_call *q, int status, const char *code,
	const char *message)
{
	struct svc_admin_reply r = svc_admin_reply_new();
	svc_admin_error(&r, status, code, message);
	if (q != NULL)
		q->answered = true;
	reply_send(x, &r);
}

static void on_request(struct http_exchange *x, const struct http_head *h, void *server_user)
{
	struct svc_admin *a = server_user;
	CGN_LIVE(a, ADMIN_TAG);
	struct svc_admin_call *q = CGN_NEW(struct svc_admin_call);
	q->tag = ADMIN_REQ_TAG;
	q->admin = a;
	q->x = x;
	q->body.limit = SVC_MAX_BODY;
	cgn_arena_init(&q->arena, ADMIN_MAX_HEAD);
	http_exchange_user(x, q);
	if (!head_copy(q, h))
		request_refuse(x, q, 431, "head_too_large", "the request's head is too large");
	else if (h->content_length > (int64_t)SVC_MAX_BODY)
		request_refuse(x, q, 413, "body_too_large", "the request's body is over 1 MiB");
	else
		(void)caller_check(q);
}

static void on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	struct svc_admin_call *q = user;
	if (q == NULL || q->answered)
		return;
	CGN_LIVE(q, ADMIN_REQ_TAG);
	cgn_buf_add(&q->body, p, n);
	if (q->body.bad)
		request_refuse(x, q, 413, "body_too_large", "the request's body is over 1 MiB");
}

static void on_body_end(struct http_exchange *x, void *user)
{
	struct svc_admin_call *q = user;
	if (q == NULL || q->answered)
		return;
	CGN_LIVE(q, ADMIN_REQ_TAG);
	struct svc_admin_reply r = svc_admin_reply_new();
	r.call = q;
	svc_admin_answer(&q->admin->cfg, &q->head, cgn_buf_view(&q->body), &r);
	q->answered = true;
	if (q->later) {
		cgn_buf_fini(&r.body);
		return;
	}
	request_note(q, r.status, cgn_buf_view(&r.body));
	reply_send(x, &r);
}

struct svc_admin_call *svc_admin_later(struct svc_admin_reply *r, void (*gone)(void *user), void *user)
{
	struct svc_admin_call *q = r->call;
	CGN_LIVE(q, ADMIN_REQ_TAG);
	q->later = true;
	q->gone = gone;
	q->user = user;
	return q;
}

void svc_admin_done(struct svc_admin_call *q, struct svc_admin_reply *r)
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	CGN_MUST(q->later && q->gone != NULL);
	q->gone = NULL;
	request_note(q, r->status, cgn_buf_view(&r->body));
	reply_send(q->x, r);
}

void svc_admin_stream(struct svc_admin_call *q, int status, const struct http_field *fields, size_t n,
	void (*drained)(void *user))
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	CGN_MUST(q->later && q->gone != NULL);
	q->drained = drained;
	request_note(q, status, (struct cgn_str){0});
	http_exchange_head(q->x, status, fields, n, -1);
}

bool svc_admin_piece(struct svc_admin_call *q, const void *p, size_t n)
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	const struct iovec iov = {(void *)(uintptr_t)p, n}; /* Only read. */
	http_exchange_body(q->x, &iov, 1);
	return !http_exchange_over_mark(q->x);
}

void svc_admin_end(struct svc_admin_call *q)
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	q->gone = NULL;
	q->drained = NULL;
	http_exchange_end(q->x, NULL, 0);
}

void svc_admin_cut(struct svc_admin_call *q)
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	q->gone = NULL;
	q->drained = NULL;
	http_exchange_abort(q->x, CGN_BAD_GATEWAY);
}

static void on_drain(struct http_exchange *x, void *user)
{
	(void)x;
	struct svc_admin_call *q = user;
	if (q != NULL && q->drained != NULL)
		q->drained(q->user);
}

/* ---- changes ---- */

struct cgn_arena *svc_admin_arena(struct svc_admin_call *q)
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	return &q->arena;
}

struct cgn_str svc_admin_peer(const struct svc_admin_call *q)
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	return http_exchange_peer(q->x);
}

const struct principal *svc_admin_caller(const struct svc_admin_call *q)
{
	CGN_LIVE(q, ADMIN_REQ_TAG);
	return &q->caller.who;
}

bool svc_admin_may(struct svc_admin_reply *r, enum identity_action action, struct cgn_str object)
{
	struct cgn_err err;
	const struct svc_admin_call *q = r->call;
	CGN_LIVE(q, ADMIN_REQ_TAG);
	if (q->admin->cfg.access == NULL ||
		cgn_ok(access_check(q->admin->cfg.access, &q->caller.who, action, object, &err)))
		return true;
	svc_admin_error(r, 403, "forbidden", err.msg);
	return false;
}

/* Return true for a host that is an address or localhost, with a port or without one. */
static bool is_plain_host(struct cgn_str authority)
{
	struct cgn_str rest = authority, host = cgn_str_split(&rest, ':');
	bool numeric = host.n > 0;
	for (size_t i = 0; i < host.n; i++)
		numeric = numeric && ((host.p[i] >= '0' && host.p[i] <= '9') || host.p[i] == '.');
	return numeric || cgn_str_starts(authority, "[") || cgn_str_is(host, "localhost");
}

bool svc_admin_from_page(const struct http_head *h, struct svc_admin_reply *r)
{
	if (http_head_get(h, "x-cgn-page").p != NULL)
		return svc_admin_same_site(h, r);
	svc_admin_error(r, 403, "not_the_page",
		"this is for the page at /page/ only (field x-cgn-page); on a command line use cgn-ctl or the gateway");
	return false;
}

bool svc_admin_may_change(const struct http_head *h, struct svc_admin_reply *r)
{
	if (!svc_admin_from_page(h, r))
		return false;
	if (r->call != NULL && r->call->caller.who.kind != IDENTITY_NONE)
		return true;
	if (r->call == NULL || !identity_is_local(svc_admin_peer(r->call)))
		svc_admin_error(r, 403, "not_this_machine",
			"without a certificate or key, changes are taken from this machine only: tunnel the port (ssh -L), or use cgn-ctl");
	else if (!is_plain_host(h->authority) || http_head_get(h, "x-forwarded-for").p != NULL ||
		http_head_get(h, "forwarded").p != NULL)
		svc_admin_error(r, 403, "not_direct",
			"changes are taken by the address of this machine or localhost, not through a proxy or another name");
	else
		return true;
	return false;
}

static void on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	(void)why;
	struct svc_admin_call *q = user;
	if (q == NULL)
		return;
	CGN_LIVE(q, ADMIN_REQ_TAG);
	if (q->gone != NULL)
		q->gone(q->user);
	q->tag = 0;
	cgn_arena_fini(&q->arena);
	cgn_buf_fini(&q->body);
	free(q);
}

CGN_RC svc_admin_open(struct cgn_loop *l, const char *addr, const struct svc_admin_cfg *cfg,
	struct svc_admin **out, struct cgn_err *err)
{
	static const struct http_server_ops ops = {.on_request = on_request,
		.on_body = on_body,
		.on_body_end = on_body_end,
		.on_drain = on_drain,
		.on_close = on_close};
	struct svc_admin *a = CGN_NEW(struct svc_admin);
	a->tag = ADMIN_TAG;
	a->loop = l;
	a->cfg = *cfg;
	(void)cgn_str_copyz(a->addr, sizeof a->addr, cgn_str_of(addr));
	struct http_server_cfg server = {.listen = {.addr = addr,
						 .setting = "the admin port",
						 .tls = cfg->tls,
						 .max_conns = 2 * ADMIN_MAX_CONNS,
						 .essential = true},
		.evict_above = ADMIN_MAX_CONNS};
	cgn_rc rc = http_server_new(l, &server, &ops, a, &a->server, err);
	if (!cgn_ok(rc)) {
		free(a);
		return rc;
	}
	*out = a;
	return CGN_OK;
}

unsigned svc_admin_port(const struct svc_admin *a)
{
	return http_server_port(a->server);
}

void svc_admin_close(struct svc_admin **take)
{
	struct svc_admin *a = CGN_TAKE_LIVE(take, ADMIN_TAG);
	if (a == NULL)
		return;
	http_server_free(&a->server);
	a->tag = 0;
	free(a);
}
