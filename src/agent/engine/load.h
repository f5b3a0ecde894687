/* SPDX-License-Identifier: Apache-2.0 */
/* load: what a ready engine reports of its load, read each second. */
#pragma once
#include "io/loop/loop.h"
#include "joint/enginefetch/enginefetch.h"
#include "joint/telemetry/telemetry.h"
#include "policy/engine/engine.h"
#include "policy/share/share.h"

struct engine;
struct engine_scrape {
	struct cgn_timer timer;
	struct enginefetch *fetch; /* NULL: none is under way */
	size_t source;             /* Index of the source that is being read */
	/* Sources that the engine answered with 4xx: not read until the engine becomes ready again */
	bool source_gone[ENGINE_MAX_SOURCES];
	struct engine_load now, next; /* The last reading, and the one under way */
	uint32_t foreign;             /* Requests of other clients in the engine at the last reading */
	struct metric_cell *running, *waiting, *kv_usage;
};
void engine_load_init(struct engine *e);
void engine_load_start(struct engine *e);
/* Stop reading; what is running and waiting becomes 0. */
void engine_load_stop(struct engine *e);
