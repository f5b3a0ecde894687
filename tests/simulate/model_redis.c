/* SPDX-License-Identifier: Apache-2.0 */
/* model_redis: the keys, the script, and the connections. */
#include "model_redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../world/world_priv.h"
#include "base/resp/resp.h"
#include "io/net/net/net.h"

#define KEYS    64
#define WINDOWS 4 /* Windows of one budget; the script keeps three */
#define WORDS   128
#define HASH    "0123456789abcdef0123456789abcdef01234567"

struct key {
	char name[200];
	bool budget;
	int64_t full_at; /* us; a bucket's */
	int64_t ends;    /* When the key expires, in us; INT64_MAX: never */
	struct {
		int64_t number, spent;
	} windows[WINDOWS];
	size_t n;
};
struct model_redis {
	struct world_host *host;
	struct world_proc *proc;
	struct key keys[KEYS];
	size_t n;
	bool has_script;
	uint64_t slow;
	const char *refusal;
	struct redis_deed *deeds;
	size_t n_deeds, cap_deeds;
	struct cgn_loop *loop; /* The server's own loop */
};
static struct model_redis *the_redis; /* A world has one. */

/* ---- keys ---- */

static int64_t now_us(const struct model_redis *r)
{
	return ((int64_t)(world.wall_base + world.now) + r->host->skew) / 1000;
}

static void key_drop(struct model_redis *r, struct key *k)
{
	*k = r->keys[--r->n];
}

/* Return the key, also one that must be made; NULL: it is not there. */
static struct key *key_get(struct model_redis *r, struct cgn_str name, bool make)
{
	for (size_t i = 0; i < r->n; i++)
		if (cgn_str_is(name, r->keys[i].name)) {
			if (r->keys[i].ends > now_us(r))
				return &r->keys[i];
			key_drop(r, &r->keys[i]);
			break;
		}
	if (!make)
		return NULL;
	if (r->n == KEYS)
		world_fail("the model of Redis has too few keys");
	struct key *k = &r->keys[r->n++];
	*k = (struct key){.ends = INT64_MAX};
	(void)cgn_str_copyz(k->name, sizeof k->name, name);
	return k;
}

/* ---- the script: see rate_script ---- */

static int64_t most_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t least_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* The number of the window of |kind| that |seconds| is in; |*ends| in seconds. */
static int64_t window_at(struct cgn_str kind, int64_t seconds, int64_t *ends)
{
	int64_t size = cgn_str_is(kind, "minute") ? 60 : 86400;
	time_t t = (time_t)seconds;
	struct tm tm;
	if (!cgn_str_is(kind, "month")) {
		*ends = (seconds / size + 1) * size;
		return seconds / size;
	}
	(void)gmtime_r(&t, &tm);
	int64_t number = (tm.tm_year - 70) * 12 + tm.tm_mon;
	struct tm next = {.tm_year = tm.tm_year, .tm_mon = tm.tm_mon + 1, .tm_mday = 1};
	*ends = timegm(&next);
	return number;
}

static size_t window_find(const struct key *k, int64_t number)
{
	size_t i = 0;
	while (i < k->n && k->windows[i].number != number)
		i++;
	return i;
}

static int64_t window_begun(const struct key *k, int64_t number)
{
	size_t latest = 0;
	for (size_t i = 0; i < k->n; i++) {
		if (k->windows[i].number < number)
			return 0;
		latest = k->windows[i].number > k->windows[latest].number ? i : latest;
	}
	return k->n > 0 ? k->windows[latest].spent : 0;
}

static int64_t spent_in(struct key *k, int64_t number)
{
	size_t i = window_find(k, number), oldest = 0;
	if (i < k->n)
		return k->windows[i].spent;
	int64_t begun = window_begun(k, number);
	for (i = 0; i < k->n; i++)
		oldest = k->windows[i].number < k->windows[oldest].number ? i : oldest;
	if (k->n >= 3)
		k->windows[oldest] = k->windows[--k->n];
	k->windows[k->n].number = number;
	k->windows[k->n++].spent = begun;
	return begun;
}

