/* SPDX-License-Identifier: Apache-2.0 */
/* One client: its bytes become commands, which run one after the other. Text is parsed where it was read and
 * kept only when a command is not whole or has to wait; a large value goes from the loop's read buffer to
 * where the store wants it. (Not from the socket: the kernel copies to memory that is in no cache more slowly
 * than it copies to the buffer and sum64_copy goes on from there.) */
#include <stdlib.h>

#include "base/log/log.h"
#include "kvcached/resp/resp_priv.h"

static void release(struct cgn_grave *g)
{
	struct resp_conn *c = CGN_CONTAINER(g, struct resp_conn, grave);
	c->tag = 0;
	free(c);
}

struct resp_conn *resp_conn_new(struct resp_port *p, struct net_conn *net)
{
	struct resp_conn *c = calloc(1, sizeof *c);
	if (c == NULL)
		return NULL;
	c->tag = RESP_CONN_TAG;
	c->port = p;
	c->net = net;
	c->id = atomic_fetch_add(&p->shared->next_id, 1) + 1;
	c->authed = !p->shared->has_password;
	c->opened = c->heard = c->moved = c->paced = cgn_loop_now(p->loop);
	respcmd_init(&c->cmd);
	c->cmd.wary = !c->authed;
	cgn_list_init(&c->link);
	cgn_list_init(&c->wait);
	cgn_list_init(&c->replies);
	return c;
}

bool resp_conn_idle(const struct resp_conn *c)
{
	return c->in.n == 0 && c->cmd.at == 0 && cgn_list_empty(&c->replies) && net_queued(c->net) == 0;
}

/* ---- how it goes on ---- */

/* It took or brought |n| bytes. */
static void went(struct resp_conn *c, uint64_t n)
{
	c->moved = cgn_loop_now(c->port->loop);
	c->pace += n;
	if (c->pace < RESP_PACE)
		return;
	c->pace = 0;
	c->paced = c->moved;
}

/* Whether it keeps something of the store from going. */
static bool holds(const struct resp_conn *c)
{
	return net_queued(c->net) > 0 || c->arriving > 0;
}

/* ---- keeping text ---- */

static bool keep(struct resp_conn *c, const char *p, size_t n)
{
	struct resp_port *port = c->port;
	if (n == 0)
		return true;
	size_t before = c->in.cap;
	cgn_buf_add(&c->in, p, n);
	port->text_bytes += c->in.cap - before;
	if (!c->in.bad && (c->in.n <= RESP_TEXT_FREE || port->text_bytes <= RESP_TEXT_MOST))
		return true;
	cgn_log(WARN, "resp.too_much_text", F_STR("peer", net_peer(c->net).p), F_U64("bytes", c->in.n));
	net_abort(c->net);
	return false;
}

static void let_go(struct resp_conn *c, size_t n)
{
	cgn_buf_eat(&c->in, n);
	if (c->in.n > 0)
		return;
	c->port->text_bytes -= c->in.cap;
	cgn_buf_fini(&c->in);
}

/* ---- values that come apart ---- */

static void value_took(struct resp_conn *c, uint64_t n)
{
	c->value_left -= n;
	went(c, n);
	if (c->value_left > 0)
		return;
	c->proven |= c->writer != NULL;
	c->writer = NULL; /* it stays among c->apart */
}

static size_t value_feed(struct resp_conn *c, const char *p, size_t n)
{
	size_t take = n < c->value_left ? n : (size_t)c->value_left;
	if (c->writer != NULL)
		kvstore_writer_add(c->writer, p, take);
	value_took(c, take);
	return take;
}

/* ---- commands ---- */

static void command_over(struct resp_conn *c)
{
	resp_values_drop(c);
	respcmd_reset(&c->cmd);
	c->cmd.wary = !c->authed;
	c->pending = false;
	c->step = 0;
	c->fault[0] = '\0';
	c->announced = 0;
	c->begun = cgn_loop_now(c->port->loop);
}

