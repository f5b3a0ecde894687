/* SPDX-License-Identifier: Apache-2.0 */
/* client, inside: the pool, one connection, one call, and an ops table for each protocol version. */
#pragma once
#include "base/core/arena.h"
#include "io/wire/http/client.h"
#include "io/wire/http/h1_parse_priv.h"
#include "io/wire/http/h2_link_priv.h"
#include "io/wire/http/wire_priv.h"

#define HTTP_CALL_TAG        0x48744331u
#define HTTP_CLIENT_CONN_TAG 0x48744332u
#define HTTP_CLIENT_TAG      0x48744333u

/* High-water mark of body bytes that wait for a connection or a window: the producer should wait. */
#define HTTP_CALL_MARK ((size_t)64 * 1024)
/* Limit of waiting body bytes, beyond which the call fails: one message of the largest size fits. */
#define HTTP_CALL_QUEUE_LIMIT H2_STREAM_LIMIT
#define HTTP_REQUEST_LIMIT    ((size_t)256 * 1024) /* Bytes of the head of a waiting request. */
#define HTTP_CLIENT_FIELDS    256

struct client_conn;

struct call_via {
	void (*body)(struct http_call *c, const struct iovec *iov, size_t n);
	void (*end)(struct http_call *c);
	void (*lend)(struct http_call *c); /* Send c->loan, as far as the connection takes it now. */
	void (*keep)(struct http_call *c); /* Copy the unsent rest of lent bytes. */
	bool (*over_mark)(struct http_call *c);
	/* The peer sees the end at once; afterwards the call is off the connection. */
	void (*cancel)(struct http_call *c);
	void (*pause)(struct http_call *c, bool yes);
	void (*release)(struct http_call *c); /* Release the version's part of an ended call. */
};

struct http_call {
	uint32_t tag;
	const struct call_via *via; /* NULL while the call waits for a connection. */
	struct http_client *client;
	struct client_conn *conn;
	struct cgn_link link; /* Member of the client's waiting calls, or of the connection's calls. */
	struct cgn_grave grave;
	const struct http_call_ops *ops;
	void *user;
	struct http_request rq; /* While the call waits: a copy in |arena|. */
	struct cgn_arena arena;
	/* Body bytes that came before the connection; h2: bytes that no window let out. */
	struct cgn_buf pending;
	/* Lent body bytes that come after |pending|; h2: until the call has a connection. */
	struct http_loan {
		struct iovec v[HTTP_LENT_PIECES];
		size_t n, left; /* Pieces, and bytes in them. */
	} loan;
	struct cgn_timer timer;
	cgn_nsec head_timeout, idle_timeout, since;
	int64_t body_left; /* Bytes left of the promised length; -1: chunked. */
	bool body_ended, got_head, paused, over, sent, is_head;
	/* Why the call fails at the next turn: its body does not have the announced length. */
	const char *doom;
	/* Reads of the connection when the call began: no read since means that the connection was stale. */
	uint64_t heard_before;
	struct h2_stream st; /* HTTP/2 only. */
};

struct client_conn_ops {
	void (*init)(struct client_conn *c);
	bool (*has_room)(const struct client_conn *c);
	/* Send |rq| for |call|, which was just linked to the connection. */
	void (*start)(struct client_conn *c, struct http_call *call, const struct http_request *rq);
	void (*input)(struct client_conn *c, const uint8_t *p, size_t n);
	void (*eof)(struct client_conn *c);
	void (*turn)(struct client_conn *c);
	void (*drained)(struct client_conn *c);
	void (*late)(struct client_conn *c);  /* The timer fired. */
	void (*leave)(struct client_conn *c); /* No new calls; close it once its calls have ended. */
	void (*gone)(struct client_conn *c, const struct cgn_err *why); /* Fail the calls that are left. */
	void (*release)(struct client_conn *c);
};

struct h1_out {
	struct h1_parser parser;
	struct http_call *call;
	bool chunked, eof;
	/* True from start to park: a callback of the answer may start calls, but not on this connection. */
	bool busy;
};

struct h2_out {
	struct h2_link link;
	bool leaving; /* GOAWAY came, or stream ids ran out: no new calls. */
	bool settled; /* The peer's SETTINGS came. */
	bool pinged;  /* A PING was sent and its answer is due. */
	cgn_nsec idle_since;
};

struct client_conn {
	uint32_t tag;
	const struct client_conn_ops *ops; /* NULL until open. */
	struct http_client *client;
	struct cgn_link link, calls;
	struct http_wire wire;
	struct cgn_timer timer;
	struct cgn_grave grave;
	struct cgn_buf hold;
	uint32_t n_calls;
	uint64_t served; /* Calls begun on this connection. */
	uint64_t heard;  /* Number of reads. */
	bool closing;
	bool left;    /* The name stands for another address now: no new calls. */
	bool retired; /* Not counted any more: another connection may be dialled in its place. */
	union {
		struct h1_out h1;
		struct h2_out h2;
	};
};

struct http_client {
	uint32_t tag;
	struct cgn_loop *loop;
	struct http_client_cfg cfg; /* With defaults filled in and texts copied. */
	struct cgn_grave grave;
	bool freed; /* No new calls; the client's connections end after the turn. */
	char *addr, *authority, *server_name;
	enum http_proto learned; /* HTTP_AUTO until ALPN decided. */
	struct cgn_link conns;   /* Connections with room stand first. */
	struct cgn_link waiting;
	struct cgn_hook hook; /* Gives waiting calls to connections. */
	uint32_t n_conns, n_dialing, n_waiting;
	char peer[64];  /* The peer of the last connection, as net_peer tells; empty: there was none. */
	uint64_t moves; /* Connections that were left because the name moved. */
	struct cgn_timer follow; /* Looks for them, with cfg.follow. */
	struct http_store *spare;
};

extern const struct client_conn_ops http_h1_out_ops, http_h2_out_ops;

/* Take up to |most| bytes, not 0, off the front of the loan; returns how many pieces |out| has. */
size_t http_loan_take(struct http_loan *l, size_t most, struct iovec out[HTTP_LENT_PIECES]);
/* Make the final callback. The call is unlinked before and freed after it. */
void http_call_finish(struct http_call *c, const struct http_field *trailers, size_t n);
void http_call_fail(struct http_call *c, enum http_fail_stage stage, enum cgn_code code, const char *why);
void http_call_head(struct http_call *c, const struct http_head *h);
void http_call_data(struct http_call *c, const uint8_t *p, size_t n);
void http_call_drained(struct http_call *c);
/* A connection can take a call again, or is gone: start the next waiting call. */
void http_client_look(struct http_client *cl);
/* The connection takes no more calls: make room for another one in the pool. */
void http_out_retire(struct client_conn *c);
/* Return the stage in which a call lost its connection. */
enum http_fail_stage http_call_stage(const struct http_call *c);
void http_out_close(struct client_conn *c);
void http_out_abort(struct client_conn *c);
