/* SPDX-License-Identifier: Apache-2.0 */
/* zmtp: two of our sockets on one loop, misbehaving peers, and the framing by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <unistd.h>

#include "io/wire/zmtp/zmtp_priv.h"
#include "loop_until.h"

struct end {
	struct zmtp *s;
	unsigned up, down, retrying, messages;
	uint64_t peer;
	size_t n_parts;
	char last[300], why[200];
	size_t last_n[ZMTP_MAX_PARTS];
	bool close_on_message, answer;
};

struct world {
	struct cgn_loop *l;
	struct end server, client;
	char endpoint[128];
};

static void on_message(struct zmtp *s, void *user, uint64_t peer, const struct cgn_str *parts, size_t n)
{
	struct end *e = user;
	struct cgn_buf b = cgn_buf_over(e->last, sizeof e->last - 1);
	e->messages++;
	e->peer = peer;
	e->n_parts = n;
	for (size_t i = 0; i < n; i++) {
		e->last_n[i] = parts[i].n;
		if (parts[i].n < 100)
			cgn_buf_str(&b, parts[i]);
		cgn_buf_char(&b, '|');
	}
	e->last[b.n] = '\0';
	if (e->answer)
		assert_true(cgn_ok(zmtp_send_to(s, peer, parts, n)));
	if (e->close_on_message)
		zmtp_close(&e->s);
}

static void on_link(struct zmtp *s, void *user, uint64_t peer, enum zmtp_link what, const char *why)
{
	struct end *e = user;
	(void)s;
	e->peer = peer;
	e->up += what == ZMTP_CONNECTED;
	e->down += what == ZMTP_DISCONNECTED;
	e->retrying += what == ZMTP_RETRYING;
	if (what != ZMTP_CONNECTED)
		(void)cgn_str_copyz(e->why, sizeof e->why, cgn_str_of(why));
}

static const struct zmtp_ops ops = {.on_message = on_message, .on_link = on_link};

static void run_until(struct world *w, bool (*done)(struct world *w))
{
	loop_until(w->l, done, w);
}

static struct zmtp *open_one(struct world *w, struct end *e, const struct zmtp_cfg *cfg)
{
	struct cgn_err err = {0};
	if (!cgn_ok(zmtp_open(w->l, cfg, &ops, e, &e->s, &err)))
		fail_msg("%s", err.msg);
	return e->s;
}

static void open_pair(struct world *w, enum zmtp_kind server, enum zmtp_kind client, struct cgn_str topic)
{
	struct zmtp *s = open_one(w, &w->server,
		&(struct zmtp_cfg){.kind = server, .endpoint = "tcp://127.0.0.1:0", .bind = true});
	(void)snprintf(w->endpoint, sizeof w->endpoint, "tcp://127.0.0.1:%u", zmtp_port(s));
	(void)open_one(w, &w->client,
		&(struct zmtp_cfg){.kind = client, .endpoint = w->endpoint, .topic = topic});
}

static void world_open(struct world *w)
{
	*w = (struct world){0};
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
}

static void world_close(struct world *w)
{
	zmtp_close(&w->client.s);
	zmtp_close(&w->server.s);
	cgn_loop_free(&w->l);
}

static bool peer_subscribed(struct world *w)
{
	cgn_list_each (it, &w->server.s->peers)
		if (CGN_CONTAINER(it, struct zmtp_peer, link)->n_topics > 0)
			return true;
	return false;
}
static bool both_up(struct world *w)
{
	return w->server.up > w->server.down && w->client.up > w->client.down;
}
static bool client_got(struct world *w)
{
	return w->client.messages > 0;
}
static bool client_got_all(struct world *w)
{
	return w->client.messages == 1000;
}
static bool client_down(struct world *w)
{
	return w->client.down + w->client.retrying > 0;
}
static bool client_up_twice(struct world *w)
{
	return w->client.up == 2;
}

static void publishes_what_is_subscribed_to(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	open_pair(&w, ZMTP_PUB, ZMTP_SUB, CGN_STR("kv@"));
	run_until(&w, peer_subscribed);
	struct cgn_str other[] = {CGN_STR("log"), CGN_STR("x")},
		       ours[] = {CGN_STR("kv@a"), CGN_STR("12345678"), CGN_STR("")};
	assert_true(cgn_ok(zmtp_send(w.server.s, other, 2)));
	assert_true(cgn_ok(zmtp_send(w.server.s, ours, 3)));
	run_until(&w, client_got);
	assert_string_equal(w.client.last, "kv@a|12345678||");
	assert_int_equal(w.client.n_parts, 3);
	assert_int_equal(zmtp_stats(w.server.s).sent, 1);
	assert_int_equal(zmtp_stats(w.server.s).peers, 1);
	world_close(&w);
}

static void a_router_answers_its_dealer(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	w.server.answer = true;
	open_pair(&w, ZMTP_ROUTER, ZMTP_DEALER, (struct cgn_str){0});
	struct cgn_str ask[] = {CGN_STR(""), CGN_STR("\0\0\0\0\0\0\0\7")};
	assert_int_equal(zmtp_send(w.client.s, ask, 2).code, CGN_UNAVAILABLE);
	run_until(&w, both_up);
	assert_true(cgn_ok(zmtp_send(w.client.s, ask, 2)));
	run_until(&w, client_got);
	assert_int_equal(w.client.n_parts, 2);
	assert_int_equal(w.client.last_n[1], 8);
	assert_int_equal(zmtp_send_to(w.server.s, 4711, ask, 2).code, CGN_NOT_FOUND);
	assert_int_equal(zmtp_send(w.client.s, ask, 0).code, CGN_INVALID);
	assert_int_equal(zmtp_send(w.client.s, ask, ZMTP_MAX_PARTS + 1).code, CGN_INVALID);
	world_close(&w);
}

static void large_messages_go_through_the_queue(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	open_pair(&w, ZMTP_ROUTER, ZMTP_DEALER, (struct cgn_str){0});
	run_until(&w, both_up);
	char *big = malloc(9000000);
	assert_non_null(big);
	memset(big, 'b', 9000000);
	struct cgn_str parts[] = {CGN_STR("head"), {big, 9000000}, {big, 255}, {big, 256}};
	assert_true(cgn_ok(zmtp_send_to(w.server.s, w.server.peer, parts, 4)));
	unsigned more = 0; /* At most 16 MiB wait, beside the kernel's buffers. */
	while (more < 10 && cgn_ok(zmtp_send_to(w.server.s, w.server.peer, parts, 4)))
		more++;
	assert_in_range(more, 0, 9);
	free(big);
	run_until(&w, client_got);
	assert_int_equal(w.client.last_n[1], 9000000);
	assert_int_equal(w.client.last_n[2], 255);
	assert_int_equal(w.client.last_n[3], 256);
	assert_int_equal(zmtp_stats(w.server.s).dropped, 1);
	world_close(&w);
}

