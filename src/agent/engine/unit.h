/* SPDX-License-Identifier: Apache-2.0 */
/* unit: an engine that runs as a unit of systemd (engine.systemd_unit). The agent starts and stops the unit by systemctl, when
 * an order puts the engine to rest or ends that; systemd supervises it. Only units that the agent's own settings name. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/config/config.h"

struct engine;
struct proc;

#define UNIT_WORDS 8 /* Most words of agent.systemctl. */

struct engine_unit {
	const char *name; /* NULL: the engine does not run as a unit. */
	const char *systemctl[UNIT_WORDS];
	size_t n_systemctl;
	struct proc *proc; /* systemctl; NULL: it does not run. */
	struct cgn_timer limit;
	bool starts;      /* |proc| starts the unit; else it stops the unit. */
	bool late;        /* |proc| was ended, because it took too long. */
	bool stopped;     /* The unit was stopped by the agent's order. */
	uint64_t started; /* Revision of the order to run that was obeyed last. */
	char said[200];   /* The last line of systemctl's output. */
};
/* NO_MEMORY. */
CGN_RC engine_unit_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err);
void engine_unit_close(struct engine *e);
/* Run systemctl, unless it runs; engine_rest_unit_done tells how it ended. */
void engine_unit_ask(struct engine *e, bool start);
