/* SPDX-License-Identifier: Apache-2.0 */
/* call: the part that server and client calls share: sending, pausing, delivering messages in order, ending
 * once. */
#include <stdlib.h>

#include "io/wire/grpc/grpc_priv.h"
#include "io/wire/http/client.h"
#include "io/wire/http/server.h"

#define GRPC_MAX_PIECES 16

static void call_turn(struct cgn_hook *h);
static void call_expired(struct cgn_timer *t);

struct grpc_call *grpc_call_new(struct cgn_loop *l, uint32_t max_message, struct cgn_link *list)
{
	struct grpc_call *c = CGN_NEW(struct grpc_call);
	c->tag = GRPC_CALL_TAG;
	c->loop = l;
	c->in.max_message = max_message;
	cgn_timer_init(&c->deadline, l, call_expired);
	cgn_hook_init(&c->turn, call_turn);
	cgn_list_push(list, &c->link);
	return c;
}

void grpc_call_take(struct grpc_call *c, const struct grpc_call_ops *ops, void *user)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	c->ops = ops;
	c->user = user;
}

void grpc_call_set_deadline(struct grpc_call *c, cgn_nsec timeout)
{
	cgn_timer_set(&c->deadline, timeout);
}

/* ---- out ---- */

static bool can_send(const struct grpc_call *c)
{
	return !c->finished && !c->closed && (c->server ? c->x != NULL : c->h != NULL);
}

static void send_head(struct grpc_call *c)
{
	static const struct http_field type = {{"content-type", 12}, {"application/grpc", 16}};
	if (c->head_sent)
		return;
	c->head_sent = true;
	http_exchange_head(c->x, 200, &type, 1, -1);
}

void grpc_send(struct grpc_call *c, const struct iovec *iov, size_t n)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	CGN_MUST(n < GRPC_MAX_PIECES);
	if (!can_send(c))
		return; /* The peer is gone or the deadline passed: on_close follows. */
	uint8_t prefix[GRPC_PREFIX];
	struct iovec pieces[GRPC_MAX_PIECES] = {{prefix, sizeof prefix}};
	size_t bytes = 0;
	for (size_t i = 0; i < n; i++) {
		pieces[1 + i] = iov[i];
		bytes += iov[i].iov_len;
	}
	grpc_frame_prefix(prefix, bytes);
	if (!c->server) {
		http_call_body(c->h, pieces, n + 1);
		return;
	}
	send_head(c);
	http_exchange_body(c->x, pieces, n + 1);
}

void grpc_send_lent(struct grpc_call *c, const struct iovec *iov, size_t n, size_t n_lent)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	CGN_MUST(!c->server && n < GRPC_MAX_PIECES && n_lent <= n);
	if (!can_send(c))
		return;
	uint8_t prefix[GRPC_PREFIX];
	struct iovec pieces[GRPC_MAX_PIECES] = {{prefix, sizeof prefix}};
	size_t copied = n - n_lent;
	grpc_frame_prefix(prefix, cgn_iov_bytes(iov, n));
	memcpy(pieces + 1, iov, copied * sizeof *iov);
	http_call_body(c->h, pieces, copied + 1);
	http_call_lend(c->h, iov + copied, n_lent);
}

void grpc_keep(struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	if (c->h != NULL)
		http_call_keep(c->h);
}

