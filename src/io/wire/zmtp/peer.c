/* SPDX-License-Identifier: Apache-2.0 */
/* peer: one connection with another ZeroMQ socket: greeting, READY, subscriptions, heartbeats, and the bytes
 * that wait to be sent. */
#include <stdlib.h>
#include <string.h>

#include "zmtp_priv.h"

#define PUMP_BYTES ((size_t)64 * 1024)
/* Unanswered PINGs before the peer is given up. PINGs are counted, because a long silence may be our own
 * loop's. */
#define UNANSWERED_PINGS 2
#define GREETING_TIME    (5 * CGN_SEC)

static const char *const kind_names[] = {"SUB", "PUB", "DEALER", "ROUTER"};

/* ---- sending ---- */

static void write_bytes(struct zmtp_peer *p, struct cgn_str bytes)
{
	struct iovec iov = {.iov_len = bytes.n};
	memcpy(&iov.iov_base, &bytes.p, sizeof bytes.p); /* net_write does not write through it. */
	net_write(p->conn, &iov, 1);
}

/* Hand over what waits, while the connection's own queue is short. */
static void queue_pump(struct zmtp_peer *p)
{
	while (p->wait_at < p->wait.n && !net_over_mark(p->conn)) {
		size_t n = p->wait.n - p->wait_at;
		n = n < PUMP_BYTES ? n : PUMP_BYTES;
		write_bytes(p, (struct cgn_str){p->wait.p + p->wait_at, n});
		p->wait_at += n;
	}
	if (p->wait_at == p->wait.n) {
		cgn_buf_fini(&p->wait);
		p->wait_at = 0;
	} else if (p->wait_at > p->wait.n / 2) {
		cgn_buf_eat(&p->wait, p->wait_at);
		p->wait_at = 0;
	}
}

bool zmtp_peer_send(struct zmtp_peer *p, const struct cgn_str *parts, size_t n)
{
	size_t bytes = zmtp_message_bytes(parts, n);
	if (p->wait.n - p->wait_at + bytes > p->s->queue || cgn_buf_room(&p->wait, bytes) == NULL) {
		p->wait.bad = false; /* Only this message is lost. */
		p->s->stats.dropped++;
		return false;
	}
	zmtp_put_message(&p->wait, parts, n);
	p->s->stats.sent++;
	queue_pump(p);
	return true;
}

static void send_command(struct zmtp_peer *p, const char *name, struct cgn_str data)
{
	if (cgn_buf_room(&p->wait, 9 + 1 + strlen(name) + data.n) == NULL) {
		p->wait.bad = false;
		return;
	}
	zmtp_put_command(&p->wait, name, data);
	queue_pump(p);
}

static void send_subscription(struct zmtp_peer *p)
{
	struct cgn_str topic = {p->s->topic, p->s->topic_n};
	char old[1 + ZMTP_MAX_TOPIC] = {1};
	if (p->in.major > 3 || p->in.minor >= 1) {
		send_command(p, "SUBSCRIBE", topic);
		return;
	}
	memcpy(old + 1, topic.p, topic.n);
	struct cgn_str message = {old, 1 + topic.n};
	(void)zmtp_peer_send(p, &message, 1);
}

static void send_ready(struct zmtp_peer *p)
{
	char bytes[128];
	struct cgn_buf b = cgn_buf_over(bytes, sizeof bytes);
	zmtp_put_property(&b, "Socket-Type", cgn_str_of(kind_names[p->s->kind]));
	if (p->s->kind == ZMTP_DEALER)
		zmtp_put_property(&b, "Identity", (struct cgn_str){0});
	send_command(p, "READY", cgn_buf_view(&b));
}

/* ---- the end ---- */

static void peer_released(struct cgn_grave *g)
{
	struct zmtp_peer *p = CGN_CONTAINER(g, struct zmtp_peer, grave);
	cgn_list_each_safe (it, &p->topics)
		free(CGN_CONTAINER(it, struct zmtp_topic, link));
	zmtp_wire_fini(&p->in);
	cgn_buf_fini(&p->wait);
	p->tag = 0;
	free(p);
}

void zmtp_peer_end(struct zmtp_peer *p, bool flush)
{
	CGN_LIVE(p, ZMTP_PEER_TAG);
	CGN_MUST(!p->ended);
	p->ended = true;
	cgn_timer_cancel(&p->pulse);
	cgn_list_drop(&p->link);
	p->s->n_peers--;
	p->s->stats.peers -= p->ready;
	if (p->conn != NULL) {
		net_conn_take(p->conn, NULL, NULL);
		if (flush && net_is_open(p->conn))
			net_close(p->conn);
		else
			net_abort(p->conn);
	}
	cgn_loop_bury(p->s->loop, &p->grave, peer_released);
}

