/* SPDX-License-Identifier: Apache-2.0 */
/* direct: an attempt straight at the node's engine, by HTTP/1.1, where the agent allows it (Engine.direct)
 * and has nothing to add. The agent gets the number of such requests (control/direct.c). */
#pragma once
#include "router/request/attempt/attempt.h"

/* Send |g| straight to the engine of |node|. False: it has to go by the agent. The attempt has its link. */
bool gw_direct_start(struct gw_attempt *a, const struct view_node *node, struct cgn_arena *arena,
	const struct proto_generate *g);
/* Send |g| to the engine of |node|, which has no agent. A call that cannot be started is a closed attempt with a reason in
 * call.why. The attempt has its link. */
void gw_direct_bare(struct gw_attempt *a, const struct view_node *node, struct cgn_arena *arena,
	const struct proto_generate *g);
/* For calls by HTTP, to an engine or to another cluster: gather the events of an answer that came at once, take its head,
 * its bytes and its end. The user of the call is the attempt. */
void gw_direct_gather(struct gw_attempt *a); /* Before the call. */
void gw_direct_head(struct gw_attempt *a, const struct http_head *h);
void gw_direct_body(struct http_call *call, void *user, const uint8_t *p, size_t n);
void gw_direct_done(struct http_call *call, void *user, const struct http_field *trailers, size_t n);
void gw_direct_over(struct gw_attempt *a, const struct cgn_err *why); /* The call failed, or is done. */
/* Let requests for the node in |slot| go by its agent for a while, if it has one: the agent sees what its engine answers. */
void gw_direct_avoid(struct gw_worker *w, uint16_t slot);
/* End the rest of it: nothing is counted or gathered any more. Safe when nothing was started. */
void gw_direct_end(struct gw_attempt *a);
