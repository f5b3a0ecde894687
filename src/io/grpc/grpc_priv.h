/* SPDX-License-Identifier: Apache-2.0 */
/* grpc, inside: message framing, the texts of the protocol, and the call that server and client share. */
#pragma once
#include "base/core/buf.h"
#include "base/core/list.h"
#include "io/grpc/grpc.h"

#define GRPC_MAX_MESSAGE ((uint32_t)4 * 1024 * 1024)
#define GRPC_PREFIX      5
#define GRPC_FOREVER     (CGN_SEC * 3600 * 24 * 36525)

/* ---- frame.c: messages out of a byte stream, without I/O ---- */
struct grpc_frames {
	uint32_t max_message;
	uint32_t need; /* bytes of the message whose prefix was read */
	uint8_t prefix[GRPC_PREFIX], n_prefix;
	struct cgn_buf
		part; /* a message that came in pieces; grows with what came, never with what was promised */
};
enum grpc_frame_step { GRPC_FRAME_MORE, GRPC_FRAME_MESSAGE, GRPC_FRAME_BAD };
/* Take bytes off |in| up to the end of one message. MESSAGE: |out| borrows from |in|'s bytes or from |f|,
 * until the next call. BAD: CGN_OVERLOADED (over the limit), CGN_UNSUPPORTED (compressed), CGN_INVALID
 * (flag); |f| is not to be used again. */
enum grpc_frame_step grpc_frame_next(struct grpc_frames *f, struct cgn_str *in, struct cgn_str *out,
	struct cgn_err *err);
bool grpc_frame_between(const struct grpc_frames *f); /* not inside a message */
void grpc_frame_prefix(uint8_t to[GRPC_PREFIX], size_t n);
void grpc_frames_fini(struct grpc_frames *f);

/* ---- text.c ---- */
#define GRPC_TIMEOUT_TEXT 16
void grpc_timeout_format(cgn_nsec timeout,
	char to[GRPC_TIMEOUT_TEXT]);                      /* rounded up to what 8 digits can say */
bool grpc_timeout_parse(struct cgn_str s, cgn_nsec *out); /* beyond 100 years is 100 years */
void grpc_message_encode(const char *sentence, struct cgn_buf *out);
void grpc_message_decode(struct cgn_str s, char *to,
	size_t cap); /* cut to fit; a broken escape stays as it is */
enum cgn_code grpc_code_from_http(int status);
/* The status in a head or in trailers; false when there is none. |out| is FINE or has the server's
 * sentence. */
bool grpc_status_read(const struct http_field *fields, size_t n, struct cgn_err *out);

/* ---- call.c ---- */
#define GRPC_CALL_TAG 0x6772ca11U
struct grpc_call {
	uint32_t tag;
	bool server;    /* which of the two sides this is */
	bool head_sent; /* server: the answer's head went out */
	bool finished;  /* nothing more is sent */
	bool deaf;      /* nothing more is taken in */
	bool paused;
	bool peer_ended; /* half-close, or the client's final status, to be told after the last message */
	bool has_status; /* client: |final| came in the answer's head */
	bool closed;     /* on_close was called, or cancelled: only the burial is left */
	struct cgn_loop *loop;
	const struct grpc_call_ops *ops;
	void *user;
	struct grpc_frames in;
	struct cgn_buf held; /* came while paused; at most what http had read already */
	struct cgn_timer deadline;
	struct cgn_hook turn;
	struct cgn_link link; /* in its server or channel */
	struct cgn_grave grave;
	struct cgn_err final; /* what on_close will say */
	struct http_exchange *x;
	struct grpc_server *owner;
	struct http_call *h;
	struct grpc_channel *channel;
};
struct grpc_call *grpc_call_new(struct cgn_loop *l, uint32_t max_message,
	struct cgn_link *list); /* NULL: no memory */
/* Bytes from http, and their end. */
void grpc_call_feed(struct grpc_call *c, const uint8_t *p, size_t n);
void grpc_call_peer_ended(struct grpc_call *c);
/* The last callback, then burial. */
void grpc_call_close(struct grpc_call *c, const struct cgn_err *why);
void grpc_call_bury(struct grpc_call *c);
void grpc_call_set_deadline(struct grpc_call *c, cgn_nsec timeout);
/* client.c and server.c: the call can't go on: what the peer sent is broken, or the deadline is over. */
void grpc_client_break(struct grpc_call *c, const struct cgn_err *why);
void grpc_server_break(struct grpc_call *c, const struct cgn_err *why);

/* ---- health.c ---- */
struct grpc_health {
	struct cgn_link watches;
	const struct grpc_method *methods; /* the server's own: what services there are */
	size_t n_methods;
	bool serving;
};
extern const struct grpc_method grpc_health_methods[2]; /* their server_user is the struct grpc_health */
void grpc_health_init(struct grpc_health *h, const struct grpc_server_cfg *cfg);
void grpc_health_set(struct grpc_health *h, bool serving);
void grpc_health_end(struct grpc_health *h); /* ends the watches: they would hold a draining server open */
