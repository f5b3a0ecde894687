/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/daemon/adminrelay/adminrelay.h"

#include <stdlib.h>

#define ADMINRELAY_TAG 0x640b1a01U
#define RELAY_FIELDS   16

/* Either end may go first. */
struct relay {
	uint32_t tag;
	struct svc_admin_call *call; /* NULL: the client has gone. */
	struct http_call *server;    /* NULL: ended. */
	const char *code;
};

static void relay_free(struct relay *p)
{
	p->tag = 0;
	free(p);
}

static void relay_gone(void *user)
{
	struct relay *p = user;
	CGN_LIVE(p, ADMINRELAY_TAG);
	http_call_cancel(&p->server);
	relay_free(p);
}

static void relay_drained(void *user)
{
	struct relay *p = user;
	CGN_LIVE(p, ADMINRELAY_TAG);
	http_call_resume(p->server);
}

static bool is_shown(struct cgn_str name)
{
	return cgn_str_is(name, "content-type") || cgn_str_is(name, "retry-after") ||
		cgn_str_is(name, "x-request-id") || cgn_str_starts(name, "x-cgn-");
}

static void on_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)c;
	struct relay *p = user;
	CGN_LIVE(p, ADMINRELAY_TAG);
	struct http_field fields[RELAY_FIELDS];
	size_t n = 0;
	for (size_t i = 0; i < h->n_fields && n < RELAY_FIELDS; i++)
		if (is_shown(h->fields[i].name))
			fields[n++] = h->fields[i];
	svc_admin_stream(p->call, h->status, fields, n, relay_drained);
}

static void on_body(struct http_call *c, void *user, const uint8_t *bytes, size_t n)
{
	struct relay *p = user;
	CGN_LIVE(p, ADMINRELAY_TAG);
	if (!svc_admin_piece(p->call, bytes, n))
		http_call_pause(c);
}

static void on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	(void)c;
	(void)trailers;
	(void)n;
	struct relay *p = user;
	CGN_LIVE(p, ADMINRELAY_TAG);
	svc_admin_end(p->call);
	relay_free(p);
}

static void on_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	(void)c;
	struct relay *p = user;
	CGN_LIVE(p, ADMINRELAY_TAG);
	struct svc_admin_reply reply = svc_admin_reply_new();
	if (stage == HTTP_FAIL_BODY) {
		svc_admin_cut(p->call);
	} else {
		svc_admin_error(&reply, 502, p->code, why->msg);
		svc_admin_done(p->call, &reply);
	}
	relay_free(p);
}

CGN_RC adminrelay_start(struct svc_admin_reply *reply, struct http_client *client,
	const struct http_request *rq, const char *code, struct cgn_err *err)
{
	static const struct http_call_ops ops = {.on_head = on_head,
		.on_body = on_body,
		.on_end = on_end,
		.on_fail = on_fail};
	struct relay *p = CGN_NEW(struct relay);
	p->tag = ADMINRELAY_TAG;
	p->code = code;
	cgn_rc rc = http_call_start(client, rq, &ops, p, &p->server, err);
	if (!cgn_ok(rc)) {
		relay_free(p);
		return rc;
	}
	p->call = svc_admin_later(reply, relay_gone, p);
	return CGN_OK;
}
