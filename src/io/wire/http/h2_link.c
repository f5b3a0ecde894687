/* SPDX-License-Identifier: Apache-2.0 */
#include "io/wire/http/h2_link_priv.h"

#include <stdlib.h>

/* Allowed burst of frames that do no work (ping, settings, priority, data of a few bytes). */
#define IDLE_BURST   1000
#define IDLE_RATE    100   /* Allowed rate of them per second. */
#define MAX_OUTBOUND 20000 /* Outbound frames for a peer that provokes answers and does not read them. */
#define ORPHAN_BYTES 32768
#define MAX_SETTINGS 32 /* Entries in one SETTINGS frame. */
/* HPACK repeats a field of up to 4 KiB by one byte, and each of its bytes is looked at. A head that decodes to more than
 * so many times its limit ends the connection; a smaller one above the limit costs its stream only. */
#define HEAD_EXCESS 4
/* Decoded bytes of heads for each received byte. A client that repeats all of its fields stays below it by its bodies,
 * or by what a connection may decode each second. */
#define DECODE_RATIO 64
#define DECODE_FIELD 32 /* Bytes that a field counts for besides its text, as RFC 7541, 4.1, counts. */
#define TINY_WINDOW  8  /* A WINDOW_UPDATE of so few bytes lets out less than a frame's head. */
#define TINY_DATA    5  /* Bytes in a DATA frame that are fewer than the head of a gRPC message. */
/* Unsent answers to PING and SETTINGS; the frames that fit in one read are one burst. */
#define MAX_ACKS 4000

static struct h2_link *link_of(void *user)
{
	return user;
}

static struct h2_stream *stream_of(nghttp2_session *s, int32_t id)
{
	return nghttp2_session_get_stream_user_data(s, id);
}

/* ---- floods ---- */

static bool bucket_over(struct h2_bucket *b, cgn_nsec now, uint32_t burst, uint32_t per_second)
{
	uint64_t leaked = cgn_since(now, b->at) / (CGN_SEC / per_second);
	if (leaked > 0) {
		b->level = leaked < b->level ? b->level - (uint32_t)leaked : 0;
		b->at = now;
	}
	return ++b->level > burst;
}

static void count_idle_frame(struct h2_link *l)
{
	if (bucket_over(&l->idle_frames, cgn_loop_now(l->wire->loop), IDLE_BURST, IDLE_RATE))
		l->flooded = true;
}

static void count_reset(struct h2_link *l)
{
	if (l->reset_rate != 0 &&
		bucket_over(&l->resets, cgn_loop_now(l->wire->loop), l->reset_burst, l->reset_rate))
		l->flooded = true;
}

static void count_frame(struct h2_link *l, const nghttp2_frame *f)
{
	const nghttp2_frame_hd *hd = &f->hd;
	if (hd->type == NGHTTP2_RST_STREAM)
		count_reset(l);
	else if ((hd->type == NGHTTP2_PING || hd->type == NGHTTP2_SETTINGS) &&
		(hd->flags & NGHTTP2_FLAG_ACK) == 0)
		count_idle_frame(l);
	else if (hd->type == NGHTTP2_PRIORITY)
		count_idle_frame(l);
	else if (hd->type == NGHTTP2_WINDOW_UPDATE && f->window_update.window_size_increment <= TINY_WINDOW)
		count_idle_frame(l);
	else if (hd->type == NGHTTP2_DATA && hd->length - f->data.padlen < TINY_DATA &&
		(hd->flags & NGHTTP2_FLAG_END_STREAM) == 0)
		count_idle_frame(l);
}

/* ---- the decoded bytes of heads ---- */

