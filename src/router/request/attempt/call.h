/* SPDX-License-Identifier: Apache-2.0 */
/* call: one Agent.Generate call to one node, or one HTTP call to its engine, with the link that it uses. */
#pragma once
#include "joint/node/enginecall/enginecall.h"
#include "policy/node/proto/proto.h"
#include "router/shared/worker/link.h"

struct gw_call {
	struct grpc_call *grpc; /* NULL: not open by the agent */
	struct http_call *http; /* NULL: not open straight at the engine (direct.h) */
	struct gw_link *link;   /* a reference; NULL: none */
	uint16_t slot;
	bool lends;          /* the body stays unchanged until gw_call_keep or the end: do not copy it */
	const char *node_id; /* in the arena that gw_call_start was given */
	bool closed;         /* ended, or could not be started */
	struct cgn_err why;  /* once closed, or why the answer is unusable; CGN_FINE: in good order */
};

/* Send |g| to |node|. |arena| lives longer than |c|, and keeps the node's id. A link that |c| still has is used
 * again. A call that cannot be started is a closed call with a reason. |ops| get |user|; their on_close has to
 * call gw_call_on_close. */
void gw_call_start(struct gw_call *c, struct gw_worker *w, const struct view_node *node,
	struct cgn_arena *arena, const struct proto_generate *g, const struct grpc_call_ops *ops, void *user);
/* Take the link of |node| and keep its id, without a call. False: the call is closed with a reason. */
bool gw_call_link(struct gw_call *c, struct gw_worker *w, const struct view_node *node,
	struct cgn_arena *arena);
/* Send |g| to the agent of the call's link, as gw_call_start. */
void gw_call_by_agent(struct gw_call *c, struct cgn_arena *arena, const struct proto_generate *g,
	const struct grpc_call_ops *ops, void *user);
/* Send |g| straight to the engine of the call's link (gw_link_engine), by HTTP/1.1. Its body is lent until gw_call_keep if
 * |lends| is set, else copied. On failure nothing was started. */
CGN_RC gw_call_by_engine(struct gw_call *c, const struct proto_generate *g, const struct http_call_ops *ops,
	void *user, struct cgn_err *err);
/* Copy the bytes that replace the model's name, which belong to the view: it may be replaced while they are sent.
 * False: out of memory. */
bool gw_call_swap_keep(struct proto_swap *s, struct cgn_arena *arena);
/* True while the call may bring more of its answer. */
bool gw_call_is_open(const struct gw_call *c);
/* Stop reading the answer, and go on with it. */
void gw_call_pause(struct gw_call *c);
void gw_call_resume(struct gw_call *c);
/* Copy the unsent rest of a lent body: it may be freed. */
void gw_call_keep(struct gw_call *c);
void gw_call_on_close(struct gw_call *c, const struct cgn_err *why);
/* Cancel the call if it is open, and give the link back. Safe when nothing was started. */
void gw_call_end(struct gw_call *c, struct gw_worker *w);