struct run {
	size_t n;
	bool settles, refused;
	struct cgn_str key[WORDS], kind[WORDS];
	int64_t room[WORDS], cost[WORDS], number[WORDS], full[WORDS], out[1 + 3 * WORDS];
};

static void look_at_rate(struct model_redis *r, struct run *run, size_t i, int64_t now)
{
	struct key *k = key_get(r, run->key[i], false);
	int64_t most = run->room[i] + INT64_C(3600000000);
	int64_t ahead = least_of(most_of((k != NULL ? k->full_at : now) - now, 0), most);
	run->full[i] = least_of(most_of(ahead + run->cost[i], 0), most);
	run->out[1 + 3 * i] = ahead;
	run->out[2 + 3 * i] = run->settles ? 0 : most_of(ahead + run->cost[i] - run->room[i], 0);
	run->out[3 + 3 * i] = 0;
}

static void look_at_budget(struct model_redis *r, struct run *run, size_t i, int64_t now)
{
	int64_t ends, number = window_at(run->kind[i], now / 1000000, &ends);
	struct key *k = key_get(r, run->key[i], true);
	k->budget = true;
	int64_t spent = spent_in(k, number);
	bool full = spent >= run->room[i] || spent + run->cost[i] > run->room[i];
	k->ends = (ends + 86400) * 1000000;
	run->number[i] = number;
	run->out[1 + 3 * i] = spent;
	run->out[2 + 3 * i] = full ? most_of(ends * 1000000 - now, 1) : 0;
	run->out[3 + 3 * i] = number;
}

static void take_rate(struct model_redis *r, struct run *run, size_t i, int64_t now)
{
	run->out[1 + 3 * i] = run->full[i];
	struct key *k = key_get(r, run->key[i], run->full[i] > 0);
	if (run->full[i] > 0) {
		k->full_at = now + run->full[i];
		k->ends = now + (run->full[i] + 999) / 1000 * 1000;
	} else if (k != NULL) {
		key_drop(r, k);
	}
}

static void take_budget(struct model_redis *r, struct run *run, size_t i)
{
	struct key *k = key_get(r, run->key[i], false);
	size_t w = k != NULL ? window_find(k, run->number[i]) : 0;
	if (k == NULL || w == k->n)
		return;
	k->windows[w].spent += run->cost[i];
	run->out[1 + 3 * i] = k->windows[w].spent;
	k->windows[w].spent = most_of(k->windows[w].spent, 0);
}

static void deed_note(struct model_redis *r, const struct run *run, size_t i, const char *from)
{
	if (r->n_deeds == r->cap_deeds) {
		r->cap_deeds = r->cap_deeds > 0 ? 2 * r->cap_deeds : 256;
		r->deeds = CGN_GROWN(r->deeds, r->cap_deeds);
	}
	r->deeds[r->n_deeds++] = (struct redis_deed){.at = world_now(),
		.from = from,
		.key = cgn_str_dupz(run->key[i]),
		.settles = run->settles,
		.granted = !run->refused,
		.cost = run->cost[i],
		.room = run->room[i],
		.spent = run->out[1 + 3 * i]};
}

static void script_run(struct model_redis *r, struct run *run, const char *from)
{
	int64_t now = now_us(r);
	for (size_t i = 0; i < run->n; i++) {
		if (cgn_str_is(run->kind[i], "rate"))
			look_at_rate(r, run, i, now);
		else if (!run->settles)
			look_at_budget(r, run, i, now);
		run->refused = run->refused || run->out[2 + 3 * i] > 0;
	}
	run->out[0] = !run->refused;
	for (size_t i = 0; i < run->n && !run->refused; i++)
		if (cgn_str_is(run->kind[i], "rate"))
			take_rate(r, run, i, now);
		else
			take_budget(r, run, i);
	for (size_t i = 0; i < run->n; i++)
		deed_note(r, run, i, from);
}

/* ---- commands ---- */

struct client {
	struct net_conn *conn;
	struct cgn_timer timer; /* A slow server: commands are read, or answers sent, when it fires */
	struct cgn_buf in, out;
	char *from; /* Stays as long as the world */
};

