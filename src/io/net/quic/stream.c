/* SPDX-License-Identifier: Apache-2.0 */
/* stream: bytes that wait to be sent, received bytes, and the order of streams. Sent bytes stay in the
 * application's memory until the peer acknowledged them in order. */
#include <stdlib.h>
#include <string.h>

#include "quic_priv.h"

#define QUIC_STREAM_TAG 0x9c57e403U
#define LEVEL_DEFAULT   3
#define TURN_BYTES      ((size_t)32 * 1024) /* Bytes of one stream before the next one of its level. */

static struct quic_stream *stream_of(void *stream)
{
	struct quic_stream *s = stream;
	CGN_LIVE(s, QUIC_STREAM_TAG);
	return s;
}

static bool stream_is_live(const struct quic_stream *s)
{
	return s->tag == QUIC_STREAM_TAG && !s->ended;
}

static struct quic_stream *stream_new(struct quic_conn *c, const struct quic_stream_ops *ops, void *user)
{
	struct quic_stream *s = CGN_NEW(struct quic_stream);
	s->tag = QUIC_STREAM_TAG;
	s->c = c;
	s->ops = ops;
	s->user = user;
	s->level = LEVEL_DEFAULT;
	s->turn_left = TURN_BYTES;
	cgn_list_init(&s->ready);
	cgn_list_init(&s->due);
	cgn_list_push(&c->streams, &s->all);
	return s;
}

static void make_due(struct quic_stream *s)
{
	if (cgn_list_empty(&s->due))
		cgn_list_push(&s->c->due, &s->due);
	quic_endpoint_wants_turn(s->c->ep, s->c);
}

static bool has_bytes(const struct quic_stream *s)
{
	return s->unsent > 0 || (s->fin_queued && !s->fin_sent);
}

/* Keep the stream on its level's list exactly while it has something to send and credit for it. */
static void stream_place(struct quic_stream *s)
{
	bool want = !s->ended && !s->over && !s->blocked && has_bytes(s);
	if (want && cgn_list_empty(&s->ready))
		cgn_list_push(&s->c->ready[s->level], &s->ready);
	else if (!want)
		cgn_list_drop(&s->ready);
}

/* ---- the end ---- */

static void piece_spend(struct quic_conn *c, struct quic_piece *p)
{
	p->next = c->spent;
	c->spent = p;
}

static void spend_all(struct quic_stream *s)
{
	for (struct quic_piece *p; (p = s->head) != NULL;) {
		s->head = p->next;
		piece_spend(s->c, p);
	}
	s->tail = s->next = NULL;
	s->unsent = s->copied = 0;
}

static void stream_credit(struct quic_stream *s, size_t n)
{
	if (!quic_conn_alive(s->c) || n == 0)
		return;
	ngtcp2_conn_extend_max_offset(s->c->ngtcp2, n);
	if (!s->over)
		(void)ngtcp2_conn_extend_max_stream_offset(s->c->ngtcp2, s->id, n);
}

static void release_stream(struct cgn_grave *g)
{
	struct quic_stream *s = CGN_CONTAINER(g, struct quic_stream, grave);
	free(s->why);
	free(s);
}

/* Remove the stream from every list and from ngtcp2. Borrowed bytes are given back at the end of the turn. */
static void stream_detach(struct quic_stream *s)
{
	struct quic_conn *c = s->c;
	if (!s->over && c->ngtcp2 != NULL)
		(void)ngtcp2_conn_set_stream_user_data(c->ngtcp2, s->id, NULL);
	s->ended = true;
	cgn_list_drop(&s->all);
	cgn_list_drop(&s->ready);
	cgn_list_drop(&s->due);
	spend_all(s);
	quic_endpoint_wants_turn(c->ep, c);
}

static void stream_bury(struct quic_stream *s)
{
	struct quic_conn *c = s->c;
	s->tag = 0;
	s->c = NULL;
	cgn_loop_bury(c->ep->loop, &s->grave, release_stream);
}

static void stream_finish(struct quic_stream *s, const struct cgn_err *why, uint64_t code)
{
	const struct cgn_err last = *why; /* |why| may point into the stream. */
	stream_detach(s);
	if (s->ops != NULL && s->ops->on_close != NULL)
		s->ops->on_close(s, s->user, &last, code);
	stream_bury(s);
}

