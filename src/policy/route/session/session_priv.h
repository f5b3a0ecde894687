/* SPDX-License-Identifier: Apache-2.0 */
/* session, inside: the table (session.c), how long tools take (tools.c), and lists of sessions (list.c). */
#pragma once
#include "base/core/list.h"
#include "base/table/table.h"
#include "policy/route/session/session.h"

#define TOOL_SAMPLES 128

/* The last durations of one tool. */
struct tool_times {
	uint64_t key, used; /* |used|: number of the last use; 0: the row is free. */
	char name[SESSION_TEXT + 1];
	uint32_t n, next;
	uint32_t ms[TOOL_SAMPLES]; /* A ring; |next| is overwritten next. */
};
struct tools {
	struct tool_times any; /* Durations of all tools. */
	struct tool_times row[SESSION_TOOLS];
	uint64_t uses;
};
/* Return the row of the tool |key|; a tool that is not known takes the row that was used longest ago. */
struct tool_times *tools_row(struct tools *t, uint64_t key, struct cgn_str name);
/* Return NULL for a tool that is not known. */
const struct tool_times *tools_find(const struct tools *t, uint64_t key);
void tool_times_add(struct tool_times *t, cgn_nsec took);
/* Return the quantile |q|, by the nearest rank; 0 without durations. */
cgn_nsec tool_times_quantile(const struct tool_times *t, double q);

/* ---- the table ---- */

#define SESSIONS_TAG 0x5e551001U

struct session {
	uint64_t key;
	struct cgn_link use; /* In sessions->used. */
	char tenant[SESSION_TEXT + 1], node[SESSION_TEXT + 1], tool[SESSION_TEXT + 1];
	char id[SESSION_ID_MAX + 1];
	char model_name[SESSION_TEXT + 1]; /* The model that answered last. */
	struct session_place place;
	enum session_source from;
	uint32_t turns, running, tool_calls;
	bool paused;
	uint64_t model;    /* Hash of the name of the model that called the tools. */
	uint64_t tool_key; /* The key of the one tool that the session waits for; 0: several tools. */
	uint64_t prompt, cached, answer;
	cgn_nsec began, used;
	cgn_nsec paused_at, tool_time;
	double service; /* Attained by |served_at|. */
	cgn_nsec served_at;
	struct session_forecast forecast;
};
_Static_assert(sizeof(struct session) <= SESSION_BYTES, "the header says so");

struct sessions {
	uint32_t tag;
	struct digest seed;
	uint32_t max, n;
	struct cgn_link used; /* Newest first. */
	struct table table;   /* Indices of |all|, by key. */
	struct session *all;
	struct tools *tools;
};

static inline struct session *session_of(struct cgn_link *use)
{
	return CGN_CONTAINER(use, struct session, use);
}
/* Does the session wait for a tool? */
bool session_waits(const struct session *e, cgn_nsec now);
/* Return the attained service. */
double session_service(const struct session *e, cgn_nsec now);
