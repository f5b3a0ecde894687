/* SPDX-License-Identifier: Apache-2.0 */
/* process: the engine's process and the state machine of policy/engine/supervise: performs its orders and reports
 * events to it. */
#pragma once
#include "io/loop/loop.h"
#include "io/proc/proc.h"
#include "joint/telemetry/telemetry.h"
#include "policy/config/config.h"
#include "policy/engine/engine.h"
#include "policy/engine/supervise.h"

/* The last lines of an engine whose output is not logged, for the log if it fails. */
#define ENGINE_LAST_LINES 12
#define ENGINE_LAST_BYTES 240
struct engine_output {
	char line[ENGINE_LAST_LINES][ENGINE_LAST_BYTES];
	unsigned n; /* Lines that came so far */
};

struct engine;
struct engine_process {
	struct supervise sup;
	struct cgn_timer wake;
	struct proc *proc;           /* NULL: no process runs, or the engine is not managed */
	struct engine_launch launch; /* Command line and environment; empty when not managed */
	struct metric_cell *ready, *restarts;
	struct engine_output last;
};
/* Build the launch plan and the state machine. CGN_INVALID: a managed engine lacks a setting. */
CGN_RC engine_process_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err);
void engine_process_close(struct engine *e);
/* Report an event to the state machine and perform its orders. */
void engine_step(struct engine *e, enum supervise_event ev);
/* A request found the engine dead: check its health now. */
void engine_check_soon(struct engine *e);
