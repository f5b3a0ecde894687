/* SPDX-License-Identifier: Apache-2.0 */
/* h2 link: what both ends of an HTTP/2 connection share. nghttp2 without I/O; streams with a queue each;
 * frames that do no work are counted, so that a flood of them ends the connection. Callbacks to the owner
 * never come from inside a write. */
#pragma once
#include <nghttp2/nghttp2.h>

#include "io/http/head_priv.h"
#include "io/http/wire_priv.h"

/* queued bytes of a stream from which its producer should wait */
#define H2_STREAM_MARK ((size_t)64 * 1024)
/* and what ends it: one message of the largest size fits */
#define H2_STREAM_LIMIT ((size_t)128 * 1024 * 1024)
/* unconsumed bytes over all streams: bounds what a peer can make us hold */
#define H2_LINK_WINDOW   (1024 * 1024)
#define H2_STREAM_WINDOW 65535 /* and of one */
/* Between our own programs: a prompt of a few hundred KiB, or a block, arrives without waiting for a
 * WINDOW_UPDATE. */
#define H2_WIDE_LINK_WINDOW   (8 * 1024 * 1024)
#define H2_WIDE_STREAM_WINDOW (1024 * 1024)

struct h2_link;
struct h2_stream;
struct h2_block; /* fields in nghttp2's form, in one piece of memory */

struct h2_stream {
	struct h2_link *link; /* NULL once closed */
	int32_t id;           /* 0: nghttp2 is done with it */
	uint32_t close_code, reset_code;
	bool reset_due;
	bool ended;    /* by us: the data source may say so once the queue is empty */
	bool end_sent; /* END_STREAM is on the wire */
	bool deferred; /* nghttp2 waits for h2_stream_write */
	bool paused, eof /* the peer's END_STREAM came */, eof_told;
	struct cgn_link owed, wake;
	struct cgn_buf queue; /* bytes that no window let out */
	size_t queue_at;
	const struct iovec *lent; /* the caller's bytes, during h2_stream_write only */
	size_t lent_at, lent_bytes;
	struct cgn_buf hold;       /* came while paused; bounded by the stream's window */
	struct h2_block *trailers; /* ours, to be sent */
	struct http_field *tail;   /* the peer's, while paused */
	size_t n_tail;
	cgn_nsec read_at, taken_at; /* last progress in each direction */
};

struct h2_link_ops {
	/* A head or trailers came whole. |st| NULL: a new request, of stream |id|. |full|: it was larger than
	 * allowed, and is cut. True: these are trailers that on_end shall show. */
	bool (*on_head)(struct h2_link *l, int32_t id, struct h2_stream *st, struct http_store *s, bool full);
	void (*on_data)(struct h2_stream *st, const uint8_t *p, size_t n);
	void (*on_end)(struct h2_stream *st, const struct http_field *trailers, size_t n);
	/* The stream is gone, with this RST_STREAM code. Comes from reading, or at the end of a turn. */
	void (*on_closed)(struct h2_stream *st, uint32_t code);
	void (*on_drain)(struct h2_stream *st);
	void (*on_frame)(struct h2_link *l, const nghttp2_frame *f); /* settings, ping, goaway */
};

struct h2_bucket {
	uint32_t level;
	cgn_nsec at;
};

struct h2_link {
	nghttp2_session *session;
	struct http_wire *wire;
	const struct h2_link_ops *ops;
	bool server, busy /* inside nghttp2 */, reading, flooded;
	struct cgn_link owed; /* streams whose producer waits */
	struct cgn_link wake; /* streams to look at at the end of the turn: resumed, or closed by a write */
	struct http_store **spare, *store;
	int32_t store_id;
	bool store_full;
	cgn_nsec store_since;
	uint32_t max_head_bytes, max_fields;
	uint32_t stream_window;
	uint32_t reset_burst, reset_rate;
	struct h2_bucket resets, idle_frames;
	uint64_t bad_frames;
};

struct h2_link_cfg {
	bool server;
	uint32_t max_streams, max_head_bytes, max_fields;
	bool wide; /* windows */
	/* resets by the peer that are not a flood: at once, and per second */
	uint32_t reset_burst, reset_rate;
};
CGN_RC h2_link_init(struct h2_link *l, const struct h2_link_cfg *cfg, const struct h2_link_ops *ops,
	struct http_wire *w, struct http_store **spare);
void h2_link_fini(struct h2_link *l);
/* False: the connection is over (what is to be said about it was put on the wire). */
bool h2_link_feed(struct h2_link *l, const uint8_t *p, size_t n);
/* The end of a turn: everything due goes to the wire, owed callbacks are made. False: nothing is left to be
 * said or heard. */
bool h2_link_turn(struct h2_link *l);
void h2_link_pump(struct h2_link *l); /* nghttp2's frames to the wire, as far as it takes them */

void h2_stream_init(struct h2_stream *st, struct h2_link *l, int32_t id);
void h2_stream_fini(struct h2_stream *st); /* also takes it off nghttp2: what still comes is dropped */
void h2_stream_write(struct h2_stream *st, const struct iovec *iov, size_t n);
void h2_stream_end(struct h2_stream *st, struct h2_block **take_trailers); /* may be NULL or point to NULL */
void h2_stream_reset(struct h2_stream *st, uint32_t code);
void h2_stream_wake(struct h2_stream *st); /* look at it at the end of the turn */
void h2_stream_pause(struct h2_stream *st, bool yes);
bool h2_stream_over_mark(struct h2_stream *st);
size_t h2_stream_queued(const struct h2_stream *st);
nghttp2_data_provider h2_stream_source(struct h2_stream *st);

struct h2_block {
	size_t n;
	nghttp2_nv nv[];
};
/* |pseudo| first, then those fields that may pass, names in lower case. NULL without memory. */
struct h2_block *h2_block_make(const struct http_field *pseudo, size_t n_pseudo,
	const struct http_field *fields, size_t n);