static void bad_stream(struct resp_conn *c, const char *why)
{
	resp_fmt(c, "-ERR %s\r\n", why);
	resp_conn_close(c);
}

/* Text that is being parsed: lent by the socket, or c->in. */
struct stream {
	const char *p;
	size_t n, at; /* at: where the command begins */
	bool ours;
};

static void stream_own(struct resp_conn *c, struct stream *s, bool kept)
{
	s->ours = true;
	s->p = c->in.p;
	s->n = kept ? c->in.n : 0;
	s->at = 0;
}

/* The value's bytes leave the text: its head is kept, what is here goes to its place, and the text goes on
 * with what is behind. */
static bool take_apart(struct resp_conn *c, struct stream *s)
{
	size_t head = s->at + c->cmd.at;
	c->text = (struct cgn_str){s->p + s->at, c->cmd.at};
	if (!resp_value_begins(c)) /* the client's next bytes are not read until others let go */
		return false;
	c->value_left = c->cmd.value;
	c->announced += c->cmd.value;
	c->cmd.value = 0;
	went(c, RESP_PACE); /* whatever it did before it held this */
	size_t took = value_feed(c, s->p + head, s->n - head);
	if (s->ours) {
		memmove(c->in.p + head, c->in.p + head + took, s->n - head - took);
		c->in.n = s->n -= took;
		return c->value_left == 0;
	}
	bool kept = keep(c, s->p + s->at, c->cmd.at) && keep(c, s->p + head + took, s->n - head - took);
	stream_own(c, s, kept);
	return kept && c->value_left == 0;
}

static bool run_command(struct resp_conn *c, struct stream *s)
{
	c->text = (struct cgn_str){s->p + s->at, c->cmd.at};
	if (c->cmd.n > 0 && resp_run(c) == RESP_LATER) {
		c->pending = true;
		return false;
	}
	s->at += c->cmd.at;
	command_over(c);
	return true;
}

/* One command, or what there is of one. False: no more can be done now. */
static bool run_one(struct resp_conn *c, struct stream *s)
{
	const char *why = "";
	enum respcmd_outcome o = c->pending ? RESPCMD_GOT : c->cmd.value > 0 ? RESPCMD_VALUE : RESPCMD_MORE;
	if (o == RESPCMD_MORE)
		o = respcmd_step(&c->cmd, (struct cgn_str){s->p + s->at, s->n - s->at}, &why);
	switch (o) {
	case RESPCMD_GOT:
		return run_command(c, s);
	case RESPCMD_VALUE:
		return take_apart(c, s);
	case RESPCMD_BAD:
		bad_stream(c, why);
		return false;
	case RESPCMD_MORE:
		break;
	}
	return false;
}

static bool may_run(const struct resp_conn *c)
{
	return !c->closing && net_is_open(c->net) && c->value_left == 0;
}

static void run(struct resp_conn *c, struct stream s)
{
	c->running = true;
	while (may_run(c) && s.at < s.n && run_one(c, &s))
		;
	c->running = false;
	if (s.ours)
		let_go(c, s.at);
	else if (net_is_open(c->net) && !c->closing)
		(void)keep(c, s.p + s.at, s.n - s.at);
	resp_flush(c);
	if (c->pending || c->cmd.value > 0)
		net_pause(c->net);
	else if (c->ended && !c->closing && net_is_open(c->net))
		resp_conn_close(c);
}

static void run_ours(struct resp_conn *c)
{
	struct stream s;
	stream_own(c, &s, true);
	run(c, s);
}

/* ---- what happens to it ---- */