static int64_t number_of(struct cgn_str s)
{
	char text[32];
	(void)cgn_str_copyz(text, sizeof text, s);
	return strtoll(text, NULL, 10);
}

static void run_fill(struct run *run, const struct cgn_str *words, size_t n_keys)
{
	const struct cgn_str *keys = words, *args = words + n_keys;
	run->n = n_keys;
	run->settles = cgn_str_is(args[0], "1");
	for (size_t i = 0; i < n_keys; i++) {
		run->key[i] = keys[i];
		run->kind[i] = args[1 + 4 * i];
		run->room[i] = number_of(args[2 + 4 * i]);
		run->cost[i] = number_of(args[3 + 4 * i]);
		run->number[i] = number_of(args[4 + 4 * i]);
	}
}

static void command_eval(struct client *c, const struct cgn_str *words, size_t n)
{
	size_t n_keys = n > 2 ? (size_t)number_of(words[2]) : 0;
	if (n != 3 + n_keys + 1 + 4 * n_keys || n_keys == 0)
		world_fail("Redis gets a script's call of %zu words with %zu keys", n, n_keys);
	struct run *run = CGN_NEW(struct run);
	run_fill(run, words + 3, n_keys);
	script_run(the_redis, run, c->from);
	resp_put_array(&c->out, 1 + 3 * run->n);
	for (size_t i = 0; i < 1 + 3 * run->n; i++)
		cgn_buf_fmt(&c->out, ":%lld\r\n", (long long)run->out[i]);
	free(run);
}

static void command_run(struct client *c, const struct cgn_str *words, size_t n)
{
	struct model_redis *r = the_redis;
	if (r->refusal != NULL)
		cgn_buf_fmt(&c->out, "-%s\r\n", r->refusal);
	else if (cgn_str_is(words[0], "EVALSHA") && !r->has_script)
		cgn_buf_putz(&c->out, "-NOSCRIPT No matching script. Please use EVAL.\r\n");
	else if (cgn_str_is(words[0], "EVALSHA"))
		command_eval(c, words, n);
	else if (cgn_str_is(words[0], "EVAL")) {
		r->has_script = true;
		command_eval(c, words, n);
	} else if (cgn_str_is(words[0], "SCRIPT")) {
		r->has_script = true;
		cgn_buf_putz(&c->out, "$40\r\n" HASH "\r\n");
	} else if (cgn_str_is(words[0], "AUTH") || cgn_str_is(words[0], "SELECT") ||
		cgn_str_is(words[0], "SET"))
		cgn_buf_putz(&c->out, "+OK\r\n");
	else
		cgn_buf_fmt(&c->out, "-ERR unknown command '%.*s'\r\n", (int)words[0].n, words[0].p);
}

/* Run the commands that have arrived whole. */
static void client_read(struct client *c)
{
	struct cgn_str words[WORDS];
	struct resp_value v;
	const char *why;
	size_t len;
	while (resp_whole(cgn_buf_view(&c->in), &len, &why) == RESP_GOT) {
		struct cgn_str rest = {c->in.p, len};
		if (resp_take(&rest, &v, &why) != RESP_GOT || v.type != RESP_ARRAY || v.n == 0 || v.n > WORDS)
			world_fail("Redis gets no command");
		size_t n = v.n;
		for (size_t i = 0; i < n && resp_take(&rest, &v, &why) == RESP_GOT; i++)
			words[i] = v.text;
		command_run(c, words, n);
		cgn_buf_eat(&c->in, len);
	}
}

static void client_write(struct client *c)
{
	if (c->out.n > 0)
		net_write(c->conn, &(struct iovec){c->out.p, c->out.n}, 1);
	c->out.n = 0;
}

static void on_client_timer(struct cgn_timer *t)
{
	struct client *c = CGN_CONTAINER(t, struct client, timer);
	client_read(c);
	client_write(c);
}

