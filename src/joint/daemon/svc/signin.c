/* SPDX-License-Identifier: Apache-2.0 */
/* signin: the paths of the admin port by which people sign in at the identity provider. */
#include "joint/daemon/svc/svc_priv.h"

static const struct {
	const char *path, *method;
} paths[] = {{"/login", "GET"}, {"/login/done", "GET"}, {"/logout", "POST"}, {"/whoami", "GET"}};
enum { PATH_LOGIN, PATH_DONE, PATH_LOGOUT, PATH_WHOAMI };

/* A person is back from the provider, and waits for the exchange of the code. */
struct back {
	const struct svc_admin_cfg *cfg;
	struct svc_admin_call *call;
	struct signin_exchange *exchange;
	struct cgn_str from;
};

static struct signin *signin_of(const struct svc_admin_cfg *cfg)
{
	return cfg->login != NULL ? login_signin(cfg->login) : NULL;
}

static bool path_find(struct cgn_str path, size_t *out)
{
	for (*out = 0; *out < CGN_COUNT(paths); (*out)++)
		if (cgn_str_is(path, paths[*out].path))
			return true;
	return false;
}

bool svc_signin_path(struct cgn_str path)
{
	size_t i;
	return path_find(path, &i);
}

void svc_signin_paths(const struct svc_admin_cfg *cfg, struct json_out *o)
{
	for (size_t i = signin_of(cfg) != NULL ? 0 : PATH_WHOAMI; i < CGN_COUNT(paths); i++)
		json_key_z(o, paths[i].path, paths[i].method);
}

/* Send the browser to |location| with up to two cookies, which are copied. */
static void browser_send(struct svc_admin_call *call, struct svc_admin_reply *r, struct cgn_str location,
	const char *cookie, const char *other)
{
	struct cgn_arena *a = svc_admin_arena(call);
	struct http_field *f = cgn_arena_zero(a, 3 * sizeof *f);
	const char *const cookies[] = {cookie, other};
	if (f == NULL) {
		svc_admin_error(r, 500, "no_memory", "no memory for the answer");
		return;
	}
	r->status = 303;
	r->n_fields = 1;
	f[0] = (struct http_field){CGN_STR("location"), cgn_arena_str(a, location)};
	for (size_t i = 0; i < CGN_COUNT(cookies); i++)
		if (cookies[i] != NULL)
			f[r->n_fields++] = (struct http_field){CGN_STR("set-cookie"),
				cgn_arena_str(a, cgn_str_of(cookies[i]))};
	r->fields = f;
	for (size_t i = 0; i < r->n_fields; i++)
		if (f[i].value.p == NULL) {
			r->n_fields = 0;
			svc_admin_error(r, 500, "no_memory", "no memory for the answer");
			return;
		}
}

static void failure_put(struct svc_admin_reply *r, cgn_rc rc, const struct cgn_err *err)
{
	svc_admin_error(r, cgn_code_http(rc.code), rc.code == CGN_FORBIDDEN ? "no_role" : "signin_failed",
		err->msg);
	if (rc.code == CGN_OVERLOADED || rc.code == CGN_UNAVAILABLE || rc.code == CGN_NOT_FOUND) {
		r->status = 503;
		r->retry_s = 1;
	}
}

/* ---- /login ---- */

static void login_answer(struct signin *s, struct svc_admin_reply *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf location = {0};
	char cookie[SIGNIN_COOKIE_MAX];
	struct cgn_err err;
	cgn_rc rc = signin_begin(s, &location, cookie, &err);
	if (!cgn_ok(rc))
		failure_put(r, rc, &err);
	else if (location.bad)
		svc_admin_error(r, 500, "no_memory", "no memory for the answer");
	else
		browser_send(r->call, r, cgn_buf_view(&location), cookie, NULL);
}

/* ---- /login/done ---- */

static void signin_note(const struct back *b, const struct claims_holder *holder, const char *why)
{
	audit_note(b->cfg->audit,
		&(struct audit_event){.action = "admin.signin",
			.decision = holder != NULL ? AUDIT_ALLOWED : AUDIT_REFUSED,
			.kind = cgn_str_of(identity_kind_text(IDENTITY_USER)),
			.name = holder != NULL ? cgn_str_of(holder->subject) : (struct cgn_str){0},
			.tenant = holder != NULL ? cgn_str_of(holder->tenant) : (struct cgn_str){0},
			.from = b->from,
			.why = cgn_str_of(why)});
}

static void on_signed_in(void *user, cgn_rc rc, const struct claims_holder *holder, const char *cookie,
	const struct cgn_err *err)
{
	struct back *b = user;
	struct svc_admin_reply r = svc_admin_reply_new();
	b->exchange = NULL;
	if (cgn_ok(rc)) {
		login_right(b->cfg->login, b->from, cgn_clock_now());
		/* The program's root sends browsers to its page. */
		browser_send(b->call, &r, CGN_STR("../"), cookie,
			SIGNIN_COOKIE_WAY "=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0");
	} else {
		failure_put(&r, rc, err);
	}
	signin_note(b, cgn_ok(rc) ? holder : NULL, cgn_ok(rc) ? "" : "signin_failed");
	svc_admin_done(b->call, &r);
}

