/* SPDX-License-Identifier: Apache-2.0 */
/* wire: the writing half of one connection. The output of one turn of the loop leaves in one write at its
 * end. */
#pragma once
#include "base/core/buf.h"
#include "io/net/net/net.h"
#include "io/os/loop/loop.h"

#define HTTP_WIRE_HOLD ((size_t)16 * 1024) /* Larger output is neither held back nor copied. */
/* Bytes that net has not taken; beyond the limit the connection is aborted. */
#define HTTP_WIRE_LIMIT ((size_t)128 * 1024 * 1024)

struct http_wire {
	struct cgn_loop *loop;
	struct net_conn *net; /* NULL once the connection is gone: writes do nothing then. */
	struct cgn_buf out;   /* Output of this turn, and the rest that net's full queue leaves here. */
	size_t out_at;
	bool close_after;     /* Call net_close once |out| is empty. */
	struct cgn_hook hook; /* The owner's hook; must call http_wire_flush. */
	uint64_t handed;      /* Bytes given to net so far. */
	uint64_t seen_taken;  /* Part of |handed| that the socket had taken at the last check. */
	cgn_nsec seen_at;
};

void http_wire_init(struct http_wire *w, struct cgn_loop *l, struct net_conn *net,
	void (*hook)(struct cgn_hook *));
void http_wire_fini(struct http_wire *w);
/* Return room for |n| bytes in this turn's buffer, to be followed by cgn_buf_grew. NULL when out of memory
 * (the connection is aborted). */
char *http_wire_room(struct http_wire *w, size_t n);
void http_wire_add(struct http_wire *w, const void *p, size_t n);
/* Send before ++ iov ++ after, without copying when it is large. */
void http_wire_send(struct http_wire *w, struct cgn_str before, const struct iovec *iov, size_t n,
	struct cgn_str after);
/* Also called when net drained. */
void http_wire_flush(struct http_wire *w);
/* Do bytes wait here that the connection would take now? */
bool http_wire_can_flush(const struct http_wire *w);
void http_wire_close(struct http_wire *w); /* Flush, then net_close. */
void http_wire_fail(struct http_wire *w);  /* Abort the connection. */
/* Bytes that the socket has not taken. */
size_t http_wire_queued(const struct http_wire *w);
bool http_wire_over_mark(const struct http_wire *w);
/* Time at which the socket last took something, or now if nothing waits; for write timeouts. */
cgn_nsec http_wire_progress(struct http_wire *w);
struct iovec http_iov(struct cgn_str s); /* For reading only. */
