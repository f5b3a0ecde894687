/* SPDX-License-Identifier: Apache-2.0 */
/* http: a client that waits, for fibers of a scenario. One request a connection. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"

struct http_want {
	const char *ip;
	uint16_t port;
	const char *method, *path, *headers; /* Headers end with \r\n; NULL: none */
	struct cgn_str body;
	uint64_t timeout;     /* ns without a byte */
	uint64_t leave_after; /* Leave after so many bytes; 0: stay */
	uint64_t leave_at;    /* Leave after so many ns; 0: stay */
	uint64_t pause;       /* ns between two reads */
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
	struct cgn_buf head, body;
	uint64_t first_byte, took; /* ns */
};
/* Send all bytes on a socket, waiting as it takes. False: the connection has ended. */
bool http_send_all(int fd, const char *p, size_t n);
void http_ask(const struct http_want *want, struct http_got *got);
void http_got_fini(struct http_got *got);
/* Return the value of a header, in lower case; empty: there is none. */
struct cgn_str http_header(const struct http_got *got, const char *name);
const char *http_end_text(enum http_end end);
