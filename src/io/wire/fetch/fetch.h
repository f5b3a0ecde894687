/* SPDX-License-Identifier: Apache-2.0 */
/* fetch: HTTP requests by libcurl: redirects, proxies, TLS, HTTP/2, S3's signatures. Blocking, never on a loop;
 * a handle belongs to one thread. libcurl is loaded when the first handle is opened, so that a program that
 * fetches nothing does not need it (docs/change/adr/0020-libcurl-at-run-time.md, docs/change/adr/0027-batch-files-in-s3.md). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

struct fetch;

/* CGN_UNSUPPORTED: libcurl is not installed; the message says what to install. Any thread. */
CGN_RC fetch_open(struct fetch **out, struct cgn_err *err);
void fetch_close(struct fetch **take);

struct fetch_result {
	int status;           /* Status of the last answer, after redirects. */
	uint64_t length;      /* Content-Length; UINT64_MAX: not said. */
	uint64_t range_first; /* First byte of a 206 answer. */
	uint64_t range_total; /* Size of the file, as a 206 or 416 answer says; UINT64_MAX: not said. */
	unsigned retry_after; /* Seconds; 0: not said. */
	char etag[256];
	char link[2048]; /* The next page of a list; empty: none; "(N bytes)": its address is too long. */
	char authenticate[1024]; /* WWW-Authenticate. */
};
#define FETCH_HEADERS 8
struct fetch_request {
	const char *url; /* http:// or https:// */
	const char *headers
		[FETCH_HEADERS]; /* "name: value"; not sent to another host after a redirect when it is Authorization. */
	size_t n_headers;
	const char *ca_file;    /* NULL: the system's. */
	uint64_t from;          /* Ask for the bytes from here on; 0: all. */
	const char *if_range;   /* With |from|: only if the file still has this ETag; NULL: in any case. */
	const char *aws_region; /* Sign for S3 with |aws_key| ("id:secret"); NULL: do not sign. */
	const char *aws_key;
	const char *method; /* NULL: GET, or PUT when something is sent. */
	/* Send |send_bytes| bytes: fill |to| with the next ones, at most |n|; 0 ends the request with CGN_CANCELLED. Redirects are not
	 * followed then. NULL: nothing is sent. */
	size_t (*send)(void *user, char *to, size_t n);
	uint64_t send_bytes;
	uint64_t to;   /* With |from| < |to|: ask for the bytes before this one only; 0: all. */
	uint64_t most; /* Bytes of the body, at most; 0: no limit. CGN_TOO_LARGE. */
	/* Called before the first byte of the body with the answer's head; false ends the request. May be
	 * NULL. */
	bool (*on_head)(void *user, const struct fetch_result *r);
	/* A part of the body; false ends the request with CGN_CANCELLED. */
	bool (*on_body)(void *user, const void *p, size_t n);
	bool (*stopped)(void *user); /* Asked often; true ends the request with CGN_CANCELLED. May be NULL. */
	void *user;
};
/* Run the request to its end. CGN_OK with any status; CGN_UNAVAILABLE (cannot connect, cut, stalled), CGN_TLS,
 * CGN_INVALID (the URL), CGN_CANCELLED, CGN_TOO_LARGE. The message names the host and the reason. */
CGN_RC fetch_run(struct fetch *f, const struct fetch_request *rq, struct fetch_result *out,
	struct cgn_err *err);
/* The same for a small document, which is appended to |out|. */
CGN_RC fetch_document(struct fetch *f, struct fetch_request *rq, struct fetch_result *result,
	struct cgn_buf *out, struct cgn_err *err);