static void on_data(struct net_conn *net, void *user, const uint8_t *p, size_t n)
{
	struct resp_conn *c = user;
	CGN_LIVE(c, RESP_CONN_TAG);
	(void)net;
	c->heard = cgn_loop_now(c->port->loop);
	if (c->in.n == 0 && c->cmd.at == 0)
		c->begun = c->heard;
	if (c->closing)
		return;
	if (c->value_left > 0) {
		size_t took = value_feed(c, (const char *)p, n);
		p += took;
		n -= took;
	}
	if (n == 0)
		return;
	if (c->in.n == 0) {
		run(c, (struct stream){.p = (const char *)p, .n = n});
		return;
	}
	if (keep(c, (const char *)p, n))
		run_ours(c);
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
	if (c->in.n > 0 && c->value_left == 0)
		run_ours(c);
}

void resp_conn_close(struct resp_conn *c)
{
	c->closing = true;
	if (!cgn_list_empty(&c->replies))
		return;
	resp_flush(c);
	net_close(c->net);
}

static void on_drain(struct net_conn *net, void *user)
{
	struct resp_conn *c = user;
	(void)net;
	c->proven = true;
	went(c, RESP_PACE); /* half of the mark at least */
	resp_conn_resume(c);
}

/* Nothing more comes: what was asked for is still answered. */
static void on_eof(struct net_conn *net, void *user)
{
	struct resp_conn *c = user;
	(void)net;
	c->ended = true;
	if (!c->pending)
		resp_conn_close(c);
}

static void on_close(struct net_conn *net, void *user, const struct cgn_err *why)
{
	struct resp_conn *c = user;
	CGN_LIVE(c, RESP_CONN_TAG);
	(void)net;
	(void)why;
	value_read_cancel(&c->fetch);
	kvstore_block_unref(&c->fetched);
	resp_replies_drop(c);
	c->value_left = 0;
	resp_values_drop(c);
	free(c->apart);
	respcmd_fini(&c->cmd);
	c->in.n = 0;
	let_go(c, 0);
	if (c->port->out.conn == c)
		c->port->out.conn = NULL;
	resp_port_done_waiting(c);
	resp_conn_left(c);
	cgn_loop_bury(c->port->loop, &c->grave, release);
}

const struct net_conn_ops resp_conn_ops = {.on_data = on_data,
	.on_eof = on_eof,
	.on_drain = on_drain,
	.on_close = on_close};

/* ---- once a second ---- */

/* What it took since the last time; there is more only when it took all but little of what there was. */
static void note_taken(struct resp_conn *c, cgn_nsec now)
{
	size_t queued = net_queued(c->net);
	if (queued != c->last_queued)
		went(c, queued < c->last_queued ? c->last_queued - queued : RESP_PACE);
	c->last_queued = queued;
	if (!holds(c))
		c->moved = c->paced = now;
}

static const char *complaint(struct resp_conn *c, cgn_nsec now)
{
	cgn_nsec idle = atomic_load(&c->port->worker->daemon->resp_idle_timeout);
	note_taken(c, now);
	if (resp_conn_idle(c) && c->port->draining)
		resp_conn_close(c);
	if (resp_conn_idle(c))
		return idle > 0 && now - c->heard > idle ? "idle" : NULL;
	cgn_nsec slow = RESP_SLOW + (c->announced >> 20) * CGN_SEC;
	if (c->in.n > 0 && !c->pending && now > c->begun && now - c->begun > slow)
		return "slow";
	unsigned itself = !cgn_list_empty(&c->wait);
	bool others_wait = atomic_load(&c->port->shared->waiting) > itself;
	bool stalled = (now > c->moved && now - c->moved > RESP_STALL) ||
		(others_wait && now > c->paced && now - c->paced > RESP_PRESSED);
	return stalled ? "stalled" : NULL;
}

void resp_conn_check(struct resp_conn *c, cgn_nsec now)
{
	CGN_LIVE(c, RESP_CONN_TAG);
	const char *what = complaint(c, now);
	if (what == NULL)
		return;
	cgn_log(INFO, "resp.cut", F_STR("peer", net_peer(c->net).p), F_STR("why", what),
		F_U64("queued_bytes", net_queued(c->net)));
	net_abort(c->net);
}
