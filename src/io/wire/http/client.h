/* SPDX-License-Identifier: Apache-2.0 */
/* client: requests by HTTP/1.1 and HTTP/2, as server.h has them: bodies are streams with back-pressure, and nothing is
 * buffered whole. Objects belong to their loop. */
#pragma once
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/net/net/net.h"
#include "io/os/loop/loop.h"
#include "io/wire/http/head.h"

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
