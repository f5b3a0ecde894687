/* SPDX-License-Identifier: Apache-2.0 */
/* serve: what guests ask for. A value is sent from the store's own memory, which is held for it until the
 * guest has it all; so those that are sent at once are counted (egress_streams), and one whose guest takes
 * nothing for a while is given up. */
#include <stdlib.h>

#include "joint/kvpeer/kvpeer_priv.h"
#include "joint/telemetry/telemetry.h"

#define PIECES  32             /* of memory, in one send */
#define GIVE_UP (10 * CGN_SEC) /* nothing of a value moved for so long */
#define LOOK    CGN_SEC        /* how often that is looked at */
#define READING (5 * CGN_SEC)  /* until a stream has said what it wants */

/* ---- the end ---- */

static void rest(struct serve *v)
{
	if (v->stream != NULL || v->borrowed > 0 || v->read != NULL)
		return;
	kvstore_block_unref(&v->block);
	if (v->admitted)
		kvfetch_egress_end(&v->kp->egress, v->end - v->at);
	struct kvpeer *kp = v->kp;
	kp->n_serves--;
	v->tag = 0;
	free(v);
	kvpeer_release(kp);
}

/* The stream is gone, or is to go. What QUIC still borrows comes back; then |v| is gone. */
static void end(struct serve *v, enum kvpeer_code code)
{
	cgn_timer_cancel(&v->timer);
	if (v->stream != NULL)
		quic_stream_cancel(&v->stream, code);
	if (v->read != NULL)
		kvstore_read_cancel(&v->read);
	kvframe_in_fini(&v->in);
	cgn_list_drop(&v->link);
	rest(v);
}

static void on_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct serve *v = user;
	(void)s;
	(void)why;
	(void)code;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->stream = NULL;
	end(v, CODE_FINE);
}

void kvpeer_guest_gone(struct guest *g)
{
	while (!cgn_list_empty(&g->serves))
		end(CGN_CONTAINER(cgn_list_first(&g->serves), struct serve, link), CODE_FINE);
}

/* ---- a value ---- */

static void on_release(void *arg)
{
	struct serve *v = arg;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->borrowed--;
	v->moved_at = cgn_loop_now(v->kp->loop);
	rest(v);
}

/* Of |n| bytes as many as PIECES of memory hold. */
static uint64_t send_piece(struct serve *v, uint64_t n)
{
	struct iovec iov[PIECES];
	size_t n_iov = 0;
	uint64_t sent = kvstore_block_iov(v->block, v->at, n, iov, PIECES, &n_iov);
	v->at += sent;
	v->borrowed++;
	quic_send(v->stream, iov, n_iov, v->at == v->end, on_release, v);
	metric_add(METRIC_OF(v->kp->telemetry, KV_PEER_BYTES, "out"), sent);
	if (v->guest != NULL)
		v->guest->served_bytes += sent;
	return sent;
}

/* As much as the limit and the stream allow now. */
static void pump(struct serve *v)
{
	cgn_nsec wait = 0;
	while (v->at < v->end && !quic_over_mark(v->stream)) {
		uint64_t n =
			kvfetch_egress_take(&v->kp->egress, cgn_loop_now(v->kp->loop), v->end - v->at, &wait);
		if (n == 0)
			break;
		while (n > 0)
			n -= send_piece(v, n);
	}
	if (v->at == v->end)
		v->state = SERVE_SENT;
	cgn_timer_set(&v->timer, wait > 0 ? wait : LOOK);
}

static void on_drain(struct quic_stream *s, void *user)
{
	struct serve *v = user;
	(void)s;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->moved_at = cgn_loop_now(v->kp->loop);
	if (v->state == SERVE_SENDING)
		pump(v);
}

static void on_timer(struct cgn_timer *t)
{
	struct serve *v = CGN_CONTAINER(t, struct serve, timer);
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	if (v->state == SERVE_READING || cgn_loop_now(v->kp->loop) - v->moved_at > GIVE_UP)
		end(v, CODE_SLOW);
	else if (v->state == SERVE_SENDING)
		pump(v);
	else
		cgn_timer_set(t, LOOK);
}

static void answer(struct serve *v, const struct kvframe_answer *a, bool fin)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	kvframe_put_answer(&b, a);
	kvpeer_send_buf(v->stream, &b, fin);
	v->state = fin ? SERVE_SENT : SERVE_SENDING;
	v->moved_at = cgn_loop_now(v->kp->loop);
}

static void refuse(struct serve *v, enum kvframe_status status, uint32_t wait_ms)
{
	metric_add(METRIC_OF(v->kp->telemetry, KV_PEER_REFUSED, kvframe_status_text(status)), 1);
	answer(v, &(struct kvframe_answer){.status = status, .wait_ms = wait_ms}, true);
	cgn_timer_set(&v->timer, LOOK);
}

