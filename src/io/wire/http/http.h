/* SPDX-License-Identifier: Apache-2.0 */
/* http: HTTP/1.1 (llhttp) and HTTP/2 (nghttp2), server and client, with one interface for both. Bodies are
 * streams with back-pressure in both directions; trailers are supported; no body is buffered whole. Objects
 * belong to their loop. Field names are lower-case everywhere. Writes within one turn of the loop are
 * coalesced. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/net/net/net.h"
#include "io/os/loop/loop.h"

struct http_field {
	struct cgn_str name, value;
};

struct http_head {
	struct cgn_str method, path, scheme, authority; /* In requests; the path has its query. */
	int status;                                     /* In responses. */
	const struct http_field *fields; /* Without pseudo fields; the host field is in |authority| only. */
	size_t n_fields;
	int64_t content_length; /* -1: unknown. */
	uint8_t version;        /* 10, 11 or 20. */
};
/* Return the first field of that (lower-case) name; {NULL, 0} when absent. */
struct cgn_str http_head_get(const struct http_head *h, const char *name);
/* Return the value of |key| in the query of |path|, not decoded; p is NULL without such a key. */
struct cgn_str http_query_get(struct cgn_str path, const char *key);
/* Return the value of the first cookie of that name (RFC 6265, 4.2.1); {NULL, 0} when absent. */
struct cgn_str http_head_cookie(const struct http_head *h, struct cgn_str name);

/* ---- server ---- */
struct http_server;
struct http_exchange; /* A request and its answer. */

struct http_server_ops {
	/* |h| and everything it points to are borrowed for the call. Call http_exchange_user to attach an
	 * object. The answer may be given at any time. */
	void (*on_request)(struct http_exchange *x, const struct http_head *h, void *server_user);
	void (*on_body)(struct http_exchange *x, void *user, const uint8_t *p, size_t n);
	void (*on_body_end)(struct http_exchange *x, void *user);
	/* http_exchange_over_mark was true and is false now. */
	void (*on_drain)(struct http_exchange *x, void *user);
	/* The last callback, called exactly once per on_request. CGN_FINE: answered in full and handed to the
	 * socket; CGN_CANCELLED: the client left; CGN_REQUEST_TIMEOUT: the client was too slow; otherwise a
	 * protocol error. |x| is freed when this returns. */
	void (*on_close)(struct http_exchange *x, void *user, const struct cgn_err *why);
};

struct http_server_cfg {
	/* .tls with ALPN h2 and http/1.1, or in clear, where h2 by prior knowledge is recognised. */
	struct net_listen_cfg listen;
	bool h2_only;            /* For gRPC ports. */
	uint32_t max_head_bytes; /* 0: 32 KiB; a longer head is answered with 431. */
	uint32_t max_fields;     /* 0: 100. */
	/* From the first byte to the end of the head (slowloris); 0: 10 s; then 408. */
	cgn_nsec head_timeout;
	cgn_nsec body_timeout;  /* Between two bytes of a request body; 0: 30 s; then 408. */
	cgn_nsec idle_timeout;  /* For a kept-alive connection without a request; 0: 75 s. */
	cgn_nsec write_timeout; /* For a reader that takes nothing while bytes wait for it; 0: 60 s. */
	uint32_t max_streams;   /* Concurrent streams per h2 connection; 0: 256. */
	/* Requests read ahead of the one being answered; beyond it reading stops. 0: 16. */
	uint32_t max_requests_h1_pipeline;
	/* Not 0: at so many connections a new one takes the place of the one that has been without a request
	 * for longest. listen.max_conns is the limit when all of them have requests. */
	uint32_t evict_above;
};
/* Make a server. Before on_request it refuses by itself: smuggling shapes and malformed heads (400 and
 * close), heads that are too large (431), h2 floods (GOAWAY ENHANCE_YOUR_CALM). These error answers have a
 * JSON body {"error":{...}} in OpenAI's shape. */
