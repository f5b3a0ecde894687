/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/ctl/client/origin.h"

#include <stdio.h>
#include <string.h>

#include "io/os/disk/disk.h"

#define ANSWER_LIMIT ((size_t)4 << 20)
#define KEY_MAX      ((size_t)512)

/* Split scheme://authority[/base]. */
static CGN_RC split_url(const char *url, bool *https, struct ctl_origin *o, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(url);
	*https = cgn_str_starts(rest, "https://");
	if (!*https && !cgn_str_starts(rest, "http://"))
		return CGN_FAIL(err, INVALID, "'%s' is not an http:// or https:// URL", url);
	rest.p += *https ? 8 : 7;
	rest.n -= *https ? 8 : 7;
	struct cgn_str path = rest, host = cgn_str_split(&path, '/');
	while (path.n > 0 && path.p[path.n - 1] == '/')
		path.n--;
	const char *colon = host.n > 0 ? memrchr(host.p, ':', host.n) : NULL;
	bool has_port = colon != NULL && host.p[host.n - 1] != ']';
	if (host.n == 0 || !cgn_str_copyz(o->authority, sizeof o->authority, host) ||
		snprintf(o->addr, sizeof o->addr, "%.*s%s", CGN_STR_ARG(host),
			has_port         ? ""
				: *https ? ":443"
					 : ":80") >= (int)sizeof o->addr ||
		snprintf(o->base, sizeof o->base, "%s%.*s", path.n > 0 ? "/" : "", CGN_STR_ARG(path)) >=
			(int)sizeof o->base)
		return CGN_FAIL(err, INVALID, "'%s' is not the URL of a server", url);
	if (strlen(o->base) >= 3 && strcmp(o->base + strlen(o->base) - 3, "/v1") == 0)
		o->base[strlen(o->base) - 3] = '\0';
	return net_addr_check(o->addr, err);
}

CGN_RC ctl_origin_open(struct cgn_loop *l, const char *url, const struct tls_cfg *files, uint32_t max_conns,
	struct ctl_origin *out, struct cgn_err *err)
{
	static const char *const alpn[] = {"http/1.1", NULL};
	bool https = false;
	*out = (struct ctl_origin){0};
	CGN_TRY(split_url(url, &https, out, err));
	const struct tls_cfg tls = {.ca_file = files->ca_file,
		.cert_file = files->cert_file,
		.key_file = files->key_file,
		.crl_file = files->crl_file,
		.alpn = alpn};
	if (https)
		CGN_TRY(tls_ctx_new(&tls, &out->tls, err));
	const struct http_client_cfg cfg = {.addr = out->addr,
		.authority = out->authority,
		.tls = out->tls,
		.proto = HTTP_1,
		.max_conns = max_conns};
	cgn_rc rc = http_client_new(l, &cfg, &out->client, err);
	if (!cgn_ok(rc))
		ctl_origin_close(out);
	return rc;
}

void ctl_origin_close(struct ctl_origin *o)
{
	if (o->client != NULL)
		http_client_free(&o->client);
	if (o->tls != NULL)
		tls_ctx_free(&o->tls);
}

CGN_RC ctl_origin_key(const char *path, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_TRY(disk_read_file(path, KEY_MAX, out, err));
	while (out->n > 0 && (out->p[out->n - 1] == '\n' || out->p[out->n - 1] == '\r'))
		out->n--;
	cgn_buf_char(out, '\0');
	return out->n > 1 && !out->bad ? CGN_OK : CGN_FAIL(err, INVALID, "%s holds no API key", path);
}

size_t ctl_origin_fields(const char *bearer, char *authorization, size_t cap, struct http_field *fields)
{
	fields[0] = (struct http_field){CGN_STR("content-type"), CGN_STR("application/json")};
	if (bearer == NULL)
		return 1;
	(void)snprintf(authorization, cap, "Bearer %s", bearer);
	fields[1] = (struct http_field){CGN_STR("authorization"), cgn_str_of(authorization)};
	return 2;
}

