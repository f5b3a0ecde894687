/* SPDX-License-Identifier: Apache-2.0 */
/* Replies, in the order of the commands. What can be sent at once is gathered in the worker's resp_gather and
 * written in one system call. Behind a reply that waits, all later replies wait too. */
#include <stdarg.h>
#include <stdlib.h>

#include "kvcached/resp/resp_priv.h"

struct loan {
	struct net_loan net;
	struct resp_port *port;
	struct kvstore_block *block;
	uint64_t held;
};

bool resp_full(struct resp_conn *c)
{
	return c->n_replies >= RESP_REPLIES || c->reply_text > NET_QUEUE_MARK || c->reading > RESP_AHEAD ||
		net_over_mark(c->net);
}

void resp_flush(struct resp_conn *c)
{
	struct resp_gather *g = &c->port->out;
	if (g->conn == NULL)
		return;
	CGN_MUST(g->conn == c);
	size_t n = g->n_parts;
	g->conn = NULL;
	g->n_parts = g->n_text = g->bytes = 0;
	net_write_parts(c->net, g->parts, n);
}

/* Add the last |n| bytes of the gather's text as a part, or to the last part. */
static void part_text(struct resp_gather *g, size_t n)
{
	const char *at = g->text + g->n_text;
	struct net_part *last = g->n_parts > 0 ? &g->parts[g->n_parts - 1] : NULL;
	if (last != NULL && last->loan == NULL && (const char *)last->p + last->n == at)
		last->n += n;
	else
		g->parts[g->n_parts++] = (struct net_part){at, n, NULL};
	g->n_text += n;
	g->bytes += n;
}

static void out_write(struct resp_conn *c, const void *p, size_t n)
{
	struct resp_gather *g = &c->port->out;
	if (n == 0)
		return;
	if (n > sizeof g->text - g->n_text || g->n_parts == NET_MAX_PARTS)
		resp_flush(c);
	if (n > sizeof g->text) {
		net_write_parts(c->net, &(struct net_part){p, n, NULL}, 1);
		return;
	}
	g->conn = c;
	memcpy(g->text + g->n_text, p, n);
	part_text(g, n);
}

/* ---- replies that wait ---- */

static struct resp_reply *reply_add(struct resp_conn *c, enum resp_reply_kind kind)
{
	struct resp_reply *r = CGN_NEW(struct resp_reply);
	r->conn = c;
	r->kind = kind;
	cgn_list_push(&c->replies, &r->link);
	c->n_replies++;
	return r;
}

static void reply_free(struct resp_reply *r)
{
	struct resp_conn *c = r->conn;
	cgn_list_drop(&r->link);
	c->n_replies--;
	c->reply_text -= r->text.n;
	c->reading -= r->reads;
	resp_unhold(c->port, RESP_SENDS, r->held);
	kvstore_block_unref(&r->block);
	value_read_cancel(&r->read);
	cgn_buf_fini(&r->text);
	free(r);
}

void resp_replies_drop(struct resp_conn *c)
{
	while (!cgn_list_empty(&c->replies))
		reply_free(CGN_CONTAINER(cgn_list_first(&c->replies), struct resp_reply, link));
}

static void reply_add_text(struct resp_conn *c, const void *p, size_t n)
{
	struct resp_reply *r = CGN_CONTAINER(c->replies.prev, struct resp_reply, link);
	if (r->kind != RESP_REPLY_TEXT)
		r = reply_add(c, RESP_REPLY_TEXT);
	cgn_buf_add(&r->text, p, n);
	if (r->text.bad)
		net_abort(c->net);
	else
		c->reply_text += n;
}

void resp_put(struct resp_conn *c, const void *p, size_t n)
{
	if (cgn_list_empty(&c->replies))
		out_write(c, p, n);
	else
		reply_add_text(c, p, n);
}

/* ---- values ---- */

static void loan_done(struct net_loan *l)
{
	struct loan *loan = CGN_CONTAINER(l, struct loan, net);
	kvstore_block_unref(&loan->block);
	resp_unhold(loan->port, RESP_SENDS, loan->held);
	free(loan);
}

