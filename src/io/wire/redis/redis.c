/* SPDX-License-Identifier: Apache-2.0 */
/* redis: one connection, its handshake, and calls in sending order. */
#include "io/wire/redis/redis.h"

#include <stdlib.h>

#include "base/resp/resp.h"
#include "base/unlikely/unlikely.h"
#include "io/net/net/net.h"
#include "io/os/loop/backoff.h"

#define REDIS_TAG     0x4ed15c01U
#define CALL_TAG      0x4ed15c02U
#define HANDSHAKE     CGN_SEC /* Timeout of the connection, and then of each handshake step. */
#define TIMEOUT       (50 * CGN_MSEC)
#define BACKOFF_FIRST (100 * CGN_MSEC)
#define BACKOFF_LAST  (5 * CGN_SEC)
#define UNREAD_MAX    ((size_t)65536)
#define HASH_MAX      64

enum call_kind { CALL_AUTH, CALL_SELECT, CALL_LOAD, CALL_PROBE, CALL_RUN };

struct call {
	uint32_t tag;
	enum call_kind kind;
	struct cgn_link link;
	/* Keys and arguments of a run, kept to send them again if the server has lost the script. */
	struct cgn_buf words;
	size_t n_words, n_keys;
	bool again;
	cgn_nsec deadline;
	redis_done_fn *done;
	void *user;
};

struct redis {
	uint32_t tag;
	struct cgn_loop *loop;
	struct redis_cfg cfg;
	char *probe;
	struct net_conn *conn; /* NULL: not connected, and |timer| runs until the next attempt. */
	bool ready;
	bool told; /* |on_state| was told that the client is not ready. */
	char hash[HASH_MAX + 1];
	struct cgn_link calls; /* Calls sent, in this order; the first has the earliest deadline. */
	size_t n_calls;
	struct cgn_buf unread;
	struct cgn_timer timer;
	struct cgn_backoff backoff;
};

static void connection_lose(struct redis *r, const struct cgn_err *why);

/* ---- calls ---- */

static void call_end(struct redis *r, struct call *c, const struct redis_answer *a)
{
	CGN_LIVE(c, CALL_TAG);
	cgn_list_drop(&c->link);
	r->n_calls--;
	if (c->done != NULL)
		c->done(c->user, a);
	cgn_buf_fini(&c->words);
	c->tag = 0;
	free(c);
}

static void calls_fail(struct redis *r, const struct cgn_err *why)
{
	struct cgn_link *l;
	while ((l = cgn_list_first(&r->calls)) != NULL)
		call_end(r, CGN_CONTAINER(l, struct call, link), &(struct redis_answer){.err = why});
}

/* Arm the timer for the first call's deadline, or disarm it. */
static void deadline_set(struct redis *r)
{
	struct cgn_link *l = cgn_list_first(&r->calls);
	cgn_nsec now = cgn_loop_now(r->loop);
	if (l == NULL) {
		cgn_timer_cancel(&r->timer);
		return;
	}
	const struct call *c = CGN_CONTAINER(l, struct call, link);
	cgn_timer_set(&r->timer, c->deadline > now ? c->deadline - now : 1);
}

static struct call *call_new(enum call_kind kind)
{
	struct call *c = CGN_NEW(struct call);
	c->tag = CALL_TAG;
	c->kind = kind;
	c->words.limit = REDIS_MAX_CALL;
	cgn_list_init(&c->link);
	return c;
}

/* |head|: the words before the call's own. The call becomes the last one in flight. */
static void call_send(struct redis *r, struct call *c, const struct cgn_str *head, size_t n_head,
	cgn_nsec timeout)
{
	struct cgn_buf b = {0};
	bool was_idle = cgn_list_empty(&r->calls);
	resp_put_array(&b, n_head + c->n_words);
	for (size_t i = 0; i < n_head; i++)
		resp_put_bulk(&b, head[i]);
	c->deadline = cgn_loop_now(r->loop) + timeout;
	cgn_list_push(&r->calls, &c->link);
	const struct iovec iov[] = {{b.p, b.n}, {c->words.p, c->words.n}};
	net_write(r->conn, iov, c->words.n > 0 ? 2 : 1);
	cgn_buf_fini(&b);
	if (was_idle)
		deadline_set(r);
}

