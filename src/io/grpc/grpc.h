/* SPDX-License-Identifier: Apache-2.0 */
/* grpc: real gRPC over io/http: unary, both kinds of streaming, deadlines, status mapping, message limits.
 * Messages are bytes here; policy/proto knows their meaning. Wire: grpc.github.io PROTOCOL-HTTP2 (5-byte
 * prefix, grpc-timeout, percent-encoded grpc-message, Trailers-Only). Compressed messages are refused with
 * UNIMPLEMENTED (12), as the protocol asks. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/http/http.h"

/* One call, either side. */
struct grpc_call;
struct grpc_call_ops {
	void (*on_message)(struct grpc_call *c, void *user, const uint8_t *p,
		size_t n); /* one whole message, borrowed */
	void (*on_half_close)(struct grpc_call *c,
		void *user); /* server: the client sent its last message. client: NULL */
	void (*on_drain)(struct grpc_call *c, void *user); /* may be NULL */
	/* Last word, exactly once. Client: the status that came (CGN_FINE, or err with the server's sentence;
	 * CGN_UNAVAILABLE when there was no connection; CGN_DEADLINE). Server: CGN_FINE when grpc_finish went
	 * out, CGN_CANCELLED when the client went. */
	void (*on_close)(struct grpc_call *c, void *user, const struct cgn_err *why);
};
void grpc_send(struct grpc_call *c, const struct iovec *iov, size_t n); /* one message from gathered pieces */
bool grpc_over_mark(const struct grpc_call *c);
void grpc_pause(struct grpc_call
		*c); /* no more on_message after the current one; the peer is slowed by flow control */
void grpc_resume(struct grpc_call *c);
/* Client: cancel (RST_STREAM), no callback comes any more. Server: use grpc_finish. */
void grpc_cancel(struct grpc_call **take);

/* ---- server ---- */
struct grpc_method {
	const char *path; /* "/cognitora.v1.Agent/Generate" */
	/* Attach ops and user with grpc_call_take before returning. At the client's deadline the server ends
	 * the call by itself. */
	void (*on_call)(struct grpc_call *c, void *server_user);
};
struct grpc_server_cfg {
	struct net_listen_cfg listen;
	uint32_t max_message; /* 0: 4 MiB; a longer one is RESOURCE_EXHAUSTED, checked before allocating */
	uint32_t max_streams; /* per connection; 0: 1024 */
	const struct grpc_method *methods;
	size_t n_methods; /* others get UNIMPLEMENTED */
	bool health;      /* also serve grpc.health.v1.Health Check and Watch from grpc_server_serving */
};
struct grpc_server;
CGN_RC grpc_server_new(struct cgn_loop *l, const struct grpc_server_cfg *cfg, void *user,
	struct grpc_server **out, struct cgn_err *err);
unsigned grpc_server_port(const struct grpc_server *s);
/* for net_listen_cfg.with of another loop's server */
struct net_listener *grpc_server_listener(const struct grpc_server *s);
void grpc_server_serving(struct grpc_server *s, bool yes);
void grpc_server_drain(struct grpc_server *s, void (*on_idle)(void *arg), void *arg);
void grpc_server_free(struct grpc_server **take);
void grpc_call_take(struct grpc_call *c, const struct grpc_call_ops *ops, void *user);
struct cgn_str grpc_peer(const struct grpc_call *c);
struct cgn_str grpc_peer_name(const struct grpc_call *c); /* of its certificate; empty: it showed none */
/* End the call: the sentence is for the client. Nothing may be sent afterwards; on_close follows, not
 * inline. */
void grpc_finish(struct grpc_call *c, enum cgn_code code, const char *sentence);
/* End it now, without a status, for a client that would not take one: what is queued is dropped (RST_STREAM).
 * on_close follows, not inline. */
void grpc_abort(struct grpc_call *c, enum cgn_code code);

/* ---- client ---- */
/* to one address, on one loop; connects when first used, reconnects by itself with backoff */
struct grpc_channel;
struct grpc_channel_cfg {
	const char *addr;
	struct tls_ctx *tls;
	const char *server_name;
	uint32_t max_message;     /* 0: 4 MiB */
	cgn_nsec connect_timeout; /* 0: 5 s */
	cgn_nsec keepalive;       /* 0: 20 s */
	uint32_t max_conns;       /* 0: 1 */
	bool wide;                /* for large answers, as in http */
};
CGN_RC grpc_channel_new(struct cgn_loop *l, const struct grpc_channel_cfg *cfg, struct grpc_channel **out,
	struct cgn_err *err);
void grpc_channel_free(struct grpc_channel **take);
/* |timeout| 0: none (else grpc-timeout is sent and enforced here too). Never calls back inline. */
CGN_RC grpc_call_start(struct grpc_channel *ch, const char *path, cgn_nsec timeout,
	const struct grpc_call_ops *ops, void *user, struct grpc_call **out, struct cgn_err *err);
void grpc_half_close(struct grpc_call *c); /* client: no more messages */
/* Unary in one: sends |request|, gives the one answer or the failure. */
struct grpc_unary_result {
	const struct cgn_err *err; /* err->code == CGN_FINE on success */
	const uint8_t *p;          /* answer, borrowed */
	size_t n;
};
CGN_RC grpc_unary(struct grpc_channel *ch, const char *path, struct cgn_str request, cgn_nsec timeout,
	void (*done)(void *user, const struct grpc_unary_result *r), void *user, struct cgn_err *err);
