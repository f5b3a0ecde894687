/* SPDX-License-Identifier: Apache-2.0 */
/* request: what the engine is sent. */
#include "agent/relay/relay_priv.h"

bool relay_is_prefill(const struct relay *r)
{
	return r->placement.leg == COGNITORA__V1__LEG__LEG_PREFILL;
}

static bool name_is_one_of(struct cgn_str name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(names[i])))
			return true;
	return false;
}

/* Fields that the agent sets itself: the engine's key, no compression, and the framing of io/http. */
static bool field_is_replaced(struct cgn_str name)
{
	static const char *const names[] = {"host", "content-length", "authorization", "accept-encoding",
		"expect"};
	return http_name_is_hop(name) || name_is_one_of(name, names, CGN_COUNT(names));
}

size_t relay_request_fields(const struct relay *r, struct http_field out[RELAY_MAX_FIELDS])
{
	bool has_id = false;
	size_t n = 0;
	for (size_t i = 0; i < r->rq.n_headers; i++) {
		const struct proto_header *h = &r->rq.headers[i];
		if (field_is_replaced(h->name))
			continue;
		has_id = has_id || cgn_str_eq_nocase(h->name, CGN_STR("x-request-id"));
		out[n++] = (struct http_field){h->name, h->value};
	}
	if (!has_id && r->rq.request_id.n > 0)
		out[n++] = (struct http_field){CGN_STR("x-request-id"), r->rq.request_id};
	if (r->engine->authorization != NULL)
		out[n++] =
			(struct http_field){CGN_STR("authorization"), cgn_str_of(r->engine->authorization)};
	return n;
}

size_t relay_request_body(struct relay *r, struct iovec out[3])
{
	union { /* iovec has no const */
		const char *in;
		void *out;
	} body = {.in = r->rq.body.p};
	const struct slot_placement *p = &r->placement;
	if (p->slot == SLOTS_NONE) {
		out[0] = (struct iovec){body.out, r->rq.body.n};
		return r->rq.body.n > 0 ? 1 : 0;
	}
	if (relay_is_prefill(r)) {
		if (r->own.n == 0) {
			slot_body_prefill(r->rq.path, r->rq.body, p->slot, &r->own);
			grpc_budget_add(r->all->budget, r->own.n);
			r->booked += r->own.n;
		}
		out[0] = (struct iovec){r->own.p, r->own.n};
		return 1;
	}
	out[0] = (struct iovec){body.out, p->at.at};
	out[1] = (struct iovec){r->insert, slot_body_insert(&p->at, p->slot, r->insert)};
	out[2] = (struct iovec){(char *)body.out + p->at.at, r->rq.body.n - p->at.at};
	return 3;
}

/* ---- checks ---- */

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

CGN_RC relay_request_check(const struct proto_generate *rq, struct cgn_err *err)
{
	if (!is_token(rq->method) || rq->method.n > 15)
		return CGN_FAIL(err, INVALID, "GenerateRequest.method is no HTTP method");
	if (rq->path.n == 0 || rq->path.p[0] != '/' || !is_plain(rq->path, '!') ||
		memchr(rq->path.p, '\t', rq->path.n) != NULL)
		return CGN_FAIL(err, INVALID, "GenerateRequest.path is no path");
	if (!is_plain(rq->request_id, ' '))
		return CGN_FAIL(err, INVALID, "GenerateRequest.request_id has control characters");
	for (size_t i = 0; i < rq->n_headers; i++)
		if (!is_token(rq->headers[i].name) || !is_plain(rq->headers[i].value, ' '))
			return CGN_FAIL(err, INVALID, "GenerateRequest.headers[%zu] is no HTTP field", i);
	return CGN_OK;
}
