/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: turns bytes into commands and runs them in order. Text is parsed in the read buffer, and
 * kept only when a command is incomplete or waits. A large value goes from the read buffer to its pages.
 * (Reading from the socket to the pages would be slower: the kernel would copy to memory outside the cache,
 * where sum64_copy copies from the cache.) */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/unlikely/unlikely.h"
#include "kvcached/resp/command_priv.h"

static void conn_release(struct cgn_grave *g)
{
	struct resp_conn *c = CGN_CONTAINER(g, struct resp_conn, grave);
	c->tag = 0;
	free(c);
}

struct resp_conn *resp_conn_new(struct resp_port *p, struct net_conn *net)
{
	struct resp_conn *c = CGN_NEW(struct resp_conn);
	c->tag = RESP_CONN_TAG;
	c->port = p;
	c->net = net;
	c->resume = resp_conn_resume;
	c->id = atomic_fetch_add(&p->shared->next_id, 1) + 1;
	c->authed = !p->shared->has_password;
	c->opened = c->heard = c->pace.moved = c->pace.since = cgn_loop_now(p->loop);
	respcmd_init(&c->cmd);
	c->cmd.wary = !c->authed;
	cgn_list_init(&c->link);
	cgn_list_init(&c->wait);
	cgn_list_init(&c->replies);
	return c;
}

/* no command is under way */
static bool resp_conn_idle(const struct resp_conn *c)
{
	return c->in.n == 0 && c->cmd.at == 0 && cgn_list_empty(&c->replies) && net_queued(c->net) == 0;
}

/* ---- progress ---- */

/* The client took or brought |n| bytes. */
static void conn_progress(struct resp_conn *c, uint64_t n)
{
	c->pace.moved = cgn_loop_now(c->port->loop);
	c->pace.bytes += n;
	if (c->pace.bytes < RESP_PACE)
		return;
	c->pace.bytes = 0;
	c->pace.since = c->pace.moved;
}

/* Whether the client keeps memory of the store from eviction. */
static bool conn_holds(const struct resp_conn *c)
{
	return net_queued(c->net) > 0 || c->values.held > 0;
}

/* ---- kept text ---- */

static bool text_keep(struct resp_conn *c, const char *p, size_t n)
{
	struct resp_port *port = c->port;
	if (n == 0)
		return true;
	size_t before = c->in.cap;
	cgn_buf_add(&c->in, p, n);
	port->text_bytes += c->in.cap - before;
	if (!c->in.bad && (c->in.n <= RESP_TEXT_FREE || port->text_bytes <= RESP_TEXT_MOST))
		return true;
	cgn_log_limited(WARN, "resp.too_much_text", F_STR("peer", net_peer(c->net).p),
		F_U64("bytes", c->in.n));
	net_abort(c->net);
	return false;
}

static void text_drop(struct resp_conn *c, size_t n)
{
	cgn_buf_eat(&c->in, n);
	if (c->in.n > 0)
		return;
	c->port->text_bytes -= c->in.cap;
	cgn_buf_fini(&c->in);
}

/* ---- values apart from the text ---- */

static void value_progress(struct resp_conn *c, uint64_t n)
{
	c->values.left -= n;
	conn_progress(c, n);
	if (c->values.left > 0)
		return;
	c->proven |= c->values.writer != NULL;
	c->values.writer = NULL; /* the writer stays in c->values.list */
}

static size_t value_feed(struct resp_conn *c, const char *p, size_t n)
{
	size_t take = n < c->values.left ? n : (size_t)c->values.left;
	if (c->values.writer != NULL)
		kvstore_writer_add(c->values.writer, p, take);
	value_progress(c, take);
	return take;
}

/* ---- commands ---- */

static void command_end(struct resp_conn *c)
{
	resp_values_drop(c);
	respcmd_reset(&c->cmd);
	c->cmd.wary = !c->authed;
	c->pending = false;
	c->step = 0;
	c->fault[0] = '\0';
	c->values.announced = 0;
	c->begun = cgn_loop_now(c->port->loop);
}

static void stream_fail(struct resp_conn *c, const char *why)
{
	resp_fmt(c, "-ERR %s\r\n", why);
	resp_close(c);
}

