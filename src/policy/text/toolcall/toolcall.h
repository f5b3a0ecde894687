/* SPDX-License-Identifier: Apache-2.0 */
/* toolcall: reads the names of the tools that an answer calls, from the bytes that pass. Shapes: chat completions,
 * Anthropic messages and responses of OpenAI, each as a stream of events or as one document. An event is parsed only
 * if it has the mark of a tool call and a name, so that other events cost a search. Pure; one thread for each object.
 *
 * Memory: an event of at most TOOLCALL_EVENT_MAX bytes that came in pieces, twice; a document of at most
 * TOOLCALL_DOCUMENT_MAX. Of longer ones no tool is known. */
#pragma once
#include "base/core/buf.h"
#include "base/sse/sse.h"

#define TOOLCALL_NAMES        8  /* Different names that are kept. */
#define TOOLCALL_NAME_MAX     64 /* Bytes of a name, as the APIs allow; a longer one is not taken. */
#define TOOLCALL_EVENT_MAX    ((size_t)64 << 10)
#define TOOLCALL_DOCUMENT_MAX ((size_t)256 << 10)

struct toolcall {
	struct cgn_str names[TOOLCALL_NAMES]; /* Point into |text|. */
	size_t n;
	/* Private members follow. */
	char text[TOOLCALL_NAMES][TOOLCALL_NAME_MAX];
	bool events, lost;
	struct sse_scan scan;
	struct cgn_buf document;
};

/* |events|: the answer is a stream of events. The object must not move. */
void toolcall_init(struct toolcall *t, bool events);
void toolcall_feed(struct toolcall *t, struct cgn_str bytes);
/* The answer has ended: |names| are complete. */
void toolcall_end(struct toolcall *t);
void toolcall_fini(struct toolcall *t);