static void on_left(void *user)
{
	struct back *b = user;
	signin_cancel(&b->exchange);
}

static void done_answer(const struct svc_admin_cfg *cfg, struct signin *s, const struct http_head *h,
	struct svc_admin_reply *r)
{
	struct cgn_str query = h->path;
	struct cgn_err err;
	unsigned retry_s = 0;
	(void)cgn_str_split(&query, '?');
	struct back *b = cgn_arena_zero(svc_admin_arena(r->call), sizeof *b);
	if (b == NULL) {
		svc_admin_error(r, 500, "no_memory", "no memory for the answer");
		return;
	}
	*b = (struct back){.cfg = cfg, .call = r->call, .from = svc_admin_peer(r->call)};
	if (!login_may_try(cfg->login, b->from, cgn_clock_now(), &retry_s)) {
		svc_admin_error(r, 429, "too_many_attempts", "too many failed attempts from this address");
		r->retry_s = retry_s;
		return;
	}
	struct cgn_str way = http_head_cookie(h, CGN_STR(SIGNIN_COOKIE_WAY));
	cgn_rc rc = signin_finish(s, query, way, on_signed_in, b, &b->exchange, &err);
	if (cgn_ok(rc)) {
		(void)svc_admin_later(r, on_left, b);
		return;
	}
	failure_put(r, rc, &err);
	signin_note(b, NULL, "signin_failed");
}

/* ---- /logout ---- */

static void logout_answer(struct signin *s, const struct http_head *h, struct svc_admin_reply *r)
{
	char cookie[SIGNIN_COOKIE_MAX];
	if (!svc_admin_from_page(h, r))
		return;
	signin_end(s, http_head_cookie(h, CGN_STR(SIGNIN_COOKIE)), cookie);
	struct http_field *f = cgn_arena_zero(svc_admin_arena(r->call), sizeof *f);
	struct cgn_str value = cgn_arena_str(svc_admin_arena(r->call), cgn_str_of(cookie));
	if (f == NULL || value.p == NULL) {
		svc_admin_error(r, 500, "no_memory", "no memory for the answer");
		return;
	}
	*f = (struct http_field){CGN_STR("set-cookie"), value};
	r->fields = f;
	r->n_fields = 1;
	cgn_buf_putz(&r->body, "{\"signed_out\":true}");
}

/* ---- /whoami ---- */

/* The paths are open, so that the caller was not judged yet. */
static void whoami_answer(const struct svc_admin_cfg *cfg, const struct http_head *h,
	struct svc_admin_reply *r)
{
	struct claims_holder holder;
	struct signin *s = signin_of(cfg);
	bool in = s != NULL && signin_find(s, http_head_cookie(h, CGN_STR(SIGNIN_COOKIE)), &holder);
	struct json_out o = json_out_to(&r->body);
	json_open(&o, '{');
	json_key_bool(&o, "can_sign_in", s != NULL);
	json_key_bool(&o, "signed_in", in);
	if (in) {
		json_key_z(&o, "subject", holder.subject);
		json_key_z(&o, "tenant", holder.tenant);
		json_key_open(&o, "roles", '[');
		for (size_t i = 0; i < holder.n_roles; i++)
			json_put_z(&o, holder.role[i]);
		json_close(&o, ']');
	}
	json_close(&o, '}');
}

/* ---- all ---- */

void svc_signin_answer(const struct svc_admin_cfg *cfg, const struct http_head *h, struct svc_admin_reply *r)
{
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?');
	struct signin *s = signin_of(cfg);
	size_t i;
	CGN_MUST(path_find(path, &i));
	if (s == NULL && i != PATH_WHOAMI) {
		svc_admin_error(r, 404, "not_found",
			"people cannot sign in here: auth.oidc_issuer and auth.oidc_client_id are not set");
	} else if (!cgn_str_is(h->method, paths[i].method)) {
		svc_admin_error(r, 405, "method_not_allowed", "this path does not take that method");
		r->allow = paths[i].method;
	} else if (i == PATH_LOGIN) {
		login_answer(s, r);
	} else if (i == PATH_DONE) {
		done_answer(cfg, s, h, r);
	} else if (i == PATH_LOGOUT) {
		logout_answer(s, h, r);
	} else {
		whoami_answer(cfg, h, r);
	}
}

void svc_signin_offer(const struct svc_admin_cfg *cfg, struct svc_admin_call *call, const struct http_head *h,
	struct svc_admin_reply *r)
{
	struct cgn_str accept = http_head_get(h, "accept");
	struct signin *s = signin_of(cfg);
	bool html = accept.n > 0 && memmem(accept.p, accept.n, "text/html", 9) != NULL;
	if (s != NULL && html && cgn_str_is(h->method, "GET"))
		browser_send(call, r, signin_url(s), NULL, NULL);
}