static void peer_gone(struct zmtp_peer *p, const char *why)
{
	zmtp_peer_end(p, false);
	zmtp_on_gone(p, why);
}

static void at_fault(struct zmtp_peer *p, const char *why)
{
	p->s->stats.faults++;
	peer_gone(p, why);
}

/* ---- subscriptions at a PUB ---- */

bool zmtp_peer_wants(const struct zmtp_peer *p, struct cgn_str topic)
{
	cgn_list_each (it, &p->topics) {
		const struct zmtp_topic *t = CGN_CONTAINER(it, struct zmtp_topic, link);
		if (topic.n >= t->n && (t->n == 0 || memcmp(topic.p, t->bytes, t->n) == 0))
			return true;
	}
	return false;
}

static void topic_add(struct zmtp_peer *p, struct cgn_str topic)
{
	if (topic.n > ZMTP_MAX_TOPIC || p->n_topics == ZMTP_MAX_TOPICS) {
		at_fault(p, "it subscribes to too much");
		return;
	}
	struct zmtp_topic *t = CGN_NEW(struct zmtp_topic);
	t->n = (uint8_t)topic.n;
	if (topic.n > 0)
		memcpy(t->bytes, topic.p, topic.n);
	cgn_list_push(&p->topics, &t->link);
	p->n_topics++;
}

static void topic_drop(struct zmtp_peer *p, struct cgn_str topic)
{
	cgn_list_each_safe (it, &p->topics) {
		struct zmtp_topic *t = CGN_CONTAINER(it, struct zmtp_topic, link);
		if (cgn_str_eq((struct cgn_str){t->bytes, t->n}, topic)) {
			cgn_list_drop(&t->link);
			free(t);
			p->n_topics--;
			return;
		}
	}
}

/* ---- receiving ---- */

static bool socket_types_match(enum zmtp_kind kind, struct cgn_str type)
{
	switch (kind) {
	case ZMTP_SUB:
		return cgn_str_is(type, "PUB") || cgn_str_is(type, "XPUB");
	case ZMTP_PUB:
		return cgn_str_is(type, "SUB") || cgn_str_is(type, "XSUB");
	case ZMTP_DEALER:
		return cgn_str_is(type, "ROUTER") || cgn_str_is(type, "REP") || cgn_str_is(type, "DEALER");
	case ZMTP_ROUTER:
		return cgn_str_is(type, "DEALER") || cgn_str_is(type, "REQ") || cgn_str_is(type, "ROUTER");
	}
	return false;
}

static void on_ready(struct zmtp_peer *p, struct cgn_str properties)
{
	struct cgn_str type = zmtp_property(properties, "Socket-Type");
	char why[120];
	if (p->ready || !socket_types_match(p->s->kind, type)) {
		(void)snprintf(why, sizeof why, "a %s socket does not talk with a %.*s one",
			kind_names[p->s->kind], (int)(type.n < 16 ? type.n : 16),
			type.p != NULL ? type.p : "");
		at_fault(p, p->ready ? "READY came twice" : why);
		return;
	}
	p->ready = true;
	p->s->stats.peers++;
	cgn_timer_set(&p->pulse, p->s->heartbeat);
	if (p->s->kind == ZMTP_SUB)
		send_subscription(p);
	zmtp_on_ready(p);
}

static void on_error(struct zmtp_peer *p, struct cgn_str data)
{
	char why[120];
	size_t n = data.n > 0 ? (uint8_t)data.p[0] : 0;
	n = n < data.n ? n : data.n > 0 ? data.n - 1 : 0;
	(void)snprintf(why, sizeof why, "it refused us: %.*s", (int)(n < 80 ? n : 80),
		n > 0 ? data.p + 1 : "");
	at_fault(p, why);
}

/* A PING has two bytes of time to live, then up to 16 bytes that the PONG repeats. */
static void on_ping(struct zmtp_peer *p, struct cgn_str data)
{
	if (data.n < 2 || data.n > 2 + 16)
		at_fault(p, "a malformed PING");
	else
		send_command(p, "PONG", (struct cgn_str){data.p + 2, data.n - 2});
}

static void on_command(struct zmtp_peer *p)
{
	struct cgn_str data, command = p->in.command;
	if (zmtp_command_is(command, "READY", &data))
		on_ready(p, data);
	else if (zmtp_command_is(command, "ERROR", &data))
		on_error(p, data);
	else if (!p->ready)
		at_fault(p, "a command before READY");
	else if (zmtp_command_is(command, "PING", &data))
		on_ping(p, data);
	else if (p->s->kind == ZMTP_PUB && zmtp_command_is(command, "SUBSCRIBE", &data))
		topic_add(p, data);
	else if (p->s->kind == ZMTP_PUB && zmtp_command_is(command, "CANCEL", &data))
		topic_drop(p, data);
}