static void on_data(struct net_conn *conn, void *user, const uint8_t *p, size_t n)
{
	struct client *c = user;
	(void)conn;
	cgn_buf_add(&c->in, p, n);
	if (the_redis->slow == 0 || world_chance(2))
		client_read(c);
	if (the_redis->slow == 0)
		client_write(c);
	else if (c->timer.at == 0)
		cgn_timer_set(&c->timer, 1 + world_draw(the_redis->slow));
}

static void on_close(struct net_conn *conn, void *user, const struct cgn_err *why)
{
	struct client *c = user;
	(void)conn;
	(void)why;
	cgn_timer_cancel(&c->timer);
	cgn_buf_fini(&c->in);
	cgn_buf_fini(&c->out);
	free(c);
}

static void on_accept(void *user, struct net_conn *conn)
{
	static const struct net_conn_ops ops = {.on_data = on_data, .on_close = on_close};
	struct model_redis *r = user;
	struct cgn_str peer = net_peer(conn);
	struct client *c = CGN_NEW(struct client);
	*c = (struct client){.conn = conn, .from = cgn_str_dupz(cgn_str_split(&peer, ':'))};
	cgn_timer_init(&c->timer, r->loop, on_client_timer);
	net_conn_take(conn, &ops, c);
}

static int redis_main(int argc, char **argv)
{
	struct model_redis *r = the_redis;
	struct net_listener *listener;
	struct cgn_err err;
	const struct net_listen_cfg cfg = {.addr = "0.0.0.0:6379"};
	(void)argc;
	(void)argv;
	if (!cgn_ok(cgn_loop_new(&r->loop, &err)) ||
		!cgn_ok(net_listen(r->loop, &cfg, on_accept, r, &listener, &err)))
		world_fail("Redis cannot serve: %s", err.msg);
	cgn_loop_run(r->loop);
	return 0;
}

/* ---- for scenarios ---- */

struct model_redis *model_redis_new(struct world_host *h)
{
	the_redis = CGN_NEW(struct model_redis);
	the_redis->host = h;
	return the_redis;
}

bool model_redis_runs(const struct model_redis *r)
{
	return r->proc != NULL && world_alive(r->proc);
}

void model_redis_start(struct model_redis *r)
{
	static const char *const argv[] = {"redis", NULL};
	if (model_redis_runs(r))
		return;
	r->has_script = false;
	r->slow = 0;
	r->refusal = NULL;
	r->proc = world_start(r->host, "redis", redis_main, argv);
}

void model_redis_kill(struct model_redis *r, bool keeps)
{
	if (!model_redis_runs(r))
		return;
	world_kill(r->proc);
	if (!keeps)
		r->n = 0;
}

void model_redis_pause(struct model_redis *r, bool paused)
{
	if (model_redis_runs(r))
		world_pause(r->proc, paused);
}

void model_redis_slow(struct model_redis *r, uint64_t most)
{
	r->slow = most;
	world_tell("Redis answers within %.3f s", (double)most / 1e9);
}

void model_redis_refuse(struct model_redis *r, const char *error)
{
	r->refusal = error;
	world_tell("Redis answers %s", error != NULL ? error : "well again");
}

void model_redis_wipe(struct model_redis *r)
{
	r->n = 0;
	r->has_script = false;
	world_tell("Redis has lost everything");
}

void model_redis_forget_scripts(struct model_redis *r)
{
	r->has_script = false;
	world_tell("Redis has lost its scripts");
}

const struct redis_deed *model_redis_deeds(const struct model_redis *r, size_t *n)
{
	*n = r->n_deeds;
	return r->deeds;
}

int64_t model_redis_day(const struct model_redis *r)
{
	return now_us(r) / 1000000 / 86400;
}

int64_t model_redis_spent(const struct model_redis *r, const char *name)
{
	for (size_t i = 0; i < r->n; i++) {
		const struct key *k = &r->keys[i];
		size_t n = strlen(k->name), want = strlen(name);
		if (n < want || strcmp(k->name + n - want, name) != 0)
			continue;
		size_t w = window_find(k, model_redis_day(r));
		return w < k->n ? k->windows[w].spent : window_begun(k, model_redis_day(r));
	}
	return -1;
}
