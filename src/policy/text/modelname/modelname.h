/* SPDX-License-Identifier: Apache-2.0 */
/* modelname: puts the name under which a client asked for a model back into the answer of an engine that serves
 * the model under another name. Pure; one thread.
 *
 * The name is the string "model" at the top of a JSON document, or in its member "message" (Anthropic's
 * message_start) or "response" (OpenAI's response events); only the first one of a document is replaced. In an
 * event stream (SSE, or one document a line) every event is a document. All other bytes pass unchanged and at
 * once, however the stream is cut: nothing is held back, so the filter needs no memory of its own. Bytes that
 * are not JSON pass unchanged as far as they cannot be taken for it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"

enum modelname_shape {
	MODELNAME_DOCUMENT, /* The whole answer is one document. */
	MODELNAME_EVENTS,   /* SSE events, or one document a line. */
};

#define MODELNAME_KEY_MAX 9 /* Longer than no key that matters. */
struct modelname {
	struct cgn_str name; /* Raw JSON string, quotes included; borrowed. */
	enum modelname_shape shape;
	/* ---- the line of an event stream ---- */
	uint8_t line, matched;
	bool after_cr;
	/* ---- the document ---- */
	uint8_t at;  /* Where in the document the next byte stands. */
	bool done;   /* The document's name was replaced, or it has none. */
	bool is_key; /* The next string is a key of the object that is looked into. */
	uint8_t key; /* The last key of that object. */
	uint8_t key_n;
	uint32_t depth, inside; /* Depth of the next byte, and of the object that is looked into. */
	char key_text[MODELNAME_KEY_MAX];
};

/* Begin an answer. |name|, a raw JSON string with its quotes, is borrowed for the filter's life. */
void modelname_init(struct modelname *f, enum modelname_shape shape, struct cgn_str name);
/* Append to |out| what the client gets for the bytes |data|, cut anywhere. Failures are |out|'s. */
void modelname_feed(struct modelname *f, struct cgn_str data, struct cgn_buf *out);
