/* SPDX-License-Identifier: Apache-2.0 */
/* engineview: the state of one inference engine by HTTP and by its KV events: whether it is ready, its load,
 * its models and its blocks. An agent has one for each of its engines, a router one for each engine without
 * an agent. Each part is in a file: probe.c, load.c, models.c, named.c, feed.c. One loop, its thread. */
#pragma once
#include "base/core/arena.h"
#include "io/os/loop/loop.h"
#include "io/wire/webask/webask.h"
#include "joint/node/engineview/feed.h"
#include "policy/config/config.h"
#include "policy/node/breaker/pulse.h"
#include "policy/node/engine/engine.h"
#include "policy/node/engine/models.h"
#include "policy/node/engine/supervise.h"
#include "policy/node/proto/proto.h"

struct engineview;

/* ---- probe.c: whether the engine is ready, and whether it has stalled ---- */
struct engineview_probe {
	struct webask *fetch;         /* NULL: no probe is under way */
	struct cgn_timer stall_timer; /* Runs while the engine is ready */
	cgn_nsec stall_timeout;       /* 0: stalls are not detected */
	unsigned silent_beats;        /* Beats of |stall_timer| since the engine's last byte */
	struct cgn_timer slow_timer;  /* Runs while a probe does: fires when its answer is late */
	cgn_nsec said_at;             /* When the log last had a line of a failed check; 0: never */
	char said[200];               /* The reason that it told; empty since the engine was last well */
	unsigned unanswered;          /* Checks without an answer since the engine's last byte */
	cgn_nsec asked_at;  /* When the first check after the engine's last byte began; 0: none has */
	cgn_nsec mute;      /* Time that passed since then, as engineview_witness counted it */
	cgn_nsec mute_at;   /* When it counted last */
	cgn_nsec worked_at; /* When the engine last worked for any client; 0: not known */
};
/* Start a probe; |probed| gets one SUPERVISE_PROBE_* event. */
void engineview_probe(struct engineview *v);
void engineview_probe_cancel(struct engineview *v);
/* Tell at once that a check of the engine failed for |why|, again when the reason changes, and each minute. |state|: the
 * engine's, for people. */
void engineview_trouble_log(struct engineview *v, const char *state, const char *why);
/* Start or stop the watch for stalls. */
void engineview_stall_watch(struct engineview *v, bool on);
/* Bytes of an answer to a client's request arrived, or its counters moved: the engine works. */
void engineview_worked(struct engineview *v);
/* Tell the engine's signs of life. Call it about every second: a longer time counts as little more, so that a program that was
 * itself suspended does not blame the engine. */
struct pulse_witness engineview_witness(struct engineview *v);

/* ---- load.c: what a ready engine reports of its load, read each second ---- */
struct engineview_load {
	struct cgn_timer timer;
	struct webask *fetch; /* NULL: none is under way */
	size_t source;        /* Index of the source that is being read */
	/* Sources that the engine answered with 4xx: not read until the engine becomes ready again */
	bool source_gone[ENGINE_MAX_SOURCES];
	struct engine_load now, next; /* The last reading, and the one under way */
	bool unread;             /* Sources that keep an engine awake were not read since it became ready */
	bool was_used;           /* Requests were there at the last reading */
	cgn_nsec restart_logged; /* 0: none was */
	uint64_t restarts;       /* Not logged yet */
	bool blind; /* The first source does not answer, or counts nothing: requests of others are not seen */
};
/* Read from now on. The models are asked too, and asked again while they may change. Sources that keep an idle engine awake
 * (engine_source.wakes) are read while requests are there, and once more afterwards. */
void engineview_load_start(struct engineview *v);
/* Stop reading; the running and the waiting requests become 0. */
void engineview_load_stop(struct engineview *v);

/* ---- models.c: the names under which the engine serves, configured or read from /v1/models, and which of them are loaded ---- */
#define ENGINEVIEW_PACES 64
/* How long a model took to load. */
struct engineview_pace {
	uint64_t name;  /* Hash */
	cgn_nsec began; /* The load; 0: none is under way */
	double ms;      /* Moving average; 0: no load was seen */
};
struct engineview_models {
	struct webask *fetch; /* NULL: none is under way */
	struct cgn_arena arena, next_arena;
	struct engine_models list, next; /* |next| is being read; both in the arena of that name */
	size_t source;                   /* Index of the source of loaded models that is being asked */
	/* Sources that the engine has not: not asked until it becomes ready again */
	bool source_gone[ENGINE_MAX_LOADED];
	struct engineview_pace paces[ENGINEVIEW_PACES]; /* The oldest makes room */
	size_t n_paces;
	size_t bytes;     /* Size of the last answer with a list */
	uint32_t empties; /* Empty lists in a row */
	bool configured;  /* |ce.model| is set: only that model's entry of the engine's list counts */
	bool list_gone;   /* The same: the engine has no list */
	bool known;
	cgn_nsec asked_at; /* When the engine last answered, or failed to */
	cgn_nsec told_at;  /* When |list| was last found to be so */
	char why[200];     /* Why they cannot be read, for people; empty: they are known, or were not asked */
	struct cgn_hook
		again; /* Asks again at the end of the turn, when other questions' connection is free */
};
/* The engine refused a request as if it lacked the model or the key were wrong: read its list again at once, at most once a
 * second. */