static void block_copy(struct resp_conn *c, struct resp_reply *r)
{
	struct iovec iov[4];
	size_t n;
	while (r->off < r->end) {
		uint64_t got = kvstore_block_iov(r->block, r->off, r->end - r->off, iov, CGN_COUNT(iov), &n);
		CGN_MUST(got > 0);
		for (size_t i = 0; i < n; i++)
			out_write(c, iov[i].iov_base, iov[i].iov_len);
		r->off += got;
	}
}

static void block_lend(struct resp_conn *c, struct resp_reply *r)
{
	struct resp_gather *g = &c->port->out;
	struct iovec iov[NET_MAX_PARTS];
	size_t n;
	if (NET_MAX_PARTS - g->n_parts < NET_MAX_PARTS / 2)
		resp_flush(c);
	struct loan *loan = CGN_NEW(struct loan);
	/* A part is reserved for the text behind the value, so a small value and its head take one call. */
	uint64_t got =
		kvstore_block_iov(r->block, r->off, r->end - r->off, iov, NET_MAX_PARTS - g->n_parts - 1, &n);
	CGN_MUST(got > 0);
	*loan = (struct loan){.net = {.done = loan_done},
		.port = c->port,
		.block = r->block,
		.held = got < r->held ? got : r->held};
	r->held -= loan->held;
	kvstore_block_ref(r->block);
	g->conn = c;
	for (size_t i = 0; i < n; i++)
		g->parts[g->n_parts++] = (struct net_part){iov[i].iov_base, iov[i].iov_len, &loan->net};
	g->bytes += got;
	r->off += got;
}

static void reply_range(struct resp_reply *r)
{
	uint64_t n;
	respcmd_range(r->first, r->last, kvstore_block_size(r->block), &r->off, &n);
	r->end = r->off + n;
}

/* Hold the block for as long as the client does not take it. Returns false when it must wait. */
static bool block_hold(struct resp_conn *c, struct resp_reply *r)
{
	uint64_t n = r->end - r->off;
	return n <= RESP_COPY_MOST || r->held > 0 || r->begun || resp_hold(c, RESP_SENDS, n, &r->held);
}

static void block_head(struct resp_conn *c, struct resp_reply *r)
{
	char head[32];
	int len = snprintf(head, sizeof head, "$%llu\r\n", (unsigned long long)(r->end - r->off));
	out_write(c, head, (size_t)len);
	r->begun = true;
}

/* Send as much of the block as the limits and the connection allow. Returns true when all is sent. */
static bool block_send(struct resp_conn *c, struct resp_reply *r)
{
	if (!block_hold(c, r))
		return false;
	if (!r->begun)
		block_head(c, r);
	if (r->end - r->off <= RESP_COPY_MOST)
		block_copy(c, r);
	while (r->off < r->end) {
		if (net_over_mark(c->net))
			return false;
		block_lend(c, r);
		if (r->off < r->end)
			resp_flush(c);
	}
	out_write(c, "\r\n", 2);
	/* Parts in the gather are not limited by the socket's mark, so flush them. */
	if (c->port->out.bytes > NET_QUEUE_MARK)
		resp_flush(c);
	return true;
}

void resp_block(struct resp_conn *c, struct kvstore_block **take, int64_t first, int64_t last)
{
	struct resp_reply now = {.conn = c,
				  .kind = RESP_REPLY_BLOCK,
				  .block = *take,
				  .first = first,
				  .last = last},
			  *r;
	*take = NULL;
	reply_range(&now);
	if (cgn_list_empty(&c->replies) && block_send(c, &now)) { /* the loans hold what it held */
		kvstore_block_unref(&now.block);
		return;
	}
	r = reply_add(c, RESP_REPLY_BLOCK);
	/* The reply waits, so its bytes count against RESP_AHEAD. */
	r->reads = now.end - now.off;
	c->reading += r->reads;
	r->held = now.held;
	r->block = now.block;
	r->off = now.off;
	r->end = now.end;
	r->begun = now.begun;
}

static const char *nil_text(const struct resp_conn *c, bool empty)
{
	return empty ? "$0\r\n\r\n" : c->resp3 ? "_\r\n" : "$-1\r\n";
}