static void many_keep_their_order(void **state)
{
	struct world w;
	char text[1024];
	(void)state;
	world_open(&w);
	open_pair(&w, ZMTP_ROUTER, ZMTP_DEALER, (struct cgn_str){0});
	run_until(&w, both_up);
	memset(text, 'x', sizeof text);
	for (unsigned i = 0; i < 1000; i++) {
		(void)snprintf(text, 8, "%u", i);
		struct cgn_str parts[] = {{text, strlen(text)}, {text, sizeof text}};
		assert_true(cgn_ok(zmtp_send_to(w.server.s, w.server.peer, parts, 2)));
	}
	run_until(&w, client_got_all);
	assert_string_equal(w.client.last, "999||");
	world_close(&w);
}

static void comes_back_after_a_restart(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	char path[64];
	(void)snprintf(path, sizeof path, "ipc:///tmp/io_zmtp.%d", (int)getpid());
	const struct zmtp_cfg server = {.kind = ZMTP_PUB, .endpoint = path, .bind = true};
	(void)open_one(&w, &w.client, &(struct zmtp_cfg){.kind = ZMTP_SUB, .endpoint = path});
	run_until(&w, client_down); /* There is no listener yet. */
	assert_int_equal(w.client.up, 0);
	(void)open_one(&w, &w.server, &server);
	run_until(&w, both_up);
	unsigned failures = w.client.s->backoff.failures;
	assert_true(failures > 0); /* A greeting alone does not end the backoff. */
	zmtp_close(&w.server.s);
	assert_null(w.server.s);
	w.client.retrying = 0;
	run_until(&w, client_down);
	assert_int_equal(w.client.s->backoff.failures, failures + 1);
	assert_string_equal(w.client.why, "it closed the connection");
	w.server = (struct end){0};
	(void)open_one(&w, &w.server, &server);
	run_until(&w, client_up_twice);
	run_until(&w, peer_subscribed);
	world_close(&w);
}

