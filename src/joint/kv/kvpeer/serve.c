/* SPDX-License-Identifier: Apache-2.0 */
/* serve: the requests of guests. A value is sent from the store's memory, which is held until the guest has
 * the whole value. So values in flight are limited (egress_streams), and a guest that takes nothing for a
 * while is cut. */
#include <stdlib.h>

#include "joint/kv/kvpeer/kvpeer_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define PIECES  32             /* pieces of memory per send */
#define GIVE_UP (10 * CGN_SEC) /* timeout of a value that does not move */
#define LOOK    CGN_SEC        /* interval of that check */
#define READING (5 * CGN_SEC)  /* timeout of the request */

/* A stream that a guest opened. Freed when the stream is gone and QUIC returned the last borrowed piece. */
enum serve_state {
#define SERVE(id, exits, why) SERVE_##id,
#include "joint/kv/kvpeer/states.def"
};
struct kvpeer_serve {
	uint32_t tag;
	enum serve_state state;
	struct cgn_link link;
	struct kvpeer_guest *guest; /* NULL: the guest is gone */
	struct kvpeer *kp;
	struct kvpeer_site *site;
	struct quic_stream *stream;
	struct kvframe_in in;
	struct kvframe_fetch rq;
	struct kvstore_read *read;
	struct kvstore_block *block;
	uint64_t at, end;
	unsigned borrowed; /* pieces that QUIC borrows */
	bool admitted;
	struct cgn_timer timer; /* sends again when the limit allows it, or checks for progress */
	cgn_nsec moved_at;
};

static void serve_move(struct kvpeer_serve *v, enum serve_state to)
{
	static const unsigned exits[] = {
#define TO(state)             1U << SERVE_##state
#define SERVE(id, exits, why) [SERVE_##id] = (exits),
#include "joint/kv/kvpeer/states.def"
#undef TO
	};
	CGN_MUST((exits[v->state] & 1U << to) != 0);
	v->state = to;
}

/* ---- the end ---- */

/* Nothing more of the value will be sent: the bytes admitted for it are free for others. */
static void serve_owe_nothing(struct kvpeer_serve *v)
{
	if (v->admitted)
		kvfetch_egress_end(&v->kp->egress, v->end - v->at);
	v->admitted = false;
}

static void serve_release(struct kvpeer_serve *v)
{
	if (v->stream != NULL || v->borrowed > 0 || v->read != NULL)
		return;
	kvstore_block_unref(&v->block);
	serve_owe_nothing(v);
	struct kvpeer *kp = v->kp;
	kp->n_serves--;
	v->tag = 0;
	free(v);
	kvpeer_release(kp);
}

/* End the stream. |v| is freed when QUIC returned what it borrows. */
static void serve_end(struct kvpeer_serve *v, enum kvpeer_code code)
{
	cgn_timer_cancel(&v->timer);
	if (v->stream != NULL)
		quic_stream_cancel(&v->stream, code);
	if (v->read != NULL)
		kvstore_read_cancel(&v->read);
	kvframe_in_fini(&v->in);
	cgn_list_drop(&v->link);
	serve_release(v);
}

static void serve_on_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct kvpeer_serve *v = user;
	(void)s;
	(void)why;
	(void)code;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->stream = NULL;
	serve_end(v, KVPEER_CODE_FINE);
}

void kvpeer_guest_gone(struct kvpeer_guest *g)
{
	while (!cgn_list_empty(&g->serves))
		serve_end(CGN_CONTAINER(cgn_list_first(&g->serves), struct kvpeer_serve, link),
			KVPEER_CODE_FINE);
}

/* ---- a value ---- */

static void serve_on_release(void *arg)
{
	struct kvpeer_serve *v = arg;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->borrowed--;
	v->moved_at = cgn_loop_now(v->kp->loop);
	serve_release(v);
}

/* Send at most |n| bytes, as many as lie in PIECES pieces of memory. */
static uint64_t serve_send_piece(struct kvpeer_serve *v, uint64_t n)
{
	struct iovec iov[PIECES];
	size_t n_iov = 0;
	uint64_t sent = kvstore_block_iov(v->block, v->at, n, iov, PIECES, &n_iov);
	v->at += sent;
	v->borrowed++;
	quic_send(v->stream, iov, n_iov, v->at == v->end, serve_on_release, v);
	kvpeer_site_count(v->kp, v->site, false, sent);
	if (v->guest != NULL)
		v->guest->served_bytes += sent;
	return sent;
}

