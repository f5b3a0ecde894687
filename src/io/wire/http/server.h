/* SPDX-License-Identifier: Apache-2.0 */
/* server: HTTP/1.1 (llhttp) and HTTP/2 (nghttp2) with one interface for both. Bodies are streams with back-pressure in both
 * directions; trailers are supported; no body is buffered whole. Objects belong to their loop. Writes within one turn of the
 * loop are coalesced. */
#pragma once
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/net/net/net.h"
#include "io/os/loop/loop.h"
#include "io/wire/http/head.h"

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

#define HTTP_ANY_RATE UINT32_MAX

struct http_server_cfg {
	/* .tls with ALPN h2 and http/1.1, or in clear, where h2 by prior knowledge is recognised. */
	struct net_listen_cfg listen;
	bool h2_only;            /* For gRPC ports. */
	uint32_t max_head_bytes; /* 0: 32 KiB; a longer head is answered with 431. */
	uint32_t max_fields;     /* 0: 100. */
	/* From the first byte to the end of the head (slowloris); 0: 10 s; then 408. */
	cgn_nsec head_timeout;
	/* Between two bytes of a request body; 0: 30 s; then 408. A body that comes with fewer bytes a second than
	 * body_rate (0: 500; HTTP_ANY_RATE: none) gets 408 once it is as far behind as the timeout is long. */
	cgn_nsec body_timeout;
	uint32_t body_rate;
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
/* Add |fields| to the head of the answer; call before it is given. At most HTTP_ANSWER_MORE. The texts are
 * borrowed until the head is given, or the exchange ends. */
#define HTTP_ANSWER_MORE 8
void http_exchange_more(struct http_exchange *x, const struct http_field *fields, size_t n);
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
