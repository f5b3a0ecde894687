/* SPDX-License-Identifier: Apache-2.0 */
/* load: the agent's view of the engine's load (joint/node/engineview): metrics, and the requests of
 * others. */
#pragma once
#include "joint/report/telemetry/telemetry.h"
#include "policy/node/engine/engine.h"

struct engine;
struct engine_gauges {
	uint32_t foreign; /* Requests of other clients in the engine at the last reading */
	struct metric_cell *running, *waiting, *kv_usage;
};
void engine_load_init(struct engine *e);
void engine_load_start(struct engine *e);
/* Stop reading; the running and the waiting requests become 0. */
void engine_load_stop(struct engine *e);
/* Callbacks of joint/node/engineview. */
void engine_load_begins(void *user);
void engine_load_answered(void *user, struct cgn_str body);
void engine_load_read(void *user, const struct engine_load *before, bool restarted);
