/* SPDX-License-Identifier: Apache-2.0 */
/* webask: one bounded GET or POST to a server that settings name: an engine, a store, an identity provider. One
 * loop, its thread. */
#pragma once
#include "base/weburl/weburl.h"
#include "io/os/loop/loop.h"
#include "io/wire/http/client.h"

/* How the server is reached. All pointers are borrowed; the owner of the endpoint outlives every fetch. */
struct webask_endpoint {
	struct http_client *client;
	const struct weburl *url;
	const char *authorization; /* Value of the Authorization header, or NULL */
};

struct webask_question {
	const char *path;    /* Path before the base path of the URL is applied */
	struct cgn_str json; /* Body of a POST; p is NULL for a GET */
	size_t max_bytes;    /* Longest accepted answer; a longer one is CGN_TOO_LARGE */
	cgn_nsec timeout;    /* From the start to the end of the answer */
	const char *type;    /* Content-Type of |json|; NULL: application/json */
	/* Further header fields, at most WEBASK_FIELDS. */
	const struct http_field *fields;
	size_t n_fields;
};
#define WEBASK_FIELDS 2

struct webask_answer {
	const struct cgn_err *err; /* CGN_FINE: the answer arrived whole */
	bool refused;              /* The connection was refused */
	bool stale;                /* A kept-alive connection was closed before the answer: ask again */
	int status;                /* HTTP status */
	struct cgn_str body;       /* Borrowed until the callback returns */
};
typedef void webask_done(void *user, const struct webask_answer *r);

struct webask;
/* Start a fetch. |done| is called once, never inline, unless the fetch is cancelled; the fetch is gone when
 * |done| returns. Fails when the HTTP client cannot take the request. */
CGN_RC webask_start(struct cgn_loop *l, const struct webask_endpoint *endpoint,
	const struct webask_question *ask, webask_done *done, void *user, struct webask **out,
	struct cgn_err *err);
/* Cancel a fetch; |done| is not called. NULL-safe. */
void webask_cancel(struct webask **take);
/* True when the answer arrived whole with status 200. */
bool webask_is_ok(const struct webask_answer *r);