/* Send as much as the limit and the stream allow now. */
static void serve_pump(struct kvpeer_serve *v)
{
	cgn_nsec wait = 0;
	while (v->at < v->end && !quic_over_mark(v->stream)) {
		uint64_t n =
			kvfetch_egress_take(&v->kp->egress, cgn_loop_now(v->kp->loop), v->end - v->at, &wait);
		if (n == 0)
			break;
		while (n > 0)
			n -= serve_send_piece(v, n);
	}
	if (v->at == v->end && v->state != SERVE_SENT)
		serve_move(v, SERVE_SENT);
	cgn_timer_set(&v->timer, wait > 0 ? wait : LOOK);
}

static void serve_on_drain(struct quic_stream *s, void *user)
{
	struct kvpeer_serve *v = user;
	(void)s;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->moved_at = cgn_loop_now(v->kp->loop);
	if (v->state == SERVE_SENDING)
		serve_pump(v);
}

static void serve_on_timer(struct cgn_timer *t)
{
	struct kvpeer_serve *v = CGN_CONTAINER(t, struct kvpeer_serve, timer);
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	if (v->state == SERVE_READING || cgn_since(cgn_loop_now(v->kp->loop), v->moved_at) > GIVE_UP)
		serve_end(v, KVPEER_CODE_SLOW);
	else if (v->state == SERVE_SENDING)
		serve_pump(v);
	else
		cgn_timer_set(t, LOOK);
}

static void serve_answer(struct kvpeer_serve *v, const struct kvframe_answer *a, bool fin)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	kvframe_put_answer(&b, a);
	kvpeer_send_buf(v->stream, &b, fin);
	serve_move(v, fin ? SERVE_SENT : SERVE_SENDING);
	v->moved_at = cgn_loop_now(v->kp->loop);
}

/* The guest may ask again as soon as it has the refusal, before the end of this stream is known here. */
static void serve_refuse(struct kvpeer_serve *v, enum kvframe_status status, uint32_t wait_ms)
{
	serve_owe_nothing(v);
	metric_add(METRIC_OF(v->kp->telemetry, KV_PEER_REFUSED, kvframe_status_text(status)), 1);
	serve_answer(v, &(struct kvframe_answer){.status = status, .wait_ms = wait_ms}, true);
	cgn_timer_set(&v->timer, LOOK);
}

static void serve_send_value(struct kvpeer_serve *v)
{
	const struct block_info info = kvstore_block_info(v->block);
	const uint64_t size = kvstore_block_size(v->block);
	/* replaced since the lookup by a shorter value, or by one that stays here */
	if (size < v->end || !kvpeer_site_may(v->kp, v->site, info.leave)) {
		kvstore_block_unref(&v->block);
		serve_refuse(v, KVFRAME_NOT_FOUND, 0);
		return;
	}
	const struct kvframe_answer a = {.status = KVFRAME_OK,
		.size = size,
		.checksum = kvstore_block_checksum(v->block),
		.offset = v->rq.offset,
		.length = v->end - v->at,
		.tokens = info.tokens,
		.created_unix_ms = info.created_unix_ms,
		.expires_unix_ms = info.expires_unix_ms,
		.model = kvstore_block_model(v->block),
		.name = kvstore_block_name(v->block),
		.tenant = kvstore_block_tenant(v->block)};
	serve_answer(v, &a, v->at == v->end);
	if (v->guest != NULL)
		v->guest->served++;
	serve_pump(v);
}

static void serve_on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct kvpeer_serve *v = user;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->read = NULL;
	v->block = *take;
	*take = NULL;
	v->moved_at = cgn_loop_now(v->kp->loop);
	if (v->block != NULL)
		serve_send_value(v);
	else
		serve_refuse(v,
			why->code == CGN_NOT_FOUND            ? KVFRAME_NOT_FOUND
				: why->code == CGN_OVERLOADED ? KVFRAME_BUSY
							      : KVFRAME_FAILED,
			0);
}

