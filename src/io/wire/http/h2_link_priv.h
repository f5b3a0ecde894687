/* SPDX-License-Identifier: Apache-2.0 */
/* h2 link: the part that both ends of an HTTP/2 connection share: nghttp2 without I/O, and streams with a
 * queue each. Frames that do no work are counted, so that a flood of them ends the connection. Callbacks to
 * the owner are never made from inside a write. */
#pragma once
#include <nghttp2/nghttp2.h>

#include "io/wire/http/head_priv.h"
#include "io/wire/http/wire_priv.h"

/* High-water mark of a stream's queued bytes: the producer should wait. */
#define H2_STREAM_MARK ((size_t)64 * 1024)
/* Queued bytes that end a stream: one message of the largest size fits. */
#define H2_STREAM_LIMIT ((size_t)128 * 1024 * 1024)
/* Unconsumed bytes over all streams; bounds the memory that a peer can occupy. */
#define H2_LINK_WINDOW   (1024 * 1024)
#define H2_STREAM_WINDOW 65535 /* The same for one stream. */
/* Windows between our own programs: a prompt of a few hundred KiB, or a block, arrives without waiting for a
 * WINDOW_UPDATE. */
#define H2_WIDE_LINK_WINDOW   (8 * 1024 * 1024)
#define H2_WIDE_STREAM_WINDOW (1024 * 1024)

struct h2_link;
struct h2_stream;
struct h2_block; /* Fields in nghttp2's form, in one piece of memory. */

struct h2_stream {
	struct h2_link *link; /* NULL once closed. */
	int32_t id;           /* 0: nghttp2 has dropped the stream. */
	uint32_t close_code, reset_code;
	bool reset_due;
	bool ended;    /* Ended by this side: the data source may end once the queue is empty. */
	bool end_sent; /* END_STREAM was sent. */
	bool deferred; /* nghttp2 waits for h2_stream_write. */
	bool paused, eof /* eof: the peer's END_STREAM came. */, eof_told;
	struct cgn_link owed, wake;
	struct cgn_buf queue; /* Bytes that no window let out. */
	size_t queue_at;
	/* The caller's bytes that come after |queue|, during h2_stream_write or from h2_stream_lend on. */
	const struct iovec *lent;
	size_t lent_at, lent_bytes;
	struct iovec *loan;        /* Owned: the list of h2_stream_lend, until all of it was sent. */
	struct cgn_buf hold;       /* Bytes that came while paused; bounded by the stream's window. */
	struct h2_block *trailers; /* Trailers to be sent. */
	struct http_field *tail;   /* The peer's trailers, while paused. */
	size_t n_tail;
	cgn_nsec taken_at; /* Last time that bytes were sent. */
};

struct h2_link_ops {
	/* A complete head, or complete trailers. |st| NULL: a new request, on stream |id|. |full|: it
	 * exceeded the limits and is cut. Return true for trailers that on_end shall show. */
	bool (*on_head)(struct h2_link *l, int32_t id, struct h2_stream *st, struct http_store *s, bool full);
	void (*on_data)(struct h2_stream *st, const uint8_t *p, size_t n);
	void (*on_end)(struct h2_stream *st, const struct http_field *trailers, size_t n);
	/* The stream is gone, with this RST_STREAM code. Called while reading, or at the end of a turn. */
	void (*on_closed)(struct h2_stream *st, uint32_t code);
	void (*on_drain)(struct h2_stream *st);
	void (*on_frame)(struct h2_link *l, const nghttp2_frame *f); /* SETTINGS, PING, GOAWAY. */
};

struct h2_bucket {
	uint32_t level;
	cgn_nsec at;
};

struct h2_link {
	nghttp2_session *session;
	struct http_wire *wire;
	const struct h2_link_ops *ops;
	bool server, busy /* busy: inside nghttp2. */, reading, flooded;
	struct cgn_link owed; /* Streams whose producer waits. */
	struct cgn_link wake; /* Streams to handle at the end of the turn: resumed, or closed by a write. */
	struct http_store **spare, *store;
	bool store_full;
	cgn_nsec store_since;
	uint32_t max_head_bytes, max_fields;
	uint32_t stream_window;
	uint32_t reset_burst, reset_rate;
	struct h2_bucket resets, idle_frames;
	/* Bytes of decoded heads: of this one, and how many more all heads together may have. */
	size_t head_bytes, decode_credit, decode_burst;
	cgn_nsec decode_at; /* When the credit last grew by time. */
	uint64_t bad_frames;
};

struct h2_link_cfg {
	bool server;
	uint32_t max_streams, max_head_bytes, max_fields;
	bool wide; /* Large windows. */
	/* Resets by the peer that do not count as a flood: at once, and per second. */
	uint32_t reset_burst, reset_rate;
	/* Bytes that heads may decode to at once, and per second, besides a multiple of the received bytes. */
	size_t decode_burst;
};
void h2_link_init(struct h2_link *l, const struct h2_link_cfg *cfg, const struct h2_link_ops *ops,
	struct http_wire *w, struct http_store **spare);
void h2_link_fini(struct h2_link *l);
/* Returns false when the connection is over; the goodbye, if any, was put on the wire. */
bool h2_link_feed(struct h2_link *l, const uint8_t *p, size_t n);
/* At the end of a turn: send everything due and make the drain callbacks. Returns false when nothing is left
 * to send or receive. */
bool h2_link_turn(struct h2_link *l);
void h2_link_pump(struct h2_link *l); /* Put nghttp2's frames on the wire, as far as it takes them. */

void h2_stream_init(struct h2_stream *st, struct h2_link *l, int32_t id);
/* Also detaches the stream from nghttp2: later frames of the peer are dropped. */
void h2_stream_fini(struct h2_stream *st);
void h2_stream_write(struct h2_stream *st, const struct iovec *iov, size_t n);
/* Send bytes that the caller keeps unchanged until they are sent, h2_stream_keep or h2_stream_fini. */
void h2_stream_lend(struct h2_stream *st, const struct iovec *iov, size_t n);
void h2_stream_keep(struct h2_stream *st); /* Copy the unsent rest of them. */
/* |take_trailers| may be NULL or point to NULL. */
void h2_stream_end(struct h2_stream *st, struct h2_block **take_trailers);
void h2_stream_reset(struct h2_stream *st, uint32_t code);
void h2_stream_wake(struct h2_stream *st); /* Handle the stream at the end of the turn. */
void h2_stream_pause(struct h2_stream *st, bool yes);
bool h2_stream_over_mark(struct h2_stream *st);
size_t h2_stream_queued(const struct h2_stream *st);
nghttp2_data_provider h2_stream_source(struct h2_stream *st);

struct h2_block {
	size_t n;
	nghttp2_nv nv[];
};
/* |pseudo| first, then the fields that may pass, with names in lower case. Returns NULL when out of
 * memory. */
struct h2_block *h2_block_make(const struct http_field *pseudo, size_t n_pseudo,
	const struct http_field *fields, size_t n);