/* The text that is being parsed: in the read buffer, or c->in. */
struct stream {
	const char *p;
	size_t n, at; /* at: begin of the current command */
	bool ours;
};

static void stream_own(struct resp_conn *c, struct stream *s, bool kept)
{
	s->ours = true;
	s->p = c->in.p;
	s->n = kept ? c->in.n : 0;
	s->at = 0;
}

/* Take a value out of the text: keep the head of the command, feed the bytes that arrived to the writer, and
 * continue with the text behind them. */
static bool value_begin(struct resp_conn *c, struct stream *s)
{
	size_t head = s->at + c->cmd.at;
	c->text = (struct cgn_str){s->p + s->at, c->cmd.at};
	if (!resp_value_begins(c)) /* the client is not read until others hold less */
		return false;
	c->values.left = c->cmd.value;
	c->values.announced += c->cmd.value;
	c->cmd.value = 0;
	conn_progress(c, RESP_PACE); /* the pace counts from the time at which it holds memory */
	size_t took = value_feed(c, s->p + head, s->n - head);
	if (s->ours) {
		memmove(c->in.p + head, c->in.p + head + took, s->n - head - took);
		c->in.n = s->n -= took;
		return c->values.left == 0;
	}
	bool kept =
		text_keep(c, s->p + s->at, c->cmd.at) && text_keep(c, s->p + head + took, s->n - head - took);
	stream_own(c, s, kept);
	return kept && c->values.left == 0;
}

static bool run_command(struct resp_conn *c, struct stream *s)
{
	c->text = (struct cgn_str){s->p + s->at, c->cmd.at};
	if (c->cmd.n > 0 && resp_run(c) == RESP_LATER) {
		c->pending = true;
		return false;
	}
	s->at += c->cmd.at;
	command_end(c);
	return true;
}

/* Run or continue one command. Returns false when no more can be done now. */
static bool conn_run_one(struct resp_conn *c, struct stream *s)
{
	const char *why = "";
	enum respcmd_outcome o = c->pending ? RESPCMD_GOT : c->cmd.value > 0 ? RESPCMD_VALUE : RESPCMD_MORE;
	if (o == RESPCMD_MORE)
		o = respcmd_step(&c->cmd, (struct cgn_str){s->p + s->at, s->n - s->at}, &why);
	switch (o) {
	case RESPCMD_GOT:
		return run_command(c, s);
	case RESPCMD_VALUE:
		return value_begin(c, s);
	case RESPCMD_BAD:
		stream_fail(c, why);
		return false;
	case RESPCMD_MORE:
		break;
	}
	return false;
}

static bool conn_may_run(const struct resp_conn *c)
{
	return !c->closing && net_is_open(c->net) && c->values.left == 0;
}

static void conn_run(struct resp_conn *c, struct stream s)
{
	c->running = true;
	while (conn_may_run(c) && s.at < s.n && conn_run_one(c, &s))
		;
	c->running = false;
	if (s.ours)
		text_drop(c, s.at);
	else if (net_is_open(c->net) && !c->closing)
		(void)text_keep(c, s.p + s.at, s.n - s.at);
	resp_flush(c);
	if (c->pending || c->cmd.value > 0)
		net_pause(c->net);
	else if (c->ended && !c->closing && net_is_open(c->net))
		resp_close(c);
}

static void conn_run_kept(struct resp_conn *c)
{
	struct stream s;
	stream_own(c, &s, true);
	conn_run(c, s);
}

/* ---- events ---- */

static void conn_on_data(struct net_conn *net, void *user, const uint8_t *p, size_t n)
{
	struct resp_conn *c = user;
	CGN_LIVE(c, RESP_CONN_TAG);
	(void)net;
	c->heard = cgn_loop_now(c->port->loop);
	if (c->in.n == 0 && c->cmd.at == 0)
		c->begun = c->heard;
	if (c->closing)
		return;
	if (c->values.left > 0) {
		size_t took = value_feed(c, (const char *)p, n);
		p += took;
		n -= took;
	}
	if (n == 0)
		return;
	if (c->in.n == 0 && !unlikely_way(UNLIKELY_text_kept)) {
		conn_run(c, (struct stream){.p = (const char *)p, .n = n});
		return;
	}
	if (text_keep(c, (const char *)p, n))
		conn_run_kept(c);
}

