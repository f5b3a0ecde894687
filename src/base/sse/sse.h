/* SPDX-License-Identifier: Apache-2.0 */
/* sse: server-sent events. A scanner that watches bytes on their way through, cut anywhere; a writer. Not
 * thread-safe. */
#pragma once
#include "base/core/buf.h"
#include "base/core/str.h"

/* One event: its name ("" when it has none) and its data, lines joined by LF. Borrowed until the call
 * returns. */
typedef void (*sse_event_fn)(void *arg, struct cgn_str name, struct cgn_str data);

struct sse_scan {
	sse_event_fn on_event;
	void *arg;
	uint64_t lost_events; /* longer than the limit (or no memory): not reported, what follows is */
	/* inside */
	struct cgn_buf line; /* the start of a line whose end has not come */
	struct cgn_buf data; /* data lines kept from earlier chunks */
	/* the only data line so far, still in the caller's chunk: most events need no copy */
	struct cgn_str held;
	char name[64];
	uint8_t name_n, bom_seen;
	bool has_data, is_held, after_cr, skip_line, lost;
};

/* |max_event_bytes| bounds one line and the data of one event, and so the memory: at most twice that. */
void sse_scan_init(struct sse_scan *s, size_t max_event_bytes, sse_event_fn on_event, void *arg);
void sse_scan_fini(struct sse_scan *s);
/* Any part of the stream, in order. Never fails and never changes the bytes. An event without its empty line
 * is not one. */
void sse_scan_feed(struct sse_scan *s, struct cgn_str chunk);

/* Append an event. |name| is NULL or one line of ours; |data| may have any line ends and becomes as many data
 * lines. */
void sse_event(struct cgn_buf *b, const char *name, struct cgn_str data);
