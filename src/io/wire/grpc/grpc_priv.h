/* SPDX-License-Identifier: Apache-2.0 */
/* grpc, inside: message framing, the protocol's texts, and the call that server and client share. */
#pragma once
#include "base/core/buf.h"
#include "base/core/list.h"
#include "io/wire/grpc/grpc.h"
#include "io/wire/http/server.h"

#define GRPC_MAX_MESSAGE ((uint32_t)4 * 1024 * 1024)
#define GRPC_PREFIX      5
#define GRPC_FOREVER     (CGN_SEC * 3600 * 24 * 36525)

/* ---- frame.c: messages out of a byte stream, without I/O ---- */
struct grpc_frames {
	uint32_t max_message;
	uint32_t need; /* Bytes of the message whose prefix was read. */
	uint8_t prefix[GRPC_PREFIX], n_prefix;
	struct grpc_budget *budget; /* NULL: none. */
	uint64_t booked;            /* Bytes of the current message in |budget|. */
	/* A message that came in pieces; grows with the bytes that came, never with the promised length. */
	struct cgn_buf part;
};
enum grpc_frame_step { GRPC_FRAME_MORE, GRPC_FRAME_MESSAGE, GRPC_FRAME_BAD };
/* Take bytes off |in| up to the end of one message. MESSAGE: |out| borrows from |in|'s bytes or from |f|
 * until the next call. BAD: CGN_OVERLOADED (over the limit), CGN_UNSUPPORTED (compressed), CGN_INVALID
 * (flag); do not use |f| again. */
enum grpc_frame_step grpc_frame_next(struct grpc_frames *f, struct cgn_str *in, struct cgn_str *out,
	struct cgn_err *err);
bool grpc_frame_between(const struct grpc_frames *f); /* True when no message is in progress. */
void grpc_frame_prefix(uint8_t to[GRPC_PREFIX], size_t n);
/* Give back what the current message has booked; the budget may end before the memory does. */
void grpc_frames_unbook(struct grpc_frames *f);
void grpc_frames_fini(struct grpc_frames *f);

/* ---- text.c ---- */
#define GRPC_TIMEOUT_TEXT 16
void grpc_timeout_format(cgn_nsec timeout,
	char to[GRPC_TIMEOUT_TEXT]);                      /* Rounded up to what 8 digits can express. */
bool grpc_timeout_parse(struct cgn_str s, cgn_nsec *out); /* More than 100 years is read as 100 years. */
void grpc_message_encode(const char *sentence, struct cgn_buf *out);
void grpc_message_decode(struct cgn_str s, char *to,
	size_t cap); /* Cut to fit; a broken escape is copied as it is. */
enum cgn_code grpc_code_from_http(int status);
/* Read the status in a head or in trailers; returns false when there is none. |out| is CGN_FINE or has the
 * server's message. */
bool grpc_status_read(const struct http_field *fields, size_t n, struct cgn_err *out);

/* ---- call.c ---- */
#define GRPC_CALL_TAG 0x6772ca11U
struct grpc_call {
	uint32_t tag;
	bool server;    /* Side of the call. */
	bool head_sent; /* Server: the answer's head was sent. */
	bool finished;  /* Nothing more is sent. */
	bool deaf;      /* Nothing more is read. */
	bool paused;
	/* Half-close, or the client's final status, to be reported after the last message. */
	bool peer_ended;
	bool has_status; /* Client: |final| came in the answer's head. */
	bool closed;     /* on_close was called, or the call was cancelled: only the burial is left. */
	struct cgn_loop *loop;
	const struct grpc_call_ops *ops;
	void *user;
	struct grpc_frames in;
	struct cgn_buf held; /* Bytes that came while paused; at most what http had read already. */
	struct cgn_timer deadline;
	struct cgn_hook turn;
	struct cgn_link link; /* Member of the server's or channel's list. */
	struct cgn_grave grave;
	struct cgn_err final; /* The status that on_close will report. */
	struct http_exchange *x;
	const struct http_head *head; /* Server: the request's, during on_call; NULL: later. */
	struct grpc_server *owner;
	struct http_call *h;
	struct grpc_channel *channel;
};
struct grpc_call *grpc_call_new(struct cgn_loop *l, uint32_t max_message, struct cgn_link *list);
/* Take bytes from http, and their end. */
void grpc_call_feed(struct grpc_call *c, const uint8_t *p, size_t n);
void grpc_call_peer_ended(struct grpc_call *c);
/* Call on_close, then bury the call. */
void grpc_call_close(struct grpc_call *c, const struct cgn_err *why);
void grpc_call_bury(struct grpc_call *c);
void grpc_call_set_deadline(struct grpc_call *c, cgn_nsec timeout);
/* In client.c and server.c: the call cannot continue, because the peer broke the protocol or the deadline
 * passed. */
void grpc_client_break(struct grpc_call *c, const struct cgn_err *why);
void grpc_server_break(struct grpc_call *c, const struct cgn_err *why);

/* ---- health.c ---- */
struct grpc_health {
	struct cgn_link watches;
	const struct grpc_method *methods; /* The server's own methods, which define its services. */
	size_t n_methods;
	bool serving;
};
extern const struct grpc_method
	grpc_health_methods[2]; /* server_user of these methods is the struct grpc_health. */
void grpc_health_init(struct grpc_health *h, const struct grpc_server_cfg *cfg);
void grpc_health_set(struct grpc_health *h, bool serving);
void grpc_health_end(struct grpc_health *h); /* End the watches, which would hold a draining server open. */