void resp_conn_resume(struct resp_conn *c)
{
	CGN_LIVE(c, RESP_CONN_TAG);
	if (c->running || !net_is_open(c->net))
		return;
	bool all = resp_pump(c);
	if (all && c->closing) {
		resp_flush(c);
		net_close(c->net);
		return;
	}
	resp_flush(c);
	if (c->closing || net_over_mark(c->net))
		return;
	net_resume(c->net);
	if (c->in.n > 0 && c->values.left == 0)
		conn_run_kept(c);
}

static void conn_on_drain(struct net_conn *net, void *user)
{
	struct resp_conn *c = user;
	(void)net;
	c->proven = true;
	conn_progress(c, RESP_PACE); /* at least half of the high-water mark was sent */
	resp_conn_resume(c);
}

/* The client sends no more. Commands that arrived are still answered. */
static void conn_on_eof(struct net_conn *net, void *user)
{
	struct resp_conn *c = user;
	(void)net;
	c->ended = true;
	if (!c->pending)
		resp_close(c);
}

static void conn_on_close(struct net_conn *net, void *user, const struct cgn_err *why)
{
	struct resp_conn *c = user;
	CGN_LIVE(c, RESP_CONN_TAG);
	(void)net;
	(void)why;
	value_read_cancel(&c->fetch);
	kvstore_block_unref(&c->fetched);
	resp_replies_drop(c);
	c->values.left = 0;
	resp_values_drop(c);
	free(c->values.list);
	respcmd_fini(&c->cmd);
	c->in.n = 0;
	text_drop(c, 0);
	if (c->port->out.conn == c)
		c->port->out.conn = NULL;
	resp_hold_wait_end(c);
	resp_conn_left(c);
	cgn_loop_bury(c->port->loop, &c->grave, conn_release);
}

const struct net_conn_ops resp_conn_ops = {.on_data = conn_on_data,
	.on_eof = conn_on_eof,
	.on_drain = conn_on_drain,
	.on_close = conn_on_close};

/* ---- once a second ---- */

/* Record the bytes that the client took since the last check. */
static void conn_note_taken(struct resp_conn *c, cgn_nsec now)
{
	size_t queued = net_queued(c->net);
	if (queued != c->pace.last_queued)
		conn_progress(c, queued < c->pace.last_queued ? c->pace.last_queued - queued : RESP_PACE);
	c->pace.last_queued = queued;
	if (!conn_holds(c))
		c->pace.moved = c->pace.since = now;
}

static const char *conn_fault(struct resp_conn *c, cgn_nsec now)
{
	cgn_nsec idle = atomic_load(&c->port->worker->daemon->resp_idle_timeout);
	conn_note_taken(c, now);
	if (resp_conn_idle(c) && c->port->draining)
		resp_close(c);
	if (resp_conn_idle(c))
		return idle > 0 && cgn_since(now, c->heard) > idle ? "idle" : NULL;
	cgn_nsec slow = RESP_SLOW + (c->values.announced >> 20) * CGN_SEC;
	if (c->in.n > 0 && !c->pending && cgn_since(now, c->begun) > slow)
		return "slow";
	unsigned itself = !cgn_list_empty(&c->wait);
	bool others_wait = atomic_load(&c->port->shared->waiting) > itself;
	bool stalled = (cgn_since(now, c->pace.moved) > RESP_STALL) ||
		(others_wait && cgn_since(now, c->pace.since) > RESP_PRESSED);
	return stalled ? "stalled" : NULL;
}

void resp_conn_check(struct resp_conn *c, cgn_nsec now)
{
	CGN_LIVE(c, RESP_CONN_TAG);
	const char *what = conn_fault(c, now);
	if (what == NULL)
		return;
	cgn_log_limited(INFO, "resp.cut", F_STR("peer", net_peer(c->net).p), F_STR("why", what),
		F_U64("queued_bytes", net_queued(c->net)));
	net_abort(c->net);
}
