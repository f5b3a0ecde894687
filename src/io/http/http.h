/* SPDX-License-Identifier: Apache-2.0 */
/* http: HTTP/1.1 (llhttp) and HTTP/2 (nghttp2), server and client, one face for both. Bodies are streams with
 * back-pressure in both directions; trailers exist; nothing is buffered whole. Objects belong to their loop.
 * Field names are lower-case everywhere. Writes within one loop turn are coalesced into one write. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/loop/loop.h"
#include "io/net/net.h"

struct http_field {
	struct cgn_str name, value;
};

struct http_head {
	struct cgn_str method, path /* with query */, scheme, authority; /* requests */
	int status;                                                      /* responses */
	const struct http_field *fields; /* without pseudo fields; host is in authority and not here */
	size_t n_fields;
	int64_t content_length; /* -1: unknown */
	uint8_t version;        /* 10, 11, 20 */
};
/* First field of that (lower-case) name; {NULL, 0} when absent. */
struct cgn_str http_head_get(const struct http_head *h, const char *name);

/* ---- server ---- */
struct http_server;
struct http_exchange; /* one request and its answer */

struct http_server_ops {
	/* |h| and all it points to are borrowed for the call. Call http_exchange_user to attach. The answer
	 * may be given any time. */
	void (*on_request)(struct http_exchange *x, const struct http_head *h, void *server_user);
	void (*on_body)(struct http_exchange *x, void *user, const uint8_t *p, size_t n);
	void (*on_body_end)(struct http_exchange *x, void *user);
	/* http_exchange_over_mark was true and no longer is */
	void (*on_drain)(struct http_exchange *x, void *user);
	/* Last word, exactly once per on_request: CGN_FINE = answered in full and handed to the socket;
	 * CGN_CANCELLED = the client went; CGN_REQUEST_TIMEOUT = it was too slow; else a protocol error. |x|
	 * is gone when this returns. */
	void (*on_close)(struct http_exchange *x, void *user, const struct cgn_err *why);
};

struct http_server_cfg {
	/* .tls with ALPN h2 and http/1.1, or clear: h2 by prior knowledge is recognised */
	struct net_listen_cfg listen;
	bool h2_only;            /* gRPC ports */
	uint32_t max_head_bytes; /* 0: 32 KiB; more is 431 */
	uint32_t max_fields;     /* 0: 100 */
	cgn_nsec head_timeout;   /* first byte to end of head (slowloris); 0: 10 s -> 408 */
	cgn_nsec body_timeout;   /* between two bytes of a request body; 0: 30 s -> 408 */
	cgn_nsec idle_timeout;   /* keep-alive without a request; 0: 75 s */
	cgn_nsec write_timeout;  /* a reader that takes nothing while we have bytes for it; 0: 60 s */
	uint32_t max_streams;    /* concurrent per h2 connection; 0: 256 */
	/* read ahead of the one being answered; then reading stops. 0: 16 */
	uint32_t max_requests_h1_pipeline;
};
/* The server refuses by itself, before on_request: smuggling shapes and malformed heads (400 and close),
 * heads too large (431), h2 floods (GOAWAY ENHANCE_YOUR_CALM). Its own error answers have a JSON body
 * {"error":{...}} in OpenAI's shape. */
CGN_RC http_server_new(struct cgn_loop *l, const struct http_server_cfg *cfg,
	const struct http_server_ops *ops, void *user, struct http_server **out, struct cgn_err *err);
unsigned http_server_port(const struct http_server *s);
/* for net_listen_cfg.with of another loop's server */
struct net_listener *http_server_listener(const struct http_server *s);
/* Stop listening; connections end when their exchanges do (h1: Connection: close, h2: GOAWAY). on_idle once
 * none is left. */
void http_server_drain(struct http_server *s, void (*on_idle)(void *arg), void *arg);
/* Cuts what is left; on_close comes for each open exchange before it returns. Not from inside a callback of
 * that server. */
void http_server_free(struct http_server **take);
struct http_server_stats {
	uint64_t accepted, refused, requests, bad_requests, floods;
	uint32_t connections, exchanges;
};
struct http_server_stats http_server_stats(const struct http_server *s);

void http_exchange_user(struct http_exchange *x, void *user);
struct cgn_str http_exchange_peer(const struct http_exchange *x);      /* socket address */
struct cgn_str http_exchange_peer_name(const struct http_exchange *x); /* mTLS name */
/* Answer. content_length -1: chunked (h1.1), framed (h2), until close (h1.0). Copies the fields. Hop-by-hop
 * fields (connection, transfer-encoding, keep-alive, upgrade, proxy-*) and content-length in |fields| are
 * dropped: framing is ours. */