static void decode_earn(struct h2_link *l, size_t received)
{
	cgn_nsec now = cgn_loop_now(l->wire->loop);
	uint64_t ms = cgn_since(now, l->decode_at) / CGN_MSEC;
	if (ms > 0) {
		uint64_t gain = ms < 1000 ? ms * l->decode_burst / 1000 : l->decode_burst;
		l->decode_credit += gain;
		l->decode_at = now;
	}
	if (l->decode_credit > l->decode_burst)
		l->decode_credit = l->decode_burst;
	l->decode_credit += DECODE_RATIO * received;
}

/* Count a field; false: the peer makes too much work of too few bytes. */
static bool decode_count(struct h2_link *l, size_t bytes)
{
	bytes += DECODE_FIELD;
	l->head_bytes += bytes;
	if (bytes > l->decode_credit || l->head_bytes > HEAD_EXCESS * (size_t)l->max_head_bytes) {
		l->flooded = true;
		return false;
	}
	l->decode_credit -= bytes;
	return true;
}

/* ---- heads ---- */

static int on_begin_headers(nghttp2_session *s, const nghttp2_frame *f, void *user)
{
	(void)s;
	(void)f;
	struct h2_link *l = link_of(user);
	http_store_put(l->spare, &l->store);
	l->store = http_store_get(l->spare, l->max_head_bytes, l->max_fields);
	l->store_full = false;
	l->head_bytes = 0;
	l->store_since = cgn_loop_now(l->wire->loop);
	return 0;
}

static bool pseudo_add(struct h2_link *l, struct cgn_str name, const char *v, size_t n)
{
	static const char *const names[HTTP_P_COUNT] = {":method", ":path", ":scheme", ":authority"};
	for (unsigned i = 0; i < HTTP_P_COUNT; i++)
		if (cgn_str_is(name, names[i]))
			return http_store_pseudo(l->store, (enum http_pseudo)i, v, n);
	uint64_t status = 0;
	if (cgn_str_is(name, ":status") && cgn_str_u64((struct cgn_str){v, n}, &status) && status < 1000)
		l->store->head.status = (int)status;
	return true;
}

static int on_header(nghttp2_session *s, const nghttp2_frame *f, const uint8_t *name, size_t n,
	const uint8_t *value, size_t m, uint8_t flags, void *user)
{
	(void)s;
	(void)f;
	(void)flags;
	struct h2_link *l = link_of(user);
	const char *v = (const char *)value;
	struct cgn_str key = {(const char *)name, n};
	bool fits = !l->store_full;
	if (!decode_count(l, n + m))
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	if (fits && n > 0 && name[0] == ':')
		fits = pseudo_add(l, key, v, m);
	else if (fits && cgn_str_is(key, "host") && l->store->pseudo[HTTP_P_AUTHORITY].value_n == 0)
		fits = http_store_pseudo(l->store, HTTP_P_AUTHORITY, v, m);
	else if (fits && !cgn_str_is(key, "host"))
		fits = http_store_field(l->store) && http_store_name(l->store, key.p, n) &&
			http_store_value(l->store, v, m);
	l->store_full = !fits;
	return 0;
}

static struct http_field *fields_copy(const struct http_field *f, size_t n)
{
	size_t bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += f[i].name.n + f[i].value.n;
	struct http_field *copy = malloc(n * sizeof *copy + bytes + 1);
	if (copy == NULL)
		return NULL;
	char *at = (char *)&copy[n];
	for (size_t i = 0; i < n; i++) {
		memcpy(at, f[i].name.p, f[i].name.n);
		copy[i].name = (struct cgn_str){at, f[i].name.n};
		at += f[i].name.n;
		memcpy(at, f[i].value.p, f[i].value.n);
		copy[i].value = (struct cgn_str){at, f[i].value.n};
		at += f[i].value.n;
	}
	return copy;
}

static bool must_hold(const struct h2_stream *st)
{
	return st->paused || st->hold.n > 0;
}

static void tell_end(struct h2_stream *st, const struct http_field *trailers, size_t n)
{
	if (st->eof_told)
		return;
	st->eof_told = true;
	st->link->ops->on_end(st, trailers, n);
}

