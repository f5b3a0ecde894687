/* SPDX-License-Identifier: Apache-2.0 */
/* redis: the client with a scripted server, on one loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <unistd.h>

#include "base/core/buf.h"
#include "base/resp/resp.h"
#include "io/net/net/net.h"
#include "io/wire/redis/redis.h"
#include "loop_until.h"

enum mood {
	MOOD_GOOD,
	MOOD_SILENT,      /* Takes everything and answers nothing, like a stopped process. */
	MOOD_LOADING,     /* Answers -LOADING to everything. */
	MOOD_READONLY,    /* Refuses writes. */
	MOOD_GARBAGE,     /* Speaks HTTP. */
	MOOD_FORGETFUL,   /* Does not know the script by its hash. */
	MOOD_NEVER_KNOWS, /* Does not know the script by its hash, nor by its text. */
	MOOD_TEXT,        /* Answers with a text. */
	MOOD_MANY,        /* Answers with more numbers than allowed. */
	MOOD_CUT,         /* Sends half of an answer, then closes. */
	MOOD_ENDLESS,     /* Sends an answer that never ends. */
	MOOD_UNASKED,     /* Sends one answer too many. */
	MOOD_SLOW_SCRIPT, /* Answers everything except script runs. */
	MOOD_NO_AUTH,     /* Has no AUTH, and quotes the received words in its error. */
};

struct world {
	struct cgn_loop *l;
	struct net_listener *ln;
	struct net_conn *conns[8];
	size_t n_conns;
	struct cgn_buf in;
	char log[2000]; /* First words of the received commands. */
	const char *password, *user;
	enum mood mood;
	struct redis *r;
	unsigned ready, away;
	char why[200];
	/* Calls that succeeded and calls that failed. */
	unsigned done, failed;
	enum cgn_code code;
	int64_t values[REDIS_MAX_VALUES], sum;
	size_t n;
	unsigned more; /* Calls that each finished call starts. */
};

static void server_say(struct net_conn *c, const char *text)
{
	const struct iovec iov = {(void *)(uintptr_t)text, strlen(text)};
	net_write(c, &iov, 1);
}

static void run_reply(struct world *w, struct net_conn *c, struct cgn_str how, struct cgn_str last)
{
	char text[80];
	if ((w->mood == MOOD_FORGETFUL && cgn_str_is(how, "EVALSHA")) || w->mood == MOOD_NEVER_KNOWS) {
		server_say(c, "-NOSCRIPT No matching script. Please use EVAL.\r\n");
		return;
	}
	switch ((int)w->mood) {
	case MOOD_SLOW_SCRIPT:
		return;
	case MOOD_TEXT:
		server_say(c, "*2\r\n:1\r\n+two\r\n");
		return;
	case MOOD_MANY:
		server_say(c, "*65\r\n");
		for (int i = 0; i <= REDIS_MAX_VALUES; i++)
			server_say(c, ":1\r\n");
		return;
	case MOOD_CUT:
		server_say(c, "*2\r\n:1\r\n:");
		net_close(c);
		return;
	case MOOD_ENDLESS:
		server_say(c, "$1000000\r\n");
		for (int i = 0; i < 20000; i++)
			server_say(c, "0123456789");
		return;
	default:
		(void)snprintf(text, sizeof text, "*2\r\n:1\r\n:%.*s\r\n", CGN_STR_ARG(last));
		server_say(c, text);
		if (w->mood == MOOD_UNASKED)
			server_say(c, ":5\r\n");
	}
}