static void may_be_closed_by_its_own_callback(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	open_pair(&w, ZMTP_ROUTER, ZMTP_DEALER, (struct cgn_str){0});
	run_until(&w, both_up);
	w.server.close_on_message = true;
	struct cgn_str m = CGN_STR("bye");
	for (unsigned i = 0; i < 3; i++) /* In one read. */
		assert_true(cgn_ok(zmtp_send(w.client.s, &m, 1)));
	run_until(&w, client_down);
	assert_int_equal(w.server.messages, 1);
	assert_null(w.server.s);
	world_close(&w);
}

static void kinds_that_do_not_fit_part(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	open_pair(&w, ZMTP_ROUTER, ZMTP_SUB, (struct cgn_str){0});
	run_until(&w, client_down);
	assert_int_equal(w.client.up + w.server.up, 0);
	assert_non_null(strstr(w.client.why, "a SUB socket does not talk with a ROUTER one"));
	world_close(&w);
}

/* A bare connection that sends |bytes| to a ROUTER. */
struct raw {
	struct cgn_str bytes;
	unsigned closes;
	size_t got;
};
static void raw_open(struct net_conn *c, void *user)
{
	struct raw *r = user;
	struct iovec iov = {.iov_len = r->bytes.n};
	memcpy(&iov.iov_base, &r->bytes.p, sizeof r->bytes.p);
	net_write(c, &iov, 1);
}
static void raw_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)p;
	((struct raw *)user)->got += n;
}
static void raw_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)why;
	((struct raw *)user)->closes++;
}
static const struct net_conn_ops raw_ops = {.on_open = raw_open, .on_data = raw_data, .on_close = raw_close};

static struct raw raw;
static bool raw_closed(struct world *w)
{
	(void)w;
	return raw.closes > 0;
}
static bool raw_was_answered(struct world *w)
{
	struct cgn_buf pong = {0};
	zmtp_put_command(&pong, "PONG", CGN_STR("ctx"));
	size_t least = ZMTP_GREETING_BYTES + pong.n;
	cgn_buf_fini(&pong);
	(void)w;
	return raw.got > least;
}

static void raw_say(struct world *w, struct cgn_str bytes, bool greet, const char *type,
	bool (*until_what)(struct world *))
{
	struct cgn_buf b = {0}, ready = {0};
	struct net_conn *c = NULL;
	char addr[64];
	if (greet)
		zmtp_put_greeting(&b);
	if (type != NULL) {
		zmtp_put_property(&ready, "X-Other", CGN_STR("1"));
		zmtp_put_property(&ready, "socket-type", cgn_str_of(type));
		zmtp_put_command(&b, "READY", cgn_buf_view(&ready));
	}
	cgn_buf_str(&b, bytes);
	raw = (struct raw){.bytes = cgn_buf_view(&b)};
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", zmtp_port(w->server.s));
	assert_true(cgn_ok(net_connect(w->l, &(struct net_dial){.addr = addr}, &raw_ops, &raw, &c, NULL)));
	run_until(w, until_what);
	if (raw.closes == 0)
		net_abort(c);
	run_until(w, raw_closed);
	cgn_buf_fini(&b);
	cgn_buf_fini(&ready);
}

