/* SPDX-License-Identifier: Apache-2.0 */
/* redfish, inside: a BMC, its one request, its session, its round. */
#pragma once
#include "base/weburl/weburl.h"
#include "io/os/loop/backoff.h"
#include "io/wire/http/client.h"
#include "joint/power/redfish/redfish.h"
#include "policy/node/engine/engine.h"

#define REDFISH_TOKEN_BYTES 512
#define REDFISH_SKIP        256

/* The answer to the one request that is under way. */
struct redfish_answer {
	const struct cgn_err *err; /* CGN_FINE: the answer came whole */
	int status;
	struct cgn_str body;
	char location[REDFISH_PATH_BYTES]; /* The field as it came, cut: "" without one */
	char token[REDFISH_TOKEN_BYTES];
};
typedef void redfish_on_answer(struct redfish_bmc *b, const struct redfish_answer *a);

struct redfish_request {
	struct http_call *call; /* NULL: none is under way */
	struct cgn_timer timeout;
	struct cgn_buf body;
	struct redfish_answer answer;
	redfish_on_answer *done;
};

enum redfish_auth { REDFISH_NO_AUTH, REDFISH_BY_SESSION, REDFISH_BY_BASIC };
struct redfish_session {
	enum redfish_auth auth;
	char password[256];                /* As of the begin of the round */
	char token[REDFISH_TOKEN_BYTES];   /* "": no session */
	char list[REDFISH_PATH_BYTES];     /* Where sessions are made; "": the BMC has none */
	char location[REDFISH_PATH_BYTES]; /* The path that is deleted in the end; "": not told */
	bool was_renewed;                  /* In this round */
	uint64_t logins;
};

/* State of a round that is under way; freed at its end. */
struct redfish_round {
	struct redfish_link waiting[REDFISH_MAX_WAITING];
	size_t first, n; /* The queue: |n| links from |first| on, around the end */
	struct redfish_link at;
	unsigned redirects, requests, lost; /* lost: links that did not fit */
	bool gave_reading;                  /* The document under way */
	struct power_reading reading[REDFISH_MAX_READINGS];
	size_t n_reading;
	char fault[200]; /* The first document that could not be read; "": none */
};

#define REDFISH_BMC_TAG 0x4ed0f157U
struct redfish_bmc {
	uint32_t tag;
	struct cgn_loop *loop;
	struct http_client *client;
	struct weburl url;
	char *node, *user, *password_file;
	cgn_nsec interval, timeout;
	struct redfish_request request;
	struct redfish_session session;
	struct redfish_round *round; /* NULL: between rounds */
	struct cgn_timer timer, round_limit;
	struct cgn_backoff backoff;
	cgn_nsec round_since;
	cgn_nsec not_before; /* No round before it, unless the password has changed */
	bool is_refused;     /* The credentials were */
	struct power_reading reading[REDFISH_MAX_READINGS];
	size_t n_reading;
	uint64_t skip[REDFISH_SKIP]; /* Sums of paths that gave nothing */
	size_t n_skip;
	struct redfish_bmc_view seen; /* Counters and states; the readings are above */
	char why[300];
	bool is_closing; /* A login is under way; it is ended as soon as it is there */
	void (*closed)(void *arg);
	void *closed_arg;
	struct cgn_grave grave;
};

/* ---- ask.c ---- */
void redfish_ask_init(struct redfish_bmc *b);
/* Ask the BMC. |json|.p NULL: without a body. |done| is called once, maybe inline when nothing could be sent. */
void redfish_ask(struct redfish_bmc *b, const char *method, const char *path, struct cgn_str json,
	redfish_on_answer *done);
void redfish_ask_cancel(struct redfish_bmc *b);
/* Turn a Location into a path at the same BMC. False: it leads elsewhere. */
bool redfish_location(const struct redfish_bmc *b, const char *text, char out[REDFISH_PATH_BYTES]);

/* ---- login.c ---- */
/* Read the password file. True when the password is another one than before. */
bool redfish_password_read(struct redfish_bmc *b, struct cgn_err *err);
bool redfish_login_is_open(const struct redfish_bmc *b); /* The BMC may be making a session now. */
void redfish_login(struct redfish_bmc *b);               /* Ends in redfish_round_go or redfish_round_fail. */
void redfish_logout(struct redfish_bmc *b,
	redfish_on_answer *done); /* Calls |done| inline without a session. */

/* ---- walk.c ---- */
void redfish_round_init(struct redfish_bmc *b);
void redfish_round_begin(struct redfish_bmc *b);
void redfish_round_go(
	struct redfish_bmc *b); /* Logged in: read the document under way again, or the next one. */
void redfish_round_fail(struct redfish_bmc *b, enum cgn_code code, const char *why);
/* ---- redfish.c ---- */
void redfish_leave(struct redfish_bmc *b); /* End the session, then the BMC. */
/* Take over the readings of the round, which has ended; |fault| "": it was whole. */
void redfish_round_end(struct redfish_bmc *b, enum cgn_code code, const char *fault);