/* ZMTP 3.0 subscribes by messages: 1 and a topic, or 0 and a topic. */
static void on_publisher_message(struct zmtp_peer *p)
{
	struct cgn_str m = p->in.parts[0];
	if (p->in.n_parts != 1 || m.n == 0)
		return;
	struct cgn_str topic = {m.p + 1, m.n - 1};
	if (m.p[0] == 1)
		topic_add(p, topic);
	else if (m.p[0] == 0)
		topic_drop(p, topic);
}

static void on_message(struct zmtp_peer *p)
{
	if (!p->ready)
		at_fault(p, "a message before READY");
	else if (p->s->kind == ZMTP_PUB)
		on_publisher_message(p);
	else
		zmtp_on_message(p);
}

static void on_data(struct net_conn *c, void *user, const uint8_t *bytes, size_t n)
{
	struct zmtp_peer *p = user;
	struct cgn_str rest = {(const char *)bytes, n};
	enum zmtp_got got;
	(void)c;
	CGN_LIVE(p, ZMTP_PEER_TAG);
	p->heard = cgn_loop_now(p->s->loop);
	p->pings = 0;
	while (!p->ended && (got = zmtp_wire_next(&p->in, &rest)) != ZMTP_GOT_NOTHING) {
		if (got == ZMTP_GOT_GREETING)
			send_ready(p);
		else if (got == ZMTP_GOT_COMMAND)
			on_command(p);
		else if (got == ZMTP_GOT_MESSAGE)
			on_message(p);
		else
			at_fault(p, p->in.fault);
	}
}

/* ---- life ---- */

static bool answers_pings(const struct zmtp_peer *p)
{
	return p->in.major > 3 || p->in.minor >= 1;
}

static void on_pulse(struct cgn_timer *t)
{
	static const struct cgn_str no_ttl = {"\0\0", 2};
	struct zmtp_peer *p = CGN_CONTAINER(t, struct zmtp_peer, pulse);
	CGN_LIVE(p, ZMTP_PEER_TAG);
	cgn_nsec silent = cgn_since(cgn_loop_now(p->s->loop), p->heard);
	if (!p->ready) {
		peer_gone(p, "it did not greet in time");
		return;
	}
	if (net_is_moved(p->conn)) {
		peer_gone(p, "its name stands for another address now");
		return;
	}
	if (answers_pings(p) && silent >= p->s->heartbeat) {
		if (p->pings == UNANSWERED_PINGS) {
			peer_gone(p, "it does not answer pings");
			return;
		}
		p->pings++;
		send_command(p, "PING", no_ttl);
	}
	cgn_timer_set(t, p->s->heartbeat);
}

static void on_open(struct net_conn *c, void *user)
{
	struct zmtp_peer *p = user;
	char greeting[ZMTP_GREETING_BYTES];
	struct cgn_buf b = cgn_buf_over(greeting, sizeof greeting);
	CGN_LIVE(p, ZMTP_PEER_TAG);
	p->conn = c;
	p->heard = cgn_loop_now(p->s->loop);
	cgn_timer_set(&p->pulse, GREETING_TIME);
	zmtp_put_greeting(&b);
	write_bytes(p, cgn_buf_view(&b));
}

static void on_drain(struct net_conn *c, void *user)
{
	struct zmtp_peer *p = user;
	(void)c;
	CGN_LIVE(p, ZMTP_PEER_TAG);
	queue_pump(p);
}

static void on_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	struct zmtp_peer *p = user;
	(void)c;
	CGN_LIVE(p, ZMTP_PEER_TAG);
	p->conn = NULL;
	peer_gone(p, why->code != CGN_FINE ? why->msg : "it closed the connection");
}

const struct net_conn_ops zmtp_peer_ops = {.on_open = on_open,
	.on_data = on_data,
	.on_drain = on_drain,
	.on_close = on_close};

struct zmtp_peer *zmtp_peer_new(struct zmtp *s, struct net_conn *conn)
{
	struct zmtp_peer *p = CGN_NEW(struct zmtp_peer);
	*p = (struct zmtp_peer){.tag = ZMTP_PEER_TAG, .s = s, .conn = conn, .id = ++s->next_id};
	p->heard = cgn_loop_now(s->loop);
	zmtp_wire_init(&p->in, s->max_message);
	p->wait.limit = 2 * (s->queue + ZMTP_MAX_COMMAND); /* At most half of it may be sent already. */
	cgn_list_init(&p->topics);
	cgn_timer_init(&p->pulse, s->loop, on_pulse);
	cgn_list_push(&s->peers, &p->link);
	s->n_peers++;
	return p;
}