static void faulty_peers_are_put_out(void **state)
{
	const struct {
		struct cgn_str bytes;
		bool greet;
		const char *type;
	} rows[] = {
		{CGN_STR("GET / HTTP/1.1\r\n\r\n"), false, NULL},
		{CGN_STR("\xff\0\0\0\0\0\0\0\0\x7f\1"), false, NULL}, /* ZMTP 2 */
		/* A message before READY. */
		{CGN_STR("\0\1x"), true, NULL},
		/* A command before READY. */
		{CGN_STR("\4\5\4PING"), true, NULL},
		/* A READY without its name. */
		{CGN_STR("\4\1\4"), true, "DEALER"},
		{CGN_STR("\4\0"), true, "DEALER"},       /* No name. */
		{CGN_STR("\4\5\4PING"), true, "DEALER"}, /* No time to live. */
		/* A command with the MORE flag. */
		{CGN_STR("\5\5\4PING"), true, "DEALER"},
		{CGN_STR("\x10\0"), true, "DEALER"},                             /* An unknown flag. */
		{CGN_STR("\2\xff\xff\xff\xff\xff\xff\xff\xff"), true, "DEALER"}, /* 2^64 - 1 bytes. */
		/* 17 parts. */
		{CGN_STR("\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0"), true,
			"DEALER"},
		{CGN_STR("\4\7\5ERROR\0"), true, "DEALER"},
		{CGN_STR(""), true, "PUB"},
	};
	struct world w;
	(void)state;
	world_open(&w);
	(void)open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_ROUTER, .endpoint = "tcp://127.0.0.1:0", .bind = true});
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		raw_say(&w, rows[i].bytes, rows[i].greet, rows[i].type, raw_closed);
		assert_int_equal(zmtp_stats(w.server.s).faults, i + 1);
		assert_int_equal(zmtp_stats(w.server.s).peers, 0);
	}
	assert_int_equal(w.server.messages, 0);
	world_close(&w);
}

static void pings_are_answered_and_unknown_commands_passed_over(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	(void)open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_ROUTER, .endpoint = "tcp://127.0.0.1:0", .bind = true});
	raw_say(&w, CGN_STR("\4\4\3NEW\4\12\4PING\0\0ctx"), true, "REQ", raw_was_answered);
	assert_int_equal(zmtp_stats(w.server.s).faults, 0);
	assert_int_equal(w.server.up, 1);
	world_close(&w);
}

static bool server_down(struct world *w)
{
	return w->server.down > 0;
}

static void a_silent_peer_is_given_up(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	(void)open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_ROUTER,
			.endpoint = "tcp://127.0.0.1:0",
			.bind = true,
			.heartbeat = 10 * CGN_MSEC});
	raw_say(&w, CGN_STR(""), true, "DEALER", server_down);
	assert_string_equal(w.server.why, "it does not answer pings");
	world_close(&w);
}

static bool raw_pinged(struct world *w)
{
	const struct zmtp_peer *p = CGN_CONTAINER(w->server.s->peers.next, struct zmtp_peer, link);
	return cgn_loop_now(w->l) - p->heard < 10 * CGN_MSEC && w->client.retrying++ > 50;
}

static void pings_keep_an_idle_link(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	struct zmtp *s = open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_PUB,
			.endpoint = "tcp://127.0.0.1:0",
			.bind = true,
			.heartbeat = 200 * CGN_MSEC});
	(void)snprintf(w.endpoint, sizeof w.endpoint, "tcp://127.0.0.1:%u", zmtp_port(s));
	(void)open_one(&w, &w.client,
		&(struct zmtp_cfg){.kind = ZMTP_SUB, .endpoint = w.endpoint, .heartbeat = 5 * CGN_MSEC});
	run_until(&w, both_up);
	run_until(&w, raw_pinged);
	assert_int_equal(w.client.down + w.server.down, 0);
	world_close(&w);
}

static bool peer_unsubscribed(struct world *w)
{
	return !peer_subscribed(w);
}

