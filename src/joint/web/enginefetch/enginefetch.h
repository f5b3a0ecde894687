/* SPDX-License-Identifier: Apache-2.0 */
/* enginefetch: one bounded GET or POST to an inference engine, beside the requests that are relayed to it. One
 * loop, its thread. */
#pragma once
#include "io/os/loop/loop.h"
#include "io/wire/http/http.h"
#include "policy/node/engine/engine.h"

/* How an engine is reached. All pointers are borrowed; the owner of the endpoint outlives every fetch. */
struct enginefetch_endpoint {
	struct http_client *client;
	const struct engine_url *url;
	const char *authorization; /* Value of the Authorization header, or NULL */
};

struct enginefetch_ask {
	const char *path;    /* Path before the engine's base path is applied */
	struct cgn_str json; /* Body of a POST; p is NULL for a GET */
	size_t max_bytes;    /* Longest accepted answer; a longer one is CGN_TOO_LARGE */
	cgn_nsec timeout;    /* From the start to the end of the answer */
	const char *type;    /* Content-Type of |json|; NULL: application/json */
	/* Further header fields, at most ENGINEFETCH_FIELDS. */
	const struct http_field *fields;
	size_t n_fields;
};
#define ENGINEFETCH_FIELDS 2

struct enginefetch_answer {
	const struct cgn_err *err; /* CGN_FINE: the answer arrived whole */
	bool refused;              /* The connection was refused */
	bool stale;                /* A kept-alive connection was closed before the answer: ask again */
	int status;                /* HTTP status */
	struct cgn_str body;       /* Borrowed until the callback returns */
};
typedef void enginefetch_done(void *user, const struct enginefetch_answer *r);

struct enginefetch;
/* Start a fetch. |done| is called once, never inline, unless the fetch is cancelled; the fetch is gone when
 * |done| returns. Fails when the HTTP client cannot take the request. */
CGN_RC enginefetch_start(struct cgn_loop *l, const struct enginefetch_endpoint *endpoint,
	const struct enginefetch_ask *ask, enginefetch_done *done, void *user, struct enginefetch **out,
	struct cgn_err *err);
/* Cancel a fetch; |done| is not called. NULL-safe. */
void enginefetch_cancel(struct enginefetch **take);
/* True when the answer arrived whole with status 200. */
bool enginefetch_is_ok(const struct enginefetch_answer *r);
