/* SPDX-License-Identifier: Apache-2.0 */
/* h1 parse: HTTP/1 messages from bytes, without I/O. llhttp parses the grammar. Around it stand the rules in
 * which llhttp versions differ or which they leave to the user: line ends, folding, limits, Host, and framing
 * that two readers could understand differently. */
#pragma once
#include <llhttp.h>

#include "io/wire/http/head_priv.h"

#define H1_MAX_CHUNK_EXT 1024 /* Bytes of chunk extensions in one message. */
#define H1_MAX_QUIET     8192 /* Framing bytes in a row that bring no body. */
#define H1_MAX_INTERIM   16   /* 1xx heads before the final one. */

enum h1_phase { H1_START, H1_HEAD, H1_BODY, H1_TRAILER, H1_DONE, H1_BAD };

struct h1_parser_ops {
	void (*on_head)(void *user, const struct http_head *h); /* Borrowed for the call. */
	void (*on_body)(void *user, const uint8_t *p, size_t n);
	void (*on_end)(void *user, const struct http_field *trailers, size_t n);
};

struct h1_parser {
	llhttp_t ll;
	const struct h1_parser_ops *ops;
	void *user;
	struct http_store **spare;
	struct http_store *store; /* Set while a head or trailers are read. */
	uint32_t max_head_bytes, max_fields;
	uint32_t line_bytes, head_bytes, ext_bytes, quiet_bytes, interim;
	enum h1_phase phase;
	bool response, no_body /* The answer to HEAD. */, keep_alive, chunked;
	bool stop;   /* Set inside a callback: feed returns as soon as it can. */
	bool halted; /* llhttp was stopped inside a message and must be called again, even without bytes. */
	bool cr, in_value, progress;
	int fault_status; /* Status of the refusing answer: 400, 408, 431, 501, 505. */
	const char *fault;
};

/* |spare| must outlive the parser. */
void h1_parser_init(struct h1_parser *p, bool response, const struct h1_parser_ops *ops, void *user,
	struct http_store **spare, uint32_t max_head_bytes, uint32_t max_fields);
void h1_parser_fini(struct h1_parser *p);
void h1_parser_next(struct h1_parser *p); /* Prepare for the next message, after H1_DONE. */
/* Return how many bytes were parsed. Less than |n| only when the message ended (H1_DONE), a callback set
 * stop, or H1_BAD. With n == 0 it continues after a stop. */
size_t h1_parser_feed(struct h1_parser *p, const uint8_t *data, size_t n);
/* The peer ended the connection. Returns true when that ends the message properly (on_end was called). */
bool h1_parser_eof(struct h1_parser *p);