void http_exchange_head(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	int64_t content_length);
/* Copies what it must keep: up to 128 MiB, beyond which the exchange is cut; stop at over_mark. */
void http_exchange_body(struct http_exchange *x, const struct iovec *iov, size_t n);
void http_exchange_end(struct http_exchange *x, const struct http_field *trailers, size_t n);
/* Head, whole body and end in one. */
void http_exchange_reply(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	struct cgn_str body);
/* Cut without a proper end, so that the client can tell (h1: close; h2: RST_STREAM). on_close follows with
 * |code|, not inline. */
void http_exchange_abort(struct http_exchange *x, enum cgn_code code);
size_t http_exchange_queued(const struct http_exchange *x); /* body bytes not yet taken by the socket */
bool http_exchange_over_mark(struct http_exchange *x);      /* stop producing until on_drain */
void http_exchange_pause(struct http_exchange *x);          /* no more on_body; the client is slowed */
void http_exchange_resume(struct http_exchange *x);

/* ---- client ---- */
struct http_client; /* pool of connections to one origin, on one loop */
struct http_call;   /* one request and its answer */

enum http_proto { HTTP_AUTO /* ALPN; http/1.1 in clear */, HTTP_1, HTTP_2 };
struct http_client_cfg {
	const char *addr;      /* as in net */
	const char *authority; /* Host / :authority; NULL: addr */
	struct tls_ctx *tls;
	const char *server_name; /* TLS: name to verify; NULL: host part of addr */
	enum http_proto proto;
	uint32_t max_conns;       /* 0: 1024 for h1, 1 for h2; calls beyond wait */
	uint32_t max_waiting;     /* 0: 4096; then CGN_OVERLOADED */
	cgn_nsec connect_timeout; /* 0: 5 s */
	cgn_nsec idle_timeout;    /* close a kept-alive connection; 0: 60 s */
	cgn_nsec ping_interval;   /* h2 keepalive; 0: off; no answer within 10 s kills the connection */
	uint32_t max_head_bytes;  /* of answers; 0: 64 KiB */
	/* h2, for large answers: up to 1 MiB of a call may come before it is read, 8 MiB of a connection,
	 * instead of 64 KiB and 1 MiB */
	bool wide;
};
CGN_RC http_client_new(struct cgn_loop *l, const struct http_client_cfg *cfg, struct http_client **out,
	struct cgn_err *err);
/* Calls in flight fail with CGN_CANCELLED before it returns. Not from inside a callback of one of its
 * calls. */
void http_client_free(struct http_client **take);

/* Where a failed call was: what may safely be done about it. */
enum http_fail_stage {
	HTTP_FAIL_CONNECT, /* no byte of the request left us */
	/* a kept-alive connection was closed under us before any answer byte, or h2 REFUSED_STREAM /
	 * GOAWAY */
	HTTP_FAIL_STALE,
	HTTP_FAIL_HEAD, /* sent, no head came */
	HTTP_FAIL_BODY, /* the answer was cut */
};
struct http_call_ops {
	/* once; 1xx are swallowed */
	void (*on_head)(struct http_call *c, void *user, const struct http_head *h);
	void (*on_body)(struct http_call *c, void *user, const uint8_t *p, size_t n);
	void (*on_end)(struct http_call *c, void *user, const struct http_field *trailers, size_t n);
	void (*on_drain)(struct http_call *c, void *user); /* may be NULL */
	void (*on_fail)(struct http_call *c, void *user, enum http_fail_stage stage,
		const struct cgn_err *why);
	/* exactly one of on_end and on_fail is the last callback; |c| is gone when it returns */
};
struct http_request {
	const char *method, *path;
	const struct http_field *fields; /* copied */
	size_t n_fields;
	int64_t body_len;      /* 0: none; -1: streamed (chunked); n: content-length */
	cgn_nsec head_timeout; /* until the answer's head; 0: none. CGN_DEADLINE, stage HEAD */
	cgn_nsec idle_timeout; /* between answer bytes; 0: none. CGN_DEADLINE, stage BODY */
	/* whole body at once (copied as needed), or NULL: http_call_body, http_call_end */
	const struct iovec *body;
	size_t n_body;
};
/* Never calls back inline. */
CGN_RC http_call_start(struct http_client *cl, const struct http_request *rq, const struct http_call_ops *ops,
	void *user, struct http_call **out, struct cgn_err *err);
/* Not as long as announced, or more than 128 MiB waiting: on_fail with CGN_INTERNAL follows. */
void http_call_body(struct http_call *c, const struct iovec *iov, size_t n);
/* h2: END_STREAM; h1: last chunk. Not needed after a whole body or body_len 0 */
void http_call_end(struct http_call *c);
bool http_call_over_mark(struct http_call *c); /* stop producing until on_drain */
/* No callback comes any more; the peer sees it at once (h1: the connection is closed; h2: RST_STREAM
 * CANCEL). */
void http_call_cancel(struct http_call **take);
void http_call_pause(struct http_call *c);
void http_call_resume(struct http_call *c);