static cgn_rc words_put(struct call *c, const struct cgn_str *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		resp_put_bulk(&c->words, words[i]);
	c->n_words += n;
	return c->words.bad ? CGN_RC_OF(CGN_TOO_LARGE) : CGN_OK;
}

static void run_send(struct redis *r, struct call *c)
{
	char n_keys[24];
	(void)snprintf(n_keys, sizeof n_keys, "%zu", c->n_keys);
	const struct cgn_str by_hash[] = {CGN_STR("EVALSHA"), cgn_str_of(r->hash), cgn_str_of(n_keys)};
	const struct cgn_str by_text[] = {CGN_STR("EVAL"), cgn_str_of(r->cfg.script), cgn_str_of(n_keys)};
	call_send(r, c, c->again ? by_text : by_hash, 3, r->cfg.timeout);
}

CGN_RC redis_run(struct redis *r, const struct cgn_str *keys, size_t n_keys, const struct cgn_str *args,
	size_t n_args, redis_done_fn *done, void *user)
{
	CGN_LIVE(r, REDIS_TAG);
	if (!r->ready)
		return CGN_RC_OF(CGN_UNAVAILABLE);
	if (r->n_calls >= REDIS_MAX_CALLS)
		return CGN_RC_OF(CGN_OVERLOADED);
	struct call *c = call_new(CALL_RUN);
	cgn_rc rc = words_put(c, keys, n_keys);
	if (cgn_ok(rc))
		rc = words_put(c, args, n_args);
	if (!cgn_ok(rc)) {
		cgn_buf_fini(&c->words);
		free(c);
		return rc;
	}
	c->n_keys = n_keys;
	c->done = done;
	c->user = user;
	c->again = unlikely_way(UNLIKELY_script_sent);
	r->n_calls++;
	run_send(r, c);
	return CGN_OK;
}

/* ---- the handshake: AUTH, SELECT, SCRIPT LOAD, and a key that is written ---- */

static void step_send(struct redis *r, enum call_kind kind, const struct cgn_str *words, size_t n)
{
	r->n_calls++;
	call_send(r, call_new(kind), words, n, HANDSHAKE);
}

static void step_after(struct redis *r, enum call_kind last);

static void handshake_start(struct redis *r)
{
	const struct redis_url *u = &r->cfg.url;
	const struct cgn_str words[] = {CGN_STR("AUTH"), cgn_str_of(u->user), cgn_str_of(u->password)};
	const struct cgn_str only_password[] = {words[0], words[2]};
	if (u->password[0] == '\0')
		step_after(r, CALL_AUTH);
	else if (u->user[0] != '\0')
		step_send(r, CALL_AUTH, words, 3);
	else
		step_send(r, CALL_AUTH, only_password, 2);
}

static void became_ready(struct redis *r)
{
	r->ready = true;
	r->told = false;
	if (r->cfg.on_state != NULL)
		r->cfg.on_state(r->cfg.user, true, NULL);
}

static void step_after(struct redis *r, enum call_kind last)
{
	char db[16];
	(void)snprintf(db, sizeof db, "%u", r->cfg.url.db);
	const struct cgn_str choose[] = {CGN_STR("SELECT"), cgn_str_of(db)};
	const struct cgn_str load[] = {CGN_STR("SCRIPT"), CGN_STR("LOAD"), cgn_str_of(r->cfg.script)};
	const struct cgn_str probe[] = {CGN_STR("SET"), cgn_str_of(r->probe), CGN_STR("1"), CGN_STR("PX"),
		CGN_STR("1000")};
	if (last == CALL_AUTH && r->cfg.url.db != 0)
		step_send(r, CALL_SELECT, choose, 2);
	else if (last == CALL_AUTH || last == CALL_SELECT)
		step_send(r, CALL_LOAD, load, 3);
	else if (last == CALL_LOAD)
		step_send(r, CALL_PROBE, probe, 5);
	else
		became_ready(r);
}

/* ---- answers ---- */

static void reply_is_invalid(struct redis *r, const char *what)
{
	struct cgn_err why = {.code = CGN_UNAVAILABLE};
	(void)snprintf(why.msg, sizeof why.msg,
		"the server is not a Redis, or does not answer as the script does: %s", what);
	connection_lose(r, &why);
}