static void stream_shut(struct quic_stream *s, uint64_t code)
{
	if (!s->over && quic_conn_alive(s->c))
		(void)ngtcp2_conn_shutdown_stream(s->c->ngtcp2, 0, s->id, code);
}

static void cancelled_by_peer(struct quic_stream *s, uint64_t code)
{
	struct cgn_err why;
	(void)CGN_FAIL(&why, CANCELLED, "%s cancelled the stream with code %llu", s->c->peer,
		(unsigned long long)code);
	stream_finish(s, &why, code);
}

void quic_stream_cancel(struct quic_stream **take, uint64_t code)
{
	struct quic_stream *s = stream_of(*take);
	*take = NULL;
	if (s->ended)
		return; /* Called from the stream's own on_close. */
	stream_shut(s, code);
	stream_detach(s);
	stream_bury(s);
}

void quic_streams_end(struct quic_conn *c, const struct cgn_err *why)
{
	for (struct cgn_link *l; (l = cgn_list_first(&c->streams)) != NULL;)
		stream_finish(CGN_CONTAINER(l, struct quic_stream, all), why, 0);
}

void quic_pieces_release(struct quic_conn *c)
{
	for (struct quic_piece *p; (p = c->spent) != NULL;) {
		c->spent = p->next;
		if (p->release != NULL)
			p->release(p->arg);
		free(p);
	}
}

/* ---- making ---- */

CGN_RC quic_stream_open(struct quic_conn *c, const struct quic_stream_ops *ops, void *user,
	struct quic_stream **out, struct cgn_err *err)
{
	if (!quic_conn_is_open(c))
		return CGN_FAIL(err, UNAVAILABLE, "the connection with %s is not open", c->peer);
	struct quic_stream *s = stream_new(c, ops, user);
	s->taken = true;
	int rc = ngtcp2_conn_open_bidi_stream(c->ngtcp2, &s->id, s);
	if (rc == 0) {
		*out = s;
		return CGN_OK;
	}
	cgn_list_drop(&s->all);
	free(s);
	if (rc != NGTCP2_ERR_STREAM_ID_BLOCKED)
		return CGN_FAIL(err, NO_MEMORY, "no stream to %s: %s", c->peer, ngtcp2_strerror(rc));
	c->wants_room = true;
	return CGN_FAIL(err, OVERLOADED, "%s allows no more streams at once", c->peer);
}

int quic_stream_on_open(ngtcp2_conn *q, int64_t id, void *user)
{
	struct quic_conn *c = user;
	if (!quic_conn_alive(c) || ngtcp2_is_bidi_stream(id) == 0)
		return 0;
	struct quic_stream *s = stream_new(c, NULL, NULL);
	s->id = id;
	(void)ngtcp2_conn_set_stream_user_data(q, id, s);
	if (c->ops != NULL && c->ops->on_stream != NULL)
		c->ops->on_stream(c, c->user, s);
	if (stream_is_live(s) && !s->taken)
		quic_stream_cancel(&s, 0);
	return 0;
}

void quic_stream_take(struct quic_stream *s, const struct quic_stream_ops *ops, void *user)
{
	CGN_LIVE(s, QUIC_STREAM_TAG);
	s->taken = true;
	s->ops = ops;
	s->user = user;
}

/* ---- receiving ---- */

static void stream_give(struct quic_stream *s, const uint8_t *p, size_t n, bool fin)
{
	stream_credit(s, n);
	if (s->ops != NULL && s->ops->on_data != NULL)
		s->ops->on_data(s, s->user, p, n, fin);
}

int quic_stream_on_data(ngtcp2_conn *q, uint32_t flags, int64_t id, uint64_t offset, const uint8_t *p,
	size_t n, void *user, void *stream)
{
	const struct quic_conn *c = user;
	struct quic_stream *s = stream;
	bool fin = (flags & NGTCP2_STREAM_DATA_FLAG_FIN) != 0;
	(void)id;
	(void)offset;
	if (s == NULL || !quic_conn_alive(c)) { /* A cancelled or unidirectional stream: drop its bytes. */
		ngtcp2_conn_extend_max_offset(q, n);
		return 0;
	}
	stream_give(s, p, n, fin);
	return 0;
}

int quic_stream_on_reset(ngtcp2_conn *q, int64_t id, uint64_t final_size, uint64_t code, void *user,
	void *stream)
{
	struct quic_stream *s = stream;
	(void)q;
	(void)id;
	(void)final_size;
	(void)user;
	if (s == NULL || !quic_conn_alive(s->c))
		return 0;
	stream_shut(s, code);
	cancelled_by_peer(s, code);
	return 0;
}