CGN_RC grpc_message_take(struct grpc_call *c, const uint8_t *p, size_t n, struct cgn_buf *out,
	struct cgn_err *err)
{
	struct grpc_frames *f = &c->in;
	CGN_LIVE(c, GRPC_CALL_TAG);
	if (f->part.n == n && (const char *)p == f->part.p) {
		*out = f->part;
		f->part = (struct cgn_buf){.p = NULL};
		f->n_prefix = 0;
	} else {
		cgn_buf_add(out, p, n);
	}
	if (out->bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a message of %zu bytes", n);
	f->booked = 0; /* The caller returns it. */
	return CGN_OK;
}

bool grpc_over_mark(const struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	if (!can_send(c))
		return false;
	return c->server ? http_exchange_over_mark(c->x) : http_call_over_mark(c->h);
}

/* ---- in ---- */

static void call_break(struct grpc_call *c, const struct cgn_err *why)
{
	if (c->server)
		grpc_server_break(c, why);
	else
		grpc_client_break(c, why);
}

static void message_pull(struct grpc_call *c, struct cgn_str *in)
{
	struct cgn_str message;
	struct cgn_err err;
	while (!c->paused && !c->deaf) {
		enum grpc_frame_step step = grpc_frame_next(&c->in, in, &message, &err);
		if (step == GRPC_FRAME_MORE)
			return;
		if (step == GRPC_FRAME_BAD) {
			call_break(c, &err);
			return;
		}
		c->ops->on_message(c, c->user, (const uint8_t *)message.p, message.n);
	}
}

void grpc_call_feed(struct grpc_call *c, const uint8_t *p, size_t n)
{
	struct cgn_str in = {(const char *)p, n};
	if (c->held.n == 0)
		message_pull(c, &in);
	if (c->deaf)
		return;
	cgn_buf_str(&c->held, in);
	if (c->held.bad) {
		struct cgn_err err;
		(void)CGN_FAIL_AS(&err, CGN_NO_MEMORY, "no memory for %zu bytes of a paused call", n);
		call_break(c, &err);
	}
}

/* Report the peer's end after its last message, which may be held back by a pause. */
static void tell_end(struct grpc_call *c)
{
	struct cgn_err err;
	if (!c->peer_ended || c->paused || c->held.n > 0 || c->closed)
		return;
	c->peer_ended = false;
	if (!c->deaf && !grpc_frame_between(&c->in) && (c->server || c->final.code == CGN_FINE)) {
		(void)CGN_FAIL_AS(&err, CGN_INVALID, "the stream ended inside a message");
		call_break(c, &err);
	} else if (!c->server) {
		grpc_call_close(c, &c->final);
	} else if (!c->deaf && c->ops->on_half_close != NULL) {
		c->ops->on_half_close(c, c->user);
	}
}

void grpc_call_peer_ended(struct grpc_call *c)
{
	c->peer_ended = true;
	tell_end(c);
}

void grpc_pause(struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	c->paused = true;
	if (c->x != NULL)
		http_exchange_pause(c->x);
	if (c->h != NULL)
		http_call_pause(c->h);
}

/* Held messages are delivered at the end of the turn, not inline. */
void grpc_resume(struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	if (!c->paused || c->closed)
		return;
	c->paused = false;
	cgn_loop_defer(c->loop, &c->turn);
}

static void call_turn(struct cgn_hook *h)
{
	struct grpc_call *c = CGN_CONTAINER(h, struct grpc_call, turn);
	CGN_LIVE(c, GRPC_CALL_TAG);
	if (c->held.n > 0) {
		struct cgn_str in = cgn_buf_view(&c->held);
		message_pull(c, &in);
		cgn_buf_eat(&c->held, c->held.n - in.n);
	}
	if (c->closed || c->paused)
		return;
	if (c->x != NULL)
		http_exchange_resume(c->x);
	if (c->h != NULL)
		http_call_resume(c->h);
	tell_end(c);
}

/* ---- the end ---- */

static void call_expired(struct cgn_timer *t)
{
	struct grpc_call *c = CGN_CONTAINER(t, struct grpc_call, deadline);
	struct cgn_err err;
	CGN_LIVE(c, GRPC_CALL_TAG);
	(void)CGN_FAIL_AS(&err, CGN_DEADLINE, "the call's deadline is over");
	call_break(c, &err);
}

static void call_release(struct cgn_grave *g)
{
	struct grpc_call *c = CGN_CONTAINER(g, struct grpc_call, grave);
	CGN_LIVE(c, GRPC_CALL_TAG);
	grpc_frames_fini(&c->in);
	cgn_buf_fini(&c->held);
	c->tag = 0;
	free(c);
}

void grpc_call_bury(struct grpc_call *c)
{
	c->closed = c->finished = c->deaf = true;
	cgn_timer_cancel(&c->deadline);
	cgn_hook_drop(&c->turn);
	cgn_list_drop(&c->link);
	grpc_frames_unbook(&c->in);
	cgn_loop_bury(c->loop, &c->grave, call_release);
}

void grpc_call_close(struct grpc_call *c, const struct cgn_err *why)
{
	CGN_MUST(!c->closed);
	struct cgn_err last = *why; /* |why| may point into the call. */
	c->closed = c->finished = c->deaf = true;
	if (c->ops != NULL)
		c->ops->on_close(c, c->user, &last);
	grpc_call_bury(c);
}
