/* SPDX-License-Identifier: Apache-2.0 */
/* http: a client that waits, for fibers of a scenario: one request on a connection of its own, or several on one
 * that is kept, one behind the other's answer or all at once. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"

struct http_want {
	const char *ip;
	uint16_t port;
	const char *method, *path, *headers; /* Headers end with \r\n; NULL: none */
	const char *kind;                    /* Content-Type of the body; NULL: application/json */
	struct cgn_str body;
	uint64_t timeout;     /* ns without a byte; 0: only |leave_at| counts */
	uint64_t leave_after; /* Leave after so many bytes; 0: stay */
	uint64_t leave_at;    /* Leave after so many ns; 0: stay */
	uint64_t pause;       /* ns between two reads */
	bool old;             /* HTTP/1.0 */
	bool chunks;          /* The body comes in chunks, without a length */
	uint64_t between;     /* With |chunks|: at most so many ns between two of them */
	bool expects;         /* The body waits for 100 Continue, a second at most */
};
enum http_end {
	HTTP_WHOLE,   /* As its length or its last chunk says */
	HTTP_CUT,     /* The connection ended within the answer */
	HTTP_NOTHING, /* The connection ended before an answer */
	HTTP_REFUSED, /* No connection */
	HTTP_SILENT,  /* The timeout */
	HTTP_LEFT,    /* The client left, as it wanted */
	HTTP_BROKEN   /* Not HTTP */
};
struct http_got {
	enum http_end end;
	int status;
	bool keeps; /* The connection takes another request */
	struct cgn_buf head, body;
	uint64_t first_byte, took; /* ns */
};
/* Send all bytes on a socket, waiting as it takes. False: the connection has ended. */
bool http_send_all(int fd, const char *p, size_t n);
/* Ask on a connection that ends with the answer. */
void http_ask(const struct http_want *want, struct http_got *got);
void http_got_fini(struct http_got *got);
/* Return the value of a header; empty: there is none. */
struct cgn_str http_header(const struct http_got *got, const char *name);
const char *http_end_text(enum http_end end);

/* ---- connections that are kept ---- */
struct http_conn {
	bool open, half; /* |half|: a body was not sent, so that nothing may follow */
	int fd;
	uint64_t rests;    /* When the last answer was whole */
	unsigned answers;  /* On this connection */
	struct cgn_buf in; /* Bytes that are not read yet */
};
/* Send a request, over a new connection if |c| is not open. False: no connection. */
bool http_send(struct http_conn *c, const struct http_want *want);
/* Read the answer to the oldest request that has none. */
void http_read(struct http_conn *c, const struct http_want *want, struct http_got *got);
void http_close(struct http_conn *c);