/* Subscriptions as messages, as libzmq before 4.3.3 sends them. */
static void old_subscriptions_count(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	(void)open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_PUB, .endpoint = "tcp://127.0.0.1:0", .bind = true});
	raw_say(&w, CGN_STR("\0\3\1kv"), true, "SUB", peer_subscribed);
	run_until(&w, peer_unsubscribed);
	raw_say(&w, CGN_STR("\4\14\11SUBSCRIBEkv"), true, "SUB", peer_subscribed);
	struct cgn_str topics[ZMTP_MAX_TOPICS + 1];
	struct cgn_buf many = {0};
	for (size_t i = 0; i < CGN_COUNT(topics); i++) {
		topics[i] = CGN_STR("\1k");
		zmtp_put_message(&many, &topics[i], 1);
	}
	raw_say(&w, cgn_buf_view(&many), true, "SUB", raw_closed);
	assert_int_equal(zmtp_stats(w.server.s).faults, 1);
	cgn_buf_fini(&many);
	world_close(&w);
}

/* A bare publisher of ZMTP |major|.|minor|; |got| is what the subscriber sent. */
static struct {
	struct net_listener *listener;
	struct net_conn *conn;
	uint8_t major, minor;
	struct cgn_buf got;
} old;

static void old_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)user;
	cgn_buf_add(&old.got, p, n);
}

static void old_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
	old.conn = NULL;
}

static const struct net_conn_ops old_ops = {.on_data = old_data, .on_close = old_close};

static void old_accept(void *user, struct net_conn *c)
{
	struct cgn_buf b = {0}, ready = {0};
	(void)user;
	net_conn_take(c, &old_ops, NULL);
	old.conn = c;
	zmtp_put_greeting(&b);
	b.p[10] = (char)old.major;
	b.p[11] = (char)old.minor;
	zmtp_put_property(&ready, "Socket-Type", CGN_STR("PUB"));
	zmtp_put_command(&b, "READY", cgn_buf_view(&ready));
	struct iovec iov = {b.p, b.n};
	net_write(c, &iov, 1);
	cgn_buf_fini(&b);
	cgn_buf_fini(&ready);
}

static bool old_is_asked(struct world *w)
{
	static const struct cgn_str three_0 = {"\0\4\1kv@", 6}, three_1 = {"\4\15\11SUBSCRIBEkv@", 15};
	struct cgn_str got = cgn_buf_view(&old.got),
		       want = old.major == 3 && old.minor == 0 ? three_0 : three_1;
	(void)w;
	return got.n > want.n && memcmp(got.p + got.n - want.n, want.p, want.n) == 0;
}

static bool old_is_left(struct world *w)
{
	(void)w;
	return old.conn == NULL;
}

/* RFC 23 subscribes by a message, RFC 37 by a command; a publisher ignores the other one's. */
static void a_subscription_has_the_publishers_version(void **state)
{
	static const uint8_t versions[][2] = {{3, 0}, {3, 1}, {4, 0}};
	struct world w;
	struct cgn_err err = {0};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(versions); i++) {
		world_open(&w);
		old.major = versions[i][0];
		old.minor = versions[i][1];
		assert_true(cgn_ok(net_listen(w.l, &(struct net_listen_cfg){.addr = "127.0.0.1:0"},
			old_accept, NULL, &old.listener, &err)));
		(void)snprintf(w.endpoint, sizeof w.endpoint, "tcp://127.0.0.1:%u",
			net_listener_port(old.listener));
		(void)open_one(&w, &w.client,
			&(struct zmtp_cfg){.kind = ZMTP_SUB,
				.endpoint = w.endpoint,
				.topic = CGN_STR("kv@")});
		run_until(&w, old_is_asked);
		assert_int_equal(zmtp_stats(w.client.s).faults, 0);
		net_listener_close(&old.listener);
		zmtp_close(&w.client.s);
		run_until(&w, old_is_left);
		cgn_buf_fini(&old.got);
		world_close(&w);
	}
}

