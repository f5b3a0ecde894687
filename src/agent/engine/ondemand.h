/* SPDX-License-Identifier: Apache-2.0 */
/* ondemand: an engine that is loaded when requests want its model, and unloaded when others need the room or no request came for
 * long. Holds the requests that wait for the load, and what agent/swap decides by. An engine that is not on demand lets every
 * request through. */
#pragma once
#include "base/core/list.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/engines.pb-c.h"
#include "policy/config/config.h"
#include "policy/node/swap/swap.h"
#include "policy/node/wanted/wanted.h"

struct engine;
struct json_out;
struct metric_cell;

/* A request is told when the engine takes it, or why not. */
struct engine_refusal {
	const char *why;      /* A sentence; borrowed for the call. */
	unsigned retry_after; /* Seconds. */
};
struct engine_waiter {
	struct cgn_link link; /* In engine_ondemand.waiters while the request waits. */
	cgn_nsec since;
	/* The end of this request's interest in the engine, from its end on; known once it entered. */
	bool known, bounded;
	int64_t kept_ms;
	/* The engine takes the request now; |no|: it does not. Called once, later than engine_enter. */
	void (*over)(struct engine_waiter *w, const struct engine_refusal *no);
};

enum ondemand_phase {
	ONDEMAND_OUT,
	ONDEMAND_LOADING, /* Started or waking; or it was loaded, failed, and is restarted. */
	ONDEMAND_IN,
	ONDEMAND_SAVING,   /* The slots are being saved before the stop. */
	ONDEMAND_STOPPING, /* Being stopped or put to sleep. */
};

struct engine_ondemand {
	bool on;
	/* ---- settings ---- */
	uint64_t bytes; /* engine.memory, or the file's and the process's */
	bool measures;  /* |bytes| is measured */
	uint32_t priority;
	int64_t keep_alive_ms; /* engine.keep_alive; < 0: for ever */
	cgn_nsec ready_timeout;
	/* ---- where it is ---- */
	enum ondemand_phase phase;         /* Written by agent/swap */
	Cognitora__V1__WantedState wanted; /* State that engine_rest_step brings about */
	bool held;                         /* Takes no further requests, so that it can leave. */
	bool cannot_sleep;                 /* The engine refused to sleep, and is stopped instead */
	bool doubted; /* Refused a request's connection, and no check has found it well since: takes none. */
	cgn_nsec phase_at; /* Begin of the phase. */
	cgn_nsec loaded_at;
	cgn_nsec ready_at;        /* Loading: its check succeeded; 0: not yet. */
	cgn_nsec load_time;       /* Moving average, or a guess. */
	unsigned failures_before; /* process.failures when the load began. */
	uint64_t ordered;         /* Revision of the operator's last order to load that was obeyed. */
	char why[400];            /* Why the last load failed; "": it did not. */
	unsigned failed;          /* Loads in a row that failed. */
	cgn_nsec retry_at;        /* No load before that instant. */
	/* ---- requests ---- */
	struct cgn_link waiters;
	uint32_t waiting;
	int64_t kept_ms;  /* keep_alive of the last request that may change the model. */
	cgn_nsec until;   /* The last interest ends; SWAP_NEVER: it does not. */
	cgn_nsec used_at; /* Last begin or end of a request. */
	uint64_t used_unix_ms;
	cgn_nsec told_at;    /* When the log last had a line of a load that goes on. */
	unsigned told_share; /* Hundredths of the load that routers were told. */
	struct metric_cell *loads_ok, *loads_failed, *waiting_now;
};
void engine_ondemand_init(struct engine *e, const struct config *cfg, const struct config_engine *ce);
/* How long a request wants the engine kept behind it. */
struct engine_wish {
	bool told;
	int64_t ms; /* |told|; below 0: until the engine's room is needed. Not told: the engine's setting. */
	/* The caller may not load and unload models. The wish holds for this caller: it is at most the engine's setting, and
	 * ends the interest of no other caller. */
	bool bounded;
};
/* Note the wish of the request |w|. It counts from engine_left on. */
void engine_wish(const struct engine *e, struct engine_waiter *w, const struct engine_wish *wish);
/* Let a request with a wish in, after engine_requests counts it. Returns true: it goes on. False: |w| waits, until it is told or
 * engine_left is called. */
bool engine_enter(struct engine *e, struct engine_waiter *w);
/* Return true if requests go on at once. */
bool engine_takes_requests(const struct engine *e);
/* The engine refused a request's connection. Returns true if requests wait until a check finds it well or it is loaded
 * again; false: it is not on demand. */
bool engine_doubt(struct engine *e);
/* A check found the engine well. Returns true if it was doubted. */
bool engine_doubt_end(struct engine *e);
/* A request has left engine_requests, waiting or not. */
void engine_left(struct engine *e, struct engine_waiter *w);
/* Tell all waiting requests that they go on, or why not. */
void engine_waiters_end(struct engine *e, const struct engine_refusal *no);
/* Return true if routers may send requests for the model, loaded or not. */
bool engine_is_offered(const struct engine *e);
/* Return true if the engine may be loaded now: it is offered, and no load has failed a moment ago. */
bool engine_is_loadable(const struct engine *e);
/* Return the wanted state of an engine that may rest: an operator's order, else the state that requests
 * need. */
Cognitora__V1__WantedState engine_wanted(const struct engine *e);
/* Return true if an operator keeps the engine from being loaded. */
bool engine_is_ordered_to_rest(const struct engine *e);
/* Return when the oldest waiting request came; now: none waits. */
cgn_nsec engine_waits_since(const struct engine *e);
/* Return when the engine is unloaded if no request comes; SWAP_NEVER: not for that. */
cgn_nsec engine_expires_at(const struct engine *e);
/* The same as Unix time in milliseconds, in steps of five seconds; 0: not for that. */
uint64_t engine_expires_unix_ms(const struct engine *e);
/* Return the share of the expected load time that has passed, 0 to 99. */
unsigned engine_load_share(const struct engine *e);
/* Return the state on demand for /engines; NULL: the engine is not on demand. */
Cognitora__V1__EngineOnDemand *engine_ondemand_new(const struct engine *e, struct pb_tree *t);
/* Write "ready", "loadable", "loading 40 %", "unloading" or "failed" for people and programs. */
void engine_ondemand_text(const struct engine *e, char *out, size_t cap);
