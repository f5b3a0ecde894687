/* SPDX-License-Identifier: Apache-2.0 */
/* call: a call's life from its link to its last callback. */
#include "router/request/attempt/call.h"
#include "base/weburl/weburl.h"

static void call_fail(struct gw_call *c)
{
	grpc_cancel(&c->grpc);
	c->closed = true;
	c->why = (struct cgn_err){.code = CGN_NO_MEMORY, .msg = "out of memory"};
}

bool gw_call_swap_keep(struct proto_swap *s, struct cgn_arena *arena)
{
	if (s->by.p == NULL)
		return true;
	s->by = cgn_arena_str(arena, s->by);
	return s->by.p != NULL;
}

static void call_send(struct gw_call *c, struct proto_generate *g, struct cgn_arena *arena)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prefix = {0};
	proto_generate_prefix(g, &prefix);
	if (prefix.bad || (c->lends && !gw_call_swap_keep(&g->swap, arena))) {
		call_fail(c);
		return;
	}
	struct cgn_str body[PROTO_BODY_PIECES];
	struct iovec iov[1 + PROTO_BODY_PIECES] = {{prefix.p, prefix.n}};
	size_t n = proto_generate_body(g, body);
	for (size_t i = 0; i < n; i++)
		iov[1 + i] = (struct iovec){(void *)(uintptr_t)body[i].p, body[i].n};
	if (c->lends)
		grpc_send_lent(c->grpc, iov, 1 + n, n);
	else
		grpc_send(c->grpc, iov, 1 + n);
	if (c->grpc != NULL)
		grpc_half_close(c->grpc);
}

bool gw_call_link(struct gw_call *c, struct gw_worker *w, const struct view_node *node,
	struct cgn_arena *arena)
{
	CGN_MUST(!gw_call_is_open(c));
	cgn_rc rc = CGN_OK;
	c->slot = node->slot;
	c->node_id = cgn_arena_strz(arena, cgn_str_of(node->id));
	c->why = (struct cgn_err){.code = CGN_FINE};
	if (c->node_id == NULL)
		rc = CGN_FAIL(&c->why, NO_MEMORY, "no memory for a call to node %s", node->id);
	if (cgn_ok(rc) && c->link == NULL)
		rc = gw_link_get(w, node, &c->link, &c->why);
	c->closed = !cgn_ok(rc);
	return !c->closed;
}

void gw_call_by_agent(struct gw_call *c, struct cgn_arena *arena, const struct proto_generate *g,
	const struct grpc_call_ops *ops, void *user)
{
	if (!cgn_ok(grpc_call_start(c->link->channel, PROTO_AGENT_GENERATE, 0, ops, user, &c->grpc,
		    &c->why))) {
		c->grpc = NULL;
		c->closed = true;
		return;
	}
	struct proto_generate sent = *g;
	call_send(c, &sent, arena);
}

/* Write the path at the engine. */
static void path_write(const struct gw_link *l, struct cgn_str path, struct cgn_buf *out)
{
	if (l->url != NULL)
		weburl_path(l->url, path, out);
	else
		cgn_buf_str(out, path);
}

CGN_RC gw_call_by_engine(struct gw_call *c, const struct proto_generate *g, const struct http_call_ops *ops,
	void *user, struct cgn_err *err)
{
	struct http_field fields[ENGINECALL_FIELDS];
	struct cgn_str body[PROTO_BODY_PIECES];
	struct iovec iov[PROTO_BODY_PIECES];
	char method[16];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 65536};
	size_t n = proto_generate_body(g, body);
	for (size_t i = 0; i < n; i++)
		iov[i] = (struct iovec){(void *)(uintptr_t)body[i].p, body[i].n};
	path_write(c->link, g->path, &path);
	const struct http_request rq = {.method = method,
		.path = cgn_buf_z(&path),
		.fields = fields,
		.n_fields = enginecall_fields(g, c->link->authorization, fields),
		.body_len = (int64_t)cgn_iov_bytes(iov, n)};
	if (path.bad || !cgn_str_copyz(method, sizeof method, g->method))
		return CGN_FAIL(err, NO_MEMORY, "no memory for a call to node %s", c->node_id);
	CGN_TRY(http_call_start(c->link->engine, &rq, ops, user, &c->http, err));
	http_call_lend(c->http, iov, n);
	if (!c->lends)
		http_call_keep(c->http);
	http_call_end(c->http);
	return CGN_OK;
}

void gw_call_start(struct gw_call *c, struct gw_worker *w, const struct view_node *node,
	struct cgn_arena *arena, const struct proto_generate *g, const struct grpc_call_ops *ops, void *user)
{
	if (gw_call_link(c, w, node, arena))
		gw_call_by_agent(c, arena, g, ops, user);
}

bool gw_call_is_open(const struct gw_call *c)
{
	return c->grpc != NULL || c->http != NULL;
}

void gw_call_pause(struct gw_call *c)
{
	if (c->grpc != NULL)
		grpc_pause(c->grpc);
	if (c->http != NULL)
		http_call_pause(c->http);
}

void gw_call_resume(struct gw_call *c)
{
	if (c->grpc != NULL)
		grpc_resume(c->grpc);
	if (c->http != NULL)
		http_call_resume(c->http);
}

void gw_call_keep(struct gw_call *c)
{
	if (c->lends && c->grpc != NULL)
		grpc_keep(c->grpc);
	if (c->lends && c->http != NULL)
		http_call_keep(c->http);
	c->lends = false;
}

void gw_call_on_close(struct gw_call *c, const struct cgn_err *why)
{
	c->grpc = NULL;
	c->http = NULL;
	c->closed = true;
	if (c->why.code == CGN_FINE)
		c->why = *why;
}

void gw_call_end(struct gw_call *c, struct gw_worker *w)
{
	if (c->grpc != NULL)
		grpc_cancel(&c->grpc);
	if (c->http != NULL)
		http_call_cancel(&c->http);
	if (c->link != NULL)
		gw_link_release(w, &c->link);
}