static void auth_reply(struct world *w, struct net_conn *c, const struct cgn_str *words, size_t n)
{
	const char *user = n == 3 ? "ann" : NULL;
	bool ok = w->password != NULL && cgn_str_is(words[n - 1], w->password) &&
		(user == NULL || cgn_str_is(words[1], user));
	server_say(c, ok ? "+OK\r\n" : "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
}

/* The error of a Redis whose AUTH was renamed. */
static void unknown_reply(struct net_conn *c, const struct cgn_str *words, size_t n)
{
	char text[200];
	(void)snprintf(text, sizeof text,
		"-ERR unknown command '%.*s', with args beginning with: '%.*s' \r\n", CGN_STR_ARG(words[0]),
		CGN_STR_ARG(words[n - 1]));
	server_say(c, text);
}

static void server_reply(struct world *w, struct net_conn *c, const struct cgn_str *words, size_t n)
{
	size_t at = strlen(w->log);
	(void)snprintf(w->log + at, sizeof w->log - at, "%.*s ", CGN_STR_ARG(words[0]));
	if (w->mood == MOOD_SILENT)
		return;
	if (w->mood == MOOD_LOADING)
		server_say(c, "-LOADING Redis is loading the dataset in memory\r\n");
	else if (w->mood == MOOD_GARBAGE)
		server_say(c, "HTTP/1.1 400 Bad Request\r\n\r\n");
	else if (cgn_str_is(words[0], "AUTH") && w->mood == MOOD_NO_AUTH)
		unknown_reply(c, words, n);
	else if (cgn_str_is(words[0], "AUTH"))
		auth_reply(w, c, words, n);
	else if (cgn_str_is(words[0], "SCRIPT"))
		server_say(c, "$40\r\n0123456789012345678901234567890123456789\r\n");
	else if (cgn_str_is(words[0], "SET") && w->mood == MOOD_READONLY)
		server_say(c, "-READONLY You can't write against a read only replica.\r\n");
	else if (cgn_str_starts(words[0], "EVAL"))
		run_reply(w, c, words[0], words[n - 1]);
	else
		server_say(c, "+OK\r\n");
}

static void server_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	size_t len;
	const char *why;
	cgn_buf_add(&w->in, p, n);
	while (resp_whole(cgn_buf_view(&w->in), &len, &why) == RESP_GOT) {
		struct cgn_str rest = cgn_buf_view(&w->in), words[16];
		struct resp_value v;
		assert_int_equal(resp_take(&rest, &v, &why), RESP_GOT);
		size_t k = v.n;
		assert_true(v.type == RESP_ARRAY && k > 0 && k <= 16);
		for (size_t i = 0; i < k; i++) {
			assert_int_equal(resp_take(&rest, &v, &why), RESP_GOT);
			words[i] = v.text;
		}
		server_reply(w, c, words, k);
		cgn_buf_eat(&w->in, len);
	}
}

static void server_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	struct world *w = user;
	(void)why;
	for (size_t i = 0; i < w->n_conns; i++)
		if (w->conns[i] == c)
			w->conns[i] = w->conns[--w->n_conns];
	cgn_buf_fini(&w->in);
}

static const struct net_conn_ops server_ops = {.on_data = server_data, .on_close = server_close};

static void on_accept(void *user, struct net_conn *c)
{
	struct world *w = user;
	assert_true(w->n_conns < CGN_COUNT(w->conns));
	w->conns[w->n_conns++] = c;
	net_conn_take(c, &server_ops, w);
}

static void on_state(void *user, bool ready, const struct cgn_err *why)
{
	struct world *w = user;
	w->ready += ready;
	w->away += !ready;
	if (!ready)
		(void)cgn_str_copyz(w->why, sizeof w->why, cgn_str_of(why->msg));
}

static void listen_at(struct world *w, const char *addr)
{
	const struct net_listen_cfg cfg = {.addr = addr};
	assert_true(cgn_ok(net_listen(w->l, &cfg, on_accept, w, &w->ln, NULL)));
}

static void open_client(struct world *w, const char *url, cgn_nsec timeout)
{
	struct redis_cfg cfg = {.script = "return {1, 2}",
		.probe = "p",
		.timeout = timeout,
		.on_state = on_state,
		.user = w};
	assert_true(cgn_ok(redis_url_parse(url, &cfg.url, NULL)));
	w->r = redis_new(w->l, &cfg);
}

static struct world *world_open(enum mood mood, const char *url_format, cgn_nsec timeout)
{
	struct world *w = calloc(1, sizeof *w);
	char url[200];
	w->mood = mood;
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	listen_at(w, "127.0.0.1:0");
	(void)snprintf(url, sizeof url, "%s127.0.0.1:%u", url_format, net_listener_port(w->ln));
	if (strstr(url_format, "ann") != NULL) /* With a database number. */
		(void)snprintf(url + strlen(url), sizeof url - strlen(url), "/3");
	open_client(w, url, timeout);
	return w;
}

