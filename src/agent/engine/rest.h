/* SPDX-License-Identifier: Apache-2.0 */
/* rest: brings the engine to what operators want of its own models: that it runs, that it sleeps (it gives back its GPU
 * memory and keeps its process), or that it is stopped. Before it sleeps or stops its requests end: at most
 * agent.drain_timeout for an operator's order, without a limit for the router's own. An engine without an order is left as it is. */
#pragma once
#include "io/wire/webask/webask.h"
#include "policy/node/wanted/wanted.h"

struct engine;
struct engine_rest {
	Cognitora__V1__WantedState wanted; /* WANTED_AS_CONFIGURED: there is no order */
	enum rest_state {
		REST_RUNS,
		REST_UNKNOWN, /* An agent before this one may have put the engine to sleep */
		REST_DRAINING,
		REST_ASLEEP,
		REST_STOPPED, /* The process is stopped, or being stopped */
	} state;
	bool patient; /* The router ordered the rest, to follow the load: requests end, however long that takes. */
	uint64_t revision;     /* The order that is obeyed (WantedModel.revision) */
	struct webask *fetch;  /* The request to the engine; NULL: none is under way */
	char why[400];         /* Why the engine refused the last request; "": it did not */
	cgn_nsec since;        /* When it began to drain */
	cgn_nsec saving_since; /* When the slots' saving before the stop began; 0: it did not. */
	cgn_nsec retry_at;
	unsigned failures; /* Refused requests in a row */
};
/* Obey an order about the engine's own models. |patient|: see above. */
void engine_rest_want(struct engine *e, const Cognitora__V1__WantedModel *m,
	Cognitora__V1__WantedState wanted, bool patient);
/* Take the next step. True: there are further ones, call again soon. */
bool engine_rest_step(struct engine *e);
/* The engine's process is ready no more: a sleep is over. */
void engine_rest_forget(struct engine *e);
/* systemctl has ended; |why|: it failed. */
void engine_rest_unit_done(struct engine *e, bool starts, const char *why);
void engine_rest_close(struct engine *e);
/* True if routers shall send nothing there: it rests, or is about to. */
bool engine_rest_hides(const struct engine *e);
/* Return how far it is for the node's description; "": it runs. Static. */
const char *engine_rest_text(const struct engine *e);
