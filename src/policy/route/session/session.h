/* SPDX-License-Identifier: Apache-2.0 */
/* session: the sessions of agents: which requests belong together, whether a session computes, waits for a tool or
 * is idle, what it has used, and how long tools take. Pure: time is an argument; one thread at a time.
 *
 * A session is named by its tenant and the client's id, so equal ids of two tenants are two sessions. A session waits
 * for a tool from the end of an answer with tool calls until its next request. The time in between is learned for the
 * tool's name, and a forecast is made from it when the same tool is called again.
 *
 * Memory: |max| sessions of SESSION_BYTES, allocated once; a new session replaces the one that was used longest ago.
 * SESSION_TOOLS names of tools with their last durations, 600 bytes each, replaced in the same way. */
#pragma once
#include "base/core/err.h"
#include "base/digest/digest.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"

struct config;

#define SESSION_ID_MAX    128
#define SESSION_TEXT      64 /* Bytes of the name of a tenant, node or tool; longer ones are cut. */
#define SESSION_BYTES     720
#define SESSION_TOOLS     256
#define SESSION_HALF_LIFE (60 * CGN_SEC) /* Half-life of the attained service. */
/* A session that waits longer is idle: its user has left. Such a time is not learned. */
#define SESSION_PAUSE_MAX (15 * 60 * CGN_SEC)
#define SESSION_SAMPLES   4 /* Durations from which a forecast is made, at least. */

enum session_source {
#define SESSION_SOURCE(id, name, header) SESSION_FROM_##id,
#include "policy/route/session/sources.def"
#undef SESSION_SOURCE
	SESSION_SOURCES
};
const char *session_source_text(enum session_source from);
/* Return the header that names a session of |from|; NULL: it is named otherwise. */
const char *session_source_header(enum session_source from);

/* True for an id that can name a session: 1 to SESSION_ID_MAX visible ASCII characters. */
bool session_id_is_ok(struct cgn_str id);
/* Find the session's id in |user|, the member metadata.user_id of an Anthropic request of Claude Code: the part
 * behind the last "_session_", or the member session_id where the text is a JSON object. Returns the id's bytes in
 * |room|, which has SESSION_ID_MAX bytes; 0: the text names no session. */
size_t session_id_of_user(struct cgn_str user, char *room);

struct session_name {
	struct cgn_str tenant, id;
	enum session_source from;
};
/* The hash by which a session is routed, the same in all routers; not 0. */
uint64_t session_route_hash(const struct session_name *name);

struct sessions;
/* |seed|: a secret under which names are hashed, so that clients cannot choose names that collide. |max| is at least 1.
 * NO_MEMORY. */
CGN_RC sessions_new(size_t max, const struct digest *seed, struct sessions **out, struct cgn_err *err);
void sessions_free(struct sessions **take); /* NULL-safe. */

/* A request of a session. All zero: it belongs to none. */
struct session_turn {
	uint64_t key;     /* The session's; 0: none. */
	uint32_t number;  /* 1 is the session's first request. */
	uint32_t charged; /* Tokens that were charged before the request's end. */
	bool returned;    /* The request came while the session waited for a tool. */
	cgn_nsec paused;  /* Time of that wait. */
	uint64_t
		model; /* Hash of the name of the model that called the tool (session_end.model); 0: none did. */
};
/* A request begins. */
void sessions_begin(struct sessions *s, const struct session_name *name, cgn_nsec now,
	struct session_turn *out);
/* Return the tokens that the session has used lately: each counts half after SESSION_HALF_LIFE. Then charge |tokens|,
 * which the turn is expected to use. */
uint32_t sessions_charge(struct sessions *s, struct session_turn *turn, uint32_t tokens, cgn_nsec now);

/* How long the tools that were just called will take. */
struct session_forecast {
	cgn_nsec p50, p90;
	uint32_t samples; /* Durations that it is made from; 0: not enough are known. */
};
/* Where a session's KV cache is, if it is anywhere. */
struct session_place {
	uint64_t node; /* Hash of the node's id. */
	uint64_t last; /* Digest of the last full block of the last prompt; 0: none. */
	uint16_t slot; /* The node's place in the cluster (policy/route/cluster). */
};
struct session_end {
	const struct session_turn *turn;
	struct cgn_str node; /* Empty: none was asked. */
	struct session_place place;
	struct cgn_str model_name;   /* The model that answered; empty: none. */
	const struct cgn_str *tools; /* Different names of the tools that the answer calls. */
	size_t n_tools;
	uint64_t model;                  /* Hash of the name of the model that answered. */
	uint64_t prompt, cached, answer; /* Tokens; |cached| of |prompt|. */
};
/* A request ends. With tools the session waits for them, unless it has other requests; |*out| is the forecast. */
void sessions_end(struct sessions *s, const struct session_end *e, cgn_nsec now,
	struct session_forecast *out);

enum session_state { SESSION_RUNNING, SESSION_TOOL, SESSION_IDLE, SESSION_STATES };
const char *session_state_text(enum session_state state);
enum session_state session_state_find(struct cgn_str text); /* SESSION_STATES: there is no such state. */
/* Count the sessions by their state. Visits the sessions of the last SESSION_PAUSE_MAX. */
void sessions_count(const struct sessions *s, cgn_nsec now, size_t out[SESSION_STATES]);
enum session_sort {
	SESSION_BY_USE,
	SESSION_BY_TURNS,
	SESSION_BY_TOKENS,
	SESSION_BY_TOOLS,
	SESSION_BY_AGE,
	SESSION_SORTS
};
/* Find "used", "turns", "tokens", "tools" (time spent in them) or "age"; SESSION_SORTS: none of them. */
enum session_sort session_sort_find(struct cgn_str text);

#define SESSION_LOOK ((size_t)65536) /* Sessions that a query looks at: those used last. */
struct session_query {
	enum session_state state;           /* SESSION_STATES: any. */
	struct cgn_str tenant, model, node; /* Empty: any. */
	enum session_sort sort;             /* The highest come first, and of equal ones those used last. */
	size_t skip, most;                  /* The page: |most| sessions behind the first |skip|. */
	/* Return the state of the session's KV cache there; NULL: it is not known. No function: it is left
	 * out. */
	const char *(*kv)(void *user, const struct session_place *place);
	void *user;
};
/* Fill in the sessions of |q|, how many match it, and the tools known. */
void sessions_fill(const struct sessions *s, const struct session_query *q, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__Sessions *to);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC session_check_config(const struct config *c, struct cgn_err *err);
