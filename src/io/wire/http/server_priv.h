/* SPDX-License-Identifier: Apache-2.0 */
/* server, inside: one connection and one exchange, with an ops table for each protocol version. */
#pragma once
#include "base/apierror/apierror.h"
#include "io/wire/http/h1_parse_priv.h"
#include "io/wire/http/h2_link_priv.h"
#include "io/wire/http/server.h"
#include "io/wire/http/wire_priv.h"

#define HTTP_EXCHANGE_TAG    0x48745831u
#define HTTP_SERVER_CONN_TAG 0x48745332u
#define HTTP_SERVER_TAG      0x48745333u

/* The rest of a request that was answered early is read and dropped, so that the connection can be used
 * again. */
#define HTTP_DROP_TIME  (2 * CGN_SEC) /* Longest silence in it. */
#define HTTP_DROP_BYTES ((size_t)1024 * 1024)

struct server_conn;

struct exchange_ops {
	void (*head)(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
		int64_t content_length);
	void (*body)(struct http_exchange *x, const struct iovec *iov, size_t n);
	void (*end)(struct http_exchange *x, const struct http_field *trailers, size_t n);
	void (*doom)(struct http_exchange *x); /* x->doom is set: make sure that on_close follows. */
	size_t (*queued)(const struct http_exchange *x);
	bool (*over_mark)(struct http_exchange *x);
	void (*pause)(struct http_exchange *x, bool yes);
	/* Release the version's part before the exchange is freed. */
	void (*release)(struct http_exchange *x);
};

struct http_exchange {
	uint32_t tag;
	enum cgn_code doom; /* CGN_FINE, or why the exchange was aborted. */
	const struct exchange_ops *ops;
	struct server_conn *conn;
	struct cgn_link link;
	struct cgn_grave grave;
	void *user;
	struct http_field more[HTTP_ANSWER_MORE]; /* Fields of http_exchange_more. */
	size_t n_more;
	enum apierror_shape errors; /* Shape of an error answer. */
	cgn_nsec body_due;          /* When the body is too slow, unless more of it comes. */
	int64_t answer_left;        /* Bytes left of the promised content-length; -1 without one. */
	bool bodyless;              /* The answer has no body: HEAD, 204, 304. */
	bool has_head, ended, request_done, paused;
	bool over; /* over_mark returned true: on_drain is owed. */
};

struct server_conn_ops {
	void (*init)(struct server_conn *c);
	void (*input)(struct server_conn *c, const uint8_t *p, size_t n);
	void (*eof)(struct server_conn *c);
	void (*turn)(struct server_conn *c);    /* End of the loop's turn. */
	void (*drained)(struct server_conn *c); /* The socket takes bytes again. */
	void (*wind_down)(struct server_conn *c);
	cgn_nsec (*deadline)(struct server_conn *c); /* 0: none. */
	void (*late)(struct server_conn *c);
	void (*release)(struct server_conn *c);
};

struct h1_side {
	struct h1_parser parser;
	struct http_exchange *x;
	cgn_nsec since;    /* Time of the head's first byte, or of the end of a request. */
	cgn_nsec drop_due; /* As body_due, for the rest of a request that was answered early. */
	size_t dropped;
	bool expect; /* A 100 Continue is owed. */
	bool keep;   /* The connection stays open after the answer. */
	bool chunked, served, throttled;
};

struct h2_side {
	struct h2_link link;
	cgn_nsec since;    /* Last time that a stream was open. */
	cgn_nsec check_at; /* When timeouts are checked next. */
	bool leaving;      /* GOAWAY was sent. */
};

struct server_conn {
	uint32_t tag;
	const struct server_conn_ops *ops; /* NULL until the first bytes showed the version. */
	struct http_server *server;
	struct cgn_link link, exchanges;
	struct http_wire wire;
	struct cgn_timer timer;
	struct cgn_grave grave;
	struct cgn_buf hold; /* Bytes that cannot be used yet; bounded by one read plus HTTP_HOLD_MARK. */
	bool closing;
	union {
		struct h1_side h1;
		struct h2_side h2;
	};
};

struct http_server {
	uint32_t tag;
	struct cgn_loop *loop;
	struct http_server_cfg cfg; /* With defaults filled in; .listen is not used after start. */
	const struct http_server_ops *ops;
	void *user;
	struct net_listener *listener;
	unsigned port;
	bool tls, draining;
	void (*on_idle)(void *arg);
	void *idle_arg;
	struct cgn_hook idle_hook;
	struct cgn_link conns;
	struct http_store *spare;
	struct http_server_stats stats;
	char date[32]; /* Text of date_s. */
	uint64_t date_s;
};

#define HTTP_HOLD_MARK ((size_t)64 * 1024)

extern const struct server_conn_ops http_h1_conn_ops, http_h2_conn_ops;

/* Return the instant |due| moved on by |n| bytes at |rate| bytes a second, to |most| behind |now| at the latest: a burst
 * does not pay for a long trickle. */
static inline cgn_nsec http_pace(cgn_nsec due, cgn_nsec now, size_t n, uint32_t rate, cgn_nsec most)
{
	cgn_nsec far = now + most;
	if (rate == HTTP_ANY_RATE || n > UINT32_MAX)
		return far;
	due += (cgn_nsec)n * CGN_SEC / rate;
	return due < far ? due : far;
}
/* Body bytes that the socket has not taken yet; for tests of the bound. */
size_t http_exchange_queued(const struct http_exchange *x);
/* Link |x| to its connection. */
void http_exchange_open(struct http_exchange *x, const struct exchange_ops *ops, struct server_conn *c,
	const struct http_head *h);
/* Count |n| bytes of the request's body. */
void http_exchange_came(struct http_exchange *x, size_t n);
/* Make the final callback and free |x|. */
void http_exchange_close(struct http_exchange *x, enum cgn_code code, const char *why);
/* Call on_drain if it is owed and the queue is short again. */
void http_exchange_drained(struct http_exchange *x);
void http_conn_close(struct server_conn *c); /* Flush and end. */
/* End all of them with CGN_CANCELLED. */
void http_conn_end_exchanges(struct server_conn *c, const char *why);
void http_conn_abort(struct server_conn *c);
/* Recompute the timer, because a deadline may have come nearer. */
void http_conn_retime(struct server_conn *c);
/* Value of the date field, made once a second. */
struct cgn_str http_server_date(struct http_server *s);
bool http_has_field(const struct http_field *fields, size_t n, struct cgn_str name);
/* The code of the error that is answered with |status|. */
const char *http_error_code(int status);
/* Append the error answer of |status| in JSON, in the |shape| that clients of the path expect. */
static inline void http_error_put(struct cgn_buf *out, int status, enum apierror_shape shape,
	const char *message)
{
	apierror_put(out,
		&(struct apierror){.message = message,
			.type = "invalid_request_error",
			.code = http_error_code(status),
			.status = status,
			.shape = shape});
}