int quic_stream_on_close(ngtcp2_conn *q, uint32_t flags, int64_t id, uint64_t code, void *user, void *stream)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	struct quic_conn *c = user;
	struct quic_stream *s = stream;
	c->ep->stats.lost += ngtcp2_conn_get_stream_loss_count(q, id);
	if (ngtcp2_is_bidi_stream(id) == 0)
		ngtcp2_conn_extend_max_streams_uni(q, 1);
	else if (!ngtcp2_conn_is_local_stream(q, id))
		ngtcp2_conn_extend_max_streams_bidi(q, 1);
	if (s == NULL || !quic_conn_alive(c))
		return 0;
	s->over = true;
	stream_place(s);
	if ((flags & NGTCP2_STREAM_CLOSE_FLAG_APP_ERROR_CODE_SET) != 0)
		cancelled_by_peer(s, code);
	else
		stream_finish(s, &fine, 0);
	return 0;
}

/* ---- sending ---- */

static struct quic_piece *piece_new(const struct iovec *iov, size_t n, size_t bytes, quic_release_fn *release,
	void *arg)
{
	bool copy = release == NULL;
	size_t n_iov = copy ? 1 : n;
	struct quic_piece *p =
		cgn_zeroed(1, sizeof *p + n_iov * sizeof p->iov[0] + (copy ? bytes : 0), CGN_HERE);
	*p = (struct quic_piece){.release = release, .arg = arg, .n = bytes, .n_iov = n_iov};
	if (!copy && n > 0)
		memcpy(p->iov, iov, n * sizeof iov[0]);
	if (!copy)
		return p;
	uint8_t *to = (uint8_t *)&p->iov[1];
	p->iov[0] = (struct iovec){to, bytes};
	for (size_t i = 0; i < n; to += iov[i++].iov_len)
		if (iov[i].iov_len > 0)
			memcpy(to, iov[i].iov_base, iov[i].iov_len);
	return p;
}

static void piece_queue(struct quic_stream *s, struct quic_piece *p)
{
	if (s->head == NULL)
		s->head = p;
	else
		s->tail->next = p;
	s->tail = p;
	if (s->next == NULL) {
		s->next = p;
		s->next_at = 0;
	}
	s->unsent += p->n;
	if (p->release == NULL)
		s->copied += p->n;
	if (s->unsent > QUIC_SEND_MARK)
		s->above = true;
}

/* The application must not be called here; report the end at the end of the turn. */
static void stream_doom(struct quic_stream *s)
{
	if (s->why != NULL)
		return;
	s->why = CGN_NEW(struct cgn_err);
	(void)CGN_FAIL(s->why, OVERLOADED, "%s does not read: %zu copied bytes wait for it", s->c->peer,
		s->copied);
	stream_shut(s, 0);
	make_due(s);
}

