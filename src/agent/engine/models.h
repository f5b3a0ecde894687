/* SPDX-License-Identifier: Apache-2.0 */
/* models: the names under which the engine serves, configured or read from /v1/models. */
#pragma once
#include "base/core/arena.h"
#include "joint/enginefetch/enginefetch.h"
#include "policy/config/config.h"

struct engine;
struct engine_models {
	struct enginefetch *fetch; /* NULL: none is under way */
	struct cgn_arena arena;
	const char **names;
	const char *planned; /* Name or path with which a managed engine is started; NULL: unknown */
	size_t n;
	bool configured; /* engine.model is set: the engine is not asked */
	bool known;
	cgn_nsec asked_at; /* When the engine last answered, or failed to */
	struct cgn_hook
		again; /* Asks again at the end of the turn, when other questions' connection is free */
};
CGN_RC engine_models_init(struct engine *e, const struct config_engine *ce, struct cgn_err *err);
/* The engine became ready and may serve other models than before. */
void engine_models_reset(struct engine *e);
/* Ask the engine for its models, unless they are known. */
void engine_models_ask(struct engine *e);
/* Ask again when they are known for two seconds and not configured: the engine may load and unload LoRAs while it
 * runs. An answer that cannot be used changes nothing. */
void engine_models_ask_again(struct engine *e);
/* True if the model is configured, or was on the engine's list when it was read last. */
bool engine_lists(const struct engine *e, struct cgn_str model);
/* True also for an adapter that operators had loaded. */
bool engine_serves(const struct engine *e, struct cgn_str model);