CGN_RC http_server_new(struct cgn_loop *l, const struct http_server_cfg *cfg,
	const struct http_server_ops *ops, void *user, struct http_server **out, struct cgn_err *err);
unsigned http_server_port(const struct http_server *s);
/* For net_listen_cfg.with of another loop's server. */
struct net_listener *http_server_listener(const struct http_server *s);
/* Stop listening; connections end when their exchanges do (h1: Connection: close; h2: GOAWAY). |on_idle| is
 * called when no connection is left. */
void http_server_drain(struct http_server *s, void (*on_idle)(void *arg), void *arg);
/* Cut the exchanges that are left; on_close is called for each open exchange before this returns. Not allowed
 * inside a callback of the server. */
void http_server_free(struct http_server **take);
struct http_server_stats {
	uint64_t accepted, refused, requests, bad_requests, floods, evicted;
	uint32_t connections, exchanges;
};
struct http_server_stats http_server_stats(const struct http_server *s);

/* Is it a hop-by-hop field (connection, transfer-encoding, keep-alive, te, trailer, upgrade, proxy-*)? Such a
 * field belongs to one connection and is never relayed. |name| may be in any case. */
bool http_name_is_hop(struct cgn_str name);
void http_exchange_user(struct http_exchange *x, void *user);
struct cgn_str http_exchange_peer(const struct http_exchange *x); /* The socket's address. */
/* The name in the peer's certificate (mTLS). */
struct cgn_str http_exchange_peer_name(const struct http_exchange *x);
/* Return the URI names of that certificate, with a space between them. */
struct cgn_str http_exchange_peer_uris(const struct http_exchange *x);
/* Begin the answer. content_length -1: chunked (h1.1), framed (h2), until close (h1.0). Copies the fields.
 * Hop-by-hop fields (connection, transfer-encoding, keep-alive, upgrade, proxy-*) and content-length in
 * |fields| are dropped, because the connection has its own framing. */
void http_exchange_head(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	int64_t content_length);
/* Send body bytes; copies what it must keep, up to 128 MiB, beyond which the exchange is cut. Stop at
 * over_mark. */
void http_exchange_body(struct http_exchange *x, const struct iovec *iov, size_t n);
void http_exchange_end(struct http_exchange *x, const struct http_field *trailers, size_t n);
/* Send head, whole body and end. */
void http_exchange_reply(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	struct cgn_str body);
/* Cut the answer without a proper end, so that the client notices (h1: close; h2: RST_STREAM). on_close
 * follows with |code|, not inline. */
void http_exchange_abort(struct http_exchange *x, enum cgn_code code);
bool http_exchange_over_mark(struct http_exchange *x); /* Stop producing until on_drain. */
void http_exchange_pause(struct http_exchange *x);     /* No more on_body; the client is slowed down. */
void http_exchange_resume(struct http_exchange *x);

/* ---- client ---- */
struct http_client; /* A pool of connections to one origin, on one loop. */
struct http_call;   /* A request and its answer. */

enum http_proto { HTTP_AUTO /* By ALPN; http/1.1 in clear. */, HTTP_1, HTTP_2 };
struct http_client_cfg {
	const char *addr;      /* In the form that io/net/net takes. */
	const char *authority; /* Host or :authority; NULL: addr. */
	struct tls_ctx *tls;
	const char *server_name; /* TLS: the name to verify; NULL: the host part of addr. */
	enum http_proto proto;
	uint32_t max_conns;       /* 0: 1024 for h1, 1 for h2; further calls wait. */
	uint32_t max_waiting;     /* 0: 4096; further calls fail with CGN_OVERLOADED. */
	cgn_nsec connect_timeout; /* 0: 5 s. */
	cgn_nsec idle_timeout;    /* After it a kept-alive connection is closed; 0: 60 s. */
	cgn_nsec ping_interval;   /* Keepalive of h2; 0: off. No answer within 10 s ends the connection. */
	uint32_t max_head_bytes;  /* In answers; 0: 64 KiB. */
	/* h2, for large answers: up to 1 MiB of a call and 8 MiB of a connection may come before they are
	 * read, instead of 64 KiB and 1 MiB. */
	bool wide;
	/* When the name in |addr| stands for another address, end the connections to the old one with their calls. False: calls
	 * in flight go on there. New calls go to the new address in both cases. */
	bool follow;
};
CGN_RC http_client_new(struct cgn_loop *l, const struct http_client_cfg *cfg, struct http_client **out,
	struct cgn_err *err);