void engineview_models_doubt(struct engineview *v);
/* True if the model is configured, or was on the engine's list when it was read last. */
bool engineview_lists(const struct engineview *v, struct cgn_str model);
/* Return true if the engine sleeps: the next request wakes it. */
bool engineview_sleeps(const struct engineview *v);
/* Return the first name of the list; NULL: there is none. */
const char *engineview_first(const struct engineview *v);
/* Describe the list beside its names. |e->models| begins with the names for which |at| gives their index in the list. False: |a|
 * is too small. Texts are borrowed. */
bool engineview_describe(const struct engineview *v, const uint32_t *at, struct cgn_arena *a,
	Cognitora__V1__Engine *e);

/* ---- named.c: whether an engine that is not managed knows the configured name of its model ---- */
struct engineview_named {
	struct webask *fetch; /* NULL: none is under way */
	char *model;          /* Owned; NULL: no name is configured, or the engine is managed */
	bool judged, lacks;
	cgn_nsec asked_at;
	char served[ENGINE_SERVED_MAX + 1];
	char why[700]; /* Why it is not ready, for people; empty: it is for this part */
};
/* False: the engine lists several models and none of the configured name, or was not asked yet: it takes no requests. */
bool engineview_is_named(const struct engineview *v);
/* Return the name under which the engine serves the model of the configured name; empty: it is the same. */
const char *engineview_served(const struct engineview *v);

/* ---- the engine ---- */
struct engineview_ops {
	/* A probe has ended with |verdict|; |why|: for people. For an engine that is up it is why its models are not known, or "". */
	void (*probed)(void *user, enum supervise_event verdict, const char *why);
	/* The answer to a probe is late; it may still come. */
	void (*slow)(void *user, const char *why);
	/* The engine answers no check and brings no byte. */
	void (*stalled)(void *user);
	/* True if the engine takes requests. */
	bool (*is_ready)(void *user);
	/* True if requests are there, or the engine has to be watched for other reasons. |blind|: it does not
	 * count requests of other clients. */
	bool (*is_used)(void *user, bool blind);
	/* The connection was refused, seconds before the next regular check. */
	void (*refused)(void *user);
	/* A reading of the load begins. */
	void (*load_begins)(void *user);
	/* An answer of a source arrived. */
	void (*load_answered)(void *user, struct cgn_str body);
	/* The load was read. |restarted|: the counters fell, or the engine's name stands for another address, so the process is
	 * another one. */
	void (*load_read)(void *user, const struct engine_load *before, bool restarted);
	/* /v1/models was answered with 200; |body| is borrowed. Before models_known. */
	void (*models_told)(void *user, struct cgn_str body);
	/* The names are known, or others than before. */
	void (*models_known)(void *user);
	/* Under the same names, the models are loaded or unloaded, or the list tells something else of them. |emptied|: the engine
	 * holds no prompts any more, because it fell asleep. */
	void (*models_changed)(void *user, bool emptied);
	/* The models cannot be read. */
	void (*models_unknown)(void *user, const char *why);
	/* The worth of the KV events changed. |counts|: they are the source for the engine's blocks; |heard|:
	 * all ranks are in contact. |feed.text| is new. */
	void (*events_changed)(void *user, bool counts, bool heard);
};

struct engineview {
	struct cgn_loop *loop;
	const char *name;              /* For the log; borrowed */
	const struct engine_ops *kind; /* The owner may replace it in models_told */
	struct webask_endpoint at;
	const struct engineview_ops *ops;
	void *user;

	uint64_t moves; /* http_client_moves, as they were seen last */
	struct engineview_probe probe;
	struct engineview_load load;
	struct engineview_models models;
	struct engineview_named named;
	struct engineview_feed feed;
};
/* Prepare |v|, whose fields before the parts are set. Nothing is asked. CGN_NO_MEMORY. */
CGN_RC engineview_init(struct engineview *v, const struct config_engine *ce, struct cgn_err *err);
/* End all that runs. Safe when only zeroed. */
void engineview_close(struct engineview *v);
