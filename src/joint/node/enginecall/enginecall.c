/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/node/enginecall/enginecall.h"
#include "base/unlikely/unlikely.h"

#include <stdio.h>
#include <string.h>

#define GATHER_BYTES ((size_t)16 * 1024)

/* ---- the request ---- */

static bool is_token(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (!alnum && (c == '\0' || strchr("!#$%&'*+-.^_`|~", c) == NULL))
			return false;
	}
	return s.n > 0;
}

static bool is_plain(struct cgn_str s, char least)
{
	for (size_t i = 0; i < s.n; i++)
		if ((s.p[i] >= 0 && s.p[i] < least && s.p[i] != '\t') || s.p[i] == 0x7f)
			return false;
	return true;
}

CGN_RC enginecall_check(const struct proto_generate *rq, struct cgn_err *err)
{
	if (!is_token(rq->method) || rq->method.n > 15)
		return CGN_FAIL(err, INVALID, "GenerateRequest.method is not an HTTP method");
	if (rq->path.n == 0 || rq->path.p[0] != '/' || !is_plain(rq->path, '!') ||
		memchr(rq->path.p, '\t', rq->path.n) != NULL)
		return CGN_FAIL(err, INVALID, "GenerateRequest.path is not a path");
	if (!is_plain(rq->request_id, ' '))
		return CGN_FAIL(err, INVALID, "GenerateRequest.request_id has control characters");
	for (size_t i = 0; i < rq->n_headers; i++)
		if (!is_token(rq->headers[i].name) || !is_plain(rq->headers[i].value, ' '))
			return CGN_FAIL(err, INVALID, "GenerateRequest.headers[%zu] is not an HTTP field", i);
	return CGN_OK;
}

/* Fields that are set again: the engine's key, no compression, and the framing of io/wire/http. */
static bool field_is_replaced(struct cgn_str name)
{
	static const char *const names[] = {"host", "content-length", "authorization", "accept-encoding",
		"expect"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(names[i])))
			return true;
	return http_name_is_hop(name);
}

size_t enginecall_fields(const struct proto_generate *rq, const char *authorization,
	struct http_field out[ENGINECALL_FIELDS])
{
	bool has_id = false;
	size_t n = 0;
	for (size_t i = 0; i < rq->n_headers && i < PROTO_MAX_HEADERS; i++) {
		const struct proto_header *h = &rq->headers[i];
		if (field_is_replaced(h->name))
			continue;
		has_id = has_id || cgn_str_eq_nocase(h->name, CGN_STR("x-request-id"));
		out[n++] = (struct http_field){h->name, h->value};
	}
	if (!has_id && rq->request_id.n > 0)
		out[n++] = (struct http_field){CGN_STR("x-request-id"), rq->request_id};
	if (authorization != NULL)
		out[n++] = (struct http_field){CGN_STR("authorization"), cgn_str_of(authorization)};
	return n;
}

/* ---- the answer ---- */

size_t enginecall_head(const struct http_head *h, struct proto_header out[PROTO_MAX_HEADERS])
{
	size_t n = 0;
	for (size_t i = 0; i < h->n_fields && n < PROTO_MAX_HEADERS; i++)
		if (!http_name_is_hop(h->fields[i].name))
			out[n++] = (struct proto_header){h->fields[i].name, h->fields[i].value};
	return n;
}

void enginecall_failed(const char *engine, enum http_fail_stage stage, const struct cgn_err *why,
	struct cgn_err *out)
{
	static const char *const what[] = {
		[HTTP_FAIL_CONNECT] = "can't be reached",
		[HTTP_FAIL_STALE] = "closed the connection before it answered",
		[HTTP_FAIL_HEAD] = "closed the connection before it answered",
		[HTTP_FAIL_BODY] = "ended in the middle of its answer",
	};
	bool ours = why->code == CGN_OVERLOADED || why->code == CGN_NO_MEMORY;
	*out = (struct cgn_err){.code = ours ? why->code : CGN_UNAVAILABLE};
	(void)snprintf(out->msg, sizeof out->msg, "engine %s %s: %.300s", engine, what[stage], why->msg);
}

void enginecall_hung_up(enum http_fail_stage stage, bool retried, struct cgn_err *out)
{
	bool unanswered = stage == HTTP_FAIL_HEAD || (retried && stage != HTTP_FAIL_BODY);
	if (unanswered && out->code == CGN_UNAVAILABLE)
		out->code = CGN_INTERNAL;
}

bool enginecall_gather_add(struct enginecall_gather *g, const void *p, size_t n)
{
	if (n > GATHER_BYTES / 4 || n + g->bytes.n > GATHER_BYTES || unlikely_way(UNLIKELY_gather_full) ||
		cgn_buf_room(&g->bytes, n) == NULL) {
		g->bytes.bad = false;
		return false;
	}
	cgn_buf_add(&g->bytes, p, n);
	cgn_loop_defer(g->loop, &g->hook);
	return true;
}

struct cgn_buf enginecall_gather_take(struct enginecall_gather *g)
{
	struct cgn_buf taken = g->bytes;
	g->bytes = (struct cgn_buf){0};
	cgn_hook_drop(&g->hook);
	return taken;
}