/* Report only the first word of a refusal of AUTH: a server that does not know AUTH repeats what it was sent,
 * with the password. */
static void call_refused(struct redis *r, enum call_kind kind, struct cgn_str text)
{
	struct cgn_err why = {.code = CGN_UNAVAILABLE};
	if (kind == CALL_AUTH)
		text = cgn_str_split(&text, ' ');
	(void)snprintf(why.msg, sizeof why.msg, "Redis refuses%s: %.*s", kind == CALL_AUTH ? " AUTH" : "",
		(int)(text.n < 120 ? text.n : 120), text.p);
	for (char *p = why.msg; *p != '\0'; p++)
		*p = *p >= ' ' && *p <= '~' ? *p : '?';
	connection_lose(r, &why);
}

static void step_answered(struct redis *r, struct call *c, const struct resp_value *v)
{
	enum call_kind kind = c->kind;
	if (kind == CALL_LOAD && (v->type != RESP_BULK || !cgn_str_copyz(r->hash, sizeof r->hash, v->text))) {
		reply_is_invalid(r, "no hash of a script");
		return;
	}
	call_end(r, c, &(struct redis_answer){0});
	step_after(r, kind);
}

/* Accept an array of integers, or a single integer. */
static bool values_take(struct cgn_str rest, const struct resp_value *head, int64_t *values, size_t *n)
{
	struct resp_value v = *head;
	const char *why;
	*n = head->type == RESP_ARRAY ? head->n : 1;
	if (*n > REDIS_MAX_VALUES)
		return false;
	for (size_t i = 0; i < *n; i++) {
		if (head->type == RESP_ARRAY && resp_take(&rest, &v, &why) != RESP_GOT)
			return false;
		if (v.type != RESP_NUMBER)
			return false;
		values[i] = v.number;
	}
	return true;
}

static void run_answered(struct redis *r, struct call *c, struct cgn_str rest, const struct resp_value *head)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	int64_t values[REDIS_MAX_VALUES];
	size_t n;
	if (!values_take(rest, head, values, &n)) {
		reply_is_invalid(r, "no list of numbers");
		return;
	}
	cgn_backoff_reset(&r->backoff); /* The server works, so the next failure waits the first delay. */
	call_end(r, c, &(struct redis_answer){&fine, values, n});
}

/* Handle one whole reply. */
static void on_reply(struct redis *r, struct cgn_str reply)
{
	struct cgn_link *l = cgn_list_first(&r->calls);
	struct resp_value v;
	const char *why;
	CGN_MUST(resp_take(&reply, &v, &why) == RESP_GOT);
	if (l == NULL) {
		reply_is_invalid(r, "an answer that nobody asked for");
		return;
	}
	struct call *c = CGN_CONTAINER(l, struct call, link);
	CGN_LIVE(c, CALL_TAG);
	if (v.type == RESP_ERROR && c->kind == CALL_RUN && !c->again && cgn_str_starts(v.text, "NOSCRIPT")) {
		/* The server's scripts were flushed: send the script's text with this call; the server keeps
		 * it from then on. */
		c->again = true;
		cgn_list_drop(&c->link);
		run_send(r, c);
	} else if (v.type == RESP_ERROR) {
		call_refused(r, c->kind, v.text);
	} else if (c->kind == CALL_RUN) {
		run_answered(r, c, reply, &v);
	} else {
		step_answered(r, c, &v);
	}
}

static void on_data(struct net_conn *conn, void *user, const uint8_t *p, size_t n)
{
	static const struct cgn_err moved = {.code = CGN_UNAVAILABLE,
		.where = "redis",
		.msg = "the name of Redis stands for another address now"};
	struct redis *r = user;
	CGN_LIVE(r, REDIS_TAG);
	cgn_buf_add(&r->unread, p, n);
	if (r->unread.bad) {
		reply_is_invalid(r, "too long an answer");
		return;
	}
	size_t at = 0, len;
	const char *why = "";
	enum resp_outcome o = RESP_GOT;
	while (o == RESP_GOT && r->conn == conn) {
		struct cgn_str rest = {r->unread.p + at, r->unread.n - at};
		o = resp_whole(rest, &len, &why);
		if (o != RESP_GOT)
			break;
		at += len;
		on_reply(r, (struct cgn_str){rest.p, len});
	}
	if (r->conn != conn)
		return; /* The connection was lost in between. */
	cgn_buf_eat(&r->unread, at);
	if (o == RESP_BAD)
		reply_is_invalid(r, why);
	else if (r->ready && cgn_list_empty(&r->calls) && net_is_moved(conn))
		connection_lose(r, &moved);
	else
		deadline_set(r);
}

