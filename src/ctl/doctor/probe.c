/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/doctor/probe.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/weburl/weburl.h"
#include "joint/ctl/line/progress.h"
#include "policy/node/engine/engine.h"

#define ALL_TIMEOUT (10 * CGN_SEC)

struct probe *probe_add(struct probes *p, const char *addr, const char *path)
{
	if (p->n == PROBES_MAX)
		return NULL;
	struct probe *q = &p->list[p->n++];
	*q = (struct probe){.addr = addr, .authority = addr, .path = path, .all = p};
	return q;
}

struct probe *probe_add_url(struct probes *p, struct cgn_arena *a, const char *url, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf full = {0};
	struct weburl u;
	struct cgn_err err;
	if (!cgn_ok(weburl_parse(url, &u, &err)))
		return NULL;
	weburl_path(&u, cgn_str_of(path), &full);
	struct probe *q =
		probe_add(p, cgn_arena_fmt(a, "%s", u.addr), cgn_arena_strz(a, cgn_buf_view(&full)));
	if (q == NULL || q->addr == NULL || q->path == NULL)
		return NULL;
	q->authority = cgn_arena_fmt(a, "%s", u.authority);
	q->tls = u.tls;
	return q;
}

static void probe_done(struct probe *q)
{
	q->call = NULL;
	ctl_progress("waiting for %zu answers", --q->all->left);
	if (q->all->left == 0)
		cgn_loop_stop(q->all->loop);
}

static void on_probe_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct probe *q = user;
	char text[64];
	struct tm parts = {0};
	(void)c;
	q->status = h->status;
	q->at = (int64_t)(cgn_clock_wall_ms() / 1000);
	if (cgn_str_copyz(text, sizeof text, http_head_get(h, "date")) &&
		strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &parts) != NULL)
		q->date = timegm(&parts);
}

static void on_probe_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	cgn_buf_add(&((struct probe *)user)->text, p, n);
}

static void on_probe_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)trailers;
	(void)n;
	probe_done(user);
}

static void on_probe_fail(struct http_call *c, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	struct probe *q = user;
	(void)c;
	(void)stage;
	if (q->status == 0)
		q->why = *why;
	probe_done(q);
}

static CGN_RC probe_start(struct probe *q, struct cgn_err *err)
{
	static const struct http_call_ops ops = {.on_head = on_probe_head,
		.on_body = on_probe_body,
		.on_end = on_probe_end,
		.on_fail = on_probe_fail};
	static const char *const h1[] = {"http/1.1", NULL}, *const h2[] = {"h2", NULL};
	const struct tls_cfg tls = {.ca_file = q->ca_file,
		.cert_file = q->cert_file,
		.key_file = q->key_file,
		.alpn = q->h2 ? h2 : h1};
	char bearer[600];
	struct http_field fields[2] = {{CGN_STR("content-type"), CGN_STR("application/json")}};
	if (q->tls)
		CGN_TRY(tls_ctx_new(&tls, &q->ctx, err));
	const struct http_client_cfg cfg = {.addr = q->addr,
		.authority = q->authority,
		.tls = q->ctx,
		.proto = q->h2 ? HTTP_2 : HTTP_1,
		.connect_timeout = PROBE_TIMEOUT};
	CGN_TRY(http_client_new(q->all->loop, &cfg, &q->client, err));
	if (q->bearer != NULL && snprintf(bearer, sizeof bearer, "Bearer %s", q->bearer) < (int)sizeof bearer)
		fields[1] = (struct http_field){CGN_STR("authorization"), cgn_str_of(bearer)};
	struct iovec body = {(void *)(uintptr_t)q->body, q->body != NULL ? strlen(q->body) : 0};
	const struct http_request rq = {.method = q->body != NULL ? "POST" : "GET",
		.path = q->path,
		.fields = fields,
		.n_fields = fields[1].name.p != NULL ? 2 : 1,
		.head_timeout = PROBE_TIMEOUT,
		.idle_timeout = PROBE_TIMEOUT,
		.body_len = (int64_t)body.iov_len,
		.body = q->body != NULL ? &body : NULL,
		.n_body = q->body != NULL};
	q->text.limit = PROBE_BODY_LIMIT;
	return http_call_start(q->client, &rq, &ops, q, &q->call, err);
}

static void on_all_late(struct cgn_timer *t)
{
	cgn_loop_stop(t->loop);
}

CGN_RC probes_run(struct probes *p, struct cgn_err *err)
{
	CGN_TRY(cgn_loop_new(&p->loop, err));
	cgn_timer_init(&p->limit, p->loop, on_all_late);
	for (size_t i = 0; i < p->n; i++) {
		struct probe *q = &p->list[i];
		p->left += cgn_ok(probe_start(q, &q->why));
	}
	cgn_timer_set(&p->limit, ALL_TIMEOUT);
	if (p->left > 0)
		cgn_loop_run(p->loop);
	ctl_progress_end();
	cgn_timer_cancel(&p->limit);
	for (size_t i = 0; i < p->n; i++) {
		struct probe *q = &p->list[i];
		if (q->status == 0 && q->why.code == CGN_FINE)
			(void)CGN_FAIL(&q->why, DEADLINE, "%s: no answer within 10 s", q->addr);
		if (q->call != NULL)
			http_call_cancel(&q->call);
		if (q->client != NULL)
			http_client_free(&q->client);
		if (q->ctx != NULL)
			tls_ctx_free(&q->ctx);
	}
	cgn_loop_close(&p->loop);
	return CGN_OK;
}

void probes_fini(struct probes *p)
{
	for (size_t i = 0; i < p->n; i++)
		cgn_buf_fini(&p->list[i].text);
}
