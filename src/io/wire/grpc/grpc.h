/* SPDX-License-Identifier: Apache-2.0 */
/* grpc: gRPC over io/wire/http: unary calls, both kinds of streaming, deadlines, status mapping, message limits.
 * Messages are bytes here; policy/node/proto decodes them. Wire: grpc.github.io PROTOCOL-HTTP2 (5-byte prefix,
 * grpc-timeout, percent-encoded grpc-message, Trailers-Only). Compressed messages are refused with
 * UNIMPLEMENTED (12), as the protocol asks. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "io/wire/http/client.h"

/* A call, on either side. */
struct grpc_call;
struct grpc_call_ops {
	void (*on_message)(struct grpc_call *c, void *user, const uint8_t *p,
		size_t n); /* A whole message, borrowed. */
	void (*on_half_close)(struct grpc_call *c,
		void *user); /* Server: the client sent its last message. Client: NULL. */
	void (*on_drain)(struct grpc_call *c, void *user); /* May be NULL. */
	/* The last callback, called exactly once. Client: the received status (CGN_FINE, or an error with the
	 * server's message; CGN_UNAVAILABLE: no connection; CGN_DEADLINE). Server: CGN_FINE when grpc_finish
	 * was sent, CGN_CANCELLED when the client left. */
	void (*on_close)(struct grpc_call *c, void *user, const struct cgn_err *why);
};
/* Send one message, gathered from pieces. */
void grpc_send(struct grpc_call *c, const struct iovec *iov, size_t n);
/* Client: send one message whose last |n_lent| pieces are not copied: the caller keeps them unchanged until the
 * call has ended or grpc_keep. Nothing else may be sent on the call. At most HTTP_LENT_PIECES lent pieces. */
void grpc_send_lent(struct grpc_call *c, const struct iovec *iov, size_t n, size_t n_lent);
/* Client: copy the unsent rest of lent bytes: the caller may free them. */
void grpc_keep(struct grpc_call *c);
/* Call in on_message: hand the message |p|, |n| over to |out|, which is empty. A message that came in pieces is
 * not copied. Its bytes stay booked in the server's budget until grpc_budget_return. */
CGN_RC grpc_message_take(struct grpc_call *c, const uint8_t *p, size_t n, struct cgn_buf *out,
	struct cgn_err *err);
bool grpc_over_mark(const struct grpc_call *c);
void grpc_pause(struct grpc_call
		*c); /* Deliver no message after the current one; flow control slows the peer down. */
void grpc_resume(struct grpc_call *c);
/* Client: cancel the call (RST_STREAM); no callback comes any more. Server: use grpc_finish. */
void grpc_cancel(struct grpc_call **take);

/* ---- server ---- */

/* A bound on the bytes of messages in memory, of all calls on one loop. Messages are booked with the length that
 * their prefix announces, before memory is allocated for them. */
struct grpc_budget {
	uint64_t limit, used;
	uint64_t refused;    /* Messages that did not fit: they are answered with RESOURCE_EXHAUSTED. */
	const char *setting; /* Name of the setting that |limit| comes from, for the answer. */
};
/* Book |n| bytes that go with a message that was taken; they may exceed the limit. */
void grpc_budget_add(struct grpc_budget *b, uint64_t n);
void grpc_budget_return(struct grpc_budget *b, uint64_t n);

struct grpc_method {
	const char *path; /* "/cognitora.v1.Agent/Generate" */
	/* Attach ops and user with grpc_call_take before returning. The server ends the call by itself at the
	 * client's deadline. */
	void (*on_call)(struct grpc_call *c, void *server_user);
	unsigned action; /* For grpc_server_cfg.admit. */
};
struct grpc_server_cfg {
	struct net_listen_cfg listen;
	/* In bytes; 0: 4 MiB. A longer message is answered with RESOURCE_EXHAUSTED, before memory is
	 * allocated for it. */
	uint32_t max_message;
	uint32_t max_streams;       /* Streams per connection; 0: 1024. */
	struct grpc_budget *budget; /* For all messages; lives longer than the server. NULL: none. */
	const struct grpc_method *methods;
	size_t n_methods; /* Other methods are answered with UNIMPLEMENTED. */
	/* May the caller call the method with |action|? false: it has ended the call with grpc_refuse. NULL: everybody may
	 * call every method. */
	bool (*admit)(void *gate, struct grpc_call *c, unsigned action);
	void *gate; /* Argument of |admit|. */
	/* Also serve, to everybody, grpc.health.v1.Health Check and Watch, from the state set with grpc_server_serving; the
	 * service "liveness" is always served, "readiness" as the others. */
	bool health;
};
struct grpc_server;
CGN_RC grpc_server_new(struct cgn_loop *l, const struct grpc_server_cfg *cfg, void *user,
	struct grpc_server **out, struct cgn_err *err);