/* A value in RAM is compared with its checksum here, so a damaged one is dropped here. The guest compares it
 * again. */
static void serve_load(struct kvpeer_serve *v)
{
	serve_move(v, SERVE_LOADING);
	v->moved_at = cgn_loop_now(v->kp->loop);
	cgn_timer_set(&v->timer, LOOK);
	v->block = kvstore_get_ram(v->kp->store, &v->rq.key, true);
	if (v->block != NULL)
		serve_send_value(v);
	else
		v->read = kvstore_get(v->kp->store, v->kp->loop, &v->rq.key, serve_on_read, v);
}

static void serve_on_fetch(struct kvpeer_serve *v)
{
	struct block_info info;
	uint32_t wait_ms = 0;
	const struct kvframe_fetch *rq = &v->rq;
	/* Answer withheld blocks as missing ones. */
	if (!kvstore_lookup(v->kp->store, &rq->key, &info) || !kvpeer_site_may(v->kp, v->site, info.leave)) {
		serve_refuse(v, KVFRAME_NOT_FOUND, 0);
		return;
	}
	if (rq->offset > info.size || rq->length > info.size - rq->offset) {
		serve_refuse(v, KVFRAME_REFUSED, 0);
		return;
	}
	v->at = rq->offset;
	v->end = rq->length > 0 ? rq->offset + rq->length : info.size;
	if (v->kp->draining ||
		!kvfetch_egress_admit(&v->kp->egress, v->end - v->at, rq->budget_ms, &wait_ms)) {
		serve_refuse(v, KVFRAME_BUSY, wait_ms);
		return;
	}
	v->admitted = true;
	quic_priority(v->stream, rq->priority);
	serve_load(v);
}

/* ---- requests ---- */

static void serve_subscribe(struct kvpeer_serve *v, const struct kvframe_who *who)
{
	struct kvpeer_guest *g = v->guest;
	struct quic_stream *s = v->stream;
	kvpeer_guest_is(g, who->node); /* the text lies in |v| */
	v->stream = NULL;
	serve_end(v, KVPEER_CODE_FINE);
	kvpeer_tell(g, s);
}

/* Returns false when the frame is not a valid request. */
static bool serve_on_frame(struct kvpeer_serve *v, const struct kvframe *f)
{
	struct kvframe_who who;
	struct cgn_err err;
	if (f->type == KVFRAME_SUBSCRIBE && cgn_ok(kvframe_read_who(f->payload, &who, &err))) {
		serve_subscribe(v, &who);
		return true;
	}
	if (f->type != KVFRAME_FETCH || !cgn_ok(kvframe_read_fetch(f->payload, &v->rq, &err)))
		return false;
	serve_on_fetch(v);
	return true;
}

static void serve_on_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct kvpeer_serve *v = user;
	struct cgn_str bytes = {(const char *)p, n};
	struct kvframe f;
	bool got = false;
	(void)s;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	if (v->state != SERVE_READING)
		return; /* After the request, more bytes belong to a later revision of the protocol. */
	bool fine = cgn_ok(kvframe_next(&v->in, &bytes, &f, &got, NULL));
	if (fine && got)
		fine = serve_on_frame(v, &f);
	else if (fin)
		fine = false;
	if (!fine)
		serve_end(v, KVPEER_CODE_NOT_UNDERSTOOD);
}

static const struct quic_stream_ops serve_ops = {.on_data = serve_on_data,
	.on_drain = serve_on_drain,
	.on_close = serve_on_close};

void kvpeer_serve(struct kvpeer_guest *g, struct quic_stream *s)
{
	struct kvpeer_serve *v = CGN_NEW(struct kvpeer_serve);
	*v = (struct kvpeer_serve){.tag = KVPEER_SERVE_TAG,
		.guest = g,
		.kp = g->kp,
		.site = g->site,
		.stream = s,
		.moved_at = cgn_loop_now(g->kp->loop)};
	kvframe_in_init(&v->in);
	cgn_timer_init(&v->timer, g->kp->loop, serve_on_timer);
	cgn_timer_set(&v->timer, READING);
	cgn_list_push(&g->serves, &v->link);
	g->kp->n_serves++;
	quic_stream_take(s, &serve_ops, v);
}