static void world_end(struct world *w)
{
	redis_free(&w->r);
	redis_free(&w->r);
	net_listener_close(&w->ln);
	for (size_t i = 0; i < w->n_conns; i++) {
		net_conn_take(w->conns[i], NULL, NULL);
		net_abort(w->conns[i]);
	}
	cgn_loop_free(&w->l);
	cgn_buf_fini(&w->in);
	free(w);
}

static bool is_ready(struct world *w)
{
	return w->ready > 0;
}

static bool is_away(struct world *w)
{
	return w->away > 0;
}

static bool is_done(struct world *w)
{
	return w->done + w->failed > 0;
}

static void world_call(struct world *w, const char *last, redis_done_fn *done)
{
	const struct cgn_str keys[] = {CGN_STR("a")}, args[] = {CGN_STR("x"), cgn_str_of(last)};
	assert_true(cgn_ok(redis_run(w->r, keys, 1, args, 2, done, w)));
}

static void on_done(void *user, const struct redis_answer *a)
{
	struct world *w = user;
	w->code = a->err->code;
	w->failed += w->code != CGN_FINE;
	w->done += w->code == CGN_FINE;
	w->n = w->code == CGN_FINE ? a->n : 0;
	for (size_t i = 0; i < w->n; i++)
		w->values[i] = a->values[i];
	w->sum += w->n > 1 ? a->values[1] : 0;
	if (w->more > 0 && w->code == CGN_FINE) {
		w->more--;
		world_call(w, "7", on_done);
	}
}

static void a_script_is_run(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://", CGN_SEC);
	assert_false(redis_is_ready(w->r));
	assert_int_equal(redis_run(w->r, NULL, 0, NULL, 0, on_done, w).code, CGN_UNAVAILABLE);
	loop_until(w->l, is_ready, w);
	assert_true(redis_is_ready(w->r));
	world_call(w, "42", on_done);
	assert_int_equal(w->done, 0); /* Never inside the call. */
	loop_until(w->l, is_done, w);
	assert_int_equal(w->n, 2);
	assert_true(w->values[0] == 1 && w->values[1] == 42);
	assert_string_equal(w->log, "SCRIPT SET EVALSHA ");
	assert_int_equal(w->away, 0);
	world_end(w);
}

static bool are_500_done(struct world *w)
{
	return w->done == 500;
}

static void many_calls_are_under_way_at_once(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://", 60 * CGN_SEC);
	loop_until(w->l, is_ready, w);
	w->more = 100;
	for (int i = 0; i < 400; i++)
		world_call(w, "2", on_done);
	loop_until(w->l, are_500_done, w);
	assert_true(w->sum == 400 * 2 + 100 * 7);
	world_call(w, "2", NULL); /* Without a callback. */
	unsigned n = 0;
	while (cgn_ok(redis_run(w->r, NULL, 0, NULL, 0, NULL, NULL)))
		n++;
	assert_int_equal(n, REDIS_MAX_CALLS - 1);
	world_end(w);
}

static void a_call_that_is_too_long_is_refused(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://", CGN_SEC);
	char big[REDIS_MAX_CALL];
	memset(big, 'x', sizeof big);
	const struct cgn_str arg = {big, sizeof big};
	loop_until(w->l, is_ready, w);
	assert_int_equal(redis_run(w->r, NULL, 0, &arg, 1, on_done, w).code, CGN_TOO_LARGE);
	world_call(w, "1", on_done);
	loop_until(w->l, is_done, w);
	assert_int_equal(w->done, 1);
	world_end(w);
}

static void the_client_sends_its_credentials(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://ann:s%3Acret@", CGN_SEC);
	w->password = "s:cret";
	loop_until(w->l, is_ready, w);
	assert_string_equal(w->log, "AUTH SELECT SCRIPT SET ");
	world_end(w);
	w = world_open(MOOD_GOOD, "redis://:wrong@", CGN_SEC);
	w->password = "right";
	loop_until(w->l, is_away, w);
	assert_non_null(strstr(w->why, "WRONGPASS"));
	assert_null(strstr(w->why, "wrong@"));
	w->password = "wrong"; /* The server accepts the password now; the client retries by itself. */
	loop_until(w->l, is_ready, w);
	assert_int_equal(w->away, 1);
	world_end(w);
}