unsigned grpc_server_port(const struct grpc_server *s);
/* For net_listen_cfg.with of another loop's server. */
struct net_listener *grpc_server_listener(const struct grpc_server *s);
void grpc_server_serving(struct grpc_server *s, bool yes);
void grpc_server_drain(struct grpc_server *s, void (*on_idle)(void *arg), void *arg);
void grpc_server_free(struct grpc_server **take);
void grpc_call_take(struct grpc_call *c, const struct grpc_call_ops *ops, void *user);
struct cgn_str grpc_peer(const struct grpc_call *c);
/* Return the value of a field of the client's metadata; empty: it is not there. In on_call only. */
struct cgn_str grpc_metadata(const struct grpc_call *c, const char *name);
/* Name in the peer's certificate; empty: it showed none. */
struct cgn_str grpc_peer_name(const struct grpc_call *c);
/* Return the URI names of that certificate, with a space between them. */
struct cgn_str grpc_peer_uris(const struct grpc_call *c);
/* End the call with |code| and a message for the client. Nothing may be sent afterwards; on_close follows,
 * not inline. */
void grpc_finish(struct grpc_call *c, enum cgn_code code, const char *sentence);
/* Take a new call and end it at once. */
void grpc_refuse(struct grpc_call *c, enum cgn_code code, const char *sentence);
/* End the call now, without a status, for a client that does not read: drop queued messages (RST_STREAM).
 * on_close follows, not inline. */
void grpc_abort(struct grpc_call *c, enum cgn_code code);

/* ---- client ---- */
/* A channel to one address, on one loop; connects on first use and reconnects by itself with backoff. */
struct grpc_channel;
struct grpc_channel_cfg {
	const char *addr;
	struct tls_ctx *tls;
	const char *server_name;
	uint32_t max_message;     /* In bytes; 0: 4 MiB. */
	cgn_nsec connect_timeout; /* 0: 5 s. */
	cgn_nsec keepalive;       /* 0: 20 s. */
	uint32_t max_conns;       /* 0: 1. */
	bool wide;                /* For large answers, as in http. */
	bool follow; /* Calls end when the name in |addr| moves, as in http. For calls without end. */
	const char *traceparent; /* Sent with each call; NULL: none. Lives longer than the channel. */
};
CGN_RC grpc_channel_new(struct cgn_loop *l, const struct grpc_channel_cfg *cfg, struct grpc_channel **out,
	struct cgn_err *err);
void grpc_channel_free(struct grpc_channel **take);
/* Start a call. |timeout| 0: none; otherwise grpc-timeout is sent and enforced here too. Never calls back
 * inline. */
CGN_RC grpc_call_start(struct grpc_channel *ch, const char *path, cgn_nsec timeout,
	const struct grpc_call_ops *ops, void *user, struct grpc_call **out, struct cgn_err *err);
void grpc_half_close(struct grpc_call *c); /* Client: no more messages follow. */
/* A unary call: sends |request| and delivers the answer or the failure. */
struct grpc_unary_result {
	const struct cgn_err *err; /* err->code == CGN_FINE on success. */
	const uint8_t *p;          /* The answer, borrowed. */
	size_t n;
};
CGN_RC grpc_unary(struct grpc_channel *ch, const char *path, struct cgn_str request, cgn_nsec timeout,
	void (*done)(void *user, const struct grpc_unary_result *r), void *user, struct cgn_err *err);