void quic_send(struct quic_stream *s, const struct iovec *iov, size_t n, bool fin, quic_release_fn *release,
	void *arg)
{
	size_t bytes = 0;
	CGN_LIVE(s, QUIC_STREAM_TAG);
	for (size_t i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	struct quic_conn *c = s->c;
	bool on = !s->ended && !s->over && s->why == NULL && quic_conn_alive(c);
	CGN_MUST(!on || !s->fin_queued);
	if (bytes > 0 || release != NULL) {
		struct quic_piece *p = piece_new(iov, n, bytes, release, arg);
		if (on)
			piece_queue(s, p);
		else
			piece_spend(c, p);
	}
	if (on) {
		s->fin_queued = fin;
		stream_place(s);
		if (s->copied > QUIC_COPY_LIMIT)
			stream_doom(s);
	}
	quic_endpoint_wants_turn(c->ep, c);
}

bool quic_over_mark(const struct quic_stream *s)
{
	CGN_LIVE(s, QUIC_STREAM_TAG);
	return s->unsent > QUIC_SEND_MARK;
}

void quic_priority(struct quic_stream *s, unsigned level)
{
	CGN_LIVE(s, QUIC_STREAM_TAG);
	CGN_MUST(level < QUIC_PRIORITIES);
	s->level = (uint8_t)level;
	if (!s->ended) {
		cgn_list_drop(&s->ready);
		stream_place(s);
	}
}

int quic_stream_on_acked(ngtcp2_conn *q, int64_t id, uint64_t offset, uint64_t n, void *user, void *stream)
{
	struct quic_stream *s = stream;
	(void)q;
	(void)id;
	(void)user;
	if (s == NULL || s->ended)
		return 0;
	uint64_t to = offset + n;
	for (struct quic_piece *p; (p = s->head) != NULL && p != s->next && s->acked + p->n <= to;) {
		s->acked += p->n;
		s->head = p->next;
		if (p->release == NULL)
			s->copied -= p->n;
		piece_spend(s->c, p);
	}
	return 0;
}

int quic_stream_on_credit(ngtcp2_conn *q, int64_t id, uint64_t most, void *user, void *stream)
{
	struct quic_stream *s = stream;
	(void)q;
	(void)id;
	(void)most;
	(void)user;
	if (s != NULL && !s->ended) {
		s->blocked = false;
		stream_place(s);
	}
	return 0;
}

/* ---- for the writer ---- */

struct quic_stream *quic_stream_next(struct quic_conn *c)
{
	for (unsigned i = 0; i < QUIC_PRIORITIES; i++) {
		struct cgn_link *l = cgn_list_first(&c->ready[i]);
		if (l != NULL)
			return CGN_CONTAINER(l, struct quic_stream, ready);
	}
	return NULL;
}

size_t quic_stream_vectors(const struct quic_stream *s, ngtcp2_vec v[QUIC_VECTORS], bool *fin)
{
	size_t n = 0, skip = s->next_at;
	const struct quic_piece *p = s->next;
	for (; p != NULL; p = p->next) {
		for (size_t i = 0; i < p->n_iov; i++) {
			size_t len = p->iov[i].iov_len;
			if (skip >= len) {
				skip -= len;
				continue;
			}
			if (n == QUIC_VECTORS) {
				*fin = false;
				return n;
			}
			v[n++] = (ngtcp2_vec){(uint8_t *)p->iov[i].iov_base + skip, len - skip};
			skip = 0;
		}
	}
	*fin = s->fin_queued;
	return n;
}

static void end_turn(struct quic_stream *s)
{
	s->turn_left = TURN_BYTES;
	if (cgn_list_empty(&s->ready))
		return;
	cgn_list_drop(&s->ready);
	cgn_list_push(&s->c->ready[s->level], &s->ready);
}

void quic_stream_sent(struct quic_stream *s, size_t n, bool fin)
{
	size_t left = n;
	s->unsent -= n;
	while (s->next != NULL && left >= s->next->n - s->next_at) {
		left -= s->next->n - s->next_at;
		s->next = s->next->next;
		s->next_at = 0;
	}
	s->next_at += left;
	s->fin_sent = s->fin_sent || fin;
	stream_place(s);
	if (n < s->turn_left)
		s->turn_left -= n;
	else
		end_turn(s);
	if (s->above && s->unsent <= QUIC_SEND_MARK / 2)
		make_due(s);
}

void quic_stream_wait(struct quic_stream *s)
{
	s->blocked = true;
	stream_place(s);
}

void quic_stream_stopped(struct quic_stream *s)
{
	quic_stream_wait(s);
	if (s->why == NULL) {
		s->why = CGN_NEW(struct cgn_err);
		(void)CGN_FAIL(s->why, CANCELLED, "%s wants no more of the stream", s->c->peer);
		make_due(s);
	}
}

/* ---- the end of the turn ---- */

static void stream_report(struct quic_stream *s)
{
	if (stream_is_live(s) && s->above && s->unsent <= QUIC_SEND_MARK / 2) {
		s->above = false;
		if (s->why == NULL && s->ops != NULL && s->ops->on_drain != NULL)
			s->ops->on_drain(s, s->user);
	}
	if (!stream_is_live(s) || s->why == NULL)
		return;
	stream_shut(s, 0);
	stream_finish(s, s->why, s->code);
}

void quic_streams_report(struct quic_conn *c)
{
	struct cgn_link now = {.next = NULL};
	cgn_list_init(&now);
	for (struct cgn_link *l; (l = cgn_list_first(&c->due)) != NULL;) {
		cgn_list_drop(l);
		cgn_list_push(&now, l);
	}
	for (struct cgn_link *l; (l = cgn_list_first(&now)) != NULL;) {
		cgn_list_drop(l);
		if (quic_conn_alive(c))
			stream_report(CGN_CONTAINER(l, struct quic_stream, due));
	}
}
