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
/* Take the head of an answer that came by HTTP. Calls on_event. */
void gw_direct_head(struct gw_attempt *a, const struct http_head *h);
/* Let requests for the node in |slot| go by its agent for a while, if it has one: the agent sees what its engine answers. */
void gw_direct_avoid(struct gw_worker *w, uint16_t slot);
/* End the rest of it: nothing is counted or gathered any more. Safe when nothing was started. */
void gw_direct_end(struct gw_attempt *a);