static void send_value(struct serve *v)
{
	const struct block_info info = kvstore_block_info(v->block);
	const uint64_t size = kvstore_block_size(v->block);
	if (size < v->end) { /* it was replaced by a shorter one since it was looked up */
		kvstore_block_unref(&v->block);
		refuse(v, KVFRAME_NOT_FOUND, 0);
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
		.name = kvstore_block_name(v->block)};
	answer(v, &a, v->at == v->end);
	if (v->guest != NULL)
		v->guest->served++;
	pump(v);
}

static void on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct serve *v = user;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	v->read = NULL;
	v->block = *take;
	*take = NULL;
	v->moved_at = cgn_loop_now(v->kp->loop);
	if (v->block != NULL)
		send_value(v);
	else
		refuse(v,
			why->code == CGN_NOT_FOUND            ? KVFRAME_NOT_FOUND
				: why->code == CGN_OVERLOADED ? KVFRAME_BUSY
							      : KVFRAME_FAILED,
			0);
}

/* From RAM it is compared with its checksum here, so that a bad one is dropped here; the guest compares it
 * again. */
static void load(struct serve *v)
{
	struct cgn_err err;
	v->state = SERVE_LOADING;
	v->moved_at = cgn_loop_now(v->kp->loop);
	cgn_timer_set(&v->timer, LOOK);
	v->block = kvstore_get_ram(v->kp->store, &v->rq.key, true);
	if (v->block != NULL)
		send_value(v);
	else if (!cgn_ok(kvstore_get(v->kp->store, v->kp->loop, &v->rq.key, on_read, v, &v->read, &err)))
		refuse(v, err.code == CGN_NOT_FOUND ? KVFRAME_NOT_FOUND : KVFRAME_FAILED, 0);
}

static void on_fetch(struct serve *v)
{
	struct block_info info;
	uint32_t wait_ms = 0;
	const struct kvframe_fetch *rq = &v->rq;
	if (!kvstore_lookup(v->kp->store, &rq->key, &info)) {
		refuse(v, KVFRAME_NOT_FOUND, 0);
		return;
	}
	if (rq->offset > info.size || rq->length > info.size - rq->offset) {
		refuse(v, KVFRAME_REFUSED, 0);
		return;
	}
	v->at = rq->offset;
	v->end = rq->length > 0 ? rq->offset + rq->length : info.size;
	if (v->kp->draining ||
		!kvfetch_egress_admit(&v->kp->egress, v->end - v->at, rq->budget_ms, &wait_ms)) {
		refuse(v, KVFRAME_BUSY, wait_ms);
		return;
	}
	v->admitted = true;
	quic_priority(v->stream, rq->priority);
	load(v);
}

/* ---- what a stream asks ---- */

static void subscribe(struct serve *v, const struct kvframe_who *who)
{
	struct guest *g = v->guest;
	struct quic_stream *s = v->stream;
	kvpeer_guest_is(g, who->node); /* lies in |v| */
	v->stream = NULL;
	end(v, CODE_FINE);
	kvpeer_tell(g, s);
}

/* False: it asks for nothing. */
static bool on_frame(struct serve *v, const struct kvframe *f)
{
	struct kvframe_who who;
	struct cgn_err err;
	if (f->type == KVFRAME_SUBSCRIBE && cgn_ok(kvframe_read_who(f->payload, &who, &err))) {
		subscribe(v, &who);
		return true;
	}
	if (f->type != KVFRAME_FETCH || !cgn_ok(kvframe_read_fetch(f->payload, &v->rq, &err)))
		return false;
	on_fetch(v);
	return true;
}

static void on_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct serve *v = user;
	struct cgn_str bytes = {(const char *)p, n};
	struct kvframe f;
	bool got = false;
	(void)s;
	CGN_LIVE(v, KVPEER_SERVE_TAG);
	if (v->state != SERVE_READING)
		return; /* it said what it wants: what follows is of a later revision */
	bool fine = cgn_ok(kvframe_next(&v->in, &bytes, &f, &got, NULL));
	if (fine && got)
		fine = on_frame(v, &f);
	else if (fin)
		fine = false;
	if (!fine)
		end(v, CODE_NOT_UNDERSTOOD);
}

static const struct quic_stream_ops ops = {.on_data = on_data, .on_drain = on_drain, .on_close = on_close};

void kvpeer_serve(struct guest *g, struct quic_stream *s)
{
	struct serve *v = calloc(1, sizeof *v);
	if (v == NULL)
		return; /* not taken: cancelled */
	*v = (struct serve){.tag = KVPEER_SERVE_TAG,
		.guest = g,
		.kp = g->kp,
		.stream = s,
		.moved_at = cgn_loop_now(g->kp->loop)};
	kvframe_in_init(&v->in);
	cgn_timer_init(&v->timer, g->kp->loop, on_timer);
	cgn_timer_set(&v->timer, READING);
	cgn_list_push(&g->serves, &v->link);
	g->kp->n_serves++;
	quic_stream_take(s, &ops, v);
}
