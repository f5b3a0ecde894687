/* SPDX-License-Identifier: Apache-2.0 */
/* supervise: the life of one engine, as a step function. The shell tells what happened and carries out the
 * orders; it owns process, sockets and clock. An engine that is not managed is only watched: never spawned,
 * never killed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

enum supervise_state {
	SUPERVISE_STOPPED,   /* not begun, or ended by SUPERVISE_STOP */
	SUPERVISE_STARTING,  /* process runs (managed), no good readiness answer yet */
	SUPERVISE_READY,     /* takes requests */
	SUPERVISE_UNHEALTHY, /* was ready, answers badly or not at all; given time to recover */
	SUPERVISE_BACKOFF,   /* managed: no process, waits before the next start */
	SUPERVISE_STOPPING,  /* managed: told to end, process not gone yet */
};
const char *supervise_state_name(enum supervise_state s); /* "ready" */

enum supervise_event {
	SUPERVISE_START,
	SUPERVISE_TICK,         /* wake_at came */
	SUPERVISE_SPAWN_FAILED, /* instead of a process that exits */
	SUPERVISE_EXITED,       /* the process is gone, whoever ended it */
	/* answers to an ordered probe: exactly one each, unless the process exited meanwhile */
	SUPERVISE_PROBE_UP,
	SUPERVISE_PROBE_LOADING, /* it answers, and says that it is not ready */
	SUPERVISE_PROBE_DOWN,    /* a bad answer, or none in time */
	SUPERVISE_PROBE_REFUSED, /* nobody listens there */
	SUPERVISE_STALLED,       /* it lives and says nothing to anybody: no need to ask more often */
	SUPERVISE_STOP,
};

struct supervise_cfg {
	bool managed;
	cgn_nsec ready_timeout;  /* managed: from start to ready, else it is killed and started again */
	cgn_nsec ready_interval; /* between probes while not ready */
	cgn_nsec check_interval; /* between probes while ready */
	cgn_nsec backoff;        /* before the first restart */
};
#define SUPERVISE_BACKOFF_MAX    (30 * CGN_SEC)
#define SUPERVISE_HEALTHY_MINUTE (60 * CGN_SEC) /* ready for so long: the next restart waits as the first */
#define SUPERVISE_SICK_LIMIT     (30 * CGN_SEC) /* unhealthy for so long: a managed engine is started again */
/* bad probes in a row until a ready engine is unhealthy; a refused one is enough */
#define SUPERVISE_FAILS 3

struct supervise {
	struct supervise_cfg cfg;
	enum supervise_state state;
	bool has_process, probing, killing;
	uint32_t fails, restarts;
	cgn_nsec backoff, ready_since, deadline, next_probe; /* 0: none */
};

struct supervise_orders {
	bool spawn;       /* start the process; SPAWN_FAILED if that can't be done */
	bool kill;        /* end the process group; EXITED follows */
	bool probe;       /* ask the engine; one PROBE_* follows */
	cgn_nsec wake_at; /* absolute; 0: none. Replaces the one before */
};

void supervise_init(struct supervise *s, const struct supervise_cfg *cfg);
/* Events that do not fit the state (a probe's answer after the process has gone) change nothing. */
void supervise_step(struct supervise *s, enum supervise_event ev, cgn_nsec now, struct supervise_orders *out);
