/* SPDX-License-Identifier: Apache-2.0 */
/* extproc: messages of Envoy's external processing service, as an endpoint picker of the Gateway API Inference Extension
 * reads and writes them (envoy.service.ext_proc.v3, read in November 2026 and tried with Envoy 1.40; docs/proposals/004-endpoint-picker-protocol of the
 * extension, version 1.0.0). Pure. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

enum extproc_kind {
	EXTPROC_REQUEST_HEAD,
	EXTPROC_REQUEST_BODY,
	EXTPROC_REQUEST_TRAILERS,
	EXTPROC_ANSWER_HEAD,
	EXTPROC_ANSWER_BODY,
	EXTPROC_ANSWER_TRAILERS
};
/* How the proxy passes a body: in pieces that come back as they are sent, or whole. */
enum extproc_mode { EXTPROC_DUPLEX, EXTPROC_WHOLE, EXTPROC_PIECES, EXTPROC_NO_BODY };

struct extproc_message {
	enum extproc_kind kind;
	struct cgn_str body; /* Borrowed. */
	bool last;           /* No body follows the head; nothing follows the piece of a body. */
	bool observes;       /* The proxy wants no answer. */
	/* In the first message of a stream; a proxy that does not tell is taken for one of EXTPROC_DUPLEX, which the
	 * extension asks for. */
	enum extproc_mode request_mode, answer_mode;
	void *pb; /* Owned: the members borrow from it. */
};
/* Read a message; call extproc_fini in either case. INVALID: it is not a message that a proxy sends to a
 * picker. Memory: 16 times the bytes and 64 KiB (pb.h). */
CGN_RC extproc_read(struct cgn_str bytes, struct extproc_message *out, struct cgn_err *err);
void extproc_fini(struct extproc_message *m);
/* Return the number of fields of a head, pseudo fields included, and the field |i|. Names are lower-case. Borrowed. */
size_t extproc_fields(const struct extproc_message *m);
struct cgn_str extproc_field_name(const struct extproc_message *m, size_t i);
struct cgn_str extproc_field_value(const struct extproc_message *m, size_t i);
/* Return the value of the first field |name|; p NULL: there is none. */
struct cgn_str extproc_field(const struct extproc_message *m, const char *name);
/* Append the endpoints that may be picked, with commas between them. False: all may be. */
bool extproc_subset(const struct extproc_message *m, struct cgn_buf *out);
/* Return the endpoint that served the request, as the proxy tells with the answer's head; p NULL: it does not. */
struct cgn_str extproc_served(const struct extproc_message *m);

/* ---- answers: each appends one message ---- */

/* The change of a request that the proxy is asked for. */
struct extproc_pick {
	const char
		*endpoints; /* "ip:port", more of them with commas before them, in the order to try them. */
	int64_t length;     /* New Content-Length of the request; -1: as it was. */
};
/* |kind|: of the message that is answered. |pick| NULL: nothing changes. */
void extproc_put_head(enum extproc_kind kind, const struct extproc_pick *pick, struct cgn_buf *out);
/* A piece of a body in the mode DUPLEX, of at most EXTPROC_PIECE bytes. */
#define EXTPROC_PIECE ((size_t)62 * 1024) /* Envoy takes no more than 64 KiB at a time. */
void extproc_put_piece(enum extproc_kind kind, struct cgn_str bytes, bool last, struct cgn_buf *out);
/* A body in the other modes. |pick| as above; |body| p NULL: it stays as it is. */
void extproc_put_body(enum extproc_kind kind, const struct extproc_pick *pick, struct cgn_str body,
	struct cgn_buf *out);
void extproc_put_trailers(enum extproc_kind kind, struct cgn_buf *out);
/* The client gets |status| and |json| from the proxy. |retry_after| in seconds; 0: no such field. */
void extproc_put_refusal(int status, struct cgn_str json, unsigned retry_after, const char *details,
	struct cgn_buf *out);
