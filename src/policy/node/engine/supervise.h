/* SPDX-License-Identifier: Apache-2.0 */
/* supervise: the life of one engine, as a step function. The caller reports events and performs the orders;
 * it owns the process, the sockets and the clock. An engine that is not managed is only watched: never
 * spawned, never killed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

enum supervise_state {
	SUPERVISE_STOPPED,   /* Not started, or ended by SUPERVISE_STOP */
	SUPERVISE_STARTING,  /* The process runs (managed); no good readiness answer yet */
	SUPERVISE_READY,     /* The engine takes requests */
	SUPERVISE_UNHEALTHY, /* Was ready, and answers badly or not at all; has time to recover */
	SUPERVISE_BACKOFF,   /* Managed: no process; the next start waits */
	SUPERVISE_STOPPING,  /* Managed: the process is ending */
};
const char *supervise_state_name(enum supervise_state s); /* Return the name, such as "ready"; static. */

enum supervise_event {
	SUPERVISE_START,
	SUPERVISE_TICK,         /* |wake_at| is reached */
	SUPERVISE_ADOPTED,      /* The ordered spawn found the process of an earlier agent; it may be ready */
	SUPERVISE_SPAWN_FAILED, /* The ordered spawn failed */
	SUPERVISE_ENDING, /* The program has ended; what it left is being killed, then SUPERVISE_EXITED */
	SUPERVISE_EXITED, /* The process has ended */
	/* Results of an ordered probe: exactly one for each, unless the process ends first */
	SUPERVISE_PROBE_UP,
	SUPERVISE_PROBE_LOADING, /* The engine answers that it is not ready */
	SUPERVISE_PROBE_DOWN,    /* A bad answer, or none in time */
	SUPERVISE_PROBE_REFUSED, /* The connection was refused */
	SUPERVISE_STALLED,       /* The engine is alive but neither answers nor sends bytes */
	SUPERVISE_STOP,
};

struct supervise_cfg {
	bool managed;
	cgn_nsec ready_timeout;  /* Managed: from start to ready; then the process is killed and restarted */
	cgn_nsec ready_interval; /* Between probes while not ready */
	cgn_nsec check_interval; /* Between probes while ready */
	cgn_nsec backoff;        /* Before the first restart */
};
#define SUPERVISE_BACKOFF_MAX (30 * CGN_SEC)
/* After being ready for so long, the next restart waits like the first */
#define SUPERVISE_HEALTHY_MINUTE (60 * CGN_SEC)
/* A managed engine that is unhealthy for so long is restarted */
#define SUPERVISE_SICK_LIMIT (30 * CGN_SEC)
/* Bad probes in a row that make a ready engine unhealthy; one refused probe suffices */
#define SUPERVISE_FAILS 3

struct supervise {
	struct supervise_cfg cfg;
	enum supervise_state state;
	bool has_process, probing, killing;
	bool ending; /* SUPERVISE_ENDING came, SUPERVISE_EXITED did not */
	uint32_t fails, restarts;
	cgn_nsec backoff, ready_since, deadline, next_probe; /* 0: not set */
};

struct supervise_orders {
	bool spawn;       /* Start the process; report SUPERVISE_SPAWN_FAILED if that fails */
	bool kill;        /* End the process group; SUPERVISE_EXITED follows */
	bool probe;       /* Probe the engine; one SUPERVISE_PROBE_* follows */
	cgn_nsec wake_at; /* Instant of the next SUPERVISE_TICK; 0: none. Replaces the previous one */
};

void supervise_init(struct supervise *s, const struct supervise_cfg *cfg);
/* Report an event. An event that does not fit the state, such as a probe's result after the process has
 * ended, changes nothing. */
void supervise_step(struct supervise *s, enum supervise_event ev, cgn_nsec now, struct supervise_orders *out);