static void what_is_not_set_has_its_default(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	const struct zmtp *s = open_one(&w, &w.client,
		&(struct zmtp_cfg){.kind = ZMTP_SUB, .endpoint = "tcp://127.0.0.1:1"});
	assert_int_equal(s->max_message, 16 << 20);
	assert_int_equal(s->queue, 16 << 20);
	assert_int_equal(s->heartbeat, 5 * CGN_SEC);
	s = open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_SUB,
			.endpoint = "tcp://127.0.0.1:1",
			.max_message = 1,
			.queue = 2,
			.heartbeat = 3});
	assert_int_equal(s->max_message, 1);
	assert_int_equal(s->queue, 2);
	assert_int_equal(s->heartbeat, 3);
	world_close(&w);
}

/* The first topic was taken back in the same bytes. */
static bool only_the_other_topic_is_sent(struct world *w)
{
	struct cgn_link *l = cgn_list_first(&w->server.s->peers);
	const struct cgn_str dropped[] = {CGN_STR("kv1")}, kept[] = {CGN_STR("zz1")};
	if (l == NULL || CGN_CONTAINER(l, struct zmtp_peer, link)->n_topics != 1)
		return false;
	assert_true(cgn_ok(zmtp_send(w->server.s, dropped, 1)));
	assert_int_equal(zmtp_stats(w->server.s).sent, 0);
	assert_true(cgn_ok(zmtp_send(w->server.s, kept, 1)));
	assert_int_equal(zmtp_stats(w->server.s).sent, 1);
	return true;
}

static void a_topic_that_was_taken_back_is_sent_no_more(void **state)
{
	struct world w;
	(void)state;
	world_open(&w);
	(void)open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_PUB, .endpoint = "tcp://127.0.0.1:0", .bind = true});
	raw_say(&w, CGN_STR("\0\3\1kv\0\3\1zz\0\3\0kv"), true, "SUB", only_the_other_topic_is_sent);
	zmtp_close(&w.server.s);
	(void)open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_PUB, .endpoint = "tcp://127.0.0.1:0", .bind = true});
	raw_say(&w, CGN_STR("\0\3\1kv\0\3\1zz\4\11\6CANCELkv"), true, "SUB", only_the_other_topic_is_sent);
	world_close(&w);
}

static void endpoints_are_parsed(void **state)
{
	static const struct {
		const char *text;
		bool ok;
	} rows[] = {{"tcp://127.0.0.1:5557", true}, {"tcp://*:5557", true}, {"tcp://[::1]:1", true},
		{"ipc:///run/x", true}, {"tcp://host", false}, {"ipc://x", false}, {"udp://a:1", false},
		{"127.0.0.1:5557", false}, {"", false}, {"tcp://a:70000", false}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_err err = {0};
		assert_int_equal(cgn_ok(zmtp_endpoint_check(rows[i].text, &err)), rows[i].ok);
		assert_int_equal(err.msg[0] == '\0', rows[i].ok);
	}
	struct world w;
	struct cgn_err err = {0};
	char topic[ZMTP_MAX_TOPIC + 1] = {0};
	world_open(&w);
	assert_int_equal(zmtp_open(w.l, &(struct zmtp_cfg){.kind = ZMTP_SUB, .endpoint = "tcp://*:1"}, &ops,
				 NULL, &w.client.s, &err)
				 .code,
		CGN_INVALID);
	assert_int_equal(zmtp_open(w.l,
				 &(struct zmtp_cfg){.kind = ZMTP_DEALER,
					 .endpoint = "tcp://*:1",
					 .bind = true},
				 &ops, NULL, &w.client.s, &err)
				 .code,
		CGN_INVALID);
	assert_int_equal(zmtp_open(w.l,
				 &(struct zmtp_cfg){.kind = ZMTP_SUB,
					 .endpoint = "tcp://h:1",
					 .topic = {topic, sizeof topic}},
				 &ops, NULL, &w.client.s, &err)
				 .code,
		CGN_INVALID);
	(void)open_one(&w, &w.server,
		&(struct zmtp_cfg){.kind = ZMTP_PUB, .endpoint = "tcp://127.0.0.1:0", .bind = true});
	(void)snprintf(w.endpoint, sizeof w.endpoint, "tcp://127.0.0.1:%u", zmtp_port(w.server.s));
	assert_int_equal(zmtp_open(w.l,
				 &(struct zmtp_cfg){.kind = ZMTP_PUB, .endpoint = w.endpoint, .bind = true},
				 &ops, NULL, &w.client.s, &err)
				 .code,
		CGN_ADDRESS_IN_USE);
	assert_null(w.client.s);
	world_close(&w);
}

