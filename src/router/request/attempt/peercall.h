/* SPDX-License-Identifier: Apache-2.0 */
/* peercall: an attempt whose other end is a peer (router/shared/peers): an HTTP/1.1 call over TLS on connections of the worker.
 * The answer streams with back-pressure as one of a node; the prefix record and the nodes' speeds learn nothing of it.
 *
 * Another cluster gets the client's fields as an engine does, and who the client is (plan/send.c). A peer that is a hosted API is told nothing of the client but the request itself: it gets the body, the fields
 * content-type, accept, openai-beta, anthropic-version and anthropic-beta, and the operator's key. */
#pragma once
#include "router/request/attempt/attempt.h"

struct gw_peer_model;

/* Send |g| to |peer|; |m|: its row of the model; |g| NULL: there was no memory for it. As gw_attempt_start. */
void gw_peercall_start(struct gw_attempt *a, const struct gw_attempt_cfg *cfg, struct gw_peer *peer,
	struct gw_peer_model *m, const struct proto_generate *g);
/* End the rest of it. Safe when the attempt does not call a peer. */
void gw_peercall_end(struct gw_attempt *a);