struct get {
	struct cgn_loop *loop;
	struct cgn_buf *body;
	struct http_call *call;
	struct cgn_timer timer;
	cgn_nsec timeout;
	int status;
	struct cgn_err end;
};

static void get_stop(struct get *g, cgn_rc rc)
{
	(void)rc; /* The sentence is in |end|. */
	http_call_cancel(&g->call);
	cgn_loop_stop(g->loop);
}

static void get_late(struct cgn_timer *t)
{
	struct get *g = CGN_CONTAINER(t, struct get, timer);
	get_stop(g,
		CGN_FAIL(&g->end, DEADLINE, "the answer did not end within %g s (--timeout)",
			(double)g->timeout / CGN_SEC));
}

static void get_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)c;
	((struct get *)user)->status = h->status;
}

static void get_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	struct get *g = user;
	cgn_buf_add(g->body, p, n);
	if (g->body->bad)
		get_stop(g,
			CGN_FAIL(&g->end, TOO_LARGE, "the answer has more than %zu MiB", ANSWER_LIMIT >> 20));
}

static void get_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)trailers;
	(void)n;
	((struct get *)user)->call = NULL;
	cgn_loop_stop(((struct get *)user)->loop);
}

static void get_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	(void)c;
	(void)stage;
	((struct get *)user)->end = *why;
	((struct get *)user)->call = NULL;
	cgn_loop_stop(((struct get *)user)->loop);
}

static CGN_RC origin_ask(struct cgn_loop *l, struct ctl_origin *o, const struct http_request *asked,
	const char *bearer, struct cgn_buf *body, struct cgn_err *err)
{
	static const struct http_call_ops ops = {.on_head = get_head,
		.on_body = get_body,
		.on_end = get_end,
		.on_fail = get_fail};
	char full[512], authorization[512];
	struct http_field fields[2];
	struct get g = {.loop = l, .body = body, .timeout = o->timeout};
	body->limit = ANSWER_LIMIT;
	(void)snprintf(full, sizeof full, "%s%s", o->base, asked->path);
	const struct http_request rq = {.method = asked->method,
		.path = full,
		.body_len = asked->body_len,
		.body = asked->body,
		.n_body = asked->n_body,
		.fields = fields,
		.n_fields = ctl_origin_fields(bearer, authorization, sizeof authorization, fields),
		.head_timeout = 10 * CGN_SEC};
	CGN_TRY(http_call_start(o->client, &rq, &ops, &g, &g.call, err));
	cgn_timer_init(&g.timer, l, get_late);
	cgn_timer_set(&g.timer, g.timeout);
	cgn_loop_run(l);
	cgn_timer_cancel(&g.timer);
	if (g.end.code != CGN_FINE)
		return CGN_FAIL_AS(err, g.end.code, "%s %s at %s: %.250s", asked->method, full, o->addr,
			g.end.msg);
	if (g.status != 200)
		return CGN_FAIL(err, BAD_GATEWAY, "%s %s at %s answered %d: %.*s", asked->method, full,
			o->addr, g.status, (int)(body->n < 200 ? body->n : 200),
			body->p != NULL ? body->p : "");
	return CGN_OK;
}

CGN_RC ctl_origin_get(struct cgn_loop *l, struct ctl_origin *o, const char *path, const char *bearer,
	struct cgn_buf *body, struct cgn_err *err)
{
	return origin_ask(l, o, &(struct http_request){.method = "GET", .path = path}, bearer, body, err);
}

CGN_RC ctl_origin_post(struct cgn_loop *l, struct ctl_origin *o, const char *path, const char *bearer,
	struct cgn_str payload, struct cgn_buf *body, struct cgn_err *err)
{
	const struct iovec piece = {(void *)(uintptr_t)payload.p, payload.n};
	const struct http_request rq = {.method = "POST",
		.path = path,
		.body_len = (int64_t)payload.n,
		.body = &piece,
		.n_body = 1};
	return origin_ask(l, o, &rq, bearer, body, err);
}