/* Byte by byte, with a command between two messages. */
static void a_message_may_be_empty(void **state)
{
	struct zmtp_wire w;
	struct cgn_buf b = {0};
	(void)state;
	zmtp_put_greeting(&b);
	cgn_buf_add(&b, "\1\0\0\0\4\0", 6);
	struct cgn_str rest = cgn_buf_view(&b);
	zmtp_wire_init(&w, 8);
	assert_int_equal(zmtp_wire_next(&w, &rest), ZMTP_GOT_GREETING);
	assert_int_equal(zmtp_wire_next(&w, &rest), ZMTP_GOT_MESSAGE);
	assert_int_equal(w.n_parts, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_true(w.parts[i].p != NULL && w.parts[i].n == 0);
	assert_int_equal(zmtp_wire_next(&w, &rest), ZMTP_GOT_FAULT);
	assert_string_equal(w.fault, "a command without a name");
	zmtp_wire_fini(&w);
	cgn_buf_fini(&b);
}

static void frames_in_pieces(void **state)
{
	struct zmtp_wire w;
	struct cgn_buf b = {0};
	struct cgn_str parts[] = {CGN_STR("one"), CGN_STR(""), CGN_STR("three")}, data;
	unsigned messages = 0, commands = 0;
	(void)state;
	zmtp_put_greeting(&b);
	zmtp_put_message(&b, parts, 3);
	zmtp_put_command(&b, "NAME", CGN_STR("data"));
	zmtp_put_message(&b, parts, 1);
	zmtp_wire_init(&w, 8);
	for (size_t i = 0; i < b.n; i++) {
		struct cgn_str rest = {b.p + i, 1};
		enum zmtp_got got = zmtp_wire_next(&w, &rest);
		assert_int_not_equal(got, ZMTP_GOT_FAULT);
		assert_int_equal(rest.n, 0);
		if (got == ZMTP_GOT_MESSAGE) {
			assert_int_equal(w.n_parts, messages++ == 0 ? 3 : 1);
			assert_true(cgn_str_is(w.parts[0], "one"));
			assert_true(w.n_parts == 1 || cgn_str_is(w.parts[2], "three"));
		}
		commands += got == ZMTP_GOT_COMMAND && zmtp_command_is(w.command, "NAME", &data) &&
			cgn_str_is(data, "data");
	}
	assert_int_equal(messages, 2);
	assert_int_equal(commands, 1);
	struct cgn_str rest = CGN_STR("\1\6 five \0\4four");
	while (rest.n > 0 && zmtp_wire_next(&w, &rest) != ZMTP_GOT_FAULT)
		continue;
	assert_string_equal(w.fault, "a message that is too long"); /* The parts count together. */
	zmtp_wire_fini(&w);
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(publishes_what_is_subscribed_to),
		cmocka_unit_test(a_router_answers_its_dealer),
		cmocka_unit_test(large_messages_go_through_the_queue),
		cmocka_unit_test(many_keep_their_order),
		cmocka_unit_test(comes_back_after_a_restart),
		cmocka_unit_test(may_be_closed_by_its_own_callback),
		cmocka_unit_test(kinds_that_do_not_fit_part),
		cmocka_unit_test(faulty_peers_are_put_out),
		cmocka_unit_test(pings_are_answered_and_unknown_commands_passed_over),
		cmocka_unit_test(a_silent_peer_is_given_up),
		cmocka_unit_test(pings_keep_an_idle_link),
		cmocka_unit_test(old_subscriptions_count),
		cmocka_unit_test(a_subscription_has_the_publishers_version),
		cmocka_unit_test(what_is_not_set_has_its_default),
		cmocka_unit_test(a_topic_that_was_taken_back_is_sent_no_more),
		cmocka_unit_test(endpoints_are_parsed),
		cmocka_unit_test(frames_in_pieces),
		cmocka_unit_test(a_message_may_be_empty),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
