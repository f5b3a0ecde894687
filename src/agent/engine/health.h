/* SPDX-License-Identifier: Apache-2.0 */
/* health: probes of the engine's readiness, and the watch for an engine that has stalled. */
#pragma once
#include "io/loop/loop.h"
#include "joint/enginefetch/enginefetch.h"

struct engine;
struct engine_checks {
	struct enginefetch *probe;    /* NULL: none is under way */
	struct cgn_timer stall_timer; /* Runs while the engine is ready */
	cgn_nsec stall_timeout;       /* 0: stalls are not detected */
	unsigned silent_beats;        /* Beats of |stall_timer| since the engine's last byte */
	struct cgn_timer slow_timer;  /* Runs while a probe does: fires when its answer is late */
	cgn_nsec said_at;             /* When the log last told of a failed check; 0: never */
	char said[200];               /* The reason that it told; empty since the engine was last well */
	unsigned unanswered;          /* Checks without an answer since the engine's last byte */
	char trouble[600];            /* Why the engine is not ready, for people; empty when it is */
};
void engine_health_init(struct engine *e, cgn_nsec stall_timeout);
void engine_health_close(struct engine *e);
void engine_trouble_set(struct engine *e, const char *what);
/* Start a probe; engine_step gets one SUPERVISE_PROBE_* event. */
void engine_probe(struct engine *e);
void engine_probe_cancel(struct engine *e);
/* Start or stop the watch for stalls. */
void engine_stall_watch(struct engine *e, bool on);
/* A byte arrived from the engine. */
void engine_heard(struct engine *e);
/* A check of the engine timed out. */
void engine_unanswered(struct engine *e);
