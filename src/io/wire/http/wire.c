/* SPDX-License-Identifier: Apache-2.0 */
#include "base/unlikely/unlikely.h"
#include "io/wire/http/wire_priv.h"

#define GATHER      16
#define FIRST_BYTES 1024 /* Enough for a plain head and a small event. */

void http_wire_init(struct http_wire *w, struct cgn_loop *l, struct net_conn *net,
	void (*hook)(struct cgn_hook *))
{
	*w = (struct http_wire){.loop = l,
		.net = net,
		.seen_at = cgn_loop_now(l),
		.out.limit = HTTP_WIRE_LIMIT};
	cgn_hook_init(&w->hook, hook);
}

void http_wire_fini(struct http_wire *w)
{
	cgn_hook_drop(&w->hook);
	cgn_buf_fini(&w->out);
}

char *http_wire_room(struct http_wire *w, size_t n)
{
	if (w->net == NULL)
		return NULL;
	cgn_loop_defer(w->loop, &w->hook);
	char *to = cgn_buf_room(&w->out, w->out.cap == 0 && n < FIRST_BYTES ? FIRST_BYTES : n);
	if (to == NULL)
		http_wire_fail(w);
	return to;
}

void http_wire_add(struct http_wire *w, const void *p, size_t n)
{
	char *to = n > 0 ? http_wire_room(w, n) : NULL;
	if (to == NULL)
		return;
	memcpy(to, p, n);
	cgn_buf_grew(&w->out, n);
	if (w->out.n - w->out_at >= HTTP_WIRE_HOLD)
		http_wire_flush(w);
}

static void wire_hand(struct http_wire *w, const struct iovec *iov, size_t n)
{
	w->handed += cgn_iov_bytes(iov, n);
	net_write(w->net, iov, n);
}

struct iovec http_iov(struct cgn_str s)
{
	union {
		const char *in;
		void *out;
	} cast = {.in = s.p};
	return (struct iovec){cast.out, s.n};
}

static void send_copied(struct http_wire *w, struct cgn_str before, const struct iovec *iov, size_t n,
	struct cgn_str after)
{
	size_t total = before.n + cgn_iov_bytes(iov, n) + after.n;
	if (http_wire_room(w, total) == NULL)
		return;
	cgn_buf_str(&w->out, before);
	for (size_t i = 0; i < n; i++)
		cgn_buf_add(&w->out, iov[i].iov_base, iov[i].iov_len);
	cgn_buf_str(&w->out, after);
	if (w->out.n - w->out_at >= HTTP_WIRE_HOLD || unlikely_way(UNLIKELY_flush_early))
		http_wire_flush(w);
}

void http_wire_send(struct http_wire *w, struct cgn_str before, const struct iovec *iov, size_t n,
	struct cgn_str after)
{
	size_t bytes = cgn_iov_bytes(iov, n);
	if (w->net == NULL || before.n + bytes + after.n == 0)
		return;
	/* Small pieces are gathered into one write. A piece that is larger than the connection's queue, or
	 * meets a full one, waits here and is flushed in parts. All others go to the connection without a
	 * copy. */
	if (bytes < HTTP_WIRE_HOLD || bytes > NET_QUEUE_MARK || n > GATHER || http_wire_over_mark(w) ||
		unlikely_way(UNLIKELY_body_copied)) {
		send_copied(w, before, iov, n, after);
		return;
	}
	struct iovec all[GATHER + 3];
	size_t k = 0;
	if (w->out.n > 0)
		all[k++] = http_iov((struct cgn_str){w->out.p + w->out_at, w->out.n - w->out_at});
	if (before.n > 0)
		all[k++] = http_iov(before);
	for (size_t i = 0; i < n; i++)
		all[k++] = iov[i];
	if (after.n > 0)
		all[k++] = http_iov(after);
	wire_hand(w, all, k);
	cgn_buf_fini(&w->out);
	w->out_at = 0;
}

void http_wire_flush(struct http_wire *w)
{
	while (w->net != NULL && w->out_at < w->out.n && !net_over_mark(w->net)) {
		size_t left = w->out.n - w->out_at, n = left < NET_QUEUE_MARK ? left : NET_QUEUE_MARK;
		struct iovec part = http_iov((struct cgn_str){w->out.p + w->out_at, n});
		wire_hand(w, &part, 1);
		w->out_at += n;
	}
	if (w->net != NULL && w->out_at < w->out.n)
		return;
	cgn_buf_fini(&w->out);
	w->out_at = 0;
	if (w->close_after && w->net != NULL)
		net_close(w->net);
}

bool http_wire_can_flush(const struct http_wire *w)
{
	return w->net != NULL && w->out_at < w->out.n && !net_over_mark(w->net);
}

void http_wire_close(struct http_wire *w)
{
	w->close_after = true;
	http_wire_flush(w);
}

void http_wire_fail(struct http_wire *w)
{
	cgn_buf_fini(&w->out);
	w->out_at = 0;
	if (w->net != NULL)
		net_abort(w->net);
}

size_t http_wire_queued(const struct http_wire *w)
{
	return w->net == NULL ? 0 : w->out.n - w->out_at + net_queued(w->net);
}

bool http_wire_over_mark(const struct http_wire *w)
{
	return w->net != NULL && (net_over_mark(w->net) || w->out.n - w->out_at > NET_QUEUE_MARK);
}

cgn_nsec http_wire_progress(struct http_wire *w)
{
	/* The socket has taken the bytes that were handed to the connection and no longer wait there. */
	size_t waiting = http_wire_queued(w), in_net = w->net != NULL ? net_queued(w->net) : 0;
	uint64_t taken = w->handed >= in_net ? w->handed - in_net : 0;
	if (waiting == 0 || taken > w->seen_taken) {
		w->seen_taken = taken;
		w->seen_at = cgn_loop_now(w->loop);
	}
	return w->seen_at;
}