static void trailers_came(struct h2_stream *st, const struct http_head *h)
{
	st->eof = true;
	if (!must_hold(st)) {
		tell_end(st, h->fields, h->n_fields);
		return;
	}
	free(st->tail);
	st->tail = fields_copy(h->fields, h->n_fields);
	st->n_tail = st->tail != NULL ? h->n_fields : 0;
}

static void head_done(struct h2_link *l, const nghttp2_frame *f)
{
	struct http_store *s = l->store;
	l->store = NULL;
	l->store_since = 0;
	if (s != NULL) {
		struct http_head *h = http_store_head(s);
		struct cgn_str length = http_head_get(h, "content-length");
		uint64_t n = 0;
		h->version = 20;
		h->content_length = cgn_str_u64(length, &n) && n <= INT64_MAX ? (int64_t)n : -1;
		if (h->content_length < 0 && (f->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
			h->content_length = 0;
		struct h2_stream *st = stream_of(l->session, f->hd.stream_id);
		bool trailers = l->ops->on_head(l, f->hd.stream_id, st, s, l->store_full);
		if (trailers && st != NULL && st->link != NULL &&
			(f->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
			trailers_came(st, h);
	}
	http_store_put(l->spare, &s);
}

/* ---- receiving ---- */

/* The rest of a request that was answered early. A little of it is accepted, because old clients treat the
 * reset that RFC 9113 8.1 allows as a failure; the stream window ends it in any case. */
static void orphan_data(struct h2_link *l, int32_t id)
{
	if (nghttp2_session_get_stream_effective_recv_data_length(l->session, id) > ORPHAN_BYTES)
		(void)nghttp2_submit_rst_stream(l->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_NO_ERROR);
}

static int on_data_chunk(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
	void *user)
{
	(void)flags;
	struct h2_link *l = link_of(user);
	struct h2_stream *st = stream_of(s, id);
	(void)nghttp2_session_consume_connection(s, n);
	if (st == NULL) {
		orphan_data(l, id);
		return 0;
	}
	if (must_hold(st)) {
		cgn_buf_add(&st->hold, p, n);
		if (st->hold.bad)
			h2_stream_reset(st, NGHTTP2_INTERNAL_ERROR);
		return 0;
	}
	(void)nghttp2_session_consume_stream(s, id, n);
	l->ops->on_data(st, p, n);
	return 0;
}

static void end_came(struct h2_stream *st)
{
	if (st == NULL || st->eof)
		return;
	st->eof = true;
	if (!must_hold(st))
		tell_end(st, NULL, 0);
}

static int on_frame_recv(nghttp2_session *s, const nghttp2_frame *f, void *user)
{
	struct h2_link *l = link_of(user);
	int32_t id = f->hd.stream_id;
	count_frame(l, f);
	if (f->hd.type == NGHTTP2_HEADERS)
		head_done(l, f);
	if ((f->hd.type == NGHTTP2_HEADERS || f->hd.type == NGHTTP2_DATA) &&
		(f->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
		end_came(stream_of(s, id));
	else if (id == 0 && l->ops->on_frame != NULL)
		l->ops->on_frame(l, f);
	return 0;
}

static int on_invalid_frame(nghttp2_session *s, const nghttp2_frame *f, int code, void *user)
{
	(void)s;
	(void)f;
	(void)code;
	link_of(user)->bad_frames++;
	return 0;
}

void h2_stream_wake(struct h2_stream *st)
{
	if (cgn_list_empty(&st->wake))
		cgn_list_push(&st->link->wake, &st->wake);
	cgn_loop_defer(st->link->wire->loop, &st->link->wire->hook);
}

static int on_stream_close(nghttp2_session *s, int32_t id, uint32_t code, void *user)
{
	struct h2_link *l = link_of(user);
	struct h2_stream *st = stream_of(s, id);
	if (st == NULL)
		return 0;
	st->id = 0;
	st->close_code = code;
	if (l->server && l->reading && !st->end_sent) {
		l->ops->on_closed(st, code);
		return 0;
	}
	/* Called from a write, or after both sides ended: the owner is told at the end of the turn. */
	st->deferred = false;
	h2_stream_wake(st);
	return 0;
}

/* ---- sending ---- */

size_t h2_stream_queued(const struct h2_stream *st)
{
	return st->queue.n - st->queue_at + st->lent_bytes;
}

static ssize_t source_read(nghttp2_session *s, int32_t id, uint8_t *buf, size_t len, uint32_t *flags,
	nghttp2_data_source *src, void *user)
{
	(void)buf;
	(void)user;
	struct h2_stream *st = src->ptr;
	if (stream_of(s, id) != st)
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* The owner left before the end. */
	size_t have = h2_stream_queued(st), n = have < len ? have : len;
	if (have == 0 && !st->ended) {
		st->deferred = true;
		return NGHTTP2_ERR_DEFERRED;
	}
	*flags |= NGHTTP2_DATA_FLAG_NO_COPY;
	if (n < have || !st->ended)
		return (ssize_t)n;
	*flags |= NGHTTP2_DATA_FLAG_EOF;
	if (st->trailers != NULL) {
		*flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
		(void)nghttp2_submit_trailer(s, id, st->trailers->nv, st->trailers->n);
		free(st->trailers);
		st->trailers = NULL;
	}
	return (ssize_t)n;
}

static void loan_drop(struct h2_stream *st)
{
	free(st->loan);
	st->loan = NULL;
	st->lent = NULL;
	st->lent_bytes = 0;
}

static void take_lent(struct h2_stream *st, struct cgn_buf *to, size_t n)
{
	st->lent_bytes -= n;
	while (n > 0) {
		size_t left = st->lent->iov_len - st->lent_at, k = left < n ? left : n;
		cgn_buf_add(to, (const char *)st->lent->iov_base + st->lent_at, k);
		st->lent_at += k;
		n -= k;
		if (st->lent_at == st->lent->iov_len) {
			st->lent++;
			st->lent_at = 0;
		}
	}
	if (st->lent_bytes == 0)
		loan_drop(st);
}

static void take_queued(struct h2_stream *st, struct cgn_buf *to, size_t n)
{
	cgn_buf_add(to, st->queue.p + st->queue_at, n);
	st->queue_at += n;
	if (st->queue_at == st->queue.n) {
		cgn_buf_fini(&st->queue);
		st->queue_at = 0;
	}
}

/* The only copy of a body byte on its way out: from the caller (or the queue) into this turn's write. */
static int send_data(nghttp2_session *s, nghttp2_frame *f, const uint8_t *hd, size_t len,
	nghttp2_data_source *src, void *user)
{
	(void)s;
	(void)f;
	struct h2_link *l = link_of(user);
	struct h2_stream *st = src->ptr;
	if (http_wire_room(l->wire, 9 + len) == NULL)
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	cgn_buf_add(&l->wire->out, hd, 9);
	size_t queued = st->queue.n - st->queue_at, first = queued < len ? queued : len;
	if (first > 0)
		take_queued(st, &l->wire->out, first);
	if (len > first)
		take_lent(st, &l->wire->out, len - first);
	st->taken_at = cgn_loop_now(l->wire->loop);
	return 0;
}

static int on_frame_send(nghttp2_session *s, const nghttp2_frame *f, void *user)
{
	if ((f->hd.type != NGHTTP2_DATA && f->hd.type != NGHTTP2_HEADERS) ||
		(f->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
		return 0;
	struct h2_stream *st = stream_of(s, f->hd.stream_id);
	if (st == NULL)
		return 0;
	st->end_sent = true;
	if (link_of(user)->server)
		h2_stream_wake(st);
	return 0;
}

void h2_link_pump(struct h2_link *l)
{
	if (l->busy || l->wire->net == NULL)
		return;
	l->busy = true;
	while (!http_wire_over_mark(l->wire)) {
		const uint8_t *p;
		ssize_t n = nghttp2_session_mem_send(l->session, &p);
		if (n > 0)
			http_wire_add(l->wire, p, (size_t)n);
		else if (n == 0)
			break;
		else {
			http_wire_fail(l->wire);
			break;
		}
		if (l->wire->out.n - l->wire->out_at >= HTTP_WIRE_HOLD)
			http_wire_flush(l->wire);
	}
	l->busy = false;
}

/* ---- link ---- */

/* A new session of nghttp2, and what it is made of, lack nothing but memory when they fail. */
static nghttp2_option *options_make(void)
{
	nghttp2_option *o = NULL;
	CGN_MUST(nghttp2_option_new(&o) == 0);
	nghttp2_option_set_no_auto_window_update(o, 1);
	/* Streams that have ended are kept for priorities, which are not used here: 200 bytes for each, up to max_streams. */
	nghttp2_option_set_no_closed_streams(o, 1);
	nghttp2_option_set_max_settings(o, MAX_SETTINGS);
	nghttp2_option_set_max_outbound_ack(o, MAX_ACKS);
	nghttp2_option_set_max_continuations(o, 8);
	/* Resets are counted in this file and answered with a named error. */
	nghttp2_option_set_stream_reset_rate_limit(o, UINT32_MAX, UINT32_MAX);
	return o;
}

static nghttp2_session_callbacks *callbacks_make(void)
{
	nghttp2_session_callbacks *cb = NULL;
	CGN_MUST(nghttp2_session_callbacks_new(&cb) == 0);
	nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
	nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data_chunk);
	nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame_recv);
	nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(cb, on_invalid_frame);
	nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
	nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_send);
	nghttp2_session_callbacks_set_send_data_callback(cb, send_data);
	return cb;
}

static void session_make(struct h2_link *l)
{
	nghttp2_option *o = options_make();
	nghttp2_session_callbacks *cb = callbacks_make();
	CGN_MUST((l->server ? nghttp2_session_server_new2(&l->session, cb, l, o)
			    : nghttp2_session_client_new2(&l->session, cb, l, o)) == 0);
	nghttp2_session_callbacks_del(cb);
	nghttp2_option_del(o);
}

void h2_link_init(struct h2_link *l, const struct h2_link_cfg *cfg, const struct h2_link_ops *ops,
	struct http_wire *w, struct http_store **spare)
{
	*l = (struct h2_link){.wire = w,
		.ops = ops,
		.server = cfg->server,
		.spare = spare,
		.max_head_bytes = cfg->max_head_bytes,
		.max_fields = cfg->max_fields,
		.stream_window = cfg->wide ? H2_WIDE_STREAM_WINDOW : H2_STREAM_WINDOW,
		.reset_burst = cfg->reset_burst,
		.reset_rate = cfg->reset_rate,
		.decode_credit = cfg->decode_burst,
		.decode_burst = cfg->decode_burst,
		.decode_at = cgn_loop_now(w->loop)};
	cgn_list_init(&l->owed);
	cgn_list_init(&l->wake);
	session_make(l);
	nghttp2_settings_entry e[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, cfg->max_streams},
		{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, cfg->max_head_bytes},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, l->stream_window}, {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
	size_t n = cfg->server ? 3 : 4; /* Only a client sends the push setting. */
	CGN_MUST(nghttp2_submit_settings(l->session, NGHTTP2_FLAG_NONE, e, n) == 0);
	CGN_MUST(nghttp2_session_set_local_window_size(l->session, NGHTTP2_FLAG_NONE, 0,
			 cfg->wide ? H2_WIDE_LINK_WINDOW : H2_LINK_WINDOW) == 0);
	cgn_loop_defer(w->loop, &w->hook);
}

void h2_link_fini(struct h2_link *l)
{
	http_store_put(l->spare, &l->store);
	nghttp2_session_del(l->session);
	l->session = NULL;
}

bool h2_link_feed(struct h2_link *l, const uint8_t *p, size_t n)
{
	decode_earn(l, n);
	l->busy = l->reading = true;
	ssize_t rc = nghttp2_session_mem_recv(l->session, p, n);
	l->busy = l->reading = false;
	cgn_loop_defer(l->wire->loop, &l->wire->hook);
	if (rc == NGHTTP2_ERR_FLOODED || nghttp2_session_get_outbound_queue_size(l->session) > MAX_OUTBOUND)
		l->flooded = true;
	if (l->flooded)
		(void)nghttp2_session_terminate_session(l->session, NGHTTP2_ENHANCE_YOUR_CALM);
	if (rc >= 0 && !l->flooded)
		return true;
	h2_link_pump(l);
	return false;
}

/* Deliver the bytes that waited for a resume. */
static void deliver_held(struct h2_stream *st)
{
	struct h2_link *l = st->link;
	if (st->hold.n > 0) {
		struct cgn_buf held = st->hold;
		st->hold = (struct cgn_buf){.limit = held.limit};
		if (st->id > 0)
			(void)nghttp2_session_consume_stream(l->session, st->id, held.n);
		l->ops->on_data(st, (const uint8_t *)held.p, held.n);
		cgn_buf_fini(&held);
	}
	if (st->link == NULL || !st->eof || must_hold(st))
		return;
	struct http_field *tail = st->tail; /* The stream may end inside the callback. */
	st->tail = NULL;
	tell_end(st, tail, st->n_tail);
	free(tail);
}

static void wake_one(struct h2_stream *st)
{
	if (st->reset_due)
		h2_stream_reset(st, st->reset_code);
	else if (!st->paused)
		deliver_held(st);
	st->reset_due = false;
	if (st->link == NULL || (st->id > 0 && !(st->link->server && st->end_sent)))
		return;
	bool unread = !st->link->server && st->eof && !st->eof_told && st->close_code == NGHTTP2_NO_ERROR;
	if (!unread)
		st->link->ops->on_closed(st, st->close_code);
}

/* Visit each entry of |from| once: callbacks may put it, or others, there again. */
static void each_once(struct cgn_link *from, bool owed, void (*fn)(struct h2_stream *))
{
	struct cgn_link todo, *at;
	cgn_list_init(&todo);
	while ((at = cgn_list_first(from)) != NULL) {
		cgn_list_drop(at);
		cgn_list_push(&todo, at);
	}
	while ((at = cgn_list_first(&todo)) != NULL) {
		cgn_list_drop(at);
		fn(owed ? CGN_CONTAINER(at, struct h2_stream, owed)
			: CGN_CONTAINER(at, struct h2_stream, wake));
	}
}

static void drain_one(struct h2_stream *st)
{
	struct h2_link *l = st->link;
	if (h2_stream_queued(st) > H2_STREAM_MARK / 2 || http_wire_over_mark(l->wire))
		cgn_list_push(&l->owed, &st->owed);
	else
		l->ops->on_drain(st);
}

bool h2_link_turn(struct h2_link *l)
{
	h2_link_pump(l);
	http_wire_flush(l->wire);
	each_once(&l->wake, false, wake_one);
	each_once(&l->owed, true, drain_one);
	h2_link_pump(l);
	http_wire_flush(l->wire);
	return nghttp2_session_want_read(l->session) || nghttp2_session_want_write(l->session);
}

/* ---- streams ---- */

void h2_stream_init(struct h2_stream *st, struct h2_link *l, int32_t id)
{
	*st = (struct h2_stream){.link = l,
		.id = id,
		.queue.limit = H2_STREAM_LIMIT,
		.hold.limit = l->stream_window};
	st->taken_at = cgn_loop_now(l->wire->loop);
	cgn_list_init(&st->owed);
	cgn_list_init(&st->wake);
}

void h2_stream_fini(struct h2_stream *st)
{
	if (st->link == NULL)
		return;
	if (st->id > 0)
		(void)nghttp2_session_set_stream_user_data(st->link->session, st->id, NULL);
	cgn_list_drop(&st->owed);
	cgn_list_drop(&st->wake);
	cgn_buf_fini(&st->queue);
	cgn_buf_fini(&st->hold);
	loan_drop(st);
	free(st->trailers);
	free(st->tail);
	st->trailers = NULL;
	st->tail = NULL;
	st->link = NULL;
	st->id = 0;
}

nghttp2_data_provider h2_stream_source(struct h2_stream *st)
{
	return (nghttp2_data_provider){.source.ptr = st, .read_callback = source_read};
}

static void go_on(struct h2_stream *st)
{
	if (st->deferred && st->id > 0) {
		st->deferred = false;
		(void)nghttp2_session_resume_data(st->link->session, st->id);
	}
	cgn_loop_defer(st->link->wire->loop, &st->link->wire->hook);
}

/* Begin to send |iov|, as far as windows and the socket let it out now. */
static void lent_send(struct h2_stream *st, const struct iovec *iov, size_t n)
{
	if (h2_stream_queued(st) == 0)
		st->taken_at = cgn_loop_now(st->link->wire->loop);
	st->lent = iov;
	st->lent_at = 0;
	st->lent_bytes = cgn_iov_bytes(iov, n);
	while (st->lent_bytes > 0 && st->lent->iov_len == 0)
		st->lent++;
	go_on(st);
	h2_link_pump(st->link);
}

void h2_stream_keep(struct h2_stream *st)
{
	if (st->lent_bytes > 0)
		take_lent(st, &st->queue, st->lent_bytes);
	loan_drop(st);
	if (st->queue.bad)
		h2_stream_reset(st, NGHTTP2_INTERNAL_ERROR);
}

void h2_stream_write(struct h2_stream *st, const struct iovec *iov, size_t n)
{
	if (st->link == NULL || st->id <= 0)
		return;
	h2_stream_keep(st);
	lent_send(st, iov, n);
	h2_stream_keep(st);
}

void h2_stream_lend(struct h2_stream *st, const struct iovec *iov, size_t n)
{
	if (st->link == NULL || st->id <= 0)
		return;
	h2_stream_keep(st);
	st->loan = memcpy(CGN_NEW_ARRAY(struct iovec, n), iov, n * sizeof *iov);
	lent_send(st, st->loan, n);
}

void h2_stream_end(struct h2_stream *st, struct h2_block **take_trailers)
{
	if (take_trailers != NULL) {
		st->trailers = *take_trailers;
		*take_trailers = NULL;
	}
	st->ended = true;
	if (st->link != NULL)
		go_on(st);
}

void h2_stream_reset(struct h2_stream *st, uint32_t code)
{
	if (st->link == NULL || st->id <= 0)
		return;
	(void)nghttp2_submit_rst_stream(st->link->session, NGHTTP2_FLAG_NONE, st->id, code);
	cgn_loop_defer(st->link->wire->loop, &st->link->wire->hook);
}

void h2_stream_pause(struct h2_stream *st, bool yes)
{
	st->paused = yes;
	if (yes || st->link == NULL)
		return;
	h2_stream_wake(st);
}

bool h2_stream_over_mark(struct h2_stream *st)
{
	if (st->link == NULL)
		return false;
	bool over = h2_stream_queued(st) > H2_STREAM_MARK || http_wire_over_mark(st->link->wire);
	if (over && cgn_list_empty(&st->owed))
		cgn_list_push(&st->link->owed, &st->owed);
	return over;
}