static void what_a_server_says_of_a_password_is_not_told(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_NO_AUTH, "redis://:s3cr3t@", CGN_SEC);
	loop_until(w->l, is_away, w);
	assert_non_null(strstr(w->why, "AUTH: ERR"));
	assert_null(strstr(w->why, "s3cr3t"));
	world_end(w);
}

static void a_server_that_cannot_be_used_is_away(void **state)
{
	(void)state;
	static const struct {
		enum mood mood;
		const char *says;
	} rows[] = {{MOOD_LOADING, "LOADING"}, {MOOD_READONLY, "READONLY"}, {MOOD_GARBAGE, "no known type"},
		{MOOD_SILENT, "in time"}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct world *w = world_open(rows[i].mood, "redis://", CGN_SEC);
		loop_until(w->l, is_away, w);
		if (strstr(w->why, rows[i].says) == NULL)
			fail_msg("row %zu: %s", i, w->why);
		assert_false(redis_is_ready(w->r));
		w->mood = MOOD_GOOD;
		loop_until(w->l, is_ready, w);
		assert_int_equal(w->away, 1); /* Reported once, however many attempts there were. */
		world_end(w);
	}
}

/* A fault during a call: the call ends, the client is away, and it reconnects. */
static void what_goes_wrong_in_a_call_ends_it(void **state)
{
	(void)state;
	static const struct {
		enum mood mood;
		enum cgn_code code;
		const char *says;
	} rows[] = {
		{MOOD_SILENT, CGN_DEADLINE, "in time"},
		{MOOD_SLOW_SCRIPT, CGN_DEADLINE, "in time"},
		{MOOD_LOADING, CGN_UNAVAILABLE, "LOADING"},
		{MOOD_GARBAGE, CGN_UNAVAILABLE, "no known type"},
		{MOOD_NEVER_KNOWS, CGN_UNAVAILABLE, "NOSCRIPT"},
		{MOOD_TEXT, CGN_UNAVAILABLE, "no list of numbers"},
		{MOOD_MANY, CGN_UNAVAILABLE, "no list of numbers"},
		{MOOD_CUT, CGN_UNAVAILABLE, ""},
		{MOOD_ENDLESS, CGN_UNAVAILABLE, "too long an answer"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		cgn_nsec timeout = rows[i].code == CGN_DEADLINE ? 200 * CGN_MSEC : 30 * CGN_SEC;
		struct world *w = world_open(MOOD_GOOD, "redis://", timeout);
		loop_until(w->l, is_ready, w);
		w->mood = rows[i].mood;
		world_call(w, "1", on_done);
		world_call(w, "1", on_done);
		loop_until(w->l, is_away, w);
		assert_int_equal(w->failed, 2);
		if (w->code != rows[i].code)
			fail_msg("row %zu: %s", i, cgn_code_name(w->code));
		if (strstr(w->why, rows[i].says) == NULL)
			fail_msg("row %zu: %s", i, w->why);
		assert_int_equal(redis_run(w->r, NULL, 0, NULL, 0, on_done, w).code, CGN_UNAVAILABLE);
		w->mood = MOOD_GOOD;
		while (w->done == 0) { /* A slow machine may need more than one call. */
			w->ready = w->failed = 0;
			loop_until(w->l, is_ready, w);
			world_call(w, "5", on_done);
			loop_until(w->l, is_done, w);
		}
		assert_true(w->values[1] == 5);
		world_end(w);
	}
}

static void an_answer_too_many_ends_the_connection(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://", CGN_SEC);
	loop_until(w->l, is_ready, w);
	w->mood = MOOD_UNASKED;
	world_call(w, "1", on_done);
	loop_until(w->l, is_away, w);
	assert_int_equal(w->done, 1);
	assert_non_null(strstr(w->why, "nobody asked for"));
	world_end(w);
}

static void a_script_that_was_flushed_is_sent_again(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://", CGN_SEC);
	loop_until(w->l, is_ready, w);
	w->mood = MOOD_FORGETFUL;
	world_call(w, "9", on_done);
	loop_until(w->l, is_done, w);
	assert_int_equal(w->done, 1);
	assert_true(w->values[1] == 9);
	assert_int_equal(w->away, 0);
	assert_string_equal(w->log, "SCRIPT SET EVALSHA EVAL ");
	world_end(w);
}

static void an_absent_server_is_tried_again(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://", CGN_SEC);
	char addr[40];
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", net_listener_port(w->ln));
	loop_until(w->l, is_ready, w);
	net_listener_close(&w->ln);
	net_abort(w->conns[0]);
	loop_until(w->l, is_away, w);
	w->ready = 0;
	listen_at(w, addr);
	loop_until(w->l, is_ready, w);
	assert_int_equal(w->away, 1);
	world_end(w);
}

static void closing_ends_what_is_under_way(void **state)
{
	(void)state;
	struct world *w = world_open(MOOD_GOOD, "redis://", CGN_SEC);
	loop_until(w->l, is_ready, w);
	w->mood = MOOD_SILENT;
	world_call(w, "1", on_done);
	redis_free(&w->r);
	assert_int_equal(w->failed, 1);
	assert_int_equal(w->code, CGN_CANCELLED);
	assert_int_equal(w->away, 0);
	world_end(w);
}

static void addresses_are_read(void **state)
{
	(void)state;
	static const struct {
		const char *text, *addr, *user, *password;
		unsigned db;
		bool tls;
	} good[] = {
		{"redis://h", "h:6379", "", "", 0, false},
		{"redis://h:1/", "h:1", "", "", 0, false},
		{"redis://h:1/15", "h:1", "", "", 15, false},
		{"rediss://:p%40ss@h:1/2", "h:1", "", "p@ss", 2, true},
		{"redis://ann:a:b@c@h", "h:6379", "ann", "a:b@c", 0, false},
		{"redis://[::1]", "[::1]:6379", "", "", 0, false},
		{"redis://[::1]:7/1", "[::1]:7", "", "", 1, false},
		{"unix:/run/redis.sock", "unix:/run/redis.sock", "", "", 0, false},
		{"unix:///run/redis.sock?db=4", "unix:/run/redis.sock", "", "", 4, false},
	};
	static const char *const bad[] = {"", "h:6379", "http://h", "redis://", "redis://:p@", "redis://h:x",
		"redis://h/x", "redis://h/65536", "redis://:%zz@h", "redis://:%00@h", "redis://:%4@h",
		"unix:", "unix:/x?y=1", "unix:/x?ab=1", "unix:/x?", "unix:/x?db=z"};
	struct redis_url u;
	struct cgn_err err;
	for (size_t i = 0; i < CGN_COUNT(good); i++) {
		if (!cgn_ok(redis_url_parse(good[i].text, &u, &err)))
			fail_msg("%s: %s", good[i].text, err.msg);
		assert_string_equal(u.addr, good[i].addr);
		assert_string_equal(u.user, good[i].user);
		assert_string_equal(u.password, good[i].password);
		assert_int_equal(u.db, good[i].db);
		assert_true(u.tls == good[i].tls);
	}
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		if (redis_url_parse(bad[i], &u, &err).code != CGN_INVALID)
			fail_msg("\"%s\" was taken", bad[i]);
	assert_int_equal(redis_url_parse("redis://:secret@h:x", &u, &err).code, CGN_INVALID);
	assert_null(strstr(err.msg, "secret"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_script_is_run),
		cmocka_unit_test(many_calls_are_under_way_at_once),
		cmocka_unit_test(a_call_that_is_too_long_is_refused),
		cmocka_unit_test(the_client_sends_its_credentials),
		cmocka_unit_test(what_a_server_says_of_a_password_is_not_told),
		cmocka_unit_test(a_server_that_cannot_be_used_is_away),
		cmocka_unit_test(what_goes_wrong_in_a_call_ends_it),
		cmocka_unit_test(an_answer_too_many_ends_the_connection),
		cmocka_unit_test(a_script_that_was_flushed_is_sent_again),
		cmocka_unit_test(an_absent_server_is_tried_again),
		cmocka_unit_test(closing_ends_what_is_under_way),
		cmocka_unit_test(addresses_are_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