static void reply_on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct resp_reply *r = user;
	struct resp_conn *c = r->conn;
	r->read = NULL;
	r->block = *take;
	*take = NULL;
	r->kind = r->block != NULL ? RESP_REPLY_BLOCK : RESP_REPLY_TEXT;
	if (r->block == NULL && why->code == CGN_NOT_FOUND)
		cgn_buf_putz(&r->text, nil_text(c, r->nil_is_empty));
	else if (r->block == NULL)
		cgn_buf_fmt(&r->text, "-%s %.200s\r\n", why->code == CGN_OVERLOADED ? "OOM" : "ERR",
			why->msg);
	c->reply_text += r->text.n;
	if (r->block != NULL) {
		reply_range(r);
		c->reading -= r->reads;
		r->reads = r->end - r->off;
		c->reading += r->reads;
	}
	c->resume(c);
}

enum resp_did resp_value(struct resp_conn *c, const struct block_key *k, int64_t first, int64_t last,
	bool nil_is_empty)
{
	struct kvcached *d = c->port->worker->daemon;
	struct kvstore_block *b = kvstore_get_ram(d->store, k, true);
	struct block_info info;
	uint64_t held = 0;
	if (b != NULL) {
		resp_block(c, &b, first, last);
		return RESP_DONE;
	}
	if (!value_lookup(d, k, true, 0, &info)) {
		resp_putz(c, nil_text(c, nil_is_empty));
		return RESP_DONE;
	}
	if (info.tiers == BLOCK_TIER_BIT(BLOCK_REMOTE)) /* peers do not report sizes */
		info.size = RESP_REMOTE;
	if (!resp_hold(c, RESP_SENDS, info.size, &held))
		return RESP_LATER;
	struct resp_reply *r = reply_add(c, RESP_REPLY_READ);
	r->held = held;
	r->reads = info.size;
	c->reading += info.size;
	r->first = first;
	r->last = last;
	r->nil_is_empty = nil_is_empty;
	r->read = value_get(d, c->port->loop, k, VALUE_WORTH_UNKNOWN, 0, reply_on_read, r);
	return RESP_DONE;
}

/* Returns false when the reply must wait, or the connection is full. */
static bool reply_send(struct resp_conn *c, struct resp_reply *r)
{
	if (r->kind == RESP_REPLY_READ || net_over_mark(c->net) || !net_is_open(c->net))
		return false;
	if (r->kind == RESP_REPLY_TEXT) {
		out_write(c, r->text.p, r->text.n);
		return true;
	}
	return block_send(c, r);
}

bool resp_pump(struct resp_conn *c)
{
	while (!cgn_list_empty(&c->replies)) {
		struct resp_reply *r = CGN_CONTAINER(cgn_list_first(&c->replies), struct resp_reply, link);
		if (!reply_send(c, r))
			return false;
		reply_free(r);
	}
	return true;
}

/* ---- reply types ---- */

void resp_putz(struct resp_conn *c, const char *z)
{
	resp_put(c, z, strlen(z));
}

void resp_fmt(struct resp_conn *c, const char *fmt, ...)
{
	char text[512];
	va_list args;
	va_start(args, fmt);
	int n = vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	CGN_MUST(n >= 0 && (size_t)n < sizeof text);
	resp_put(c, text, (size_t)n);
}

void resp_ok(struct resp_conn *c)
{
	resp_putz(c, "+OK\r\n");
}

void resp_error(struct resp_conn *c, const char *what)
{
	resp_fmt(c, "-%.400s\r\n", what);
}

void resp_int(struct resp_conn *c, int64_t v)
{
	resp_fmt(c, ":%lld\r\n", (long long)v);
}

void resp_bulk(struct resp_conn *c, struct cgn_str s)
{
	resp_fmt(c, "$%zu\r\n", s.n);
	resp_put(c, s.p, s.n);
	resp_put(c, "\r\n", 2);
}

void resp_nil(struct resp_conn *c)
{
	resp_putz(c, nil_text(c, false));
}

void resp_array(struct resp_conn *c, size_t n)
{
	resp_fmt(c, "*%zu\r\n", n);
}

void resp_map(struct resp_conn *c, size_t n)
{
	resp_fmt(c, c->resp3 ? "%%%zu\r\n" : "*%zu\r\n", c->resp3 ? n : 2 * n);
}

void resp_close(struct resp_conn *c)
{
	c->closing = true;
	if (!cgn_list_empty(&c->replies))
		return;
	resp_flush(c);
	net_close(c->net);
}
