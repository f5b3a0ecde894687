/* SPDX-License-Identifier: Apache-2.0 */
/* sse: server-sent events. A scanner of bytes that are relayed, cut anywhere, and a writer. Not
 * thread-safe. */
#pragma once
#include "base/core/buf.h"
#include "base/core/str.h"

/* Called for each event: |name| ("" for an event without one) and |data|, its lines joined by LF. Both are
 * borrowed until the call returns. */
typedef void (*sse_event_fn)(void *arg, struct cgn_str name, struct cgn_str data);
/* Called for a line whose field the format does not have, which browsers ignore. |value| is what follows the colon and
 * one space. All are borrowed until the call returns. */
typedef void (*sse_line_fn)(void *arg, struct cgn_str line, struct cgn_str field, struct cgn_str value);

struct sse_scan {
	sse_event_fn on_event;
	sse_line_fn on_line; /* May be set after sse_scan_init; NULL: such lines are ignored. */
	void *arg;
	/* Events longer than the limit, or without memory. Such an event is not reported; later ones are. */
	uint64_t lost_events;
	/* Private members follow. */
	struct cgn_buf line; /* The start of a line whose end has not come. */
	struct cgn_buf data; /* Data lines kept from earlier chunks. */
	/* The only data line so far, still in the caller's chunk: most events need no copy. */
	struct cgn_str held;
	char name[64];
	uint8_t name_n, bom_seen;
	bool has_data, is_held, after_cr, skip_line, lost;
};

/* |max_event_bytes| bounds one line and the data of one event, and so the memory: at most twice that many
 * bytes. */
void sse_scan_init(struct sse_scan *s, size_t max_event_bytes, sse_event_fn on_event, void *arg);
void sse_scan_fini(struct sse_scan *s);
/* Scan the next part of the stream. Never fails and never changes the bytes. An event counts only with the
 * empty line that ends it. */
void sse_scan_feed(struct sse_scan *s, struct cgn_str chunk);
/* The stream has ended in good order: report an event whose empty line is missing. Some servers leave the last one
 * out. */
void sse_scan_end(struct sse_scan *s);

/* Return how many "data:" end in |chunk|, the next part of a stream: about as many as events. |*begun| is 0 at first, and then
 * how many bytes of the next one have come. */
size_t sse_marks(uint8_t *begun, struct cgn_str chunk);

/* Return where the last whole event of |stream| ends, if that is behind its first |from| bytes; else 0. A blank line belongs to
 * the event that it ends. */
size_t sse_border(struct cgn_str stream, size_t from);

/* Return where the first whole event of |stream| ends; 0: none is whole. */
size_t sse_event_end(struct cgn_str stream);

/* Append an event. |name| is NULL or one line without foreign bytes; |data| may have any line ends and
 * becomes as many data lines. */
void sse_event(struct cgn_buf *b, const char *name, struct cgn_str data);
