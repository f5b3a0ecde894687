/* SPDX-License-Identifier: Apache-2.0 */
/* sessions: the sessions of agents (policy/route/session), shared by all workers. The lock is held for a look-up and a few
 * sums. */
#pragma once
#include "io/os/loop/loop.h"
#include "router/request/request/request.h"

/* A conversation that waits for a tool. */
struct gw_pause {
	uint16_t slot; /* The slot of its node. */
	uint64_t node; /* Hash of the node's id. */
	uint64_t last; /* Digest of its prompt's last full block. */
	struct session_forecast forecast;
};
struct gw_sessions_cfg {
	size_t max; /* Sessions that are kept. */
	struct cgn_loop *loop;
	/* A conversation begins to wait, and how long is known. On |loop|, never after gw_sessions_close. */
	void (*told)(void *user, const struct gw_pause *pause);
	void *user;
};

struct gw_sessions;
/* NO_MEMORY. */
CGN_RC gw_sessions_open(const struct gw_sessions_cfg *cfg, struct gw_sessions **out, struct cgn_err *err);
void gw_sessions_close(struct gw_sessions **take); /* NULL-safe; no worker runs. */
/* As sessions_fill; q->kv is called with the lock held. */
void gw_sessions_fill(struct gw_sessions *s, const struct session_query *q, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__Sessions *to);
/* Set the metrics; once a second. */
void gw_sessions_report(struct gw_sessions *s, struct telemetry *t, cgn_nsec now);

/* The body is read: count the request as a turn of the client's session, once. */
void gw_session_begin(struct gw_req *r);
/* Return the tokens that the request's session has used lately, and charge it |tokens| more for this request; what it
 * really used is settled at its end. 0: the request is of none. */
uint32_t gw_session_charge(struct gw_req *r, uint32_t tokens);
/* The request has ended, and its usage is known. */
void gw_session_end(struct gw_req *r);

/* An answer begins: look for calls of tools in it, if the request is of a session and offers tools. |events|: it is a
 * stream of events. */
void gw_session_answer(struct gw_req *r, bool events);
void gw_session_drop(struct gw_req *r); /* Free the memory of gw_session_answer. */
