/* SPDX-License-Identifier: Apache-2.0 */
/* handoff: how the engine hands computed prompts to engines of other nodes, as the node's description tells it: from the
 * configuration, and from what the engine says of its build and its ranks. */
#pragma once
#include "base/pb/pb_tree.h"
#include "base/weburl/weburl.h"
#include "cognitora/v1/engines.pb-c.h"
#include "io/wire/webask/webask.h"
#include "policy/config/config.h"
#include "policy/node/handoff/handoff.h"

struct engine;
struct engine_handoff {
	const struct handoff_ops *ops; /* HANDOFF_NONE: the engine hands nothing over */
	const char *host, *tag;        /* In the engine's arena; NULL: not configured */
	unsigned port;
	uint32_t tp;                   /* Tensor-parallel size */
	struct webask *fetch;          /* NULL: none is under way */
	struct http_client *bootstrap; /* Mooncake: to the bootstrap server; NULL: none */
	struct weburl bootstrap_url;
	struct webask_endpoint bootstrap_at;
	struct cgn_arena arena; /* Engine ids; dropped when the engine becomes ready again */
	const char *ids[HANDOFF_RANKS_MAX];
	size_t n_ids;
	bool needs_ids;
	char build[65];   /* Empty: unknown */
	bool build_known; /* The engine was asked for its build, and answered */
};
/* CGN_INVALID: the port is missing. CGN_NO_MEMORY. */
CGN_RC engine_handoff_init(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err);
void engine_handoff_close(struct engine *e);
/* The engine became ready and may be another build, with other ids. */
void engine_handoff_reset(struct engine *e);
/* Ask the engine for the facts that are not known yet. Call about every second while it is ready. */
void engine_handoff_ask(struct engine *e);
/* Return true when all facts of the hand-off in the node's description are known. */
bool engine_handoff_is_known(const struct engine *e);
/* Return the hand-off for /engines; NULL: the engine has none. */
Cognitora__V1__EngineHandoff *engine_handoff_new(const struct engine *e, struct pb_tree *t);
/* Append the terms that both engines of a pair must have in common. */
void engine_handoff_terms(const struct engine *e, struct cgn_buf *out);