/* End the client. Calls in flight fail with CGN_CANCELLED before this returns. Not allowed inside a callback
 * of its calls. */
void http_client_free(struct http_client **take);

/* How often connections of the client were left because its name stands for another address now. */
uint64_t http_client_moves(const struct http_client *cl);
/* The peer answers nothing useful: use another address of the client's name, if there is one. */
void http_client_shun(struct http_client *cl);

/* The stage at which a call failed; tells what may safely be retried. */
enum http_fail_stage {
	HTTP_FAIL_CONNECT, /* No byte of the request was sent. */
	/* A kept-alive connection was closed before any answer byte, or h2 REFUSED_STREAM or GOAWAY. */
	HTTP_FAIL_STALE,
	HTTP_FAIL_HEAD, /* The request was sent; no head came. */
	HTTP_FAIL_BODY, /* The answer was cut. */
};
struct http_call_ops {
	/* Called once; 1xx heads are dropped. */
	void (*on_head)(struct http_call *c, void *user, const struct http_head *h);
	void (*on_body)(struct http_call *c, void *user, const uint8_t *p, size_t n);
	void (*on_end)(struct http_call *c, void *user, const struct http_field *trailers, size_t n);
	void (*on_drain)(struct http_call *c, void *user); /* May be NULL. */
	void (*on_fail)(struct http_call *c, void *user, enum http_fail_stage stage,
		const struct cgn_err *why);
	/* Exactly one of on_end and on_fail is the last callback; |c| is freed when it returns. */
};
struct http_request {
	const char *method, *path;
	const struct http_field *fields; /* Copied. */
	size_t n_fields;
	int64_t body_len;      /* 0: no body; -1: streamed (chunked); n: content-length. */
	cgn_nsec head_timeout; /* Until the answer's head; 0: none. CGN_DEADLINE, stage HEAD. */
	cgn_nsec idle_timeout; /* Between answer bytes; 0: none. CGN_DEADLINE, stage BODY. */
	/* The whole body at once (copied as needed), or NULL: use http_call_body and http_call_end. */
	const struct iovec *body;
	size_t n_body;
};
/* Start a call. Never calls back inline. */
CGN_RC http_call_start(struct http_client *cl, const struct http_request *rq, const struct http_call_ops *ops,
	void *user, struct http_call **out, struct cgn_err *err);
/* Send body bytes. A wrong length, or more than 128 MiB waiting, fails the call: on_fail with
 * CGN_INTERNAL. */
void http_call_body(struct http_call *c, const struct iovec *iov, size_t n);
/* Like http_call_body, for the last bytes of a body: they are not copied, and the caller keeps them unchanged
 * until the call has ended or http_call_keep. At most HTTP_LENT_PIECES pieces. */
#define HTTP_LENT_PIECES 5
void http_call_lend(struct http_call *c, const struct iovec *iov, size_t n);
/* Copy the unsent rest of lent bytes: the caller may free them. */
void http_call_keep(struct http_call *c);
/* End the body (h2: END_STREAM; h1: last chunk). Not needed after a whole body or with body_len 0. */
void http_call_end(struct http_call *c);
bool http_call_over_mark(struct http_call *c); /* Stop producing until on_drain. */
/* End the call without a callback; the peer sees it at once (h1: the connection is closed; h2: RST_STREAM
 * CANCEL). */
void http_call_cancel(struct http_call **take);
void http_call_pause(struct http_call *c);
void http_call_resume(struct http_call *c);
