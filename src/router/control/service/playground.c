/* SPDX-License-Identifier: Apache-2.0 */
/* playground: relays a request of the page to this router's own gateway, where it is like any other one: its key,
 * limits and queue count. The page cannot ask the gateway itself, because that is another origin for a browser. */
#include "joint/daemon/adminrelay/adminrelay.h"
#include "router/control/control/self.h"
#include "router/control/service/service_priv.h"

#define PLAY_PATH "/playground"

static CGN_RC gateway_open(struct router *r, struct cgn_err *err)
{
	struct router_self self;
	CGN_TRY(router_self_find(r, &self, err));
	const struct http_client_cfg cfg = {.addr = self.addr,
		.tls = self.tls,
		.server_name = self.name[0] != '\0' ? self.name : NULL,
		.max_conns = 16,
		.max_waiting = 16};
	cgn_rc rc = http_client_new(r->loop, &cfg, &r->ports.playground, err);
	tls_ctx_free(&self.tls); /* The client holds its own reference. */
	return rc;
}

static CGN_RC play_start(struct router *r, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {0};
	struct cgn_str key = http_head_get(h, "x-api-key");
	const struct http_field fields[] = {{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("x-cgn-explain"), CGN_STR("1")}, {CGN_STR("x-api-key"), key}};
	const struct iovec iov = {(void *)(uintptr_t)body.p, body.n}; /* Only read. */
	cgn_buf_add(&path, h->path.p + strlen(PLAY_PATH), h->path.n - strlen(PLAY_PATH));
	cgn_buf_add(&path, "", 1);
	const struct http_request rq = {.method = "POST",
		.path = (const char *)path.p,
		.fields = fields,
		.n_fields = key.n > 0 ? 3 : 2,
		.body_len = (int64_t)body.n,
		.body = &iov,
		.n_body = 1};
	if (path.bad)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	if (r->ports.playground == NULL)
		CGN_TRY(gateway_open(r, err));
	return adminrelay_start(reply, r->ports.playground, &rq, "no_gateway", err);
}

void router_admin_play(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct cgn_err err;
	if (!cgn_str_starts(h->path, PLAY_PATH "/v1/")) {
		svc_admin_error(reply, 404, "not_found", "the playground relays to /v1/ of the gateway");
		return;
	}
	if (!svc_admin_from_page(h, reply))
		return;
	cgn_rc rc = play_start(r, h, body, reply, &err);
	if (!cgn_ok(rc))
		svc_admin_error(reply, cgn_code_http(rc.code), "no_gateway", err.msg);
}