/* ---- coming and going ---- */

static void on_open(struct net_conn *c, void *user)
{
	(void)c;
	struct redis *r = user;
	CGN_LIVE(r, REDIS_TAG);
	handshake_start(r);
}

static void on_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	struct redis *r = user;
	CGN_LIVE(r, REDIS_TAG);
	struct cgn_err closed = {.code = CGN_UNAVAILABLE, .msg = "Redis closed the connection"};
	r->conn = NULL;
	connection_lose(r, why->code != CGN_FINE ? why : &closed);
}

static const struct net_conn_ops conn_ops = {.on_open = on_open, .on_data = on_data, .on_close = on_close};

static void drop_conn(struct redis *r)
{
	struct net_conn *c = r->conn;
	r->conn = NULL;
	if (c == NULL)
		return;
	net_conn_take(c, NULL, NULL); /* The connection ends by itself. */
	net_abort(c);
}

static void connection_lose(struct redis *r, const struct cgn_err *why)
{
	struct cgn_err copy = *why;
	bool tell = !r->told;
	r->ready = false;
	r->told = true;
	drop_conn(r);
	cgn_buf_fini(&r->unread);
	cgn_timer_set(&r->timer, cgn_backoff_next(&r->backoff));
	calls_fail(r, &copy);
	if (tell && r->cfg.on_state != NULL)
		r->cfg.on_state(r->cfg.user, false, &copy);
}

static void connection_dial(struct redis *r)
{
	const struct net_dial d = {.addr = r->cfg.url.addr,
		.tls = r->cfg.url.tls ? r->cfg.tls : NULL,
		.connect_timeout = HANDSHAKE};
	struct cgn_err err;
	if (!cgn_ok(net_connect(r->loop, &d, &conn_ops, r, &r->conn, &err)))
		connection_lose(r, &err);
}

static void on_timer(struct cgn_timer *t)
{
	struct redis *r = CGN_CONTAINER(t, struct redis, timer);
	CGN_LIVE(r, REDIS_TAG);
	if (r->conn == NULL)
		connection_dial(r);
	else
		connection_lose(r,
			&(struct cgn_err){.code = CGN_DEADLINE, .msg = "Redis did not answer in time"});
}

struct redis *redis_new(struct cgn_loop *l, const struct redis_cfg *cfg)
{
	struct redis *r = CGN_NEW(struct redis);
	CGN_MUST(cfg->script != NULL && (cfg->tls != NULL || !cfg->url.tls));
	r->tag = REDIS_TAG;
	r->loop = l;
	r->cfg = *cfg;
	r->cfg.timeout = cfg->timeout > 0 ? cfg->timeout : TIMEOUT;
	r->probe = cgn_str_dupz(cgn_str_of(cfg->probe));
	r->unread.limit = UNREAD_MAX;
	r->backoff = (struct cgn_backoff){.first = BACKOFF_FIRST, .last = BACKOFF_LAST};
	cgn_list_init(&r->calls);
	cgn_timer_init(&r->timer, l, on_timer);
	cgn_timer_set(&r->timer, 1); /* on_state is never called before redis_new returned. */
	return r;
}

void redis_free(struct redis **take)
{
	struct redis *r = CGN_TAKE_LIVE(take, REDIS_TAG);
	if (r == NULL)
		return;
	r->ready = false; /* A callback that is told now must not start a new call. */
	cgn_timer_cancel(&r->timer);
	drop_conn(r);
	calls_fail(r, &(struct cgn_err){.code = CGN_CANCELLED, .msg = "the client of Redis was closed"});
	cgn_buf_fini(&r->unread);
	explicit_bzero(&r->cfg.url, sizeof r->cfg.url);
	free(r->probe);
	r->tag = 0;
	free(r);
}

bool redis_is_ready(const struct redis *r)
{
	CGN_LIVE(r, REDIS_TAG);
	return r->ready;
}
