/* SPDX-License-Identifier: Apache-2.0 */
/* sessions: the sessions of agents (policy/session), shared by all workers. The lock is held for a look-up and a few
 * sums. */
#pragma once
#include "router/request/request.h"

struct gw_sessions;
/* |max|: sessions that are kept. NO_MEMORY. */
CGN_RC gw_sessions_open(size_t max, struct gw_sessions **out, struct cgn_err *err);
void gw_sessions_close(struct gw_sessions **take); /* NULL-safe; no worker runs. */
/* Append the |most| sessions used last to an open object. */
void gw_sessions_json(struct gw_sessions *s, size_t most, cgn_nsec now, struct json_out *j);
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
void gw_session_drop(struct gw_req *r); /* Free what gw_session_answer made. */
