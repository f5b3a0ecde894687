/* SPDX-License-Identifier: Apache-2.0 */
/* process: the engine's process and the state machine of policy/node/engine/supervise: performs its orders and reports
 * events to it. */
#pragma once
#include "agent/engine/output.h"
#include "io/os/loop/loop.h"
#include "io/os/proc/proc.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"
#include "policy/node/engine/launch.h"
#include "policy/node/engine/supervise.h"

struct engine;
struct engine_process {
	struct supervise sup;
	struct cgn_timer wake;
	struct proc *proc;           /* NULL: no process runs, or the engine is not managed */
	struct engine_launch launch; /* Command line and environment; empty when not managed */
	cgn_nsec stop_grace;         /* From SIGTERM to SIGKILL */
	cgn_nsec orphan_time;        /* How long the process runs on without an agent */
	char place[512];             /* Where its log is, and where another agent finds it; "": nowhere */
	char word[17];               /* Fingerprint of the launch plan */
	const char *killed_because;  /* Why this agent ends the process; NULL: it does not */
	unsigned failures;           /* Ends in a row that were not ordered, since the engine was last well */
	char ended[400];             /* Why the last process ended; "" once the engine is ready */
	const char **start_after;    /* Engines that must be ready before the first start */
	size_t n_start_after;
	bool waits; /* For those engines */
	struct metric_cell *ready, *restarts;
	struct engine_output output;
};
/* Build the launch plan and the state machine. CGN_INVALID: a managed engine lacks a setting. */
CGN_RC engine_process_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err);
void engine_process_close(struct engine *e);
/* Report an event to the state machine and perform its orders. */
void engine_step(struct engine *e, enum supervise_event ev);
/* True while the engine was not started because another one comes first. */
bool engine_waits(const struct engine *e);
void engine_wait_over(struct engine *e); /* Start it. */
/* A request found the engine dead: check its health now. */
void engine_check_soon(struct engine *e);
